"""What tests of scores share."""

from collections.abc import Iterator

import pytest
import torch

from danp_lib.data.points import Task
from danp_lib.storage.tasks import benchmark_tasks


@pytest.fixture
def same_weights() -> Iterator[None]:
    """PyTorch's layers draw their weights from the global generator only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="session")
def tasks() -> Task:
    """Eight benchmark tasks, two each with 0, 1, 2 and 3 context points."""
    return benchmark_tasks("gp")[torch.tensor([0, 1, 10, 11, 20, 21, 30, 31])]
