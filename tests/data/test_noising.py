"""Invariant 1, the augmented task, and its masks."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from randomness import rng
from torch import Tensor

from danp_lib.data.generators import GaussianProcess, Prior, Sawtooth, SquareWave
from danp_lib.data.noising import NoiseSchedule, check_level, mask_levels, sample_augmented_task
from danp_lib.data.points import PointSet

TABLE_2 = [("sawtooth", 0.02, 3, 0.08526), ("square", 0.06, 3, 0.153), ("gp", 0.08, 2, 0.2115)]

betas = st.floats(1e-3, 0.999)
property_test = settings(deadline=None, max_examples=25, derandomize=True)


def assert_moments(sample: Tensor, mean: float, variance: float) -> None:
    """Mean and variance of a normal sample, each within five of its standard errors."""
    n = sample.numel()
    assert abs(sample.mean() - mean) < 5 * (variance / n) ** 0.5
    assert abs(sample.var() - variance) < 5 * variance * (2 / n) ** 0.5


class TestSchedule:
    @given(variance=st.floats(1e-12, 1 - 1e-12), num_levels=st.integers(1, 40))
    @property_test
    def test_the_final_variance_is_met_to_machine_precision(
        self, variance: float, num_levels: int
    ) -> None:
        schedule = NoiseSchedule.from_final_variance(variance, num_levels=num_levels)
        assert schedule.variance(num_levels) == pytest.approx(variance, rel=1e-14)
        below = NoiseSchedule(math.nextafter(schedule.beta, 0), num_levels)
        assert below.variance(num_levels) < variance  # the next float down falls short

    @given(beta=betas, num_levels=st.integers(1, 40))
    @property_test
    def test_beta_is_recovered_from_its_final_variance(self, beta: float, num_levels: int) -> None:
        variance = NoiseSchedule(beta, num_levels).variance(num_levels)
        schedule = NoiseSchedule.from_final_variance(variance, num_levels=num_levels)
        assert schedule.beta == pytest.approx(beta, rel=1e-12)

    @pytest.mark.parametrize(("name", "variance", "num_levels", "beta"), TABLE_2)
    def test_table_2(self, name: str, variance: float, num_levels: int, beta: float) -> None:
        solved = NoiseSchedule.from_final_variance(variance, num_levels=num_levels).beta
        digits = len(str(beta).split(".")[1])
        assert round(solved, digits) == beta
        assert round(NoiseSchedule(beta, num_levels).variance(num_levels), 4) == variance

    @pytest.mark.parametrize("variance", [0.0, 1.0, -0.1, 1.5, math.nan])
    def test_a_variance_out_of_reach_is_refused_with_the_range(self, variance: float) -> None:
        with pytest.raises(ValueError, match=f"^variance .*{variance}"):
            NoiseSchedule.from_final_variance(variance, num_levels=2)

    def test_no_level_reaches_no_variance(self) -> None:
        with pytest.raises(ValueError, match=r"^num_levels .*0"):
            NoiseSchedule.from_final_variance(0.1, num_levels=0)

    @pytest.mark.parametrize("beta", [0.0, 1.0, -1.0, math.nan])
    def test_beta_outside_its_range_is_refused(self, beta: float) -> None:
        with pytest.raises(ValueError, match=f"^beta .*{beta}"):
            NoiseSchedule(beta, 2)

    @pytest.mark.parametrize("num_levels", [-1, 1.5])
    def test_a_wrong_number_of_levels_is_refused(self, num_levels: Any) -> None:
        with pytest.raises(ValueError, match=f"^num_levels .*{num_levels}"):
            NoiseSchedule(0.1, num_levels)

    @pytest.mark.parametrize("level", [-1, 4, 1.0, True])
    def test_a_level_that_is_none_is_refused(self, level: int) -> None:
        schedule = NoiseSchedule(0.1, 3)
        y = torch.zeros(1)
        for call in (
            lambda: schedule.signal(level),
            lambda: schedule.variance(level),
            lambda: schedule.noise(y, level, generator=rng()),
            lambda: schedule.log_prob(y, y, level),
        ):
            with pytest.raises(ValueError, match=rf"^level .*0\.\.3.*{level}"):
                call()

    def test_a_level_may_be_numpys(self) -> None:
        schedule = NoiseSchedule(0.1, 3)
        level: Any = np.int64(2)
        assert schedule.variance(level) == schedule.variance(2)
        assert type(check_level(level, 3)) is int

    def test_level_zero_is_the_data(self) -> None:
        schedule = NoiseSchedule(0.3, 2)
        y = torch.randn(5, generator=rng())
        assert schedule.signal(0) == 1
        assert schedule.variance(0) == 0
        assert torch.equal(schedule.noise(y, 0, generator=rng()), y)
        with pytest.raises(ValueError, match=r"^level"):
            schedule.log_prob(y, y, 0)


class TestClosedForm:
    @given(beta=betas, num_levels=st.integers(1, 12))
    @property_test
    def test_moments_follow_the_recursion_of_the_step(self, beta: float, num_levels: int) -> None:
        schedule = NoiseSchedule(beta, num_levels)
        signal, variance = 1.0, 0.0
        for level in range(num_levels + 1):
            assert schedule.signal(level) == pytest.approx(signal, rel=1e-12)
            assert schedule.variance(level) == pytest.approx(variance, rel=1e-12, abs=1e-15)
            signal, variance = math.sqrt(1 - beta) * signal, (1 - beta) * variance + beta**2

    @given(beta=betas, level=st.integers(1, 6), y0=st.floats(-3, 3), seed=st.integers(0, 99))
    @property_test
    def test_the_chain_and_the_closed_form_have_the_same_law(
        self, beta: float, level: int, y0: float, seed: int
    ) -> None:
        schedule = NoiseSchedule(beta, level)
        clean = torch.full((40_000,), y0, dtype=torch.float64)
        mean, variance = schedule.signal(level) * y0, schedule.variance(level)
        generator = rng(seed)
        assert_moments(schedule.chain(clean, generator=generator)[level], mean, variance)
        assert_moments(schedule.noise(clean, level, generator=generator), mean, variance)

    def test_a_chain_starts_at_the_data_and_takes_steps(self) -> None:
        schedule = NoiseSchedule(0.3, 3)
        y0 = torch.randn(2, 5, 1, generator=rng())
        levels = schedule.chain(y0, generator=rng(1))
        generator = rng(1)
        assert len(levels) == 4
        assert levels[0] is y0
        for before, after in pairwise(levels):
            eps = torch.randn(2, 5, 1, generator=generator)
            torch.testing.assert_close(after, math.sqrt(0.7) * before + 0.3 * eps)

    @given(beta=betas, level=st.integers(1, 6))
    @property_test
    def test_log_prob_is_the_normal_density(self, beta: float, level: int) -> None:
        schedule = NoiseSchedule(beta, level)
        y, y0 = torch.randn(2, 7, dtype=torch.float64, generator=rng())
        normal = torch.distributions.Normal(
            schedule.signal(level) * y0, math.sqrt(schedule.variance(level))
        )
        torch.testing.assert_close(schedule.log_prob(y, y0, level), normal.log_prob(y))


@pytest.mark.parametrize("make", [Sawtooth, SquareWave, GaussianProcess])
@pytest.mark.parametrize("shared", [False, True])
class TestAugmentedTask:
    schedule = NoiseSchedule(0.2, 2)

    def test_shapes(self, make: type[Prior], shared: bool) -> None:
        task = sample_augmented_task(
            make(), self.schedule, 3, num_targets=7, shared_inputs=shared, generator=rng()
        )
        assert len(task.levels) == 3
        assert task.context.x.shape == (3, 30, 1)
        for points in task.levels:
            assert points.x.shape == points.y.shape == (3, 7, 1)
            assert points.x.dtype == points.y.dtype == torch.float32
            assert points.mask.all()

    def test_inputs_are_shared_or_all_different(self, make: type[Prior], shared: bool) -> None:
        task = sample_augmented_task(
            make(), self.schedule, 2, shared_inputs=shared, generator=rng(), dtype=torch.float64
        )
        x = torch.cat([points.x for points in task.levels], dim=1)
        distinct = x[0].unique().numel()
        assert distinct == (50 if shared else 150)

    def test_levels_are_one_function_noised(
        self, make: type[Prior], shared: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn: list[tuple[Tensor, Tensor]] = []
        original = make.sample_outputs

        def spy(self: Any, x: Tensor, *, generator: torch.Generator) -> Tensor:
            drawn.append((x, original(self, x, generator=generator)))
            return drawn[-1][1]

        monkeypatch.setattr(make, "sample_outputs", spy)
        batch = 300
        task = sample_augmented_task(
            make(),
            self.schedule,
            batch,
            context_size=5,
            num_targets=40,
            shared_inputs=shared,
            generator=rng(),
            dtype=torch.float64,
        )
        ((x, clean),) = drawn  # one joint draw for the context and all levels
        assert torch.equal(task.context.x, x[:, :5])
        assert torch.equal(task.context.y, clean[:, :5])
        for level, points in enumerate(task.levels):
            start = 5 if shared else 5 + 40 * level
            truth = clean[:, start : start + 40]
            assert torch.equal(points.x, x[:, start : start + 40])
            if level == 0:
                assert torch.equal(points.y, truth)
            else:
                noise = points.y - self.schedule.signal(level) * truth
                assert_moments(noise, 0.0, self.schedule.variance(level))

    def test_shared_levels_are_a_chain_and_independent_ones_are_not(
        self, make: type[Prior], shared: bool
    ) -> None:
        task = sample_augmented_task(
            make(), self.schedule, 400, shared_inputs=shared, generator=rng(), dtype=torch.float64
        )
        one, two = (points.y for points in task.levels[1:])
        residual = two - math.sqrt(1 - self.schedule.beta) * one
        if shared:
            assert_moments(residual, 0.0, self.schedule.beta**2)
        else:
            assert residual.var() > 2 * self.schedule.beta**2

    def test_the_generator_determines_it_and_the_global_one_is_left_alone(
        self, make: type[Prior], shared: bool
    ) -> None:
        before = torch.get_rng_state()
        first, again = (
            sample_augmented_task(make(), self.schedule, 2, shared_inputs=shared, generator=rng())
            for _ in range(2)
        )
        assert torch.equal(first.levels[2].y, again.levels[2].y)
        assert torch.equal(before, torch.get_rng_state())


def test_levels_start_from_the_noisy_observations() -> None:
    schedule = NoiseSchedule(0.2, 2)
    task = sample_augmented_task(
        Sawtooth(noise=0.5, frequency=(2.0, 2.0)), schedule, 400, generator=rng()
    )
    # The wave is uniform on [0, 1] up to its incomplete periods; the observation noise adds 0.25.
    for level, points in enumerate(task.levels):
        expected = schedule.signal(level) ** 2 * (1 / 12 + 0.25) + schedule.variance(level)
        assert points.y.var().item() == pytest.approx(expected, rel=0.05)


class TestMasks:
    def augmented(self) -> Any:
        return sample_augmented_task(
            Sawtooth(), NoiseSchedule(0.2, 3), 4, num_targets=6, generator=rng()
        )

    @pytest.mark.parametrize("level", [0, 1, 2, 3])
    def test_only_noisier_levels_are_kept(self, level: int) -> None:
        task = self.augmented()
        masked = task.masked(level)
        assert masked.level == level
        assert masked.context is task.context
        assert masked.target is task.levels[level]
        kept = [bool(points.mask.all()) for points in masked.auxiliary]
        shown = [bool(points.mask.any()) for points in masked.auxiliary]
        assert kept == shown == [f > level for f in (1, 2, 3)]
        numpys: Any = np.int64(level)
        again = task.masked(numpys)
        assert again.target is masked.target
        assert [bool(points.mask.any()) for points in again.auxiliary] == kept

    def test_a_level_a_task_is_the_tasks_masked_one_by_one(self) -> None:
        task = self.augmented()
        levels = torch.tensor([2, 0, 3, 1])
        together = task.masked(levels)
        for row, level in enumerate(levels.tolist()):
            alone = task.masked(level)
            assert torch.equal(together.target.x[row], alone.target.x[row])
            assert torch.equal(together.target.y[row], alone.target.y[row])
            for one, other in zip(together.auxiliary, alone.auxiliary, strict=True):
                assert torch.equal(one.mask[row], other.mask[row])

    def test_a_level_a_task_needs_levels_of_one_size(self) -> None:
        task = self.augmented()
        short = PointSet(task.levels[1].x[:, :2], task.levels[1].y[:, :2])
        uneven = replace(task, levels=(task.levels[0], short, *task.levels[2:]))
        assert uneven.masked(1).target is short
        with pytest.raises(ValueError, match=r"^levels must all have one number of points .*, 2, "):
            uneven.masked(torch.tensor([2, 0, 3, 1]))

    @pytest.mark.parametrize("level", [-1, 4])
    def test_a_level_that_is_none_is_refused(self, level: int) -> None:
        with pytest.raises(ValueError, match=rf"^level .*0\.\.3.*{level}"):
            self.augmented().masked(level)
        with pytest.raises(ValueError, match=rf"^level .*\[0, 1, {level}, 3\]"):
            self.augmented().masked(torch.tensor([0, 1, level, 3]))

    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
    def test_levels_that_are_no_integers_are_refused(self, dtype: torch.dtype) -> None:
        with pytest.raises(ValueError, match=f"^level must be an integer.*{dtype}"):
            self.augmented().masked(torch.ones(4).to(dtype))

    def test_padding_stays_masked(self) -> None:
        mask = torch.tensor([[True, False]])
        padded = PointSet(torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), mask)
        (kept,) = mask_levels([padded], 0)
        (hidden,) = mask_levels([padded], 1)
        assert torch.equal(kept.mask, mask)
        assert not hidden.mask.any()


@pytest.mark.parametrize("level", [torch.tensor([1]), torch.tensor(1), torch.tensor([1.0] * 4)])
def test_levels_of_a_wrong_shape_or_type_are_refused(level: Tensor) -> None:
    generator = rng()
    task = sample_augmented_task(Sawtooth(), NoiseSchedule(0.1, 2), 4, generator=generator)
    with pytest.raises(ValueError, match=r"level must be an integer, or a tensor .* \(4,\), got"):
        task.masked(level)


def test_noise_needs_a_source_of_randomness_and_real_numbers() -> None:
    schedule, before, nothing = NoiseSchedule(0.1, 2), torch.get_rng_state(), None
    odd: Any = nothing
    y, rng = torch.zeros(2, 3, 1), torch.Generator().manual_seed(0)
    for draw in (
        schedule.step,
        schedule.chain,
        lambda y, generator: schedule.noise(y, 2, generator=generator),
    ):
        with pytest.raises(ValueError, match=r"^generator must be a Generator, got NoneType"):
            draw(y, generator=odd)
        with pytest.raises(ValueError, match=r"^y must be of a floating dtype, got torch\.int64"):
            draw(y.long(), generator=rng)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_beta_whose_variance_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^beta must be a number whose square is > 0, got 1e-300"):
        NoiseSchedule(1e-300, 3)
