"""What a context says of the noise of its values, and what models make of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from contracts import assert_same, draw_set, pad
from hypothesis import given
from hypothesis import strategies as st
from small_models import seeded, small_config
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

from danp_lib.data.generators import Sawtooth
from danp_lib.data.noising import mask_levels
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import VARIANCE_FLOOR, LowRankNormal
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.conditioning import KNOWN_VARIANCE, MAX_CHI_SQUARE, condition
from danp_lib.models.convnp import ConvGNP, ConvNPConfig, ConvNPCore
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.models.noise import NoiseBelief
from danp_lib.storage.pretrained import load_pretrained

LEAST, LARGEST = 0.01, 1.0
MIDDLE = math.sqrt(LEAST * LARGEST)


def prior(mean: float = 0.0, precision: float = 0.0) -> NoiseBelief:
    def one(value: float) -> Tensor:
        return torch.tensor([[value]], dtype=torch.float64)

    return NoiseBelief.guess(LEAST, LARGEST, mean=one(mean), precision=one(precision))


def mean_variance(belief: NoiseBelief) -> Tensor:
    """The mean of the noise's variance, ``(batch or 1,)``."""
    return belief.log_weight.softmax(dim=-1) @ (belief.middle * belief.relative).square()


def outputs(points: int, seed: int = 0) -> tuple[LowRankNormal, Tensor, PointSet]:
    """Outputs free of noise, the slopes of their variances, and values with noise of 0.1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(columns: int) -> Tensor:
        shape = (1, points, columns)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    free = LowRankNormal(normal(1), 0.2 * normal(2), 0.01 * (0.1 + normal(1).square()))
    x = torch.linspace(-1.0, 1.0, points, dtype=torch.float64).reshape(1, -1, 1)
    y = free.loc + free.cov_factor @ normal(2)[:, :1].mT + 0.1 * normal(1)
    return free, normal(1).sigmoid(), PointSet(x, y)


@pytest.mark.parametrize(("mean", "precision"), [(0.0, 0.0), (-1.0, 2.0)])
@pytest.mark.parametrize("points", [1, 3, 10])
def test_it_is_bayes_rule(points: int, mean: float, precision: float) -> None:
    free, slope, values = outputs(points)
    actual = prior(mean, precision).given(free, slope, values)

    log_sigma = torch.linspace(math.log(LEAST), math.log(LARGEST), 3001, dtype=torch.float64)
    sigma = log_sigma.exp()[:, None]
    diagonal = free.cov_diag[0, :, 0] * (sigma / MIDDLE) ** (2.0 * slope[0, :, 0]) + sigma**2
    covariance = free.cov_factor[0] @ free.cov_factor[0].mT + torch.diag_embed(diagonal)
    density = MultivariateNormal(free.loc[0, :, 0], covariance).log_prob(values.y[0, :, 0])
    log_prior = -0.5 * precision * (log_sigma - math.log(MIDDLE) - mean).square()
    weight = (density + log_prior).exp()
    expected = torch.trapezoid(weight * sigma[:, 0] ** 2) / torch.trapezoid(weight)
    torch.testing.assert_close(mean_variance(actual)[0], expected, rtol=0.02, atol=0.0)


def test_outputs_get_the_mean_of_their_variances() -> None:
    free, slope, values = outputs(4)
    belief = prior().given(free, slope, values)
    weight = belief.log_weight.softmax(dim=-1)[0]
    expected = sum(
        float(w) * (free.cov_diag * float(r) ** (2.0 * slope) + (MIDDLE * float(r)) ** 2)
        for w, r in zip(weight, belief.relative, strict=True)
    )
    observed = belief.observed(free, slope)
    torch.testing.assert_close(observed.cov_diag, expected, rtol=1e-10, atol=0.0)
    assert torch.equal(observed.loc, free.loc)
    assert torch.equal(observed.cov_factor, free.cov_factor)


@given(st.permutations(range(6)), st.integers(0, 9))
def test_neither_the_order_of_the_values_nor_masked_ones_count(order: list[int], seed: int) -> None:
    free, slope, values = outputs(6, seed)
    expected = mean_variance(prior().given(free, slope, values))
    moved = PointSet(values.x[:, order], values.y[:, order])
    shuffled = prior().given(free.marginal(torch.tensor(order)), slope[:, order], moved)
    torch.testing.assert_close(mean_variance(shuffled), expected, rtol=1e-9, atol=0.0)
    padded = pad(values, 2)
    more = [torch.cat([p[:, :2], p, p[:, :2]], dim=1) for p in (*free_parts(free), slope)]
    masked = prior().given(LowRankNormal(*more[:3]), more[3], padded)
    torch.testing.assert_close(mean_variance(masked), expected, rtol=1e-9, atol=0.0)


def free_parts(free: LowRankNormal) -> tuple[Tensor, Tensor, Tensor]:
    return free.loc, free.cov_factor, free.cov_diag


def test_larger_residuals_mean_more_noise_within_the_range() -> None:
    free, slope, _ = outputs(20)
    x = torch.zeros_like(free.loc)
    found = [
        math.sqrt(mean_variance(prior().given(free, slope, PointSet(x, free.loc + size))).item())
        for size in (0.0, 0.3, 1.0, 3.0)
    ]
    assert found == sorted(found)
    assert LEAST < found[0] < 0.05
    assert found[-1] < LARGEST


def noisy_config() -> ConvNPConfig:
    return small_config(conditioned=True, observation_noise=LEAST, largest_noise=LARGEST)


def test_levels_a_task_are_those_of_each_task() -> None:
    model = seeded(DANP, DANPConfig(noisy_config(), 2, 0.2, 9))
    context, xt, levels = draw_set(3, 6, 0), draw_set(3, 4, 1).x, torch.tensor([0, 1, 2])
    auxiliary = [draw_set(3, 5, 2 + f) for f in range(2)]
    together = model.core([context, *mask_levels(auxiliary, levels)], xt, levels)
    for row, level in enumerate(levels.tolist()):
        sets = [points[row] for points in auxiliary]
        alone = model(context[row], sets, xt[row : row + 1], level=level)
        assert_same(together[row : row + 1], alone)


def belief_of(
    core: ConvNPCore, hidden: Tensor, free: LowRankNormal, context: PointSet
) -> NoiseBelief:
    """What a context says of the noise, from the network's features at its inputs."""
    mean, raw = core.noise_prior(hidden).double().mean(dim=1).split(1, dim=1)
    guess = NoiseBelief.guess(LEAST, LARGEST, mean=2.0 * mean, precision=F.softplus(raw))
    return guess.given(free, core._slope(hidden), context)


