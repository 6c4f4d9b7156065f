"""Scores of the marginals on the benchmark."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from randomness import rng
from small_models import scored_config, scored_danp
from torch import Tensor

from danp_lib._random import spawn
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.scores import crps, in_central_interval
from danp_lib.evaluation.curves import score_samples
from danp_lib.evaluation.marginals import MarginalRecord, Marginals, score_marginals
from danp_lib.evaluation.score import evaluate
from danp_lib.evaluation.used import score_used
from danp_lib.exact.oracles import (
    ORACLES,
    GaussianProcessOracle,
    Oracle,
    SawtoothOracle,
    SquareWaveOracle,
)
from danp_lib.models.convnp import ARConvCNP, ConvCNP, ConvGNP
from danp_lib.storage.tasks import benchmark_tasks

pytestmark = pytest.mark.usefixtures("same_weights")


@pytest.fixture(scope="module")
def tasks() -> Task:
    """Four benchmark tasks, with 0, 5, 10 and 15 context points."""
    return benchmark_tasks("gp")[torch.arange(0, 200, 50)]


@pytest.mark.parametrize("value", [9.0, float("nan")])
def test_masked_targets_are_refused(tasks: Task, value: float) -> None:
    mask, y = tasks.target.mask.clone(), tasks.yt.clone()
    mask[2, 7], y[2, 7] = False, value
    padded = replace(tasks, target=PointSet(tasks.xt, y, mask))
    for model in (ConvGNP(scored_config()), GaussianProcessOracle()):
        with pytest.raises(ValueError, match=r"target point .*\[2, 7\]"):
            score_marginals(model, padded, generator=rng(0))


def test_a_missing_target_is_refused(tasks: Task) -> None:
    y = tasks.yt.clone()
    y[1, 4] = torch.nan
    missing = replace(tasks, target=PointSet(tasks.xt, y))
    with pytest.raises(ValueError, match=r"target\.y .*\[1, 4\]"):
        score_marginals(ConvGNP(scored_config()), missing, generator=rng(0))


def test_a_record_holds_the_means_over_the_targets(tasks: Task) -> None:
    model = ConvGNP(scored_config())
    result = score_marginals(model, tasks, generator=rng(0))
    predictive = model.predict(tasks.context, tasks.xt)
    y = tasks.yt.double()
    scores = crps(predictive, y).mean(dim=(1, 2))
    inside = {
        level: in_central_interval(predictive, y, level).double().mean(dim=(1, 2))
        for level in (0.5, 0.9)
    }
    for row, record in enumerate(result.tasks):
        assert record.context_size == 5 * row
        assert record.crps == pytest.approx(float(scores[row]), rel=1e-5)
        assert record.coverage_50 == pytest.approx(float(inside[0.5][row]), abs=1e-12)
        assert record.coverage_90 == pytest.approx(float(inside[0.9][row]), abs=1e-12)
    assert result.crps == pytest.approx(float(scores.mean()), rel=1e-5)
    assert result.crps_ci95 == pytest.approx(1.96 * float(scores.std()) / 2, rel=1e-4)
    assert result.coverage_50 == pytest.approx(float(inside[0.5].mean()))
    assert result.coverage_90 == pytest.approx(float(inside[0.9].mean()))
    assert 0.0 < result.coverage_50 < result.coverage_90 < 1.0  # else the lines above say little
    assert (result.num_tasks, result.num_samples) == (4, 1)
    assert result.seconds == pytest.approx(sum(record.seconds for record in result.tasks))


def test_a_danp_is_scored_on_its_own_mixture(tasks: Task) -> None:
    model = scored_danp(1)
    result = score_marginals(model, tasks, num_samples=6, generator=rng(1))
    task = tasks[2]
    mixture = model.predict(task.context, task.xt, num_samples=6, generator=spawn(rng(1), 4)[2])
    expected = float(crps(mixture, task.yt.double()).mean())
    assert result.tasks[2].crps == pytest.approx(expected, rel=1e-6)
    assert result.num_samples == 6


def test_an_ar_convcnp_is_scored_as_the_network_that_it_is(tasks: Task) -> None:
    model = ARConvCNP(scored_config(rank=0))
    network = ConvCNP(scored_config(rank=0))
    network.load_state_dict(model.state_dict())
    a, b = (score_marginals(m, tasks, generator=rng(0)) for m in (model, network))
    assert [replace(t, seconds=0.0) for t in a.tasks] == [replace(t, seconds=0.0) for t in b.tasks]
    assert a.num_samples == 1


@pytest.mark.parametrize(
    "oracle",
    [SawtoothOracle(num_nodes=64), SquareWaveOracle(num_nodes=64), GaussianProcessOracle()],
)
def test_an_oracle_scores_better_than_a_fresh_network(oracle: Oracle) -> None:
    dataset = next(name for name, kind in ORACLES.items() if type(oracle) is kind)
    bare, some = (benchmark_tasks(dataset)[torch.arange(n, n + 10)] for n in (0, 100))
    fresh = score_marginals(ConvCNP(scored_config(rank=0)), some, generator=rng(0))
    assert score_marginals(oracle, some, generator=rng(0)).crps < 0.5 * fresh.crps
    result = score_marginals(oracle, bare, generator=rng(0))
    # Without a context there is no certainty, and the floor is small beside what is left open. The
    # values of a square wave are 0 and 1 alone, so that an interval holds one of them or both.
    if dataset != "square":
        assert result.coverage_50 == pytest.approx(0.5, abs=0.15)
        assert result.coverage_90 == pytest.approx(0.9, abs=0.1)


def test_no_records_are_refused() -> None:
    with pytest.raises(ValueError, match="record"):
        Marginals.summarize([], num_samples=1)
    one = Marginals.summarize([MarginalRecord(0, 0.5, 0.4, 0.8, 1.0)], num_samples=3)
    assert (one.crps, one.crps_ci95, one.num_samples) == (0.5, None, 3)


class Nowhere(GaussianProcessOracle):
    """Its mean is not a number at one target, or infinite."""

    def predict(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        made = super().predict(context, xt)
        loc = made.loc.clone()
        loc[:, 3] = torch.nan if context.num_points else torch.inf
        return LowRankNormal(loc, made.cov_factor, made.cov_diag)


def test_a_predictive_that_is_no_number_is_no_miss(tasks: Task) -> None:
    compact = replace(tasks[1], context=tasks[1].context.compact())
    with pytest.raises(ValueError, match=r"CRPS must be finite, got nan .* 5 context points"):
        score_marginals(Nowhere(), compact, generator=rng(0))
    empty = replace(tasks[0], context=tasks[0].context.compact())
    with pytest.raises(ValueError, match=r"CRPS must be finite, got inf .* 0 context points"):
        score_marginals(Nowhere(), empty, generator=rng(0))


def test_what_is_no_model_is_refused(tasks: Task) -> None:
    functions: Any = (score_marginals, score_used, score_samples, evaluate)
    for score in functions:
        with pytest.raises(ValueError, match=r"^model must be a NeuralProcess, got str"):
            score("danp", tasks, generator=rng(0))
