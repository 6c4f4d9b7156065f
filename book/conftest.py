"""pytest in this folder: nbval runs the chapters in the interpreter that runs pytest."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Leave no choice of kernels; without nbval, pytest works all the same."""
    if config.pluginmanager.hasplugin("nbval"):
        config.option.nbval_current_env = True