def test_the_context_is_known_with_the_noise_inferred_from_it() -> None:
    # The weights that both have are the same.
    plain, model = (seeded(ConvGNP, c) for c in (small_config(conditioned=True), noisy_config()))
    core, context, xt = model.core, draw_set(2, 6, 0), draw_set(2, 4, 1).x
    features = core.features(core.encode([context]))
    target, own = (plain.core.decode(features, x, 0) for x in (xt, context.x))
    at_target, at_context = (core._hidden(features, x) for x in (xt, context.x))
    variance = own.cov_diag - VARIANCE_FLOOR + KNOWN_VARIANCE
    free = LowRankNormal(own.loc, own.cov_factor, variance)
    belief = belief_of(core, at_context, free, context)
    known = [(belief.observed(free, core._slope(at_context)), context)]
    observed = belief.observed(target, core._slope(at_target))
    expected = condition(observed, known, max_chi_square=MAX_CHI_SQUARE)
    assert_same(model.predict(context, xt), expected)
    belief = belief_of(core, at_context, own, context)
    seen = belief.observed(own, core._slope(at_context))
    assert_same(core.at_context(features, context), seen)


def test_a_sample_counts_as_much_as_it_makes_the_context_probable() -> None:
    config = DANPConfig(noisy_config(), 2, 0.2, 9)
    context, xt = draw_set(1, 6, 0), draw_set(1, 4, 1).x
    seed = torch.Generator().manual_seed(0)
    model = seeded(DANP, config)
    mixture = model.predict(context, xt, num_samples=5, generator=seed)
    sets = model.sample_auxiliary(context, num_samples=5, generator=seed.manual_seed(0))
    with torch.no_grad():
        features = model.core.features(model.core.encode([context, *sets]))
        own = model.core.at_context(features, context)
    expected = own.log_prob(context.y.expand(5, -1, -1)).log_softmax(dim=0)
    torch.testing.assert_close(mixture.logits[0], expected, rtol=1e-7, atol=1e-7)
    assert expected.std() > 1e-3
    plain = seeded(DANP, replace(config, base=small_config(conditioned=True)))
    logits = plain.predict(context, xt, num_samples=5, generator=seed).logits
    assert torch.equal(logits, torch.full_like(logits, -math.log(5)))


