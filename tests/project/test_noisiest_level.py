"""What the noisiest level is compared with, and its stored losses."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributions import Normal

from danp_lib import Sawtooth
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import pretrained_path
from danp_lib.training.objective import BatchConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("noisiest_level")


def test_every_task_is_at_the_noisiest_level(benchmark: Any) -> None:
    levels = benchmark.noisiest_only(3, BatchConfig(), generator=torch.Generator())
    assert levels.tolist() == [3] * 16


def test_where_one_wave_is_left_the_best_gaussian_is_the_noise_around_it(benchmark: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    task = Sawtooth().sample_task(1, context_size=30, generator=generator)
    noise = math.sqrt(0.02) * torch.randn(50, dtype=torch.float64, generator=generator)
    y = 0.9 * task.yt[0, :, 0].double() + noise
    exact, best = benchmark.of_the_truth(task, y, 0.9, 0.02)
    around = Normal(0.0, math.sqrt(0.02)).log_prob(noise)
    assert exact == pytest.approx(float(around.sum()), abs=1e-3)
    assert best == pytest.approx(exact, abs=1e-6)


def test_where_several_are_left_it_loses_on_average(benchmark: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    task = Sawtooth().sample_task(32, context_size=1, generator=generator)
    y = 0.9 * task.yt + math.sqrt(0.02) * torch.randn(task.yt.shape, generator=generator)
    exact, best = torch.tensor(
        [benchmark.of_the_truth(task[n], y[n, :, 0].double(), 0.9, 0.02) for n in range(32)]
    ).T
    # With one point the stored mean is 0.40.
    assert float((exact - best).mean()) / 50 == pytest.approx(0.40, abs=0.1)


def test_the_stored_losses_are_of_the_model_that_is_shipped(benchmark: Any) -> None:
    path = ROOT / "results" / "noisiest-level.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    weights = sha256(pretrained_path(benchmark.SHARED))
    assert stored["weights"] == {benchmark.SHARED: weights}
    shape = len(benchmark.SIZES), benchmark.TASKS_PER_SIZE
    for by_size in stored["losses"].values():
        assert torch.tensor(by_size).shape == shape
    price = torch.tensor(stored["losses"]["best Gaussian"]).mean(dim=1)
    assert price[0] > 0.3
    assert price[3:].abs().max() < 1e-2


def test_training_draws_the_patched_levels(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr(benchmark, "noisiest_only", refuse)
    with pytest.raises(InterruptedError):
        benchmark.trained_alone(tmp_path)
