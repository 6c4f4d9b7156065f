"""Conditioning a Gaussian with low-rank covariance on some of its outputs."""

from __future__ import annotations

import math

import pytest
import torch
from contracts import assert_same, draw_set, pad, seeds
from hypothesis import given
from hypothesis import strategies as st
from small_models import seeded, small_config
from torch import Tensor

from danp_lib.data.noising import mask_levels
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import VARIANCE_FLOOR, LowRankNormal
from danp_lib.models.conditioning import KNOWN_VARIANCE, MAX_CHI_SQUARE, condition
from danp_lib.models.convnp import ConvGNP
from danp_lib.models.danp import DANP, DANPConfig

NUM_TARGETS = 5
NUM_LEVELS = 2


def draw_gaussian(batch: int, points: int, rank: int, seed: int) -> LowRankNormal:
    generator = torch.Generator().manual_seed(seed)

    def normal(columns: int) -> Tensor:
        shape = (batch, points, columns)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return LowRankNormal(normal(1), normal(rank), 0.1 + normal(1).square())


def join(*parts: LowRankNormal) -> LowRankNormal:
    """Outputs side by side that share their z."""
    names = ("loc", "cov_factor", "cov_diag")
    return LowRankNormal(*(torch.cat([getattr(p, n) for p in parts], dim=1) for n in names))


def split(joint: LowRankNormal) -> tuple[LowRankNormal, LowRankNormal]:
    """The targets and the observed outputs."""
    return joint.marginal(slice(NUM_TARGETS)), joint.marginal(slice(NUM_TARGETS, None))


@given(st.integers(1, 12), st.integers(1, 8), seeds)
def test_it_is_the_conditional_of_the_joint_gaussian(observed: int, rank: int, seed: int) -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + observed, rank, seed), draw_set(2, observed, 1)
    target, rest = split(joint)
    actual = condition(target, [(rest, values)])
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
    parts = rest.log_prob(values.y) + condition(target, [(rest, values)]).log_prob(y)
    together = joint.log_prob(torch.cat([y, values.y], dim=1))
    torch.testing.assert_close(parts, together, rtol=1e-8, atol=1e-8)


def halves(observed: LowRankNormal, values: PointSet) -> list[tuple[LowRankNormal, PointSet]]:
    """Two sets, of four points and of what is left."""
    return [
        (observed.marginal(part), PointSet(values.x[:, part], values.y[:, part]))
        for part in (slice(4), slice(4, None))
    ]


def test_two_sets_are_as_good_as_one() -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + 7, 4, 0), draw_set(2, 7, 1)
    target, observed = split(joint)
    actual = condition(target, halves(observed, values))
    assert_same(actual, condition(target, [(observed, values)]), 1e-8)


def test_a_batch_of_one_serves_for_all() -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + 7, 4, 0), draw_set(2, 7, 1)
    target, observed = split(joint)
    (first, once), (second, later) = halves(observed, values)
    shared = first[:1], once[0]
    repeated = first[torch.tensor([0, 0])], once[0].expand(2)
    actual = condition(target, [shared, (second, later)])
    assert_same(actual, condition(target, [repeated, (second, later)]), 1e-12)


def test_two_steps_are_one() -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + 7, 4, 0), draw_set(2, 7, 1)
    target, observed = split(joint)
    first, (second, later) = halves(observed, values)
    # Given the first, the targets and the second share what is left of z.
    target_left, second_left = split(condition(join(target, second), [first]))
    actual = condition(target_left, [(second_left, later)])
    assert_same(actual, condition(target, [(observed, values)]), 1e-8)


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_padding_does_not_count(value: float) -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + 4, 3, 0), draw_set(2, 4, 1)
    target, observed = split(joint)
    wrong = draw_gaussian(2, 2, 3, 5)
    actual = condition(target, [(join(wrong, observed, wrong), pad(values, 2, value))])
    assert_same(actual, condition(target, [(observed, values)]))


def test_nothing_observed_changes_nothing() -> None:
    target, observed = split(draw_gaussian(2, NUM_TARGETS + 3, 3, 0))
    values = draw_set(2, 3, 1)
    nothing = PointSet(values.x, values.y, torch.zeros_like(values.mask))
    assert_same(condition(target, [(observed, nothing)]), target)
    assert_same(condition(target, []), target, 0.0)


def test_numbers_that_disagree_are_refused() -> None:
    target, observed = split(draw_gaussian(1, NUM_TARGETS + 3, 3, 0))
    with pytest.raises(ValueError, match="3 and 4"):
        condition(target, [(observed, draw_set(1, 4, 0))])
    with pytest.raises(ValueError, match="ranks 3 and 2"):
        condition(target, [(draw_gaussian(1, 3, 2, 0), draw_set(1, 3, 0))])


