"""The exact posterior of sawtooth waves against brute force."""

from __future__ import annotations

import math

import pytest
import torch
from exact_tasks import NUM_TARGETS, average_likelihoods, points, task_of
from randomness import rng
from torch import Tensor

from danp_lib.data.generators import Sawtooth
from danp_lib.data.points import PointSet, Task
from danp_lib.exact.oracles import SawtoothOracle
from danp_lib.exact.sawtooth import _log_mass


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
    noise = torch.randn(task.yt.shape, generator=rng(2))
    task = Task(task.context, PointSet(task.xt, task.yt + 0.2 * noise))
    value = SawtoothOracle(variance_floor=1e-2).log_prob(task.context, task.target)
    assert float(value) == pytest.approx(sawtooth_prior_integral(task, 1e-2, 800), abs=2e-3)


@pytest.mark.parametrize("displacement", [0.0, 0.02])
def test_sawtooth_without_a_context_at_the_paper_s_floor(displacement: float) -> None:
    # Brute force around the true parameters, which are alone with so many targets; the same wave
    # has the phases phi + k / omega. A leftmost target displaced by twenty standard deviations
    # disagrees with the rightmost, so that the first net for the frequency does not hold the best.
    generator = rng(3)
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


def test_targets_on_no_sawtooth_have_the_density_of_the_nearest() -> None:
    task = task_of("sawtooth", 1, context_size=6, num_targets=4, dtype=torch.float64)
    off = torch.tensor([0.2, -0.3, 2.0, -5.0], dtype=torch.float64).reshape(1, 4, 1)
    oracle = SawtoothOracle(variance_floor=1e-2)
    on, other = (
        oracle.log_prob(task.context, PointSet(task.xt, task.yt + shift)) for shift in (0.0, off)
    )
    # Six points leave one wave; the tolerance moves it by 1e-6 or so.
    assert float(on - other) == pytest.approx(float(off.square().sum()) / 2e-2, abs=0.01)


def test_points_on_no_sawtooth_are_refused() -> None:
    task = task_of("sawtooth", 2, context_size=5)
    noisy = PointSet(task.xc, task.yc + 1e-3 * torch.arange(5.0).reshape(1, 5, 1))
    with pytest.raises(ValueError, match=r"context .*sawtooth"):
        SawtoothOracle().predict(noisy, task.xt)
    with pytest.raises(ValueError, match=r"context .*2 points"):
        SawtoothOracle().log_prob(points([0.5, 0.5], [0.2, 0.3]), task.target[0])


@pytest.mark.parametrize("value", [-7.5, -1e-3, 1.001, 3.2])
def test_outputs_that_no_sawtooth_wave_has_are_refused(value: float) -> None:
    """They are compared modulo 1, but a wave itself stays in [0, 1)."""
    context, x = points([0.0], [value]), torch.tensor([[[0.25]]])
    with pytest.raises(ValueError, match=r"^the context must have outputs from 0 to 1, got"):
        SawtoothOracle().predict(context, x)
    with pytest.raises(ValueError, match=r"^the context must have outputs from 0 to 1, got"):
        SawtoothOracle().log_prob(context, points([0.25], [0.5]))
    assert SawtoothOracle().predict(points([0.0], [1.0]), x).mean.isfinite().all()
