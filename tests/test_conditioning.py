"""Conditioning a Gaussian with low-rank covariance on some of its outputs."""

from __future__ import annotations

import math

import pytest
import torch
from contracts import assert_same, draw_set, pad, seeded, seeds, small_config
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from danp_lib.conditioning import condition
from danp_lib.convnp import ConvCNP, ConvGNP
from danp_lib.likelihoods import LowRankNormal
from danp_lib.tasks import PointSet

NUM_TARGETS = 5


def draw_gaussian(batch: int, points: int, rank: int, seed: int) -> LowRankNormal:
    generator = torch.Generator().manual_seed(seed)

    def normal(columns: int) -> Tensor:
        shape = (batch, points, columns)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return LowRankNormal(normal(1), 0.1 + normal(1).square(), normal(rank))


def join(*parts: LowRankNormal) -> LowRankNormal:
    """Outputs side by side that share their z."""
    names = ("loc", "diagonal", "factor")
    return LowRankNormal(*(torch.cat([getattr(p, n) for p in parts], dim=1) for n in names))


def split(joint: LowRankNormal) -> tuple[LowRankNormal, LowRankNormal]:
    """The targets and the observed outputs."""
    return joint.marginal(slice(NUM_TARGETS)), joint.marginal(slice(NUM_TARGETS, None))


@given(st.integers(1, 12), st.integers(1, 8), seeds)
def test_it_is_the_conditional_of_the_joint_gaussian(observed: int, rank: int, seed: int) -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + observed, rank, seed), draw_set(2, observed, 1)
    actual = condition(*split(joint), values)
    covariance = joint.covariance_matrix
    t, o = slice(NUM_TARGETS), slice(NUM_TARGETS, None)
    gain = torch.linalg.solve(covariance[:, o, o], covariance[:, o, t]).mT
    mean = joint.mean[:, t] + gain @ (values.y - joint.mean[:, o])
    torch.testing.assert_close(actual.mean, mean, rtol=1e-7, atol=1e-8)
    expected = covariance[:, t, t] - gain @ covariance[:, o, t]
    torch.testing.assert_close(actual.covariance_matrix, expected, rtol=1e-7, atol=1e-8)


@given(st.integers(1, 6), seeds)
def test_the_chain_rule_holds(observed: int, seed: int) -> None:
    joint, values = draw_gaussian(1, NUM_TARGETS + observed, 3, seed), draw_set(1, observed, 1)
    target, rest = split(joint)
    y = draw_set(1, NUM_TARGETS, 2).y
    parts = rest.log_prob(values.y) + condition(target, rest, values).log_prob(y)
    together = joint.log_prob(torch.cat([y, values.y], dim=1))
    torch.testing.assert_close(parts, together, rtol=1e-8, atol=1e-8)


def test_two_steps_are_one() -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + 7, 4, 0), draw_set(2, 7, 1)
    target, observed = split(joint)
    first, second = slice(4), slice(4, None)
    once = PointSet(values.x[:, first], values.y[:, first])
    later = PointSet(values.x[:, second], values.y[:, second])
    # Given the first, the targets and the second share what is left of z.
    left = condition(join(target, observed.marginal(second)), observed.marginal(first), once)
    assert_same(condition(*split(left), later), condition(target, observed, values), 1e-8)


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_padding_does_not_count(value: float) -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + 4, 3, 0), draw_set(2, 4, 1)
    target, observed = split(joint)
    wrong = draw_gaussian(2, 2, 3, 5)
    actual = condition(target, join(wrong, observed, wrong), pad(values, 2, value))
    assert_same(actual, condition(target, observed, values))


def test_nothing_observed_changes_nothing() -> None:
    target, observed = split(draw_gaussian(2, NUM_TARGETS + 3, 3, 0))
    values = draw_set(2, 3, 1)
    nothing = PointSet(values.x, values.y, torch.zeros_like(values.mask))
    assert_same(condition(target, observed, nothing), target)


def test_numbers_that_disagree_are_refused() -> None:
    target, observed = split(draw_gaussian(1, NUM_TARGETS + 3, 3, 0))
    with pytest.raises(ValueError, match=r"the numbers 3 and 4"):
        condition(target, observed, draw_set(1, 4, 0))
    with pytest.raises(ValueError, match=r"the ranks 3 and 2"):
        condition(target, draw_gaussian(1, 3, 2, 0), draw_set(1, 3, 0))


def test_a_convgnp_conditions_its_own_gaussian() -> None:
    plain, model = (
        seeded(ConvGNP, small_config(condition_on_context=choice)) for choice in (False, True)
    )
    context, xt = draw_set(2, 6, 0), draw_set(2, 4, 1).x
    joint = plain.predict(context, torch.cat([xt, context.x], dim=1))
    expected = condition(joint.marginal(slice(4)), joint.marginal(slice(4, None)), context)
    assert_same(model.predict(context, xt), expected)
    assert (expected.mean - joint.mean[:, :4]).abs().max() > 1e-3


def test_independent_outputs_stay_as_they_are() -> None:
    plain, model = (
        seeded(ConvCNP, small_config(rank=0, condition_on_context=choice))
        for choice in (False, True)
    )
    context, xt = draw_set(2, 6, 0), draw_set(2, 4, 1).x
    assert_same(model.predict(context, xt), plain.predict(context, xt), 0.0)
