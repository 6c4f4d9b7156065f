"""The benchmark's score, and the scores of marginals."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from danp_lib._random import spawn
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.gaussian import DiagonalNormal, LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.distributions.scores import crps, in_central_interval
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
from danp_lib.models.convnp import ARConvCNP, ConvCNP, ConvGNP, ConvNPConfig
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.storage.tasks import benchmark_tasks

# Variances near 1, so that a fresh network's likelihoods do not underflow.
SMALL = {
    "points_per_unit": 16,
    "channels": 8,
    "num_layers": 2,
    "variance_gain": 1.0,
    "variance_offset": 0.0,
}
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


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def config(rank: int) -> ConvNPConfig:
    return ConvNPConfig(**SMALL, rank=rank)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def same_weights() -> Iterator[None]:
    """PyTorch's layers draw their weights from the global generator only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def build_danp(num_levels: int = 1) -> DANP:
    return DANP(DANPConfig(config(2), num_levels, beta=0.2, num_auxiliary=4))


@pytest.fixture(scope="module")
def tasks() -> Task:
    """Four benchmark tasks, with 0, 5, 10 and 15 context points and 10 targets."""
    task = benchmark_tasks("gp")[torch.arange(0, 200, 50)]
    target = replace(
        task.target, x=task.xt[:, :10], y=task.yt[:, :10], mask=task.target.mask[:, :10]
    )
    return Task(task.context, target, task.pool)


def test_the_score_is_the_mean_of_the_geometric_means_of_the_densities(tasks: Task) -> None:
    model = ConvCNP(config(0))
    result = evaluate(model, tasks, generator=seeded(0))
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
        json.dumps(evaluate(ConvGNP(config(2)), tasks, generator=seeded(0)).to_dict())
    )
    assert set(found) == KEYS_OF_EVALUATE
    assert len(found["tasks"]) == 4
    for task in found["tasks"]:
        assert set(task) == {"context_size", "log_likelihood", "effective_sample_size"}
        assert task["effective_sample_size"] == 1.0


@pytest.mark.parametrize("estimator", ["model", "noising", "both"])
def test_a_danp_is_estimated_task_by_task(tasks: Task, estimator: Any) -> None:
    model = build_danp()
    options = {"estimator": estimator, "num_samples": 6}
    result = evaluate(model, tasks, generator=seeded(1), **options)
    streams = spawn(seeded(1), 4)
    for row, record in enumerate(result.tasks):
        expected = log_likelihood(model, tasks[row], generator=spawn(seeded(1), 4)[row], **options)
        assert record.log_likelihood == pytest.approx(float(expected.values) / 10, rel=1e-9)
        assert record.effective_sample_size == pytest.approx(float(expected.effective_sample_size))
        again = evaluate_task(model, tasks[row], generator=streams[row], **options)
        assert replace(again, seconds=record.seconds) == record
    assert (result.estimator, result.num_samples) == (estimator, 6)
    assert result.forward_passes == 4 * (1 + 6)


def test_the_number_of_samples_may_depend_on_the_context(tasks: Task) -> None:
    model = build_danp()
    found = evaluate(
        model, tasks, estimator="model", num_samples=lambda size: 3 + size, generator=seeded(1)
    )
    assert [task.num_samples for task in found.tasks] == [3, 8, 13, 18]
    alone = log_likelihood(
        model, tasks[2], estimator="model", num_samples=13, generator=spawn(seeded(1), 4)[2]
    )
    assert found.tasks[2].log_likelihood == pytest.approx(float(alone.values) / 10, rel=1e-9)


@pytest.mark.parametrize(("dataset", "last"), [("sawtooth", 5), ("square", 5), ("gp", 9)])
def test_the_papers_numbers_of_samples(dataset: str, last: int) -> None:
    assert {papers_samples(dataset, size) for size in range(last + 1)} == {50_000}
    assert {papers_samples(dataset, size) for size in range(last + 1, 31)} == {5_000}


def test_a_danp_without_levels_is_exact(tasks: Task) -> None:
    result = evaluate(build_danp(num_levels=0), tasks, num_samples=9, generator=seeded(0))
    assert (result.estimator, result.num_samples, result.forward_passes) == ("exact", 1, 4)


def test_an_ar_convcnp_is_rolled_out(tasks: Task) -> None:
    model = ARConvCNP(config(0))
    result = evaluate(model, tasks, generator=seeded(2))
    expected = ar_log_prob(model, tasks[2], generator=spawn(seeded(2), 4)[2])
    assert result.tasks[2].log_likelihood == pytest.approx(float(expected.values) / 10, rel=1e-9)
    assert (result.estimator, result.num_samples) == ("autoregressive", 1)
    assert result.forward_passes == 4 * 10
    assert all(task.effective_sample_size == 1.0 for task in result.tasks)


