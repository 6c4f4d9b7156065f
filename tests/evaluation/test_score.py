"""The benchmark's score."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from randomness import rng
from small_models import scored_config, scored_danp
from torch import Tensor

from danp_lib._random import spawn
from danp_lib.data.points import PointSet, Task
from danp_lib.evaluation.score import (
    Evaluation,
    TaskRecord,
    evaluate,
    evaluate_task,
    papers_samples,
)
from danp_lib.exact.oracles import GaussianProcessOracle
from danp_lib.inference.autoregressive import ar_log_prob
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.convnp import ARConvCNP, ConvCNP, ConvGNP
from danp_lib.storage.tasks import benchmark_tasks

KEYS_OF_EVALUATE = {
    "average_likelihood",
    "average_likelihood_ci95",
    "mean_log_likelihood",
    "num_tasks",
    "estimator",
    "num_samples",
    "forward_passes",
    "seconds",
    "tasks",
}


pytestmark = pytest.mark.usefixtures("same_weights")


@pytest.fixture(scope="module")
def tasks() -> Task:
    """Four benchmark tasks, with 0, 5, 10 and 15 context points and 10 targets."""
    task = benchmark_tasks("gp")[torch.arange(0, 200, 50)]
    target = replace(
        task.target, x=task.xt[:, :10], y=task.yt[:, :10], mask=task.target.mask[:, :10]
    )
    return Task(task.context, target, task.pool)


def test_the_score_is_the_mean_of_the_geometric_means_of_the_densities(tasks: Task) -> None:
    model = ConvCNP(scored_config(rank=0))
    result = evaluate(model, tasks, generator=rng(0))
    predictive = model.predict(tasks.context, tasks.xt)
    normal = torch.distributions.Normal(predictive.mean, predictive.stddev)
    densities = normal.log_prob(tasks.yt).exp()[..., 0]
    scores = densities.prod(dim=1) ** (1 / 10)
    assert result.average_likelihood == pytest.approx(float(scores.mean()), rel=1e-5)
    standard_error = math.sqrt(float(((scores - scores.mean()) ** 2).sum()) / 3 / 4)
    assert result.average_likelihood_ci95 == pytest.approx(1.96 * standard_error, rel=1e-5)
    assert result.mean_log_likelihood == pytest.approx(float(scores.log().mean()), rel=1e-5)
    assert (result.num_tasks, result.estimator, result.num_samples) == (4, "exact", 1)
    assert result.forward_passes == 4
    assert [task.context_size for task in result.tasks] == [0, 5, 10, 15]
    assert result.seconds == pytest.approx(sum(task.seconds for task in result.tasks))


def test_the_dictionary_is_the_commands_json(tasks: Task) -> None:
    found = json.loads(
        json.dumps(evaluate(ConvGNP(scored_config()), tasks, generator=rng(0)).to_dict())
    )
    assert set(found) == KEYS_OF_EVALUATE
    assert len(found["tasks"]) == 4
    for task in found["tasks"]:
        assert set(task) == {"context_size", "log_likelihood", "effective_sample_size"}
        assert task["effective_sample_size"] == 1.0


@pytest.mark.parametrize("estimator", ["model", "noising", "both"])
def test_a_danp_is_estimated_task_by_task(tasks: Task, estimator: Any) -> None:
    model = scored_danp(1)
    options = {"estimator": estimator, "num_samples": 6}
    result = evaluate(model, tasks, generator=rng(1), **options)
    streams = spawn(rng(1), 4)
    for row, record in enumerate(result.tasks):
        expected = log_likelihood(model, tasks[row], generator=spawn(rng(1), 4)[row], **options)
        assert record.log_likelihood == pytest.approx(float(expected.values) / 10, rel=1e-9)
        assert record.effective_sample_size == pytest.approx(float(expected.effective_sample_size))
        again = evaluate_task(model, tasks[row], generator=streams[row], **options)
        assert replace(again, seconds=record.seconds) == record
    assert (result.estimator, result.num_samples) == (estimator, 6)
    assert result.forward_passes == 4 * (1 + 6)


def test_the_number_of_samples_may_depend_on_the_context(tasks: Task) -> None:
    model = scored_danp(1)
    found = evaluate(
        model, tasks, estimator="model", num_samples=lambda size: 3 + size, generator=rng(1)
    )
    assert [task.num_samples for task in found.tasks] == [3, 8, 13, 18]
    alone = log_likelihood(
        model, tasks[2], estimator="model", num_samples=13, generator=spawn(rng(1), 4)[2]
    )
    assert found.tasks[2].log_likelihood == pytest.approx(float(alone.values) / 10, rel=1e-9)


@pytest.mark.parametrize(("dataset", "last"), [("sawtooth", 5), ("square", 5), ("gp", 9)])
def test_the_papers_numbers_of_samples(dataset: str, last: int) -> None:
    assert {papers_samples(dataset, size) for size in range(last + 1)} == {50_000}
    assert {papers_samples(dataset, size) for size in range(last + 1, 31)} == {5_000}


def test_a_danp_without_levels_is_exact(tasks: Task) -> None:
    result = evaluate(scored_danp(num_levels=0), tasks, num_samples=9, generator=rng(0))
    assert (result.estimator, result.num_samples, result.forward_passes) == ("exact", 1, 4)


def test_an_ar_convcnp_is_rolled_out(tasks: Task) -> None:
    model = ARConvCNP(scored_config(rank=0))
    result = evaluate(model, tasks, generator=rng(2))
    expected = ar_log_prob(model, tasks[2], generator=spawn(rng(2), 4)[2])
    assert result.tasks[2].log_likelihood == pytest.approx(float(expected.values) / 10, rel=1e-9)
    assert (result.estimator, result.num_samples) == ("autoregressive", 1)
    assert result.forward_passes == 4 * 10
    assert all(task.effective_sample_size == 1.0 for task in result.tasks)


def test_the_others_are_rolled_out_where_asked(tasks: Task) -> None:
    options: dict[str, Any] = {"estimator": "autoregressive", "num_samples": 3}
    for model, samples, passes in (
        (ConvGNP(scored_config()), 1, 10),
        (scored_danp(1), 3, 10 * (1 + 3)),
    ):
        result = evaluate(model, tasks[1:2], generator=rng(3), **options)
        expected = ar_log_prob(model, tasks[1], generator=spawn(rng(3), 1)[0], num_samples=3)
        assert result.mean_log_likelihood == pytest.approx(float(expected.values) / 10, rel=1e-9)
        assert (result.estimator, result.num_samples) == ("autoregressive", samples)
        assert result.forward_passes == passes
    assert result.tasks[0].effective_sample_size is None
    assert result.average_likelihood_ci95 is None


def test_an_oracle_is_exact_and_beats_a_fresh_network(tasks: Task) -> None:
    oracle = GaussianProcessOracle()
    result = evaluate(oracle, tasks, generator=rng(0))
    expected = oracle.log_prob(tasks.context, tasks.target) / 10
    found = torch.tensor([task.log_likelihood for task in result.tasks], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert (result.estimator, result.forward_passes) == ("exact", 0)
    network = evaluate(ConvGNP(scored_config()), tasks, generator=rng(0))
    assert result.average_likelihood > 10 * network.average_likelihood


RECORD = TaskRecord(3, -1.0, "model", 50_000, 12.5, 150_001, 2.0)


def test_records_of_several_runs_add_up() -> None:
    other = replace(RECORD, log_likelihood=2.0, estimator="both", num_samples=512, seconds=0.5)
    result = Evaluation.summarize([RECORD, RECORD, other])
    assert result.estimator == "model+both"
    assert result.num_samples == 50_000
    assert result.forward_passes == 450_003
    assert result.seconds == 4.5
    assert result.average_likelihood == pytest.approx((2 * math.exp(-1) + math.exp(2)) / 3)
    with pytest.raises(ValueError, match="record"):
        Evaluation.summarize([])


def test_wrong_arguments_are_refused(tasks: Task) -> None:
    model = ConvCNP(scored_config(rank=0))
    with pytest.raises(ValueError, match=r"^estimator .*'exact'"):
        evaluate(model, tasks, estimator="exact", generator=rng(0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^task .*4"):
        evaluate_task(model, tasks, estimator="both", num_samples=2, generator=rng(0))
    nothing = Task(tasks[0].context, PointSet(tasks[0].xt[:, :0], tasks[0].yt[:, :0]))
    with pytest.raises(ValueError, match="one target"):
        evaluate(model, nothing, generator=rng(0))
    with pytest.raises(ValueError, match="one target"):
        evaluate_task(model, nothing, estimator="both", num_samples=2, generator=rng(0))
    more = evaluate(model, tasks, generator=rng(0)).tasks * 2
    with pytest.raises(ValueError, match=r"^done must hold at most 4 records, got 8\.$"):
        evaluate(model, tasks, generator=rng(0), done=more)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(ValueError, match=r"loc .*nan"):
        evaluate(model, tasks, generator=rng(0))


@pytest.mark.parametrize("kind", ["convcnp", "danp", "oracle"])
def test_masked_targets_are_refused(kind: str, tasks: Task) -> None:
    models = {
        "convcnp": ConvCNP(scored_config(rank=0)),
        "danp": scored_danp(1),
        "oracle": GaussianProcessOracle(),
    }
    model: Any = models[kind]
    mask = tasks.target.mask.clone()
    mask[2, 7] = False
    padded = replace(tasks, target=PointSet(tasks.xt, tasks.yt, mask))
    with pytest.raises(ValueError, match=r"target point .*\[2, 7\]"):
        evaluate(model, padded, num_samples=2, generator=rng(0))
    with pytest.raises(ValueError, match=r"target point .*\[0, 7\]"):
        evaluate_task(model, padded[2], estimator="both", num_samples=2, generator=rng(0))


class NoDensity(GaussianProcessOracle):
    def log_prob(self, context: PointSet, target: PointSet) -> Tensor:
        return torch.full((1,), -math.inf)


def test_a_task_of_no_density_is_refused(tasks: Task) -> None:
    with pytest.raises(ValueError, match=r"-inf .* 0 context"):
        evaluate(NoDensity(), tasks, generator=rng(0))