def test_the_likelihood_is_that_of_the_prediction() -> None:
    model = load_pretrained("danp-sawtooth-noisy")
    task = Sawtooth(noise=0.05).sample_task(
        1, context_size=15, pool_size=150, generator=torch.Generator().manual_seed(15)
    )

    def estimate(estimator: Any) -> float:
        seed = torch.Generator().manual_seed(0)
        found = log_likelihood(model, task, estimator=estimator, num_samples=256, generator=seed)
        return float(found.values) / task.target.num_points

    seed = torch.Generator().manual_seed(0)
    predictive = model.predict(task.context, task.xt, num_samples=256, generator=seed)
    expected = float(predictive.log_prob(task.yt)) / task.target.num_points
    assert estimate("model") == pytest.approx(expected, abs=1e-3)
    assert estimate("both") == pytest.approx(expected, abs=0.1)
    with pytest.raises(ValueError, match=r"^estimator must be 'model' or 'both' for a model"):
        estimate("noising")


def test_without_any_point_the_noise_is_log_uniform() -> None:
    model = seeded(ConvGNP, noisy_config())
    nothing = PointSet.empty(dtype=torch.float64)
    xt = draw_set(1, 4, 1).x
    variance = model.predict(nothing, xt).cov_diag
    expected = (LARGEST**2 - LEAST**2) / (2.0 * math.log(LARGEST / LEAST))
    assert mean_variance(prior()).item() == pytest.approx(expected, rel=0.01)
    assert (variance > 0.99 * expected).all()


@pytest.mark.parametrize(
    "changes",
    [{"observation_noise": 0.0}, {"observation_noise": 2.0}, {"conditioned": False}],
)
def test_a_range_of_noise_needs_a_least_one_and_a_conditioned_model(
    changes: dict[str, float],
) -> None:
    fine = {"conditioned": True, "observation_noise": LEAST, "largest_noise": LARGEST}
    with pytest.raises(ValueError, match=r"^largest_noise must be 0, or at least"):
        small_config(**(fine | changes))


def test_the_noise_is_inferred_without_hidden_layers_too() -> None:
    config = replace(noisy_config(), head_layers=0, rank=2, channels=8)
    model = seeded(ConvGNP, config)
    predictive = model.predict(draw_set(2, 6, 0), draw_set(2, 4, 1).x)
    assert bool((predictive.variance >= LEAST**2).all())


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_the_trained_model_finds_the_noise(noise: float) -> None:
    model = load_pretrained("danp-sawtooth-noisy")
    task = Sawtooth(noise=noise).sample_task(
        6, context_size=30, generator=torch.Generator().manual_seed(1)
    )
    generator = torch.Generator().manual_seed(2)
    found = model.predict(task.context, task.xt, num_samples=16, generator=generator).stddev
    # Most targets are far from a jump, where noise is nearly all that is unknown.
    assert 0.9 * noise < float(found.median()) < 2.0 * noise
