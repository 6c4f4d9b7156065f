"""The likelihood estimators, against a model whose likelihood is known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from randomness import rng
from small_models import TINY, seeded, small_config
from torch import Tensor

from danp_lib.data.generators import GaussianProcess, Sawtooth
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.exact.gp import GaussianProcessOracle
from danp_lib.exact.oracles import ORACLES
from danp_lib.inference.autoregressive import ar_log_prob, ar_sample
from danp_lib.inference.likelihood import (
    NUM_ORDERS,
    LogLikelihood,
    _clean_points,
    effective_sample_size,
    log_likelihood,
    log_weights,
)
from danp_lib.models.convnp import ARConvCNP, ConvCNP, ConvGNP, ConvNPCore
from danp_lib.models.danp import DANP, AuxiliarySamples, DANPConfig, log_mean
from danp_lib.storage.pretrained import load_pretrained
from danp_lib.storage.tasks import benchmark_tasks

Estimator = Literal["model", "noising", "both"]
Inputs = Literal["uniform", "target"]
ESTIMATORS: tuple[Estimator, ...] = ("model", "noising", "both")
SMALL = replace(TINY, num_layers=2)
POINTS = 3


def draw_task(*, num_targets: int = 4, batch_size: int = 1, scale: float = 0.2) -> Task:
    task = GaussianProcess(length_scale=1.0).sample_task(
        batch_size,
        context_size=3,
        num_targets=num_targets,
        pool_size=64,
        generator=rng(0),
        dtype=torch.float64,
    )
    assert task.pool is not None
    sets = (task.context, task.target, task.pool)
    return Task(*(PointSet(points.x, scale * points.y, points.mask) for points in sets))


class LinearGaussianCore(ConvNPCore):
    """Predictives that are linear in the means of the other sets' outputs, in place of a network.

    With c the mean of the context's outputs, and m_f that of level f's:

    - level 2: 0.5 c + 0.3 e_2 + noise of variance 0.10,
    - level 1: 0.2 c + 0.6 m_2 + 0.2 e_1 + noise of variance 0.12,
    - level 0: (1 + x / 2) (0.1 c + r (0.7 m_1 + 0.4 m_2)) + 0.3 x e_0 + noise of variance 0.05,

    where every e_f is a standard normal number that the points of the level share.
    """

    reliance = 1.0  # r
    weights = ((0.1, 0.7, 0.4), (0.2, 0.0, 0.6), (0.5, 0.0, 0.0))
    loadings = (0.3, 0.2, 0.3)
    variances = (0.05, 0.12, 0.10)

    def encode_set(self, points: PointSet, index: int) -> Tensor:
        count = points.mask.sum(dim=1).double()
        total = points.y.squeeze(-1).masked_fill(~points.mask, 0.0).sum(dim=1)
        return torch.stack([count, total / count.clamp(min=1.0)], dim=1).unsqueeze(-1)

    def features(self, encoding: Tensor) -> Tensor:
        return encoding

    def decode(self, features: Tensor, xt: Tensor, index: int | Tensor) -> LowRankNormal:
        assert isinstance(index, int)
        of_context, *of_levels = self.weights[index]
        weights = torch.tensor([of_context, *(self.reliance * w for w in of_levels)]).double()
        mean = (features[:, 1::2, 0] @ weights).reshape(-1, 1, 1)
        mean = mean * (1 + xt / 2 if index == 0 else torch.ones_like(xt))
        factor = self.loadings[index] * (xt if index == 0 else torch.ones_like(xt))
        factor = factor.expand_as(mean)
        return LowRankNormal(mean, factor, torch.full_like(mean, self.variances[index]))


def linear_gaussian(reliance: float = 1.0) -> DANP:
    base = replace(SMALL, rank=1)
    config = DANPConfig(base, 2, 0.5, POINTS)
    model = DANP(config)
    model.core = LinearGaussianCore(config.base, num_sets=3)
    model.core.reliance = reliance
    return model.double()


def closed_form(task: Task, num_points: int) -> Tensor:
    """The log-likelihood of the linear-Gaussian model, with so many points in each level."""
    c = float(task.yc[task.context.mask].mean())
    mean_2, mean_1 = 0.5 * c, (0.2 + 0.6 * 0.5) * c
    variance_2, own_1 = 0.3**2 + 0.10 / num_points, 0.2**2 + 0.12 / num_points
    mean = 0.1 * c + 0.7 * mean_1 + 0.4 * mean_2
    variance = 0.7**2 * own_1 + (0.7 * 0.6 + 0.4) ** 2 * variance_2
    x = task.xt[0, :, 0]
    h = 1 + x / 2
    covariance = (
        variance * torch.outer(h, h) + 0.3**2 * torch.outer(x, x) + 0.05 * torch.eye(len(x))
    )
    return torch.distributions.MultivariateNormal(mean * h, covariance).log_prob(task.yt[0, :, 0])


def relative_error(result: LogLikelihood, num_samples: int) -> Tensor:
    """The standard error of each likelihood, relative to it: that of the mean of its weights."""
    return (1 / result.effective_sample_size - 1 / num_samples).sqrt()


@pytest.mark.parametrize("inputs", ["uniform", "target"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_agrees_with_the_closed_form(estimator: Estimator, inputs: Inputs) -> None:
    task, count = draw_task(), 6000
    result = log_likelihood(
        linear_gaussian(),
        task,
        estimator=estimator,
        num_samples=count,
        auxiliary_inputs=inputs,
        generator=rng(1),
        chunk_size=2000,
    )
    expected = closed_form(task, POINTS if inputs == "uniform" else task.target.num_points)
    error = relative_error(result, count)
    assert error < 0.06  # else the next line could not fail
    assert abs(float((result.values - expected).exp() - 1)) < 4 * error


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_defensive_component_is_added_exactly(estimator: Estimator) -> None:
    """By the same samples, and equal to the mixture that the model predicts."""
    task, model = draw_task(), linear_gaussian()
    defended = model.defended(0.3)
    plain, mixed = (
        log_weights(m, task, estimator=estimator, num_samples=8, generator=rng(1))
        for m in (model, defended)
    )
    # Level 2 alone has the mean 0.5 c and a shared variance of 0.3^2.
    s, count = model.schedule.signal(2), task.target.num_points
    mean = torch.full((1, count, 1), 0.5 * float(task.yc[task.context.mask].mean()) / s)
    factor = torch.full_like(mean, 0.3 / s)
    broad = LowRankNormal(mean, factor, torch.full_like(mean, 0.1 / s**2)).log_prob(task.yt)
    expected = (0.7 * log_mean(plain).exp() + 0.3 * broad.exp()).log()
    torch.testing.assert_close(log_mean(mixed), expected[0])


@pytest.mark.parametrize(("estimator", "num_samples"), [("model", 1), ("noising", 1), ("both", 3)])
def test_is_unbiased_however_few_the_samples(estimator: Estimator, num_samples: int) -> None:
    task, repeats = draw_task(), 600
    many = task[torch.zeros(repeats, dtype=torch.long)]
    values = log_likelihood(
        linear_gaussian(), many, estimator=estimator, num_samples=num_samples, generator=rng(2)
    ).values
    ratios = (values - closed_form(task, POINTS)).exp()
    error = float(ratios.std()) / repeats**0.5
    assert error < 0.1
    assert abs(float(ratios.mean()) - 1) < 4 * error
    # So the logarithm is a lower bound in expectation.
    assert float(values.mean()) < float(closed_form(task, POINTS))


def random_danp(num_levels: int = 2, rank: int = 2) -> Any:
    base = replace(SMALL, rank=rank, variance_offset=-2.0)
    return seeded(DANP, DANPConfig(base, num_levels, beta=0.5, num_auxiliary=POINTS))


def test_estimators_agree_on_a_network() -> None:
    task, count = draw_task(batch_size=2), 2000
    results = [
        log_likelihood(
            random_danp(),
            task,
            estimator=estimator,
            num_samples=count,
            generator=rng(3),
            chunk_size=1000,
        )
        for estimator in ESTIMATORS
    ]
    errors = [relative_error(result, count) for result in results]
    assert torch.stack(errors).max() < 0.2
    for a, b in ((0, 1), (0, 2), (1, 2)):
        difference = (results[a].values - results[b].values).abs()
        assert (difference < 4 * (errors[a] ** 2 + errors[b] ** 2).sqrt()).all()


@pytest.mark.parametrize("row", [248, 284, 308])
def test_the_papers_estimator_and_the_balance_heuristic_agree_on_a_trained_model(row: int) -> None:
    """At large contexts, of 24 to 30 points, where both have samples near the truth."""
    model, tasks, count = load_pretrained("danp-gp"), benchmark_tasks("gp")[row], 500
    few = Task(tasks.context, PointSet(tasks.xt[:, :4], tasks.yt[:, :4]), tasks.pool)
    own, both = (
        log_likelihood(model, few, estimator=estimator, num_samples=count, generator=rng(3))
        for estimator in ("model", "both")
    )
    error = (relative_error(own, count) ** 2 + relative_error(both, count) ** 2).sqrt()
    assert float(error) < 0.4
    assert float((own.values - both.values).abs()) < 4 * float(error)


@pytest.mark.parametrize("inputs", ["uniform", "target"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_chunk_size_changes_nothing(estimator: Estimator, inputs: Inputs) -> None:
    task = draw_task(batch_size=2)
    results = [
        log_likelihood(
            random_danp(),
            task,
            estimator=estimator,
            num_samples=7,
            auxiliary_inputs=inputs,
            generator=rng(4),
            chunk_size=size,
        )
        for size in (1, 3, 256)
    ]
    for other in results[1:]:
        torch.testing.assert_close(other.values, results[0].values, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(
            other.effective_sample_size, results[0].effective_sample_size, rtol=1e-10, atol=1e-10
        )
    assert results[0].forward_passes == 2 * (1 + 2 * 7)
    assert (results[0].effective_sample_size < 7).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_first_samples_of_many_are_an_estimate_with_few(estimator: Estimator) -> None:
    model, task = random_danp(), draw_task()
    many = log_weights(model, task, estimator=estimator, num_samples=12, generator=rng(9))
    assert many.shape == (12,)
    for count in (2, 6, 12):
        expected = log_likelihood(
            model, task, estimator=estimator, num_samples=count, generator=rng(9), chunk_size=5
        )
        few = many[:count]
        torch.testing.assert_close(log_mean(few), expected.values[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            effective_sample_size(few), expected.effective_sample_size[0], rtol=1e-9, atol=1e-9
        )
    with pytest.raises(ValueError, match=r"^task .*2"):
        log_weights(model, draw_task(batch_size=2), generator=rng(0))


def test_equal_weights_have_full_effective_sample_size() -> None:
    result = log_likelihood(
        linear_gaussian(reliance=0.0),
        draw_task(),
        estimator="model",
        num_samples=37,
        generator=rng(5),
    )
    torch.testing.assert_close(
        result.effective_sample_size, torch.tensor([37.0], dtype=torch.float64)
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_levels_it_is_exact(estimator: Estimator) -> None:
    task = draw_task(batch_size=2)
    model, base = random_danp(num_levels=0), ConvGNP(random_danp().config.base).double()
    base.core.load_state_dict(model.core.state_dict())
    expected = base.predict(task.context, task.xt).log_prob(task.yt)
    for one in (model, base):
        result = log_likelihood(one, task, estimator=estimator, generator=rng(6))
        torch.testing.assert_close(result.values, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(result.effective_sample_size, torch.ones(2).double())
        assert result.forward_passes == 2


def test_says_which_estimator_was_used() -> None:
    task = draw_task()
    oracle = GaussianProcessOracle(length_scale=1.0)
    found = {}
    for name, model in (
        ("convcnp", baseline()),
        ("ar-convcnp", baseline(ARConvCNP)),
        ("danp", random_danp()),
        ("no levels", random_danp(num_levels=0)),
        ("oracle", oracle),
    ):
        for estimator in ("both", "autoregressive"):
            result = log_likelihood(
                model, task, estimator=estimator, num_samples=6, generator=rng(0)
            )
            found[name, estimator] = (result.estimator, result.num_samples)
            is_nan = (name, estimator) == ("danp", "autoregressive")
            assert bool(result.effective_sample_size.isnan()) == is_nan
    rollout = ("autoregressive", 1)
    assert found == {
        ("convcnp", "both"): ("exact", 1),
        ("convcnp", "autoregressive"): rollout,
        ("ar-convcnp", "both"): rollout,
        ("ar-convcnp", "autoregressive"): rollout,
        ("danp", "both"): ("both", 6),
        ("danp", "autoregressive"): ("autoregressive", 6),
        ("no levels", "both"): ("exact", 1),
        ("no levels", "autoregressive"): rollout,
        ("oracle", "both"): ("exact", 1),
        ("oracle", "autoregressive"): rollout,
    }


def test_an_ar_convcnp_is_rolled_out_and_a_convcnp_where_asked() -> None:
    task = draw_task(batch_size=2)
    plain, ar = baseline(), baseline(ARConvCNP)
    ar.load_state_dict(plain.state_dict())
    expected = ar_log_prob(ar, task, generator=rng(3))
    for result in (
        log_likelihood(ar, task, generator=rng(3)),
        log_likelihood(plain, task, estimator="autoregressive", generator=rng(3)),
    ):
        torch.testing.assert_close(result.values, expected.values, rtol=0, atol=0)
        assert result.forward_passes == expected.forward_passes == 2 * 4
    exact = log_likelihood(plain, task, generator=rng(3)).values
    assert (exact - expected.values).abs().max() > 1e-5


@pytest.mark.parametrize("name", ["convcnp", "ar-convcnp", "danp"])
def test_orders_are_averaged_by_their_density(name: str) -> None:
    task, num_levels = draw_task(batch_size=2), 2 if name == "danp" else 0
    model = random_danp() if name == "danp" else baseline(*([ARConvCNP] * (name != "convcnp")))
    drawing = rng(3)
    terms = torch.stack(
        [
            ar_log_prob(model, task, num_samples=3, generator=drawing).values
            for _ in range(NUM_ORDERS)
        ]
    )
    result = log_likelihood(model, task, estimator="orders", num_samples=3, generator=rng(3))
    densities = terms.exp()
    torch.testing.assert_close(result.values, densities.mean(dim=0).log(), rtol=1e-12, atol=0)
    sizes = densities.sum(dim=0).square() / densities.square().sum(dim=0)
    torch.testing.assert_close(result.effective_sample_size, sizes, rtol=1e-12, atol=0)
    drawn = NUM_ORDERS * (3 if num_levels else 1)
    assert (result.estimator, result.num_samples) == ("orders", drawn)
    assert result.forward_passes == NUM_ORDERS * 2 * 4 * (1 + num_levels * 3)
    assert (terms[0] - terms[1:]).abs().max() > 1e-3  # the orders differ


@pytest.mark.parametrize(
    ("estimator", "num_orders", "how"),
    [
        ("outward", 1, {"outward": True}),
        ("orders-halved", NUM_ORDERS, {"halved": True}),
        ("orders-outward", NUM_ORDERS, {"halved": True, "outward": True}),
    ],
)
def test_other_orders_are_averaged_like_random_ones(
    estimator: Any, num_orders: int, how: dict[str, Any]
) -> None:
    task, model = draw_task(batch_size=1), random_danp()
    options: dict[str, Any] = {"num_samples": 8, "generator": rng(3)}
    rollouts = [ar_log_prob(model, task, **how, **options) for _ in range(num_orders)]
    options["generator"] = rng(3)
    result = log_likelihood(model, task, estimator=estimator, **options)
    densities = torch.stack([rollout.values for rollout in rollouts]).exp()
    torch.testing.assert_close(result.values, densities.mean(dim=0).log(), rtol=1e-12, atol=0)
    assert (result.estimator, result.num_samples) == (estimator, num_orders * 8)
    assert bool(result.effective_sample_size.isnan().all()) is (num_orders == 1)
    assert result.forward_passes == sum(rollout.forward_passes for rollout in rollouts)


def test_an_exact_rollout_of_a_known_wave_is_the_joint_density_and_of_a_gp_more() -> None:
    # A chain conditions on what it has seen without the variance floor of its targets. A wave that
    # is known needs no more than the floor; a Gaussian process is known better in the chain.
    gains = []
    for name in ("square", "gp"):
        joint, rollout = (
            log_likelihood(
                ORACLES[name](),
                benchmark_tasks(name)[150],
                estimator=estimator,
                generator=rng(0),
            )
            for estimator in ("both", "autoregressive")
        )
        assert (rollout.estimator, rollout.forward_passes) == ("autoregressive", 0)
        gains.append(float(rollout.values - joint.values) / 50)
    assert abs(gains[0]) < 1e-6
    assert 0.05 < gains[1] < 1.0


def test_an_exact_predictive_is_scored_by_its_own_density() -> None:
    task, oracle = draw_task(batch_size=2), GaussianProcessOracle(length_scale=1.0)
    result = log_likelihood(oracle, task, generator=rng(0))
    expected = oracle.predict(task.context, task.xt).log_prob(task.yt)
    torch.testing.assert_close(result.values, expected, rtol=1e-9, atol=1e-9)
    assert result.forward_passes == 0


def baseline(kind: type[ConvCNP] = ConvCNP) -> ConvCNP:
    return seeded(kind, replace(SMALL, rank=0))


def test_baseline_ignores_the_pool_and_the_samples() -> None:
    task = draw_task(batch_size=2)
    model = baseline()
    one = log_likelihood(model, task, generator=rng(0))
    other = log_likelihood(model, Task(task.context, task.target), num_samples=1, generator=rng(1))
    torch.testing.assert_close(one.values, other.values, rtol=0, atol=0)


@pytest.mark.parametrize("estimator", ["noising", "both"])
def test_without_a_pool_the_auxiliary_inputs_are_the_targets(estimator: Estimator) -> None:
    task = draw_task()
    options = {"estimator": estimator, "num_samples": 6}
    bare = Task(task.context, task.target)
    default = log_likelihood(random_danp(), bare, generator=rng(7), **options)  # type: ignore[arg-type]
    at_targets = log_likelihood(
        random_danp(),
        task,
        generator=rng(7),
        auxiliary_inputs="target",
        **options,  # type: ignore[arg-type]
    )
    uniform = log_likelihood(random_danp(), task, generator=rng(7), **options)  # type: ignore[arg-type]
    torch.testing.assert_close(default.values, at_targets.values, rtol=0, atol=0)
    assert (default.values - uniform.values).abs() > 1e-6


def test_the_models_own_estimate_never_reads_the_pool() -> None:
    task = draw_task()
    options = {"estimator": "model", "num_samples": 4}
    bare = Task(task.context, task.target)
    values = [
        log_likelihood(random_danp(), t, generator=rng(8), **options).values  # type: ignore[arg-type]
        for t in (task, bare)
    ]
    torch.testing.assert_close(*values, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": "best"},
        {"auxiliary_inputs": "grid"},
        {"num_samples": 0, "estimator": "model"},
        {"chunk_size": 0},
    ],
)
def test_wrong_arguments_are_refused_by_name(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    task, model, says = draw_task(), random_danp(), rf"{name}.* got .*{value!r}"
    for one in (model, baseline()):
        with pytest.raises(ValueError, match=says):
            log_likelihood(one, task, generator=rng(0), **options)
    with pytest.raises(ValueError, match=says):
        log_weights(model, task, generator=rng(0), **options)


def test_an_estimate_by_both_halves_needs_a_sample_of_each() -> None:
    for function in (log_likelihood, log_weights):
        with pytest.raises(ValueError, match="num_samples must be >= 2"):
            function(random_danp(), draw_task(), num_samples=1, generator=rng(0))


def test_wrong_tasks_are_refused_by_name() -> None:
    task, model = draw_task(), random_danp()
    functions: Any = (log_likelihood, log_weights, ar_log_prob)
    for function in functions:
        with pytest.raises(ValueError, match=r"^task must be a Task, got tuple"):
            function(model, (task.context, task.target), generator=rng(0))
        with pytest.raises(ValueError, match=r"^generator must be a torch.Generator, got 3"):
            function(model, task, generator=3)
    assert task.pool is not None
    short = Task(task.context, task.target, PointSet(task.pool.x[:, :5], task.pool.y[:, :5]))
    with pytest.raises(ValueError, match=r"pool .* 6 .* 5"):
        log_likelihood(model, short, generator=rng(0))
    with pytest.raises(ValueError, match=r"pool .* 0"):
        log_likelihood(
            model,
            Task(task.context, task.target),
            auxiliary_inputs="uniform",
            generator=rng(0),
        )
    with pytest.raises(ValueError, match="dtype"):
        log_likelihood(model, task.to(torch.float32), generator=rng(0))
    y = task.yt.clone()
    y[0, 2] = torch.nan
    missing = Task(task.context, PointSet(task.xt, y), task.pool)
    for one in (model, baseline()):
        with pytest.raises(ValueError, match=r"target\.y .*\[0, 2\]"):
            log_likelihood(one, missing, generator=rng(0))


def test_what_is_no_model_is_refused() -> None:
    task = draw_task()
    functions: Any = (log_likelihood, log_weights)
    for function in functions:
        with pytest.raises(ValueError, match=r"^model must be a NeuralProcess, got str"):
            function("danp", task, generator=rng(0))
    with pytest.raises(ValueError, match=r"^model must .*, got GaussianProcessOracle"):
        log_weights(GaussianProcessOracle(), task, generator=rng(0))  # type: ignore[arg-type]


def test_a_pool_that_the_model_cannot_take_is_refused_where_it_is_used() -> None:
    task, model = draw_task(), random_danp()
    pool = task.pool
    assert pool is not None
    for wrong, message in (
        (PointSet(pool.x + 40.0, pool.y), r"pool\.x .*domain"),
        (pool.to(torch.float32), r"pool\.x .*float64"),
    ):
        other = replace(task, pool=wrong)
        for function in (log_likelihood, log_weights):
            with pytest.raises(ValueError, match=message):
                function(model, other, num_samples=2, generator=rng(0))
        for unused in ({"estimator": "model"}, {"auxiliary_inputs": "target"}):
            log_likelihood(model, other, num_samples=2, generator=rng(0), **unused)  # type: ignore[arg-type]
        log_likelihood(random_danp(num_levels=0), other, generator=rng(0))


@pytest.mark.parametrize("hidden", ["target", "pool"])
@pytest.mark.parametrize("value", [9.0, float("nan")])
def test_masked_points_reach_no_likelihood(hidden: str, value: float) -> None:
    task = draw_task()
    points = getattr(task, hidden)
    padding = PointSet(points.x[:, :2], torch.full((1, 2, 1), value, dtype=torch.float64))
    padded = points.concat(padding.masked_where(False))
    task = replace(task, **{hidden: padded})
    place = rf"{hidden} point .*\[0, {points.num_points}\]"
    for model in (random_danp(), baseline()):
        with pytest.raises(ValueError, match=place):
            log_likelihood(model, task, generator=rng(0))
    with pytest.raises(ValueError, match=place):
        log_weights(random_danp(), task, generator=rng(0))


def test_only_what_is_sampled_needs_a_generator() -> None:
    generator = torch.Generator().manual_seed(0)
    task = Sawtooth().sample_task(2, context_size=3, num_targets=4, generator=generator)
    model = seeded(ConvGNP, small_config(), dtype=torch.float32)
    found = log_likelihood(model, task)
    assert torch.equal(found.values, log_likelihood(model, task, generator=generator).values)
    assert found != log_likelihood(model, task)
    cases: tuple[tuple[Any, dict[str, Any]], ...] = (
        (model, {"estimator": "autoregressive"}),
        (seeded(DANP, DANPConfig(small_config(), 2), dtype=torch.float32), {}),
    )
    for sampled, options in cases:
        with pytest.raises(ValueError, match=r"generator must be a torch\.Generator"):
            log_likelihood(sampled, task, **options)
    with pytest.raises(ValueError, match="got a batch of 0"):
        log_likelihood(model, task[:0])


def test_a_model_without_levels_has_one_term() -> None:
    model, task = seeded(ConvGNP, small_config()), draw_task()
    terms = log_weights(model, task, num_samples=8, generator=rng(0))
    assert terms.shape == (1,)
    assert torch.equal(terms, model.predict(task.context, task.xt).log_prob(task.yt))


class UnconditionedCore(LinearGaussianCore):
    """The same predictives, whatever the configuration asks for."""

    def predictive(
        self, features: Tensor, sets: Sequence[PointSet], xt: Tensor, index: int | Tensor
    ) -> LowRankNormal:
        return self.decode(features, xt, index)


def test_a_model_that_weights_its_samples_has_one_likelihood_by_either_estimator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = replace(SMALL, rank=1, conditioned=True, observation_noise=0.01, largest_noise=0.3)
    model = DANP(DANPConfig(base, 2, 0.5, POINTS)).double()
    model.core = UnconditionedCore(base, num_sets=3).double()
    by_value = lambda samples: 4.0 * samples.auxiliary[0].y.mean(dim=(1, 2))  # noqa: E731
    monkeypatch.setattr(AuxiliarySamples, "log_weight", by_value)
    own, both = (
        log_likelihood(model, draw_task(), estimator=how, num_samples=6000, generator=rng(1)).values
        for how in ("model", "both")
    )
    assert abs(float(own - both)) < 0.1


def test_points_of_the_pool_differ_within_a_sample() -> None:
    clean = _clean_points(random_danp(), draw_task(), "noising", "uniform", 9, rng(0))
    x = torch.cat([points.x for points in clean], dim=1)
    assert all(len(row.unique()) == row.numel() for row in x)


def test_no_pass_holds_more_samples_than_a_chunk() -> None:
    model, task, rows = random_danp(), draw_task(batch_size=2), []
    model.core.unet.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    how: Any = {"num_samples": 7, "chunk_size": 3, "generator": rng(0)}
    model.predict(task.context, task.xt, **how)
    estimators: tuple[Estimator, ...] = ("model", "noising", "both")
    for estimator in estimators:
        log_likelihood(model, task, estimator=estimator, **how)
    ar_log_prob(model, task, **how)
    ar_sample(model, task.context, task.xt, **how)
    assert max(rows) == 3
