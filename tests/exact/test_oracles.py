"""The exact predictives against dense algebra, brute-force quadrature and the generators."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from danp_lib.data.generators import GENERATORS, GaussianProcess, Sawtooth, SquareWave
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.gaussian import VARIANCE_FLOOR, DiagonalNormal
from danp_lib.exact.gp import NoisyGaussianProcessOracle
from danp_lib.exact.oracles import (
    ORACLES,
    GaussianProcessOracle,
    ReleasedSquareWaveOracle,
    SawtoothOracle,
    SquareWaveOracle,
)
from danp_lib.exact.sawtooth import _log_mass
from danp_lib.exact.square import _phase_bounds

NAMES = sorted(ORACLES)
SQUARES = {"square": SquareWaveOracle, "square-released": ReleasedSquareWaveOracle}
NUM_TARGETS = 50


def task_of(name: str, batch_size: int, seed: int = 0, **options: Any) -> Task:
    generator = torch.Generator().manual_seed(seed)
    return GENERATORS[name]().sample_task(batch_size, generator=generator, **options)


def average_likelihoods(log_prob: Tensor) -> Tensor:
    return (log_prob / NUM_TARGETS).exp()


def points(x: list[float], y: list[float]) -> PointSet:
    return PointSet(torch.tensor(x).reshape(1, -1, 1), torch.tensor(y).reshape(1, -1, 1))


# What all promise.


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_context_does_not_matter(name: str) -> None:
    task = task_of(name, 3, context_size=6, num_targets=8)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    shuffled = PointSet(task.xc[:, order], task.yc[:, order])
    oracle = ORACLES[name]()
    a, b = oracle.predict(task.context, task.xt), oracle.predict(shuffled, task.xt)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target),
        oracle.log_prob(shuffled, task.target),
        rtol=0,
        atol=1e-4,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_masked_point_is_an_absent_one(name: str, size: int) -> None:
    task = task_of(name, 2, context_size=size, num_targets=6)
    nan = torch.full((2, 2, 1), math.nan)
    padding = PointSet(nan, nan, torch.zeros(2, 2, dtype=torch.bool))
    context, target = padding.concat(task.context), task.target.concat(padding)
    oracle = ORACLES[name]()
    a, b = oracle.predict(task.context, task.xt), oracle.predict(context, task.xt)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target), oracle.log_prob(context, target)
    )


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_batch_do_not_meet(name: str) -> None:
    task = task_of(name, 5, context_size=(0, 3), num_targets=4)
    oracle = ORACLES[name]()
    together = oracle.predict(task.context, task.xt)
    values = oracle.log_prob(task.context, task.target)
    for row in range(5):
        alone = oracle.predict(task.context[row], task.xt[row : row + 1])
        torch.testing.assert_close(alone.mean[0], together.mean[row], rtol=0, atol=1e-10)
        value = oracle.log_prob(task.context[row], task.target[row])
        torch.testing.assert_close(value[0], values[row])


@pytest.mark.parametrize("name", ["sawtooth", *SQUARES])
def test_without_a_context_the_moments_are_those_of_the_generator(name: str) -> None:
    x = torch.linspace(-1.9, 1.9, 7, dtype=torch.float64).reshape(1, -1, 1)
    many = 20_000
    generator = torch.Generator().manual_seed(0)
    y = GENERATORS[name]().sample_outputs(x.expand(many, -1, -1), generator=generator)
    predicted = ORACLES[name]().predict(PointSet.empty(dtype=torch.float64), x)
    error = 4.0 * (y.var(dim=0) / many).sqrt() + 0.005  # of the Monte Carlo mean, and of the nodes
    assert ((predicted.mean[0] - y.mean(dim=0)).abs() < error).all()
    torch.testing.assert_close(predicted.variance[0], y.var(dim=0), rtol=0, atol=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_bad_inputs_are_refused_by_name(name: str) -> None:
    task = task_of(name, 2, context_size=3, num_targets=4)
    oracle = ORACLES[name]()
    bad = PointSet(task.xc, torch.full_like(task.yc, math.nan))
    with pytest.raises(ValueError, match=r"^context\.y "):
        oracle.predict(bad, task.xt)
    with pytest.raises(ValueError, match=r"^xt .*shape"):
        oracle.predict(task.context, task.xt[:1])
    with pytest.raises(ValueError, match=r"^xt .*(inf|nan)"):
        oracle.predict(task.context, task.xt * math.inf)
    with pytest.raises(ValueError, match=r"^target\.y "):
        oracle.log_prob(task.context, PointSet(task.xt, task.yt * math.nan))


@pytest.mark.parametrize("oracle", [SawtoothOracle, SquareWaveOracle])
def test_waves_refuse_what_makes_no_prior(oracle: type[SawtoothOracle | SquareWaveOracle]) -> None:
    with pytest.raises(ValueError, match=r"^frequency .*0\.5"):
        oracle(frequency=(0.5, 2.0))
    with pytest.raises(ValueError, match="num_nodes"):
        oracle(num_nodes=0)
    with pytest.raises(ValueError, match="variance_floor"):
        oracle(variance_floor=0.0)
    with pytest.raises(ValueError, match="one dimension"):
        oracle().predict(PointSet.empty(dim_x=2), torch.zeros(1, 3, 2))


# The Gaussian process.


def dense_gp(task: Task, nugget: float, floor: float) -> tuple[Tensor, Tensor]:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((a[:, None] - b[None]) / 0.25) ** 2)

    xc, yc, xt = task.xc[0, :, 0].double(), task.yc[0, :, 0].double(), task.xt[0, :, 0].double()
    inverse = torch.linalg.inv(kernel(xc, xc) + nugget * torch.eye(len(xc), dtype=torch.float64))
    cross = kernel(xt, xc)
    prior = kernel(xt, xt) + floor * torch.eye(len(xt), dtype=torch.float64)
    return cross @ inverse @ yc, prior - cross @ inverse @ cross.T


@pytest.mark.parametrize("context_variance", [1e-6, 1e-4])
def test_gp_is_the_dense_formula(context_variance: float) -> None:
    task = task_of("gp", 1, context_size=7, num_targets=12)
    oracle = GaussianProcessOracle(context_variance=context_variance)
    predicted = oracle.predict(task.context, task.xt)
    mean, covariance = dense_gp(task, context_variance, 1e-6)
    torch.testing.assert_close(predicted.mean[0, :, 0], mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(predicted.covariance_matrix[0], covariance, rtol=0, atol=1e-9)
    expected = torch.distributions.MultivariateNormal(mean, covariance, validate_args=False)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target)[0],
        expected.log_prob(task.yt[0, :, 0].double()),
        rtol=0,
        atol=1e-3,
    )


def test_gp_marginals_are_slices() -> None:
    task = task_of("gp", 3, context_size=4, num_targets=9)
    oracle = GaussianProcessOracle()
    joint = oracle.predict(task.context, task.xt)
    index = torch.tensor([7, 2])
    part = oracle.predict(task.context, task.xt[:, index])
    torch.testing.assert_close(part.covariance_matrix, joint.marginal(index).covariance_matrix)


def test_gp_obeys_the_chain_rule() -> None:
    task = task_of("gp", 4, context_size=5, num_targets=20)
    first = PointSet(task.xt[:, :8], task.yt[:, :8])
    rest = PointSet(task.xt[:, 8:], task.yt[:, 8:])
    oracle = GaussianProcessOracle(context_variance=VARIANCE_FLOOR)
    chain = oracle.log_prob(task.context, first) + oracle.log_prob(task.context.concat(first), rest)
    torch.testing.assert_close(oracle.log_prob(task.context, task.target), chain, atol=1e-4, rtol=0)


def test_gp_diagonal_and_exact_context_bound_the_joint() -> None:
    task = task_of("gp", 30, context_size=30)
    exact, floored = GaussianProcessOracle(), GaussianProcessOracle(context_variance=VARIANCE_FLOOR)
    joint = floored.log_prob(task.context, task.target)
    predicted = floored.predict(task.context, task.xt)
    diagonal = DiagonalNormal(predicted.mean, predicted.variance)
    assert 45 < average_likelihoods(diagonal.log_prob(task.yt)).mean() < 70
    assert 210 < average_likelihoods(exact.log_prob(task.context, task.target)).mean() < 250
    assert 160 < average_likelihoods(joint).mean() < 190


def test_gp_refuses_what_is_singular() -> None:
    with pytest.raises(ValueError, match=r"^variance_floor "):
        GaussianProcessOracle(variance_floor=0.0)
    crowd = points(torch.linspace(0.0, 0.1, 40).tolist(), [0.0] * 40)
    with pytest.raises(ValueError, match=r"^context_variance "):
        GaussianProcessOracle(context_variance=1e-18).predict(crowd, torch.zeros(1, 1, 1))
    # So close that their correlation is one but for the last bit of a float64.
    pair = points([0.0, 4e-9], [0.0, 0.0])
    around = torch.linspace(-1.0, 1.0, 50, dtype=torch.float64).reshape(1, -1, 1)
    with pytest.raises(ValueError, match=r"^context_variance .*eigenvalue of -0\."):
        GaussianProcessOracle(context_variance=1e-18).predict(pair, around)


# Sawtooth waves.


def sawtooth_prior_integral(task: Task, variance: float, nodes: int) -> float:
    """Log of the density of the targets without a context, on a grid over (omega, phi, d)."""
    unit = (torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes
    total = []
    for omega in 2.0 + 2.0 * unit:
        phi = 1 / omega + (1 - 1 / omega) * unit
        for d in torch.tensor([-1.0, 1.0]):
            waves = Sawtooth.evaluate(task.xt[0, :, 0], omega, phi[:, None], d)
            total.append(floor_density(waves, task, variance))
    return float(torch.stack(total).logsumexp(dim=(0, 1))) - math.log(2.0 * nodes**2)


def floor_density(waves: Tensor, task: Task, variance: float) -> Tensor:
    squared = (waves - task.yt[0, :, 0].double()).square().sum(dim=-1) / variance
    return -0.5 * (squared + task.yt.shape[1] * math.log(2 * math.pi * variance))


@pytest.mark.parametrize("num_targets", [1, 2, 4])
def test_sawtooth_without_a_context_is_brute_force(num_targets: int) -> None:
    task = task_of("sawtooth", 1, context_size=0, num_targets=num_targets, dtype=torch.float64)
    # Off every wave, so that nothing may rest on the targets being on one.
    noise = torch.randn(task.yt.shape, generator=torch.Generator().manual_seed(2))
    task = Task(task.context, PointSet(task.xt, task.yt + 0.2 * noise))
    value = SawtoothOracle(variance_floor=1e-2).log_prob(task.context, task.target)
    assert float(value) == pytest.approx(sawtooth_prior_integral(task, 1e-2, 800), abs=2e-3)


@pytest.mark.parametrize("displacement", [0.0, 0.02])
def test_sawtooth_without_a_context_at_the_paper_s_floor(displacement: float) -> None:
    # Brute force around the true parameters, which are alone with so many targets; the same wave
    # has the phases phi + k / omega. A leftmost target displaced by twenty standard deviations
    # disagrees with the rightmost, so that the first net for the frequency does not hold the best.
    generator = torch.Generator().manual_seed(3)
    omega, phi, d = Sawtooth().sample_parameters(1, generator=generator)
    x = torch.rand(1, 30, 1, dtype=torch.float64, generator=generator) * 4 - 2
    y = Sawtooth.evaluate(x, omega, phi, d)
    y[0, x.argmin()] += displacement
    task = Task(PointSet.empty(dtype=torch.float64), PointSet(x, y))
    terms, reach, nodes = [], 4e-3, 600
    steps = ((torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes - 0.5) * 2 * reach
    for k in range(-3, 4):
        for row in omega.flatten() + steps:
            phis = (omega * phi + k).flatten() / row + steps
            inside = (phis > 1 / row) & (phis < 1)
            waves = Sawtooth.evaluate(x[0, :, 0], row, phis[inside, None], d.flatten())
            prior = -math.log(2 * 2 * (1 - 1 / float(row))) + 2 * math.log(2 * reach / nodes)
            terms.append(floor_density(waves, task, 1e-6) + prior)
    expected = torch.cat(terms).logsumexp(0)
    value = SawtoothOracle().log_prob(task.context, task.target)
    assert float(value) == pytest.approx(float(expected), abs=1e-2)


@pytest.mark.parametrize(("low", "high"), [(60.0, 61.0), (5.0, 6.0)])
def test_the_mass_of_an_interval_keeps_its_digits_in_both_tails(low: float, high: float) -> None:
    ends = torch.tensor([[low, high], [-high, -low]], dtype=torch.float64)
    more, less = torch.special.log_ndtr(ends[1].flip(0)).tolist()
    expected = more + math.log1p(-math.exp(less - more))
    mass = _log_mass(ends[:, 0], ends[:, 1])
    assert mass.tolist() == pytest.approx([expected, expected], rel=1e-12)


@pytest.mark.parametrize(("variance", "num_targets"), [(1e-2, 1), (1e-2, 5), (1e-6, 8)])
@pytest.mark.parametrize("seed", [0, 1])
def test_sawtooth_with_one_point_is_brute_force(
    variance: float, num_targets: int, seed: int
) -> None:
    task = task_of(
        "sawtooth", 1, seed, context_size=1, num_targets=num_targets, dtype=torch.float64
    )
    nodes = 200_000
    omega = 2.0 + 2.0 * (torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes
    joint, alone = [], []
    for d in (-1.0, 1.0):
        for k in range(-13, 9):
            # The phases that put the wave through the point: |d phi / d y| is 1 / omega.
            phi = (omega * d * task.xc.item() - task.yc.item() - k) / omega
            inside = (phi > 1 / omega) & (phi < 1)
            weight = -torch.log(omega[inside] * (1 - 1 / omega[inside]))
            waves = Sawtooth.evaluate(
                task.xt[0, :, 0], omega[inside, None], phi[inside, None], torch.tensor(d)
            )
            joint.append(weight + floor_density(waves, task, variance))
            alone.append(weight)
    expected = torch.cat(joint).logsumexp(0) - torch.cat(alone).logsumexp(0)
    oracle = SawtoothOracle(variance_floor=variance)
    assert float(oracle.log_prob(task.context, task.target)) == pytest.approx(
        float(expected), abs=1e-3
    )
    if variance == 1e-2:  # wide enough for the nodes of the mixture
        mixture = oracle.predict(task.context, task.xt)
        assert float(mixture.log_prob(task.yt)) == pytest.approx(float(expected), abs=1e-3)


def test_sawtooth_density_integrates_to_one() -> None:
    task = task_of("sawtooth", 1, context_size=1, num_targets=1)
    y = torch.linspace(-0.6, 1.6, 221).reshape(-1, 1, 1)
    context = PointSet(task.xc.expand(221, -1, -1), task.yc.expand(221, -1, -1))
    target = PointSet(task.xt.expand(221, -1, -1), y)
    values = SawtoothOracle(variance_floor=1e-2).log_prob(context, target).exp()
    assert float(torch.trapezoid(values, y.flatten().double())) == pytest.approx(1.0, abs=1e-4)


def test_sawtooth_default_quadrature_is_fine_enough() -> None:
    empty = task_of("sawtooth", 1, context_size=0)
    a, b = (
        SawtoothOracle(nodes_per_stddev=n).log_prob(empty.context, empty.target) for n in (4, 8)
    )
    assert float((a - b).abs().max()) / NUM_TARGETS < 1e-12


def test_sawtooth_one_point_cells_are_fine_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of("sawtooth", 20, context_size=1)
    value = SawtoothOracle().log_prob(task.context, task.target)
    monkeypatch.setattr("danp_lib.exact.sawtooth._CELLS", 4 * 4096)
    finer = SawtoothOracle().log_prob(task.context, task.target)
    assert float((value - finer).abs().max()) / NUM_TARGETS < 2e-6


@pytest.mark.parametrize("size", [2, 3, 6])
def test_sawtooth_density_given_points_is_that_of_the_finite_mixture(size: int) -> None:
    task = task_of("sawtooth", 20, context_size=size)
    oracle = SawtoothOracle()
    mixture = oracle.predict(task.context, task.xt)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target), mixture.log_prob(task.yt), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("size", [1, 2, 4, 30])
def test_every_candidate_goes_through_the_context_and_one_is_the_truth(size: int) -> None:
    task = task_of("sawtooth", 20, context_size=size, num_targets=10)
    oracle = SawtoothOracle()
    at_context = oracle.predict(task.context, task.xc)
    alive = at_context.logits > -math.inf
    miss = at_context.components.mean - task.yc.double().unsqueeze(1)
    miss = (miss - miss.round()).abs().amax(dim=(2, 3))  # on the circle: a value may be at a jump
    assert float(miss[alive].max()) < 3e-7
    mixture = oracle.predict(task.context, task.xt)
    if size == 1:
        assert mixture.num_components == 8192
        return
    error = (mixture.components.mean - task.yt.double().unsqueeze(1)).abs().amax(dim=(2, 3))
    best, where = error.masked_fill(~alive, math.inf).min(dim=1)
    assert float(best.max()) < 1e-4
    assert mixture.num_components <= 16
    if size >= 4:
        weight = mixture.logits.exp().gather(1, where[:, None])
        assert int((weight > 0.999).sum()) >= 19


@pytest.mark.parametrize(
    ("size", "low", "high"), [(1, 315, 340), (2, 380, 396), (5, 398, 399), (30, 398, 399)]
)
def test_sawtooth_average_likelihood(size: int, low: float, high: float) -> None:
    task = task_of("sawtooth", 20, context_size=size)
    values = average_likelihoods(SawtoothOracle().log_prob(task.context, task.target))
    assert low < float(values.mean()) < high
    assert float(values.max()) <= 1 / math.sqrt(2 * math.pi * 1e-6)


def test_a_sawtooth_context_may_sit_on_a_jump() -> None:
    # omega = 3, phi = 1/2, d = 1: just left of its jump at 1/2 the wave rounds to 1.
    oracle = SawtoothOracle()
    xt = torch.tensor([-1.3, 0.1, 1.7], dtype=torch.float64).reshape(1, -1, 1)
    others = [-1.1, 0.9, 1.8]
    expected = torch.remainder(3 * xt - 1.5, 1.0)
    for y in (0.0, 1.0):
        context = points([0.5, *others], [y, *(math.fmod(3 * x + 6 - 1.5, 1.0) for x in others)])
        predicted = oracle.predict(context, xt)
        torch.testing.assert_close(predicted.mean, expected, rtol=0, atol=1e-5)


def test_repeated_and_nearly_repeated_inputs_say_what_one_does() -> None:
    task = task_of("sawtooth", 3, context_size=1, num_targets=20)
    twice = task.context.concat(task.context)
    oracle = SawtoothOracle()
    one = oracle.log_prob(task.context, task.target)
    torch.testing.assert_close(oracle.log_prob(twice, task.target), one)
    # Two points 1e-6 apart fix the frequency to a tenth or so: part of what one point leaves.
    x = torch.tensor([0.3, 0.300001], dtype=torch.float64)
    y = torch.remainder(3.0 * x - 1.7, 1.0).float().double()
    xt = torch.linspace(-2.0, 2.0, 20, dtype=torch.float64).reshape(1, -1, 1)
    target = PointSet(xt, torch.remainder(3.0 * xt - 1.7, 1.0))
    pair = PointSet(x.reshape(1, 2, 1), y.reshape(1, 2, 1))
    single = PointSet(pair.x[:, :1], pair.y[:, :1])
    gain = oracle.log_prob(pair, target) - oracle.log_prob(single, target)
    assert 1.0 < float(gain) < 5.0


def test_points_on_no_sawtooth_are_refused() -> None:
    task = task_of("sawtooth", 2, context_size=5)
    noisy = PointSet(task.xc, task.yc + 1e-3 * torch.arange(5.0).reshape(1, 5, 1))
    with pytest.raises(ValueError, match=r"context .*sawtooth"):
        SawtoothOracle().predict(noisy, task.xt)
    with pytest.raises(ValueError, match=r"context .*2 points"):
        SawtoothOracle().log_prob(points([0.5, 0.5], [0.2, 0.3]), task.target[0])


# Square waves.

squares = pytest.mark.parametrize("name", SQUARES)


def square_probability(name: str, x: Tensor, y: Tensor, nodes: int = 1500) -> float:
    """The prior probability of the values, on a grid over (omega, phi)."""
    unit = (torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes
    omega = (1 + 2 * unit)[:, None]
    phi = {"square": 1 / omega + (1 - 1 / omega) * unit, "square-released": unit / omega}[name]
    agree = torch.ones_like(phi, dtype=torch.bool)
    for position, value in zip(x.flatten(), y.flatten(), strict=True):
        wave = SquareWave.evaluate(position.double(), omega, phi)
        # The released code has 0 where the paper's text has 1.
        agree &= (wave if name == "square" else 1 - wave) == value
    return float(agree.double().mean())


@squares
@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_square_density_is_a_ratio_of_areas(name: str, size: int, seed: int) -> None:
    task = task_of(name, 1, seed, context_size=size, num_targets=3)
    x, y = torch.cat([task.xc, task.xt], 1), torch.cat([task.yc, task.yt], 1)
    joint = square_probability(name, x, y)
    expected = math.log(joint / square_probability(name, task.xc, task.yc))
    value = SQUARES[name]().log_prob(task.context, task.target)
    constant = -1.5 * math.log(2 * math.pi * 1e-6)
    assert float(value) - constant == pytest.approx(expected, abs=5e-3)


@squares
def test_square_obeys_the_chain_rule(name: str) -> None:
    task = task_of(name, 6, context_size=2, num_targets=12)
    first = PointSet(task.xt[:, :5], task.yt[:, :5])
    rest = PointSet(task.xt[:, 5:], task.yt[:, 5:])
    oracle = SQUARES[name]()
    chain = oracle.log_prob(task.context, first) + oracle.log_prob(task.context.concat(first), rest)
    torch.testing.assert_close(oracle.log_prob(task.context, task.target), chain, atol=1e-5, rtol=0)


@squares
@pytest.mark.parametrize("size", [0, 2, 30])
def test_square_marginals_are_probabilities_of_single_values(name: str, size: int) -> None:
    task = task_of(name, 1, context_size=size, num_targets=6)
    oracle = SQUARES[name]()
    mean = oracle.predict(task.context, task.xt).mean[0, :, 0]
    for n, probability in enumerate(mean.tolist()):
        ones = PointSet(task.xt[:, n : n + 1], torch.ones(1, 1, 1))
        try:
            exact = float(oracle.log_prob(task.context, ones).exp()) * math.sqrt(2e-6 * math.pi)
        except ValueError:  # no wave has this value there
            exact = 0.0
        assert probability == pytest.approx(exact, abs=0.005)


@squares
def test_every_square_wave_of_a_prediction_goes_through_the_context(name: str) -> None:
    task = task_of(name, 10, context_size=(1, 30))
    for row in range(10):
        context = task.context[row].compact()
        means = SQUARES[name]().predict(context, context.x).components.mean
        assert (means == context.y.unsqueeze(1)).all()


@squares
def test_square_drops_no_cell_that_holds_a_wave(name: str) -> None:
    # So many points leave slivers thinner than the cells that the search starts from.
    generator = torch.Generator().manual_seed(0)
    oracle, nodes, reach = SQUARES[name](), 8000, 2e-2
    window = ((torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes - 0.5) * 2 * reach
    # At low frequencies the released phases have nearly all of a half period.
    for highest in 5 * [3.0] + 5 * [1.05]:
        prior = oracle.family(frequency=(1.0, highest))
        omega, phi = prior.sample_parameters(1, generator=generator)
        x = torch.rand(1, 400, 1, dtype=torch.float64, generator=generator) * 4 - 2
        y = SquareWave.evaluate(x, omega, phi)
        grid = omega.flatten() + window
        inside = ((grid > 1.0) & (grid < 3.0)).double()
        first, last = oracle.family.phase_range(grid)
        low, high = _phase_bounds(grid, x.flatten(), y.flatten(), (first, last))
        area = (inside * (high - low).clamp(min=0.0) / (last - first)).mean() * reach
        assert float(area) > 0.0
        expected = float(area.log()) - 200 * math.log(2 * math.pi * 1e-6)
        value = oracle.log_prob(PointSet.empty(dtype=torch.float64), PointSet(x, y))
        assert float(value) == pytest.approx(expected, abs=2e-3)


@squares
def test_square_default_cells_are_fine_enough(name: str) -> None:
    task = task_of(name, 5, context_size=(0, 30))
    value = SQUARES[name]().log_prob(task.context, task.target)
    finer = SQUARES[name](num_cells=8192).log_prob(task.context, task.target)
    assert float((value - finer).abs().max()) / NUM_TARGETS < 5e-7


@squares
def test_square_posteriors_are_calibrated(name: str) -> None:
    task = task_of(name, 60, context_size=(0, 4), num_targets=20)
    probability = SQUARES[name]().predict(task.context, task.xt).mean
    # What is predicted with probability p is 1 in p of the cases; targets of a task are dependent.
    error = (task.yt - probability).mean(dim=(1, 2))
    assert abs(float(error.mean())) < 4.0 * float(error.std()) / 60**0.5
    spread = ((task.yt - probability).square() - probability * (1 - probability)).mean(dim=(1, 2))
    assert abs(float(spread.mean())) < 4.0 * float(spread.std()) / 60**0.5


def test_the_two_square_priors_share_no_wave() -> None:
    task = task_of("square-released", 1, context_size=30)
    origin = PointSet(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    mean = ReleasedSquareWaveOracle().predict(task.context, origin.x).mean
    assert float(mean) == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"context .*square"):
        SquareWaveOracle().predict(origin, origin.x)


@pytest.mark.parametrize(
    ("name", "size", "low", "high"),
    [
        *(("square", 0, 335, 365), ("square", 5, 355, 380), ("square", 30, 375, 398)),
        *(("square-released", 0, 335, 365), ("square-released", 30, 375, 398)),
    ],
)
def test_square_average_likelihood(name: str, size: int, low: float, high: float) -> None:
    task = task_of(name, 20, context_size=size)
    values = average_likelihoods(SQUARES[name]().log_prob(task.context, task.target))
    assert low < float(values.mean()) < high


def test_values_on_no_square_wave_are_refused() -> None:
    oracle = SquareWaveOracle()
    with pytest.raises(ValueError, match=r"context .*0 and 1"):
        oracle.predict(points([0.0], [0.5]), torch.zeros(1, 1, 1))
    clash = points([0.5, 0.5], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"context .*square"):
        oracle.predict(clash, torch.zeros(1, 1, 1))
    blip = points([0.5, 0.5000002, 0.5000004], [0.0, 1.0, 0.0])  # shorter than any half period
    with pytest.raises(ValueError, match=r"context .*square"):
        oracle.predict(blip, torch.zeros(1, 1, 1))
    with pytest.raises(ValueError, match="context and target "):
        oracle.log_prob(points([0.5], [0.0]), points([0.5], [1.0]))
    with pytest.raises(ValueError, match=r"^variance_floor "):
        SquareWaveOracle(variance_floor=0.1)


# Noisy Gaussian processes.


def test_one_noise_is_the_regression_with_its_variance() -> None:
    task = GaussianProcess(noise=0.1).sample_task(
        3, context_size=(0, 8), num_targets=6, generator=torch.Generator().manual_seed(0)
    )
    oracle, variance = NoisyGaussianProcessOracle(0.1), 0.1**2 + GaussianProcess.jitter
    plain = GaussianProcessOracle(variance_floor=variance, context_variance=variance)
    predictive = oracle.predict(task.context, task.xt)
    assert predictive.num_components == 1
    torch.testing.assert_close(predictive.mean, plain.predict(task.context, task.xt).mean)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target), plain.log_prob(task.context, task.target)
    )


@pytest.mark.parametrize("size", [0, 3, 25])
def test_a_range_of_noise_is_integrated_by_bayes_rule(size: int) -> None:
    prior = GaussianProcess(noise=(0.01, 0.3))
    task = prior.sample_task(
        2, context_size=size, num_targets=30, generator=torch.Generator().manual_seed(size)
    )
    # log p(both) - log p(context) by a dense rule, without the predictive.
    both, nothing = task.context.concat(task.target), PointSet.empty(2)
    u = torch.linspace(0, 1, 2001, dtype=torch.float64)[1::2]
    logs = []
    for variance in (0.01 * 30.0 ** u[::5]).square().tolist():
        plain = GaussianProcessOracle(0.25, variance + 1e-8, variance + 1e-8)
        logs.append([plain.log_prob(nothing, both), plain.log_prob(nothing, task.context)])
    joint, alone = (torch.stack(parts).logsumexp(dim=0) for parts in zip(*logs, strict=True))
    oracle = NoisyGaussianProcessOracle(prior.noise)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target), joint - alone, rtol=0, atol=0.05
    )


@pytest.mark.parametrize("size", [0, 25])
def test_the_default_parts_of_a_range_of_noise_are_fine_enough(size: int) -> None:
    prior = GaussianProcess(noise=(0.01, 0.3))
    task = prior.sample_task(
        1, context_size=size, num_targets=50, generator=torch.Generator().manual_seed(size)
    )
    oracle = NoisyGaussianProcessOracle(prior.noise)
    finer = NoisyGaussianProcessOracle(prior.noise, num_nodes=8 * oracle.num_nodes)
    values, exact = (one.log_prob(task.context, task.target) / 50 for one in (oracle, finer))
    torch.testing.assert_close(values, exact, rtol=0, atol=1e-3)


def test_with_noise_repeated_values_are_evidence_and_contradictory_ones_of_noise() -> None:
    context = PointSet(torch.zeros(1, 0, 1), torch.zeros(1, 0, 1))
    x, oracle = torch.zeros(1, 1, 1), NoisyGaussianProcessOracle((0.01, 0.3))
    once, twice, apart = (
        oracle.predict(points([0.0] * len(values), values), x)
        for values in ([0.3], [0.3, 0.3], [0.0, 0.6])
    )
    assert float(twice.variance) < float(once.variance) < float(apart.variance)
    torch.testing.assert_close(twice.mean, apart.mean, rtol=0.2, atol=0.0)
    assert oracle.predict(context, x).variance > 1.0


def test_a_wrong_noise_is_refused() -> None:
    for noise in (0.0, (0.3, 0.01), (0.0, 0.3)):
        with pytest.raises(ValueError, match="noise"):
            NoisyGaussianProcessOracle(noise)


@pytest.mark.parametrize("name", NAMES)
def test_batches_that_do_not_agree_are_refused(name: str) -> None:
    oracle = ORACLES[name]()
    context, target = PointSet.empty(2), PointSet(torch.zeros(1, 3, 1), torch.zeros(1, 3, 1))
    with pytest.raises(ValueError, match=r"^target\.x must have shape \(2, targets, 1\)"):
        oracle.log_prob(context, target)
    with pytest.raises(ValueError, match="context must hold at least one set"):
        oracle.predict(context[:0], target.x[:0])


@pytest.mark.parametrize("value", [-7.5, -1e-3, 1.001, 3.2])
def test_outputs_that_no_sawtooth_wave_has_are_refused(value: float) -> None:
    """They are compared modulo 1, but a wave itself stays in [0, 1)."""
    context, x = points([0.0], [value]), torch.tensor([[[0.25]]])
    with pytest.raises(ValueError, match=r"^the context must have outputs from 0 to 1, got"):
        SawtoothOracle().predict(context, x)
    with pytest.raises(ValueError, match=r"^the context must have outputs from 0 to 1, got"):
        SawtoothOracle().log_prob(context, points([0.25], [0.5]))
    assert SawtoothOracle().predict(points([0.0], [1.0]), x).mean.isfinite().all()
