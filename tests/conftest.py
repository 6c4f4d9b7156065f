"""Settings that every test shares."""

import os
from collections.abc import Iterator
from typing import Any

import matplotlib
import pytest
import torch
from hypothesis import settings

from danp_lib.evaluation.table import table

# No test opens a window; the chapters of the same session show their figures all the same.
matplotlib.use("Agg")

# The tests read what the clone ships.
os.environ.pop("DANP_DATA", None)

# The tests' tensors are too small to share: a second thread only waits, longest on a busy machine.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

# The same examples in every run, and no time limit on one: a slow machine is not a failure.
settings.register_profile("danp_lib", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("danp_lib")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread of PyTorch, whatever the settings above say."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shipped_table() -> dict[str, dict[str, dict[str, Any]]]:
    """Table 1 from the shipped results, which takes a second to read."""
    return table()


SLOWEST = (
    "test_workflow_miniature",
    "test_compiling",
    "test_stored_results",
    "test_stored_measures",
    "test_trained_waves",
    "test_workflow",
    "test_loop",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what opens a browser; put the files that take longest first, none alone at the end."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
    items.sort(key=lambda item: item.path.stem not in SLOWEST)
