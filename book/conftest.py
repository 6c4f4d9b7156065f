"""pytest in this folder: nbval runs the chapters in the interpreter that runs pytest."""

import json
import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Leave no choice of kernels; without nbval, pytest works all the same."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Chapters side by side, with all cores each, wait for one another for minutes.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if config.pluginmanager.hasplugin("nbval"):
        config.option.nbval_current_env = True
        _retry_kernel_start()


def _retry_kernel_start() -> None:
    """Try again where a kernel dies at its start: two that start at once may take one port."""
    from nbval import plugin

    start = plugin.RunningKernel

    def started(*args: object, **options: object) -> object:
        try:
            return start(*args, **options)
        except RuntimeError:
            return start(*args, **options)

    plugin.RunningKernel = started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the chapters that take longest first, so that none is left to run alone at the end."""

    def seconds(path: Path) -> int:
        notebook = path.suffix == ".ipynb"
        stored = (
            json.loads(path.read_text(encoding="utf-8"))
            if notebook
            else {"metadata": {}}
        )
        return int(stored["metadata"].get("seconds", 0))

    known = {path: seconds(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: -known[item.path])
