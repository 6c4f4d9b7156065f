"""The exact posteriors of both square waves against areas and probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from exact_tasks import NUM_TARGETS, average_likelihoods, points, task_of
from randomness import rng
from torch import Tensor

from danp_lib.data.generators import SquareWave
from danp_lib.data.points import PointSet
from danp_lib.exact.oracles import ReleasedSquareWaveOracle, SquareWaveOracle
from danp_lib.exact.square import _phase_bounds

SQUARES = {"square": SquareWaveOracle, "square-released": ReleasedSquareWaveOracle}
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
    generator = rng()
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


@squares
@pytest.mark.parametrize("size", [0, 3])
def test_targets_off_a_square_wave_have_the_density_of_the_floor(name: str, size: int) -> None:
    """As a prediction's own samples are, which its mixture has the density of too."""
    task = task_of(name, 1, context_size=size, num_targets=3, dtype=torch.float64)
    oracle = SQUARES[name](variance_floor=1e-3)
    predicted = oracle.predict(task.context, task.xt)
    for seed in range(5):
        own = predicted.sample(generator=rng(seed))
        found = oracle.log_prob(task.context, PointSet(task.xt, own))
        assert float(found) == pytest.approx(float(predicted.log_prob(own)), abs=0.02)
    # Beyond the values of all waves too.
    on, off = (
        oracle.log_prob(task.context, PointSet(task.xt, task.yt + shift * (2 * task.yt - 1)))
        for shift in (0.0, 1.5)
    )
    assert float(on - off) == pytest.approx(3 * 1.5**2 / 2e-3)


def test_targets_between_the_values_of_a_square_wave_are_refused() -> None:
    nothing, oracle = PointSet.empty(), SquareWaveOracle(variance_floor=1e-2)
    for value in (0.26, 0.5, 0.74):
        with pytest.raises(ValueError, match=r"^target .* at most 0\.25 or at least 0\.75, got \["):
            oracle.log_prob(nothing, points([0.5, 1.0], [1.0, value]))
    assert oracle.log_prob(nothing, points([0.5], [0.24])).isfinite().all()
    with pytest.raises(
        ValueError, match=r"^target .* at most 0\.499975 or at least 0\.500025, got"
    ):
        SquareWaveOracle().log_prob(nothing, points([0.5], [0.50002]))


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
