"""Contracts that several classes share, as base classes of tests."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from randomness import rng
from torch import Tensor, nn

from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import VARIANCE_FLOOR
from danp_lib.models.base import Predictive

seeds = st.integers(0, 2**32)


def forall(*strategies: Any) -> Any:
    """:func:`hypothesis.given` for a test that several classes inherit."""
    inherited = settings(suppress_health_check=[HealthCheck.differing_executors])
    return lambda test: inherited(given(*strategies)(test))


def draw_set(batch: int, points: int, seed: int, *, width: float = 2.0) -> PointSet:
    """Sets with uniform inputs on (-width, width), float64."""
    generator = rng(seed)
    shape = (batch, points, 1)
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    y = torch.randn(shape, generator=generator, dtype=torch.float64)
    return PointSet(width * (2 * x - 1), y)


def pad(points: PointSet, extra: int, value: float = math.nan) -> PointSet:
    """The same sets with masked entries among the real ones, before and after."""
    filler = torch.full((points.batch_size, extra, 1), value, dtype=points.x.dtype)
    hidden = PointSet(filler, filler, torch.zeros(filler.shape[:2], dtype=torch.bool))
    return hidden.concat(points).concat(hidden)


def assert_same(actual: Predictive, expected: Predictive, tolerance: float = 1e-9) -> None:
    """The same distribution to rounding: moments, and the joint density of a draw."""

    def close(actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    close(actual.mean, expected.mean)
    close(actual.variance, expected.variance)
    y = expected.sample(generator=rng())
    close(actual.log_prob(y), expected.log_prob(y))


class PredictiveContract:
    """What the predictive of every model obeys."""

    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> nn.Module:
        """The model in float64, with the same weights whatever the domain."""
        raise NotImplementedError

    def predict(
        self, model: Any, context: PointSet, xt: Tensor, generator: torch.Generator | None = None
    ) -> Any:
        """The predictive, by default with the same randomness in every call."""
        return model.predict(context, xt)

    @forall(seeds, st.integers(0, 8), st.integers(1, 8))
    def test_is_a_distribution_over_the_targets(self, seed: int, nc: int, nt: int) -> None:
        target = draw_set(2, nt, seed + 1)
        predictive = self.predict(self.build(), draw_set(2, nc, seed), target.x)
        assert predictive.batch_shape == (2,)
        assert predictive.event_shape == (nt, 1)
        assert predictive.mean.dtype == torch.float64
        assert (predictive.variance >= VARIANCE_FLOOR).all()
        assert predictive.log_prob(target.y).isfinite().all()

    @forall(seeds, st.integers(2, 8))
    def test_context_order_does_not_matter(self, seed: int, size: int) -> None:
        model, context, xt = self.build(), draw_set(2, size, seed), draw_set(2, 5, seed + 1).x
        order = torch.randperm(size, generator=rng(seed))
        shuffled = PointSet(context.x[:, order], context.y[:, order])
        assert_same(self.predict(model, shuffled, xt), self.predict(model, context, xt))

    @forall(seeds)
    def test_context_matters(self, seed: int) -> None:
        model, context, xt = self.build(), draw_set(1, 5, seed), draw_set(1, 5, seed + 1).x
        moved = PointSet(context.x, context.y + 1.0)
        difference = self.predict(model, moved, xt).mean - self.predict(model, context, xt).mean
        assert difference.abs().max() > 1e-3

    @forall(seeds, st.integers(2, 8))
    def test_target_order_only_permutes_the_answer(self, seed: int, size: int) -> None:
        model, context, xt = self.build(), draw_set(2, 6, seed), draw_set(2, size, seed + 1).x
        order = torch.randperm(size, generator=rng(seed))
        expected = self.predict(model, context, xt).marginal(order)
        assert_same(self.predict(model, context, xt[:, order]), expected)

    @forall(seeds, st.integers(1, 6), st.integers(1, 6))
    def test_predictive_at_some_targets_is_the_marginal_of_that_at_more(
        self, seed: int, some: int, more: int
    ) -> None:
        model, context = self.build(), draw_set(2, 6, seed)
        xt = draw_set(2, some + more, seed + 1).x
        joint = self.predict(model, context, xt)
        assert_same(self.predict(model, context, xt[:, :some]), joint.marginal(slice(0, some)))

    @forall(seeds, st.integers(0, 6), st.integers(1, 4))
    def test_padding_is_absence(self, seed: int, size: int, extra: int) -> None:
        model, context, xt = self.build(), draw_set(2, size, seed), draw_set(2, 5, seed + 1).x
        assert_same(self.predict(model, pad(context, extra), xt), self.predict(model, context, xt))

    def test_empty_masked_and_padded_sets_are_one(self) -> None:
        model, full, xt = self.build(), draw_set(1, 4, 0), draw_set(1, 5, 1).x
        masked = PointSet(full.x, full.y, torch.zeros(1, 4, dtype=torch.bool))
        empty = PointSet.empty(dtype=torch.float64)
        expected = self.predict(model, empty, xt)
        assert_same(self.predict(model, masked, xt), expected)
        assert_same(self.predict(model, pad(empty, 3), xt), expected)

    @forall(seeds)
    def test_batch_is_its_tasks_one_by_one(self, seed: int) -> None:
        model, context, xt = self.build(), draw_set(3, 6, seed), draw_set(3, 5, seed + 1).x
        batch = self.predict(model, context, xt, rng(seed))
        generator = rng(seed)
        singles = [self.predict(model, context[i], xt[i : i + 1], generator) for i in range(3)]
        mean, variance = (torch.cat([getattr(s, k) for s in singles]) for k in ("mean", "variance"))
        torch.testing.assert_close(batch.mean, mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(batch.variance, variance, rtol=1e-9, atol=1e-9)

    # A multiple of 1/64 shifts the grid without rounding it.
    @forall(seeds, st.integers(-640, 640).map(lambda n: n / 64))
    def test_shifting_inputs_and_domain_together_changes_nothing(
        self, seed: int, shift: float
    ) -> None:
        context, xt = draw_set(2, 6, seed), draw_set(2, 5, seed + 1).x
        moved = PointSet(context.x + shift, context.y)
        expected = self.predict(self.build(), context, xt)
        assert_same(self.predict(self.build((shift - 2, shift + 2)), moved, xt + shift), expected)

    def test_global_generator_stays_untouched(self) -> None:
        before = torch.get_rng_state()
        self.predict(self.build(), draw_set(1, 3, 0), draw_set(1, 4, 1).x)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"xt": torch.zeros(1, 3, 2)}, r"^xt .*\(1, 3, 2\)"),
            ({"xt": torch.zeros(3)}, r"^xt .*\(3,\)"),
            ({"xt": torch.zeros(1, 3, 1)}, "^xt .*float64"),
            ({"xt": torch.full((1, 3, 1), 2.5).double()}, r"^xt .*\[2.5\]"),
            ({"xt": torch.full((1, 3, 1), math.nan).double()}, r"^xt .*\[nan\]"),
            ({"xt": draw_set(3, 4, 0).x}, "batch sizes .*'xt': 3"),
            ({"x": torch.full((2, 3, 1), -2.25).double()}, r"^context\.x .*\[-2.25\]"),
            ({"x": torch.full((2, 3, 1), math.nan).double()}, r"^context\.x .*nan"),
            ({"y": torch.full((2, 3, 1), math.inf).double()}, r"^context\.y .*\[inf\] at \[0, 0\]"),
        ],
    )
    def test_wrong_arguments_are_refused_by_name(
        self, change: dict[str, Tensor], message: str
    ) -> None:
        context = draw_set(2, 3, 0)
        context = PointSet(change.get("x", context.x), change.get("y", context.y))
        with pytest.raises(ValueError, match=message):
            self.predict(self.build(), context, change.get("xt", draw_set(2, 4, 1).x))

    def test_wrong_dtype_of_the_context_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^context\.x .*float32"):
            self.predict(self.build(), draw_set(1, 3, 0).to(torch.float32), draw_set(1, 4, 1).x)