def test_what_has_no_factor_in_float64_is_refused() -> None:
    joint, values = draw_gaussian(2, NUM_TARGETS + 3, 8, 0), draw_set(2, 3, 1)
    joint.cov_diag[0] = 1e-6
    joint.cov_factor[0] = 1e6 * (joint.cov_factor[0, :, :1] + 1e-6 * joint.cov_factor[0])
    target, observed = split(joint)
    actual, y = condition(target, [(observed, values)]), draw_set(2, NUM_TARGETS, 2).y
    with pytest.raises(ValueError, match=r"loc .*nan"):
        actual[:1].log_prob(y[:1])
    assert_same(actual[1:], condition(target[1:], [(observed[1:], values[1:])]))


@given(st.integers(3, 12), st.integers(1, 8), seeds)
def test_values_as_the_gaussian_has_them_are_taken_as_they_are(
    observed: int, rank: int, seed: int
) -> None:
    joint = draw_gaussian(2, NUM_TARGETS + observed, rank, seed)
    target, rest = split(joint)
    y = rest.sample(generator=torch.Generator().manual_seed(seed))
    distance = (y - rest.mean).mT @ torch.linalg.solve(rest.covariance_matrix, y - rest.mean)
    known = [(rest, PointSet(torch.zeros_like(y), y))]
    bound = float(distance.max()) / observed + 1e-6
    assert_same(condition(target, known, max_chi_square=bound), condition(target, known), 1e-12)


@given(st.floats(1e2, 1e6), seeds)
def test_values_that_contradict_move_the_others_by_what_is_plausible(
    size: float, seed: int
) -> None:
    # Two values that differ though their outputs are all but the same.
    target, _ = split(draw_gaussian(1, NUM_TARGETS + 2, 3, seed))
    generator = torch.Generator().manual_seed(seed)
    row, other = torch.randn(2, 1, 1, 3, generator=generator, dtype=torch.float64)
    factor = torch.cat([row, row + 1e-3 * other], dim=1)
    mean = torch.zeros(1, 2, 1, dtype=torch.float64)
    observed = LowRankNormal(mean, factor, torch.full_like(mean, 1e-8))
    values = PointSet(mean, mean.new_tensor([[[1.0], [-1.0]]]) * size * 1e-2)
    known = [(observed, values)]
    plain, bounded = condition(target, known), condition(target, known, max_chi_square=4.0)
    shift, limited = ((c.mean - target.mean).norm() for c in (plain, bounded))
    # z has unit variance, so |z| <= 6 is plausible in three dimensions.
    reach = 6.0 * target.cov_factor.square().sum().sqrt()
    assert limited < reach < shift
    assert (bounded.variance > plain.variance - 1e-12).all()


def as_known(predicted: LowRankNormal) -> LowRankNormal:
    """The same outputs without the floor, which is for predictions."""
    diagonal = predicted.cov_diag - VARIANCE_FLOOR + KNOWN_VARIANCE
    return LowRankNormal(predicted.loc, predicted.cov_factor, diagonal)


def test_a_convgnp_conditions_its_own_gaussian() -> None:
    plain, model = (seeded(ConvGNP, small_config(conditioned=choice)) for choice in (False, True))
    context, xt = draw_set(2, 6, 0), draw_set(2, 4, 1).x
    joint = plain.predict(context, torch.cat([xt, context.x], dim=1))
    target, observed = joint.marginal(slice(4)), joint.marginal(slice(4, None))
    expected = condition(target, [(as_known(observed), context)], max_chi_square=MAX_CHI_SQUARE)
    assert_same(model.predict(context, xt), expected)
    assert (expected.mean - joint.mean[:, :4]).abs().max() > 1e-3


def danp(*, conditioned: bool) -> DANP:
    return seeded(DANP, DANPConfig(small_config(conditioned=conditioned), NUM_LEVELS, 0.2))


def test_a_danp_conditions_its_clean_level_on_all_sets() -> None:
    plain, model = danp(conditioned=False), danp(conditioned=True)
    context, xt = draw_set(2, 6, 0), draw_set(2, 4, 1).x
    auxiliary = [draw_set(2, 5 + f, 2 + f) for f in range(NUM_LEVELS)]
    auxiliary[0] = pad(auxiliary[0], 2, math.nan)
    features = plain.core.features(plain.core.encode([context, *auxiliary]))
    known = [
        (as_known(plain.core.decode(features, points.x.nan_to_num(), f)), points)
        for f, points in enumerate([context, *auxiliary])
    ]
    expected = condition(plain(context, auxiliary, xt), known, max_chi_square=MAX_CHI_SQUARE)
    assert_same(model(context, auxiliary, xt), expected)
    on_the_context = condition(plain(context, auxiliary, xt), known[:1])
    assert (expected.mean - on_the_context.mean).abs().max() > 1e-3
    for level in range(1, NUM_LEVELS + 1):
        actual, unconditioned = (m(context, auxiliary, xt, level=level) for m in (model, plain))
        assert_same(actual, unconditioned, 0.0)


