"""What a rollout's samples are compared with, and the stored losses."""

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import pretrained_path

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("rollout_samples")


def test_groups_of_samples_are_defended_mixtures(benchmark: Any) -> None:
    densities = torch.tensor([[1.0, 3.0, 8.0, 4.0]], dtype=torch.float64)
    guard = torch.tensor([2.0], dtype=torch.float64)
    for size, means in ((1, [1, 3, 8, 4]), (2, [2, 6]), (4, [4])):
        found = benchmark.group_means(densities.log(), guard.log(), 0.25, size)
        expected = sum(math.log(0.75 * mean + 0.25 * 2.0) for mean in means) / len(means)
        assert found.tolist() == pytest.approx([expected], rel=1e-12)


def test_the_stored_losses_are_of_the_model_that_is_shipped(benchmark: Any) -> None:
    path = ROOT / "results" / "first-targets.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["weights"] == sha256(pretrained_path(benchmark.NAME))
    assert tuple(stored["context_sizes"]) == benchmark.SIZES
    expected = [
        size + step
        for size in benchmark.SIZES
        for _ in range(benchmark.TASKS_PER_SIZE)
        for step in range(50)
    ]
    assert stored["known"] == expected
    lost = torch.tensor([stored["losses"][str(count)] for count in benchmark.FEWER])
    few = torch.tensor(expected) < 8
    # Fewer samples lose more on average, and nearly all of it is lost while few points are known.
    assert (lost.mean(dim=1).diff() < 0.0).all()
    assert lost[0, few].mean() > 20.0 * lost[0, ~few].mean()
