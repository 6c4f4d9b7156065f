"""The rollout: its chain, its orders, its counts."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from randomness import rng
from small_models import TINY, seeded, small_config
from torch import Tensor

from danp_lib._random import spawn
from danp_lib.data.generators import GaussianProcess, Sawtooth
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.gaussian import DiagonalNormal, LowRankNormal
from danp_lib.exact.gp import GaussianProcessOracle, NoisyGaussianProcessOracle
from danp_lib.exact.oracles import ORACLES, Oracle
from danp_lib.inference.autoregressive import ar_log_prob, ar_sample, draw_order
from danp_lib.models.base import NeuralProcess
from danp_lib.models.convnp import ARConvCNP, ConvCNP, ConvGNP, ConvNP, ConvNPCore
from danp_lib.models.danp import DANP, DANPConfig


def build(kind: type[ConvNP], rank: int = 0) -> Any:
    return seeded(kind, replace(TINY, num_layers=2, rank=rank))


def build_danp(num_levels: int, rank: int = 2) -> Any:
    base = replace(TINY, num_layers=2, rank=rank)
    return seeded(DANP, DANPConfig(base, num_levels, beta=0.2, num_auxiliary=5))


@pytest.fixture
def task() -> Task:
    """Three tasks with padded contexts, an empty one among them."""
    prior = GaussianProcess()
    full = prior.sample_task(
        3, context_size=4, num_targets=6, generator=rng(0), dtype=torch.float64
    )
    sizes = torch.tensor([0, 2, 4])
    keep = torch.arange(4) < sizes[:, None]
    y = full.yc.masked_fill(~keep[..., None], math.nan)
    return Task(PointSet(full.xc, y, keep), full.target)


def chain_by_hand(
    model: NeuralProcess,
    task: Task,
    seed: int,
    num_samples: int = 1,
    halved: bool = False,
    outward: bool = False,
) -> Tensor:
    for_orders, for_samples = spawn(rng(seed), 2)
    values = []
    for row in range(task.batch_size):
        known = task.context[row].compact()
        total = torch.zeros((), dtype=torch.float64)
        order = torch.randperm(task.target.num_points, generator=for_orders).tolist()
        if outward:
            away = (task.xt[row, :, 0] - task.xt[row, order[0], 0]).abs().tolist()
            order = sorted(range(len(away)), key=away.__getitem__)
        for n in order:
            x, y = task.xt[row, n].reshape(1, 1, 1), task.yt[row, n].reshape(1, 1, 1)
            fewer = max(1, num_samples // 2 ** math.floor(math.log2(1 + known.num_points)))
            options = {"num_samples": fewer if halved else num_samples, "generator": for_samples}
            total += model.predict(known, x, **options).log_prob(y)[0]  # type: ignore[arg-type]
            known = known.concat(PointSet(x, y))
        values.append(total)
    return torch.stack(values)


@pytest.mark.parametrize(
    "model",
    [build(ConvCNP), build(ARConvCNP), build(ConvGNP, 3)],
    ids=["convcnp", "ar-convcnp", "convgnp"],
)
def test_log_prob_equals_a_chain_written_by_hand(model: ConvNP, task: Task) -> None:
    result = ar_log_prob(model, task, generator=rng(5))
    torch.testing.assert_close(result.values, chain_by_hand(model, task, 5), rtol=1e-10, atol=1e-10)
    assert result.forward_passes == 3 * 6


@pytest.mark.parametrize("outward", [False, True])
def test_log_prob_of_a_danp_equals_a_chain_written_by_hand(task: Task, outward: bool) -> None:
    model = build_danp(num_levels=2)
    options: dict[str, Any] = {"num_samples": 3, "outward": outward}
    result = ar_log_prob(model, task, generator=rng(5), **options)
    by_hand = chain_by_hand(model, task, 5, **options)
    torch.testing.assert_close(result.values, by_hand, rtol=1e-10, atol=1e-10)
    assert result.forward_passes == 3 * 6 * (1 + 2 * 3)


@pytest.mark.parametrize("chunk_size", [256, 2, 3])
def test_halved_it_draws_half_as_many_samples_whenever_the_points_known_double(
    task: Task, chunk_size: int
) -> None:
    model = build_danp(num_levels=2)
    options: dict[str, Any] = {"num_samples": 9, "halved": True}
    result = ar_log_prob(model, task, generator=rng(5), chunk_size=chunk_size, **options)
    by_hand = chain_by_hand(model, task, 5, **options)
    torch.testing.assert_close(result.values, by_hand, rtol=1e-10, atol=1e-10)
    samples = [9, 4, 4, 2, 2, 2, 2, 1, 1, 1]  # with none to nine points known
    drawn = sum(sum(samples[size : size + 6]) for size in (0, 2, 4))
    assert result.forward_passes == 3 * 6 + 2 * drawn


def test_the_steps_of_a_defended_danp_share_the_weight(task: Task) -> None:
    model = build_danp(num_levels=2)
    options: dict[str, Any] = {"num_samples": 3}
    found = ar_log_prob(model.defended(0.3), task, generator=rng(5), **options).values
    by_hand = chain_by_hand(model.defended(0.3 / 6), task, 5, **options)
    torch.testing.assert_close(found, by_hand, rtol=1e-10, atol=1e-10)
    # All steps together cost no more than the whole weight does in one prediction.
    unbounded = ar_log_prob(model.defended(0.0), task, generator=rng(5), **options).values
    assert (found >= unbounded + math.log(1.0 - 0.3)).all()
    far = Task(task.context, PointSet(task.xt, task.yt + 1e3))
    bounded, lost = (
        ar_log_prob(model.defended(weight), far, generator=rng(5), **options).values
        for weight in (0.3, 0.0)
    )
    assert (bounded > lost).all()


def test_an_outward_order_starts_anywhere_and_takes_the_nearest_next() -> None:
    task = Sawtooth().sample_task(1, context_size=0, num_targets=12, generator=rng(0))
    starts = set()
    for seed in range(60):
        order = draw_order(task.xt[0], outward=True, generator=rng(seed))
        assert sorted(order.tolist()) == list(range(12))
        x = task.xt[0, order, 0]
        distances = (x - x[0]).abs()
        assert (distances.diff() >= 0).all()
        starts.add(float(x[0]))
    # That one of twelve is never the first of sixty is as likely as (11 / 12)^60, 0.5 %.
    assert len(starts) >= 11


def test_targets_at_one_distance_come_in_either_order() -> None:
    grid = torch.tensor([-1.0, 0.0, 1.0, 1.0]).unsqueeze(1)
    orders: set[tuple[int, ...]] = {
        tuple(draw_order(grid, outward=True, generator=rng(seed)).tolist()) for seed in range(200)
    }
    expected = {(1, *rest) for rest in itertools.permutations((0, 2, 3))}
    expected |= {(0, 1, 2, 3), (0, 1, 3, 2), (2, 3, 1, 0), (3, 2, 1, 0)}
    assert orders == expected


@pytest.mark.parametrize("outward", [False, True])
@pytest.mark.parametrize("num_targets", [0, 1])
def test_no_target_and_one_have_one_order(task: Task, num_targets: int, outward: bool) -> None:
    model, x, y = build(ConvCNP), task.xt[:, :num_targets], task.yt[:, :num_targets]
    few = Task(task.context, PointSet(x, y))
    result = ar_log_prob(model, few, generator=rng(0), outward=outward)
    assert result.forward_passes == 3 * num_targets
    if num_targets == 0:
        assert result.values.tolist() == [0.0, 0.0, 0.0]
    else:
        expected = model.predict(task.context, x).log_prob(y)
        torch.testing.assert_close(result.values, expected, rtol=1e-10, atol=1e-10)
    drawn = ar_sample(
        model, task.context, x, num_samples=2, generator=rng(0), outward=outward
    ).values
    assert drawn.shape == (2, 3, num_targets, 1)
    assert drawn.isfinite().all()


@pytest.mark.parametrize("outward", [False, True])
def test_each_sample_has_an_order_of_its_own(task: Task, outward: bool) -> None:
    model, x, count = build(ConvCNP), task.xt[:1], 60
    asked: list[Tensor] = []
    known: list[int] = []

    def record(module: Any, inputs: Any, output: Any) -> None:
        known.append(inputs[0][0].num_points)
        asked.append(inputs[1][:, 0])

    model.core.register_forward_hook(record)
    options: dict[str, Any] = {"num_samples": count, "generator": rng(1), "outward": outward}
    ar_sample(model, task.context[2], x, **options)
    order = torch.stack(asked, dim=1)[..., 0]  # the inputs as they were asked for
    assert torch.equal(order.sort(dim=1).values, x[0, :, 0].sort().values.expand(count, -1))
    # That one of six targets is never the first of sixty is as likely as (5 / 6)^60, 2e-5.
    assert len(set(order[:, 0].tolist())) == 6
    distances = (order - order[:, :1]).abs()
    assert bool((distances.diff(dim=1) >= 0).all()) is outward
    assert known == [4, 5, 6, 7, 8, 9]


def test_danp_without_levels_equals_its_convcnp(task: Task) -> None:
    base, danp = build(ConvCNP), build_danp(num_levels=0, rank=0)
    danp.core.load_state_dict(base.core.state_dict())
    expected = ar_log_prob(base, task, generator=rng(1))
    found = ar_log_prob(danp, task, generator=rng(1), num_samples=7)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-12, atol=1e-12)
    assert found.forward_passes == expected.forward_passes

    options: dict[str, Any] = {"num_samples": 4}
    samples = [
        ar_sample(model, task.context, task.xt, generator=rng(2), **options)
        for model in (base, danp)
    ]
    torch.testing.assert_close(samples[0].values, samples[1].values, rtol=1e-12, atol=1e-12)
    assert samples[0].forward_passes == samples[1].forward_passes == 4 * 3 * 6


def test_the_order_of_the_targets_changes_the_value(task: Task) -> None:
    """The inconsistency of the paper's Section 1: no joint distribution stands behind the chain."""
    model = build(ARConvCNP)
    one, other = (ar_log_prob(model, task, generator=rng(s)).values for s in (1, 2))
    assert (one - other).abs().min() > 1e-4
    single = Task(task.context, PointSet(task.xt[:, :1], task.yt[:, :1]))
    one, other = (ar_log_prob(model, single, generator=rng(s)).values for s in (1, 2))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def exact_regression(context: PointSet, xt: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of noisy values of a Gaussian process, for one context."""
    kernel, noise = GaussianProcess(length_scale=0.4).kernel, 1e-3
    known = context.compact()
    prior = kernel(known.x, known.x)[0] + noise * torch.eye(known.num_points)
    gain = torch.linalg.solve(prior, kernel(known.x, xt)[0]).T
    covariance = kernel(xt, xt)[0] - gain @ kernel(known.x, xt)[0]
    return gain @ known.y[0], covariance + noise * torch.eye(xt.shape[1])


class ExactGP(ConvNPCore):
    """The marginals of exact regression, for which every order gives the same joint density."""

    def forward(self, sets: Sequence[PointSet], xt: Tensor, index: int | Tensor) -> LowRankNormal:
        rows = [exact_regression(sets[0][i], xt[i : i + 1]) for i in range(len(xt))]
        mean, covariance = (torch.stack(part) for part in zip(*rows, strict=True))
        return DiagonalNormal(mean, covariance.diagonal(dim1=1, dim2=2).unsqueeze(-1))


def exact_gp() -> ConvNP:
    model = build(ConvCNP)
    model.core = ExactGP(model.config, num_sets=1).double()
    return model


@pytest.mark.parametrize("outward", [False, True])
def test_log_prob_of_exact_conditionals_is_the_joint_density(task: Task, outward: bool) -> None:
    for row, seed in ((0, 1), (1, 2), (2, 3)):
        one = task[row]
        mean, covariance = exact_regression(one.context, one.xt)
        joint = torch.distributions.MultivariateNormal(mean[:, 0], covariance)
        found = ar_log_prob(exact_gp(), one, generator=rng(seed), outward=outward).values
        torch.testing.assert_close(found[0], joint.log_prob(one.yt[0, :, 0]), rtol=1e-9, atol=1e-9)


def test_samples_of_exact_conditionals_have_the_joint_covariance(task: Task) -> None:
    model, count = exact_gp(), 1000
    one = task[1]
    mean, covariance = exact_regression(one.context, one.xt)
    samples = ar_sample(model, one.context, one.xt, num_samples=count, generator=rng(3)).values
    assert samples.shape == (count, 1, 6, 1)
    sd = covariance.diagonal().sqrt()
    z = (samples[:, 0, :, 0] - mean[:, 0]) / sd
    correlation = covariance / torch.outer(sd, sd)
    # Five standard errors of a mean, and of a product of two normal numbers.
    assert z.mean(dim=0).abs().max() < 5 / count**0.5
    assert (z.T @ z / count - correlation).abs().max() < 5 * (2 / count) ** 0.5
    assert correlation.tril(-1).abs().max() > 0.6  # which independent draws would not have


def test_samples_of_a_danp_have_the_moments_of_its_mixture(task: Task) -> None:
    model, count = build_danp(num_levels=2), 4000
    one, x = task[2], task.xt[2:, :1]
    mixture = model.predict(one.context, x, num_samples=4000, generator=rng(4))
    result = ar_sample(model, one.context, x, num_samples=count, generator=rng(5))
    z = (result.values.flatten() - mixture.mean.flatten()) / mixture.stddev.flatten()
    # The mixture's moments are estimates too, from as many samples.
    assert z.mean().abs() < 5 * (2 / count) ** 0.5
    assert (z.square().mean() - 1).abs() < 5 * (4 / count) ** 0.5
    assert result.forward_passes == count * 3


@pytest.mark.parametrize("outward", [False, True])
@pytest.mark.parametrize("model", [build(ConvCNP), build_danp(2)], ids=["convcnp", "danp"])
def test_chunk_size_changes_nothing(model: NeuralProcess, task: Task, outward: bool) -> None:
    how: dict[str, Any] = {"num_samples": 5, "outward": outward}
    values = [
        ar_log_prob(model, task, generator=rng(1), chunk_size=size, **how).values
        for size in (2, 256)
    ]
    torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10)
    samples = [
        ar_sample(model, task.context, task.xt, generator=rng(1), chunk_size=size, **how).values
        for size in (2, 256)
    ]
    torch.testing.assert_close(*samples, rtol=1e-10, atol=1e-10)


def test_one_context_serves_many_sets_of_inputs(task: Task) -> None:
    result = ar_sample(build(ConvCNP), task.context[1], task.xt, num_samples=2, generator=rng(0))
    assert result.values.shape == (2, 3, 6, 1)
    assert result.forward_passes == 2 * 3 * 6


def test_wrong_arguments_are_refused_by_name(task: Task) -> None:
    model = build(ConvCNP)
    with pytest.raises(ValueError, match=r"^num_samples .*0"):
        ar_sample(model, task.context, task.xt, num_samples=0, generator=rng(0))
    with pytest.raises(ValueError, match=r"^chunk_size .*-1"):
        ar_log_prob(model, task, generator=rng(0), chunk_size=-1)
    with pytest.raises(ValueError, match=r"^xt .*domain"):
        ar_sample(model, task.context, task.xt + 5, num_samples=1, generator=rng(0))
    hidden = Task(task.context, task.target.masked_where(torch.tensor([True, False, True])))
    with pytest.raises(ValueError, match=r"target point .*\[1, 0\]"):
        ar_log_prob(model, hidden, generator=rng(0))


@pytest.mark.parametrize("num_targets", [1, 6])
def test_a_missing_target_is_refused_by_its_place_whatever_the_order(
    task: Task, num_targets: int
) -> None:
    y = task.yt[:, :num_targets].clone()
    y[2, num_targets - 1] = math.nan
    missing = Task(task.context, PointSet(task.xt[:, :num_targets], y))
    for seed in range(4):
        place = rf"target\.y .*\[2, {num_targets - 1}\]"
        with pytest.raises(ValueError, match=place):
            ar_log_prob(build(ConvCNP), missing, generator=rng(seed))


@pytest.mark.parametrize("weight", [0.0, 0.05])
def test_the_passes_of_a_rollout_are_counted(weight: float) -> None:
    config = DANPConfig(small_config(), 2, num_auxiliary=4, defensive_weight=weight)
    model = seeded(DANP, config, dtype=torch.float32)
    rows: list[int] = []
    model.core.unet.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    generator = torch.Generator().manual_seed(0)
    task = Sawtooth().sample_task(1, context_size=3, num_targets=4, generator=generator)
    rollout = ar_log_prob(model, task, num_samples=3, generator=generator)
    assert rollout.forward_passes == sum(rows)


NOISY = GaussianProcessOracle(length_scale=0.4, variance_floor=0.01, context_variance=0.01)


@pytest.mark.parametrize(
    ("oracle", "outward", "count"),
    [
        (NOISY, False, 1000),
        (NOISY, True, 1000),
        (NoisyGaussianProcessOracle(noise=0.1, length_scale=0.4), False, 200),
    ],
    ids=["random", "outward", "mixture"],
)
def test_samples_of_an_exact_predictive_have_its_joint_covariance(
    oracle: Oracle, outward: bool, count: int, task: Task
) -> None:
    # Known values are as noisy as new ones, so that every order has the joint predictive.
    one = task[1]
    joint: Any = oracle.predict(one.context, one.xt)
    joint = getattr(joint, "components", joint)  # a mixture of one noise
    mean, covariance = joint.mean.flatten(), joint.covariance_matrix.reshape(6, 6)
    how: dict[str, Any] = {"num_samples": count, "outward": outward}
    result = ar_sample(oracle, one.context, one.xt, generator=rng(3), **how)
    assert (result.values.shape, result.forward_passes) == ((count, 1, 6, 1), 0)
    sd = covariance.diagonal().sqrt()
    z = (result.values[:, 0, :, 0] - mean) / sd
    # Five standard errors of a mean, and of a product of two normal numbers.
    assert z.mean(dim=0).abs().max() < 5 / count**0.5
    correlation = covariance / torch.outer(sd, sd)
    assert (z.T @ z / count - correlation).abs().max() < 5 * (2 / count) ** 0.5
    assert correlation.tril(-1).abs().max() > 0.5  # which independent draws would not have
    how |= {"num_samples": 20, "chunk_size": 7}
    few = ar_sample(oracle, one.context, one.xt, generator=rng(3), **how).values
    torch.testing.assert_close(few, result.values[:20], rtol=1e-8, atol=1e-8)


def test_an_exact_predictive_of_one_context_for_many_inputs_is_refused(task: Task) -> None:
    with pytest.raises(ValueError, match=r"^xt must have shape \(1, targets, 1\)"):
        ar_sample(
            GaussianProcessOracle(), task.context[0], task.xt, num_samples=1, generator=rng(0)
        )


@pytest.mark.parametrize("name", ["sawtooth", "square", "square-released"])
def test_waves_that_samples_lie_off_are_not_rolled_out(name: str, task: Task) -> None:
    oracle = ORACLES[name]()
    message = rf"^model must .* got a {type(oracle).__name__}; draw .*predict\(context, xt\)"
    with pytest.raises(ValueError, match=message):
        ar_sample(oracle, task.context, task.xt, num_samples=1, generator=rng(0))


def test_what_is_no_model_is_not_rolled_out(task: Task) -> None:
    wrong: Any
    for wrong, found in (("danp", "str"), (ConvCNP, "the class ConvCNP")):
        message = f"^model must be a NeuralProcess, got {found}"
        with pytest.raises(ValueError, match=message):
            ar_log_prob(wrong, task, generator=rng(0))
        with pytest.raises(ValueError, match=message):
            ar_sample(wrong, task.context, task.xt, num_samples=1, generator=rng(0))