def test_a_level_a_task_is_conditioned_task_by_task() -> None:
    model = danp(conditioned=True)
    context, xt = draw_set(2, 6, 0), draw_set(2, 4, 1).x
    auxiliary = [draw_set(2, 5, 2 + f) for f in range(NUM_LEVELS)]
    levels = torch.tensor([1, 0])
    together = model.core([context, *mask_levels(auxiliary, levels)], xt, levels)
    for row, level in enumerate(levels.tolist()):
        alone = model(context[row], [a[row] for a in auxiliary], xt[row : row + 1], level=level)
        assert_same(together[row : row + 1], alone)


def test_one_context_serves_for_a_level_a_task() -> None:
    model = danp(conditioned=True)
    context, xt = draw_set(1, 6, 0), draw_set(2, 4, 1).x
    levels = torch.tensor([1, 0])
    auxiliary = mask_levels([draw_set(2, 5, 2 + f) for f in range(NUM_LEVELS)], levels)
    assert_same(
        model.core([context, *auxiliary], xt, levels),
        model.core([context.expand(2), *auxiliary], xt, levels),
    )


def test_noisy_data_have_a_least_variance_known_or_predicted() -> None:
    exact, noisy = (
        seeded(ConvGNP, small_config(conditioned=True, observation_noise=sd)) for sd in (0.0, 0.5)
    )
    context, xt = draw_set(2, 6, 0), draw_set(2, 4, 1).x
    features = exact.core.features(exact.core.encode([context]))
    inputs = torch.cat([xt, context.x], dim=1)
    own = exact.core.decode(features, inputs, 0)
    joint = LowRankNormal(own.loc, own.cov_factor, own.cov_diag - VARIANCE_FLOOR + 0.25)
    target, observed = joint.marginal(slice(4)), joint.marginal(slice(4, None))
    expected = condition(target, [(observed, context)], max_chi_square=MAX_CHI_SQUARE)
    assert_same(noisy.predict(context, xt), expected)
    assert (noisy.predict(context, xt).variance > 0.25).all()


@torch.no_grad()
def test_with_noise_repeated_values_are_evidence_and_contradictory_ones_are_averaged() -> None:
    model = seeded(ConvGNP, small_config(conditioned=True, observation_noise=0.5))
    context, x = draw_set(1, 6, 0), torch.zeros(1, 1, 1, dtype=torch.float64)

    def own_part(*values: float) -> LowRankNormal:
        y = torch.tensor(values, dtype=torch.float64).reshape(1, -1, 1)
        features = model.core.features(model.core.encode([context]))  # as read without them
        sets = [context.concat(PointSet(x.expand(1, len(values), 1), y))]
        return model.core.predictive(features, sets, x, 0)

    once, twice, apart = own_part(0.3), own_part(0.3, 0.3), own_part(0.1, 0.5)
    assert 0.25 < float(twice.variance) < float(once.variance)
    assert float((twice.mean - 0.3).abs()) < float((once.mean - 0.3).abs())
    torch.testing.assert_close(apart.mean, twice.mean)


def test_contradictory_values_have_their_variance_multiplied_three_times() -> None:
    def gaussian(points: int) -> LowRankNormal:
        generator = torch.Generator().manual_seed(points)
        loc, factor = torch.randn(1, points, 4, generator=generator).double().split([1, 3], dim=2)
        return LowRankNormal(loc, factor, torch.full_like(loc, 0.1))

    target, observed = gaussian(2), gaussian(4)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).reshape(1, 4, 1)
    values, wide = PointSet(observed.loc, observed.loc + 30.0 * signs), observed
    for _ in range(3):
        residual = values.y - observed.loc
        chi_square = residual.mT @ torch.linalg.solve(wide.covariance_matrix, residual)
        growth = (float(chi_square) / 4) / 4.0
        assert growth > 1.0
        wide = LowRankNormal(observed.loc, observed.cov_factor, growth * wide.cov_diag)
    actual = condition(target, [(observed, values)], max_chi_square=4.0)
    assert_same(actual, condition(target, [(wide, values)]), 1e-8)