def test_the_others_are_rolled_out_where_asked(tasks: Task) -> None:
    options: dict[str, Any] = {"estimator": "autoregressive", "num_samples": 3}
    for model, samples, passes in ((ConvGNP(config(2)), 1, 10), (build_danp(), 3, 10 * (1 + 3))):
        result = evaluate(model, tasks[1:2], generator=seeded(3), **options)
        expected = ar_log_prob(model, tasks[1], generator=spawn(seeded(3), 1)[0], num_samples=3)
        assert result.mean_log_likelihood == pytest.approx(float(expected.values) / 10, rel=1e-9)
        assert (result.estimator, result.num_samples) == ("autoregressive", samples)
        assert result.forward_passes == passes
    assert result.tasks[0].effective_sample_size is None
    assert result.average_likelihood_ci95 is None


def test_an_oracle_is_exact_and_beats_a_fresh_network(tasks: Task) -> None:
    oracle = GaussianProcessOracle()
    result = evaluate(oracle, tasks, generator=seeded(0))
    expected = oracle.log_prob(tasks.context, tasks.target) / 10
    found = torch.tensor([task.log_likelihood for task in result.tasks], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert (result.estimator, result.forward_passes) == ("exact", 0)
    network = evaluate(ConvGNP(config(2)), tasks, generator=seeded(0))
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
    model = ConvCNP(config(0))
    with pytest.raises(ValueError, match=r"^estimator .*'exact'"):
        evaluate(model, tasks, estimator="exact", generator=seeded(0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^task .*4"):
        evaluate_task(model, tasks, estimator="both", num_samples=2, generator=seeded(0))
    nothing = Task(tasks[0].context, PointSet(tasks[0].xt[:, :0], tasks[0].yt[:, :0]))
    with pytest.raises(ValueError, match="one target"):
        evaluate(model, nothing, generator=seeded(0))
    with pytest.raises(ValueError, match="one target"):
        evaluate_task(model, nothing, estimator="both", num_samples=2, generator=seeded(0))
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(ValueError, match=r"loc .*nan"):
        evaluate(model, tasks, generator=seeded(0))


@pytest.mark.parametrize("kind", ["convcnp", "danp", "oracle"])
def test_masked_targets_are_refused(kind: str, tasks: Task) -> None:
    models = {
        "convcnp": ConvCNP(config(0)),
        "danp": build_danp(),
        "oracle": GaussianProcessOracle(),
    }
    model: Any = models[kind]
    mask = tasks.target.mask.clone()
    mask[2, 7] = False
    padded = replace(tasks, target=PointSet(tasks.xt, tasks.yt, mask))
    with pytest.raises(ValueError, match=r"target point .*\[2, 7\]"):
        evaluate(model, padded, num_samples=2, generator=seeded(0))
    with pytest.raises(ValueError, match=r"target point .*\[0, 7\]"):
        evaluate_task(model, padded[2], estimator="both", num_samples=2, generator=seeded(0))


class NoDensity(GaussianProcessOracle):
    def log_prob(self, context: PointSet, target: PointSet) -> Tensor:
        return torch.full((1,), -math.inf)


def test_a_task_of_no_density_is_refused(tasks: Task) -> None:
    with pytest.raises(ValueError, match=r"-inf .* 0 context"):
        evaluate(NoDensity(), tasks, generator=seeded(0))


# Scores of the marginals


def crps_by_hand(predictive: LowRankNormal | Mixture, y: Tensor) -> Tensor:
    """The defining integral by the trapezoidal rule, for a batch of predictives."""
    result = torch.empty_like(y)
    for row, point in torch.cartesian_prod(*(torch.arange(n) for n in y.shape[:2])).tolist():
        mean = float(predictive.mean[row, point])
        reach = 12 * float(predictive.stddev[row, point]) + abs(float(y[row, point]) - mean)
        # Two halves, so that no panel straddles the step.
        total = 0.0
        for side, step in ((-1, 0.0), (1, 1.0)):
            u = float(y[row, point]) + side * torch.linspace(0, reach, 4001).double()
            marginal = predictive.marginal(torch.tensor([point]))
            cdf = _cdf_at(marginal, u)[row]
            total += float(torch.trapezoid((cdf - step).square(), dx=reach / 4000))
        result[row, point] = total
    return result


def _cdf_at(marginal: LowRankNormal | Mixture, values: Tensor) -> Tensor:
    # One point's distribution function at many values, ``(batch, values)``.
    if isinstance(marginal, Mixture):
        loc, sd = marginal.components.mean[..., 0, 0], marginal.components.stddev[..., 0, 0]
        inner = torch.special.ndtr((values - loc.unsqueeze(-1)) / sd.unsqueeze(-1))
        return (marginal.logits.exp().unsqueeze(-1) * inner).sum(dim=1)
    return torch.special.ndtr((values - marginal.mean[..., 0]) / marginal.stddev[..., 0])


def draw_mixture(seed: int, components: int) -> Mixture:
    g = seeded(seed)
    shape = (2, components, 3, 1)
    return Mixture(
        torch.randn(2, components, generator=g),
        LowRankNormal(
            2 * torch.randn(shape, generator=g),
            torch.randn(2, components, 3, 2, generator=g),
            0.01 + torch.rand(shape, generator=g),
        ),
    )


@given(seed=st.integers(0, 10_000), components=st.integers(1, 5))
def test_crps_is_its_defining_integral(seed: int, components: int) -> None:
    mixture = draw_mixture(seed, components)
    y = 2 * torch.randn(2, 3, 1, generator=seeded(seed + 1), dtype=torch.float64)
    torch.testing.assert_close(crps(mixture, y), crps_by_hand(mixture, y), rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 10_000), spread=st.sampled_from([1.0, 1e-3, 0.0]))
def test_crps_of_a_mixture_is_the_sum_over_all_pairs(seed: int, spread: float) -> None:
    # Values on a lattice, so that components are equal, near and far apart.
    g, shape = seeded(seed), (2, 40, 3, 1)
    mean = torch.randint(0, 9, shape, generator=g) / 8 + 1e-4 * torch.randint(
        0, 3, shape, generator=g
    )
    variance = 1e-6 + spread * torch.rand(shape, generator=g).double() ** 4
    mixture = Mixture(torch.randn(2, 40, generator=g), DiagonalNormal(mean.double(), variance))
    weights = mixture.logits.exp()
    m, v = (part[..., 0].double() for part in (mean, variance))

    def distance(mean: Tensor, variance: Tensor) -> Tensor:
        z = mean / variance.sqrt()
        density = torch.distributions.Normal(0.0, 1.0).log_prob(z).exp()
        return mean * torch.erf(z / math.sqrt(2.0)) + 2.0 * variance.sqrt() * density

    y = torch.rand(2, 3, 1, generator=g).double()
    pairs = distance(m.unsqueeze(1) - m.unsqueeze(2), v.unsqueeze(1) + v.unsqueeze(2))
    expected = torch.einsum("bi,bip->bp", weights, distance(m - y.mT, v))
    expected -= 0.5 * torch.einsum("bi,bijp,bj->bp", weights, pairs, weights)
    torch.testing.assert_close(crps(mixture, y)[..., 0], expected, rtol=1e-11, atol=1e-12)


def test_crps_of_a_gaussian() -> None:
    normal = DiagonalNormal(torch.tensor([[[0.5], [0.0]]]), torch.tensor([[[4.0], [1e-6]]]))
    y = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
    torch.testing.assert_close(crps(normal, y), crps_by_hand(normal, y), rtol=1e-5, atol=1e-6)
    # A point forecast scores its distance.
    assert float(crps(normal, y)[0, 1]) == pytest.approx(2.0, abs=1e-3)
    one = Mixture(torch.zeros(1, 1), LowRankNormal(*(p.unsqueeze(1) for p in _parts(normal))))
    torch.testing.assert_close(crps(one, y), crps(normal, y), rtol=1e-12, atol=1e-12)
    # With y at the mean it is 2 phi(0) - 1 / sqrt(pi) = 0.2337 standard deviations.
    assert float(crps(normal, normal.mean)[0, 0]) == pytest.approx(2 * 0.2336950, rel=1e-6)


def _parts(normal: LowRankNormal) -> tuple[Tensor, Tensor, Tensor]:
    return normal.loc, normal.cov_factor, normal.cov_diag


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_cover_what_they_should(level: float) -> None:
    mixture = draw_mixture(7, 3)
    samples = mixture.sample((4000,), generator=seeded(8))
    inside = torch.stack([in_central_interval(mixture, y, level) for y in samples]).double()
    # The samples are independent, the outputs of one are not: four standard errors each.
    error = math.sqrt(level * (1 - level) / 4000)
    assert (inside.mean(dim=0) - level).abs().max() < 4 * error
    low, high = mixture.quantile((1 - level) / 2), mixture.quantile((1 + level) / 2)
    assert in_central_interval(mixture, low + 1e-9, level).all()
    assert in_central_interval(mixture, high - 1e-9, level).all()
    assert not in_central_interval(mixture, low - 1e-6, level).any()
    assert not in_central_interval(mixture, high + 1e-6, level).any()


def test_metrics_refuse_what_does_not_fit() -> None:
    mixture = draw_mixture(1, 2)
    with pytest.raises(ValueError, match=r"^y .*got \(2, 3\)"):
        crps(mixture, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"^level .*90"):
        in_central_interval(mixture, mixture.mean, 90)
