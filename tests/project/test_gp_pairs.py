"""The three kinds of pairs on which a DANP was trained, and their stored scores."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from danp_lib.data.generators import GaussianProcess
from danp_lib.evaluation.score import mean_and_ci95
from danp_lib.models.danp import DANP
from danp_lib.training.recipes import recipe

ROOT = Path(__file__).parents[2]
MADE_BY = recipe("paper", model="danp", dataset="gp")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gp_pairs")


@pytest.fixture
def model() -> DANP:
    built = MADE_BY.build_model()
    assert isinstance(built, DANP)
    return built


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("pairs", ["mismatched", "shared"])
def test_only_a_noisy_target_of_mismatched_pairs_stands_elsewhere(
    benchmark: Any, model: DANP, pairs: str, level: int
) -> None:
    batch = benchmark.PAIRS[pairs](
        model,
        GaussianProcess(),
        MADE_BY.training.batch,
        levels=level,
        generator=torch.Generator().manual_seed(0),
    )
    assert batch.level == level
    # The sets of all levels lie at the inputs of level 0, and those above the target are given.
    first, second = batch.auxiliary
    assert torch.equal(first.x, second.x)
    assert [bool(points.mask.all()) for points in (first, second)] == [level < 1, level < 2]
    elsewhere = pairs == "mismatched" and level > 0
    assert torch.equal(batch.target.x, first.x) == (not elsewhere)
    # Either way the values are those at the inputs of level 0, noised.
    given = second.y if level < 2 else first.y
    both = torch.stack([batch.target.y, given]).flatten(start_dim=1)
    assert torch.corrcoef(both)[0, 1] > 0.85


def test_training_draws_the_patched_batches(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse_in_training(*args: Any, levels: int | None = None, **options: Any) -> Any:
        if levels is None:  # where a batch is for validation, its level is given
            raise InterruptedError
        return benchmark.PAIRS["independent"](*args, levels=levels, **options)

    monkeypatch.setitem(benchmark.PAIRS, "mismatched", refuse_in_training)
    with pytest.raises(InterruptedError):
        benchmark.train_until(1, "mismatched", tmp_path)


def test_a_stored_score_is_the_mean_of_its_tasks() -> None:
    stored = json.loads((ROOT / "results" / "gp-pairs.json").read_text(encoding="utf-8"))
    names = ("pairs", "steps", "inputs", "num_samples")
    keys = [tuple(record[name] for name in names) for record in stored["records"]]
    assert len(set(keys)) == len(keys) >= 18
    for record in stored["records"]:
        logs = torch.tensor(record["log_likelihoods"], dtype=torch.float64)
        assert len(logs) == 31 * stored["tasks_per_size"]
        found = record["average_likelihood"], record["average_likelihood_ci95"]
        assert mean_and_ci95(logs.exp()) == pytest.approx(found)
