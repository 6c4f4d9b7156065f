"""Scores of predictives."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from randomness import rng
from torch import Tensor

from danp_lib.distributions.gaussian import DiagonalNormal, LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.distributions.scores import crps, in_central_interval


def test_the_score_of_no_target_is_empty() -> None:
    nothing = LowRankNormal(torch.zeros(3, 0, 1), torch.ones(3, 0, 2), torch.ones(3, 0, 1))
    assert crps(Mixture(torch.zeros(3), nothing), torch.zeros(0, 1)).shape == (0, 1)


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
    g = rng(seed)
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
    y = 2 * torch.randn(2, 3, 1, generator=rng(seed + 1), dtype=torch.float64)
    torch.testing.assert_close(crps(mixture, y), crps_by_hand(mixture, y), rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 10_000), spread=st.sampled_from([1.0, 1e-3, 0.0]))
def test_crps_of_a_mixture_is_the_sum_over_all_pairs(seed: int, spread: float) -> None:
    # Values on a lattice, so that components are equal, near and far apart.
    g, shape = rng(seed), (2, 40, 3, 1)
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
    samples = mixture.sample((4000,), generator=rng(8))
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


def test_a_missing_value_is_not_taken_for_uncovered() -> None:
    predictive = DiagonalNormal(torch.zeros(1, 3, 1), torch.ones(1, 3, 1))
    y = torch.tensor([0.0, torch.nan, 0.0]).reshape(1, 3, 1)
    for score in (crps, partial(in_central_interval, level=0.5)):
        with pytest.raises(ValueError, match="y must hold no NaN"):
            score(predictive, y)


def test_a_predictive_that_is_no_number_is_no_miss() -> None:
    broken = DiagonalNormal(torch.full((1, 3, 1), torch.nan), torch.ones(1, 3, 1))
    with pytest.raises(ValueError, match=r"^predictive must .*NaN"):
        in_central_interval(broken, torch.zeros(1, 3, 1), 0.5)
