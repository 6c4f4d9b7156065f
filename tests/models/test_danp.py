"""The DANP: masking, sampling of the auxiliary sets, the mixture."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import numpy as np
import pytest
import torch
from contracts import PredictiveContract, assert_same, draw_set, forall, pad
from hypothesis import strategies as st
from small_models import seeded, small_config
from torch import Tensor

from danp_lib._random import spawn
from danp_lib.data.noising import AugmentedTask
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.models.convnp import ConvGNP
from danp_lib.models.danp import DANP, AuxiliarySamples, DANPConfig, defend

NUM_LEVELS = 3
Hidden = Literal["data", "nan", "nothing"]


def small_danp(
    *, num_levels: int = NUM_LEVELS, num_auxiliary: int = 5, **changes: Any
) -> DANPConfig:
    return DANPConfig(small_config(**changes), num_levels, 0.2, num_auxiliary)


class TestPrediction(PredictiveContract):
    """The mixture, with the same auxiliary inputs and noise wherever the seed is the same."""

    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> DANP:
        return seeded(DANP, small_danp(domain=domain))

    def predict(
        self, model: Any, context: PointSet, xt: Tensor, generator: torch.Generator | None = None
    ) -> Mixture:
        generator = generator or torch.Generator().manual_seed(0)
        return model.predict(context, xt, num_samples=3, generator=generator)

    def test_chunks_change_nothing(self) -> None:
        model, context, xt = self.build(), draw_set(2, 5, 0), draw_set(2, 4, 1).x
        whole, parts = (
            model.predict(
                context,
                xt,
                num_samples=7,
                chunk_size=size,
                generator=torch.Generator().manual_seed(0),
            )
            for size in (7, 3)
        )
        assert whole.num_components == 7
        assert_same(parts, whole)


class TestConditionedPrediction(TestPrediction):
    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> DANP:
        return seeded(DANP, small_danp(domain=domain, conditioned=True))

    def test_ancestral_sampling_agrees_with_the_forward_pass_of_each_level(self) -> None:
        model, context, xt = self.build(), draw_set(1, 5, 0), draw_set(1, 4, 1).x
        inputs = model.draw_inputs(
            2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        samples = model.denoise(model.encode(context), inputs, lambda level, p: p.mean)
        for level in range(NUM_LEVELS + 1):
            x = inputs[level - 1] if level else xt
            expected = model(context, samples.auxiliary, x, level=level)
            actual = samples.predictives[level - 1] if level else samples.at(xt)
            assert_same(actual, expected)


class TestPredictionOfNoise(TestConditionedPrediction):
    """Where the noise of the context is found out."""

    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> DANP:
        noise: dict[str, Any] = {"observation_noise": 0.01, "largest_noise": 1.0}
        return seeded(DANP, small_danp(domain=domain, conditioned=True, **noise))


class TestLevel(PredictiveContract):
    """The Gaussian of a level given noisier ones."""

    level = 1

    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> DANP:
        self.center = sum(domain) / 2
        return seeded(DANP, small_danp(domain=domain))

    def predict(
        self, model: Any, context: PointSet, xt: Tensor, generator: torch.Generator | None = None
    ) -> LowRankNormal:
        sets = (draw_set(1, 4, seed) for seed in (1, 2, 3))
        moved = [PointSet(s.x + self.center, s.y) for s in sets]
        return model(context, moved, xt, level=self.level)


def draw_augmented(seed: int, batch: int = 2) -> AugmentedTask:
    context, *levels = (draw_set(batch, 6, seed + i) for i in range(NUM_LEVELS + 2))
    return AugmentedTask(pad(context, 1), tuple(levels))


def hide(task: AugmentedTask, level: int, how: Hidden) -> AugmentedTask:
    """The task with other entries, NaN or no entry in the levels below one."""
    levels = list(task.levels)
    for f in range(level):
        x, y = levels[f].x, levels[f].y
        if how == "nothing":
            levels[f] = PointSet.empty(len(x), dtype=x.dtype)
        else:
            levels[f] = (
                PointSet(-x, y + 3.0) if how == "data" else PointSet(x * math.nan, y * math.nan)
            )
    return AugmentedTask(task.context, tuple(levels))


def gradients(model: DANP, task: AugmentedTask, level: int | Tensor) -> tuple[Tensor, ...]:
    """The log-likelihood and its gradients."""
    masked = task.masked(level)
    result = model.level_predictive(masked).log_prob(masked.target.y)
    return (result, *torch.autograd.grad(result.sum(), list(model.parameters())))


@pytest.mark.parametrize("conditioned", [False, True])
@forall(
    st.integers(0, 2**32), st.integers(1, NUM_LEVELS), st.sampled_from(["data", "nan", "nothing"])
)
def test_cleaner_levels_reach_neither_prediction_nor_gradients(
    conditioned: bool, seed: int, level: int, how: Hidden
) -> None:
    model, task = seeded(DANP, small_danp(conditioned=conditioned)), draw_augmented(seed)
    expected = gradients(model, task, level)
    hidden = hide(task, level, how)
    torch.testing.assert_close(gradients(model, hidden, level), expected, rtol=1e-9, atol=1e-9)
    if how != "nothing":  # one level a task needs levels of one size
        levels = torch.full((2,), level)
        actual = gradients(model, hidden, levels)
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    target = task.levels[level]
    actual = model(task.context, hidden.levels[1:], target.x, level).log_prob(target.y)
    torch.testing.assert_close(actual, expected[0], rtol=1e-9, atol=1e-9)


def test_every_noisier_level_matters() -> None:
    model, task = seeded(DANP, small_danp()), draw_augmented(0)
    for level in range(NUM_LEVELS):
        target = task.levels[level]
        expected = model(task.context, task.levels[1:], target.x, level).mean
        for f in range(level + 1, NUM_LEVELS + 1):
            changed = list(task.levels[1:])
            changed[f - 1] = PointSet(changed[f - 1].x, changed[f - 1].y + 1.0)
            difference = model(task.context, changed, target.x, level).mean - expected
            assert difference.abs().max() > 1e-3, (level, f)


def test_one_level_a_task_is_each_task_at_its_level() -> None:
    model, task = seeded(DANP, small_danp()), draw_augmented(0, batch=4)
    actual = gradients(model, task, torch.arange(4))[0]
    for level in range(4):
        row = AugmentedTask(task.context[level], tuple(points[level] for points in task.levels))
        torch.testing.assert_close(actual[level : level + 1], gradients(model, row, level)[0])


@pytest.mark.parametrize("conditioned", [False, True])
def test_without_levels_it_is_its_base_model(conditioned: bool) -> None:
    config = small_danp(num_levels=0, conditioned=conditioned)
    model, base = seeded(DANP, config), ConvGNP(config.base).double()
    base.load_state_dict(model.state_dict())
    context, xt = draw_set(2, 5, 0), draw_set(2, 7, 1).x
    expected = base.predict(context, xt)
    assert_same(model(context, (), xt), expected)
    mixture = model.predict(context, xt, generator=torch.Generator())
    assert mixture.num_components == 1
    assert_same(mixture, expected)


@pytest.mark.parametrize("shared", [False, True])
def test_auxiliary_sets_are_drawn_from_the_predictives_of_their_levels(shared: bool) -> None:
    """Each level from the model's own predictive given the sampled noisier ones."""
    model, context = seeded(DANP, small_danp(num_auxiliary=4)), draw_set(1, 5, 0)
    inputs = draw_set(1, 6, 1).x if shared else None
    sets = model.sample_auxiliary(
        context, num_samples=3, inputs=inputs, generator=torch.Generator().manual_seed(0)
    )
    for_inputs, for_noise = spawn(torch.Generator().manual_seed(0), 2)
    points = 6 if shared else 4
    noise = model.draw_noise(3, points, generator=for_noise)
    xs = model.draw_inputs(3, generator=for_inputs, dtype=torch.float64)
    for level in (3, 2, 1):
        x = xs[level - 1] if inputs is None else inputs.expand(3, -1, -1)
        assert torch.equal(sets[level - 1].x, x)
        predictive = model(context.expand(3), sets, x, level)
        expected = predictive.transform(noise[level - 1])
        torch.testing.assert_close(sets[level - 1].y, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("conditioned", [False, True])
def test_samples_of_several_tasks_are_those_of_each_task(conditioned: bool) -> None:
    """Rows of tasks and samples in one batch, with inputs and outputs given."""
    model = seeded(DANP, small_danp(conditioned=conditioned))
    context, xt = pad(draw_set(2, 5, 0), 1), draw_set(2, 4, 1).x
    given = [draw_set(6, 3, 10 + level) for level in range(NUM_LEVELS)]

    def denoise(rows: slice, tasks: slice) -> AuxiliarySamples:
        xs = [points.x[rows] for points in given]
        encoded = model.encode(context[tasks])
        return model.denoise(encoded, xs, lambda level, p: given[level - 1].y[rows])

    together = denoise(slice(6), slice(2))
    for task in range(2):
        rows = slice(3 * task, 3 * task + 3)
        alone = denoise(rows, slice(task, task + 1))
        torch.testing.assert_close(together.log_prob()[rows], alone.log_prob())
        assert_same(together.at(xt)[rows], alone.at(xt[task : task + 1]))
        expected = model(context[task].expand(3), alone.auxiliary, xt[[task] * 3])
        assert_same(alone.at(xt[task : task + 1]), expected)


def test_the_log_density_of_the_samples_is_equation_3() -> None:
    model, context = seeded(DANP, small_danp()), draw_set(1, 5, 0)
    given = [draw_set(2, 4, 1 + level) for level in range(NUM_LEVELS)]
    xs = [points.x for points in given]
    samples = model.denoise(model.encode(context), xs, lambda level, p: given[level - 1].y)
    expected = sum(
        model(context.expand(2), given, points.x, level).log_prob(points.y)
        for level, points in enumerate(given, start=1)
    )
    torch.testing.assert_close(samples.log_prob(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunk_size", [2, 256])
def test_conditioning_once_predicts_anywhere(chunk_size: int) -> None:
    model, context, xt = seeded(DANP, small_danp()), draw_set(3, 5, 0), draw_set(3, 6, 1).x
    options = {"num_samples": 4, "chunk_size": chunk_size}
    passes = 0

    def count(_: Any, inputs: tuple[Tensor, ...]) -> None:
        nonlocal passes
        passes += len(inputs[0])

    model.core.unet.register_forward_pre_hook(count)
    predictive = model.condition_on(context, generator=torch.Generator().manual_seed(0), **options)
    assert passes == 3 * (1 + NUM_LEVELS * 4)
    expected = model.predict(context, xt, generator=torch.Generator().manual_seed(0), **options)
    passes = 0
    assert_same(predictive(xt), expected)
    assert_same(predictive(xt[:, 2:]), expected.marginal(slice(2, None)))
    assert predictive(xt[:1]).batch_shape == (3,)
    assert passes == 0
    with pytest.raises(ValueError, match=r"batch .*'xt': 4"):
        predictive(torch.zeros(4, 2, 1).double())


def test_conditioning_once_on_one_context_serves_many_sets_of_inputs() -> None:
    context, xt = draw_set(1, 5, 0), draw_set(3, 4, 1).x
    for model in (m := seeded(DANP, small_danp(conditioned=True)), m.defended(0.2)):
        predictive = model.condition_on(
            context, num_samples=5, generator=torch.Generator().manual_seed(0), chunk_size=2
        )
        together = predictive(xt)
        assert together.batch_shape == (3,)
        for row in range(3):
            assert_same(together[row : row + 1], predictive(xt[row : row + 1]))
        assert predictive(xt[:, :0]).mean.shape == (3, 0, 1)


def test_samples_have_the_moments_of_the_predictive() -> None:
    """The noisiest level, whose predictive is one Gaussian for all samples."""
    model, context = seeded(DANP, small_danp(num_levels=1)), draw_set(1, 5, 0)
    inputs = draw_set(1, 3, 1).x
    count = 4000
    (drawn,) = model.sample_auxiliary(
        context, num_samples=count, inputs=inputs, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        expected = model(context, [drawn[0]], inputs, level=1)
    error = 5 * (expected.variance / count).sqrt()
    assert ((drawn.y.mean(dim=0, keepdim=True) - expected.mean).abs() < error).all()
    covariance = expected.covariance_matrix[0]
    scale = covariance.diagonal()
    bound = 5 * ((scale[:, None] * scale + covariance.square()) / count).sqrt()
    assert ((drawn.y.squeeze(-1).T.cov() - covariance).abs() < bound).all()


def test_uniform_inputs_cover_the_domain() -> None:
    model = seeded(DANP, small_danp(domain=(1.0, 5.0)))
    x = model.draw_inputs(400, generator=torch.Generator(), dtype=torch.float64)
    assert x.shape == (3, 400, 5, 1)
    assert x.min() >= 1.0
    assert x.max() <= 5.0
    torch.testing.assert_close(x.mean().item(), 3.0, atol=0.1, rtol=0.0)
    torch.testing.assert_close(x.var().item(), 16 / 12, atol=0.1, rtol=0.0)


def test_mixture_is_equation_2() -> None:
    """Each component is level 0 given one sample, with equal weights."""
    model, context, xt = seeded(DANP, small_danp()), draw_set(1, 5, 0), draw_set(1, 4, 1).x
    mixture = model.predict(context, xt, num_samples=3, generator=torch.Generator().manual_seed(0))
    sets = model.sample_auxiliary(
        context, num_samples=3, generator=torch.Generator().manual_seed(0)
    )
    components = model(context.expand(3), sets, xt.expand(3, -1, -1))
    torch.testing.assert_close(mixture.components.mean[0], components.mean)
    torch.testing.assert_close(mixture.logits, torch.full((1, 3), -math.log(3.0)).double())


class TestDefense:
    model = seeded(DANP, small_danp())
    context, xt = draw_set(2, 5, 0), draw_set(2, 4, 1).x

    def predict(self, model: DANP) -> Mixture:
        generator = torch.Generator().manual_seed(0)
        return model.predict(self.context, self.xt, num_samples=3, generator=generator)

    def test_it_is_one_more_component_of_its_weight(self) -> None:
        plain, defended = self.predict(self.model), self.predict(self.model.defended(0.2))
        assert defended.num_components == 4
        torch.testing.assert_close(defended.logits[:, 3].exp(), torch.full((2,), 0.2).double())
        torch.testing.assert_close(defended.logits[:, :3].exp(), 0.8 * plain.logits.exp())
        assert_same(defended.components[:, :3], plain.components)
        noisiest = self.model(self.context, [draw_set(2, 5, f) for f in range(3)], self.xt, 3)
        last, s = defended.components[:, 3], self.model.schedule.signal(3)
        torch.testing.assert_close(last.mean, noisiest.mean / s)
        torch.testing.assert_close(last.covariance_matrix, noisiest.covariance_matrix / s**2)

    def test_level_0_takes_the_context_for_known_and_its_samples_not(self) -> None:
        model = seeded(DANP, small_danp(conditioned=True))
        plain, defended = (self.predict(m) for m in (model, model.defended()))
        ((_, samples),) = model._ancestral(
            self.context, 3, None, torch.Generator().manual_seed(0), chunk_size=256
        )
        xt = self.xt.repeat_interleave(3, dim=0)
        expected = model.core.predictive(samples.features, [samples.context], xt, 0)
        assert_same(defended.components[:, :3], expected.map(lambda p: p.unflatten(0, (2, 3))))
        # More that is known makes surer.
        less = defended.components[:, :3].covariance_matrix - plain.components.covariance_matrix
        assert torch.linalg.eigvalsh(less).min() > -1e-9
        assert less.diagonal(dim1=-2, dim2=-1).min() > 0.0

    def test_where_the_noise_is_found_out_the_samples_stay_known(self) -> None:
        noisy = small_danp(conditioned=True, observation_noise=0.01, largest_noise=0.3)
        assert [seeded(DANP, c).defended().config.samples_known for c in (noisy, small_danp())] == [
            True,
            False,
        ]

    def test_it_bounds_what_a_task_can_lose(self) -> None:
        mixture, y = self.predict(self.model.defended(0.05)), 1e3 + draw_set(2, 4, 2).y
        last = mixture.components[:, 3].log_prob(y)
        assert (mixture.log_prob(y) >= last + math.log(0.05)).all()
        assert (mixture.log_prob(y) >= self.predict(self.model).log_prob(y) + math.log(0.95)).all()

    def test_the_model_stays_as_it_was_and_shares_its_weights(self) -> None:
        defended = self.model.defended()
        assert (self.model.config.defensive_weight, defended.config.defensive_weight) == (0.0, 0.05)
        assert defended.core is self.model.core
        assert_same(self.predict(defended.defended(0.0)), self.predict(self.model))

    def test_a_weight_of_its_own_is_kept(self) -> None:
        own = self.model.defended(0.2)
        for again in (own.defended(), defend(own)):
            assert again.config.defensive_weight == 0.2

    def test_conditioning_once_predicts_the_same(self) -> None:
        model = self.model.defended()
        predictive = model.condition_on(
            self.context, num_samples=3, generator=torch.Generator().manual_seed(0)
        )
        assert_same(predictive(self.xt), self.predict(model))

    def test_without_levels_there_is_none(self) -> None:
        with pytest.raises(ValueError, match=r"^defensive_weight .*num_levels is 0.*0\.05"):
            seeded(DANP, small_danp(num_levels=0)).defended()


def test_auxiliary_inputs_at_the_targets() -> None:
    model, context, xt = seeded(DANP, small_danp()), draw_set(1, 5, 0), draw_set(1, 4, 1).x
    mixture = model.predict(
        context,
        xt,
        num_samples=3,
        auxiliary_inputs="target",
        generator=torch.Generator().manual_seed(0),
    )
    sets = model.sample_auxiliary(
        context, num_samples=3, inputs=xt, generator=torch.Generator().manual_seed(0)
    )
    expected = model(context.expand(3), sets, xt.expand(3, -1, -1))
    torch.testing.assert_close(mixture.components.mean[0], expected.mean)


class TestErrors:
    model = seeded(DANP, small_danp())
    context, xt = draw_set(1, 5, 0), draw_set(1, 4, 1).x
    sets = tuple(draw_set(1, 4, seed) for seed in (2, 3, 4))

    @pytest.mark.parametrize("level", [-1, 4, np.int64(4), True, 1.0, torch.tensor(0)])
    def test_level(self, level: Any) -> None:
        with pytest.raises(ValueError, match=rf"^level .*{re.escape(repr(level))}"):
            self.model(self.context, self.sets, self.xt, level)

    def test_a_level_may_be_numpys(self) -> None:
        for level in range(4):
            ours, numpys = (
                self.model(self.context, self.sets, self.xt, index)
                for index in (level, np.int64(level))
            )
            assert torch.equal(ours.mean, numpys.mean)
            assert torch.equal(ours.variance, numpys.variance)

    def test_a_generator_is_no_number(self) -> None:
        with pytest.raises(ValueError, match=r"^generator must be a torch.Generator.* got 3"):
            self.model.predict(self.context, self.xt, generator=3)

    @pytest.mark.parametrize("sets", [(1, 2, 3), draw_set(1, 4, 2)])
    def test_auxiliary_sets_are_sets(self, sets: Any) -> None:
        with pytest.raises(ValueError, match=r"^auxiliary.* must be a (PointSet|Sequence), got"):
            self.model(self.context, sets, self.xt)

    def test_number_of_auxiliary_sets(self) -> None:
        with pytest.raises(ValueError, match=r"^auxiliary .*2 sets"):
            self.model(self.context, self.sets[:2], self.xt)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_values_of_an_unmasked_level(self, bad: float) -> None:
        sets = [*self.sets[:2], PointSet(self.sets[2].x, self.sets[2].y * bad)]
        with pytest.raises(ValueError, match=r"^auxiliary\[2\]\.y"):
            self.model(self.context, sets, self.xt, level=2)

    @pytest.mark.parametrize("name", ["num_samples", "chunk_size"])
    def test_sizes(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"^{name} .*0"):
            self.model.predict(self.context, self.xt, generator=torch.Generator(), **{name: 0})

    def test_a_generator_is_needed(self) -> None:
        for call in (
            lambda: self.model.predict(self.context, self.xt),
            lambda: self.model.condition_on(self.context),
        ):
            with pytest.raises(ValueError, match=r"^generator .*None"):
                call()

    def test_auxiliary_inputs(self) -> None:
        with pytest.raises(ValueError, match=r"^auxiliary_inputs .*'grid'"):
            self.model.predict(
                self.context, self.xt, auxiliary_inputs="grid", generator=torch.Generator()
            )

    def test_sampling_takes_one_context(self) -> None:
        with pytest.raises(ValueError, match=r"^context .*2"):
            self.model.sample_auxiliary(
                draw_set(2, 5, 0), num_samples=1, generator=torch.Generator()
            )
        wrong: Any = self.context.x
        with pytest.raises(ValueError, match=r"^context must be a PointSet, got Tensor"):
            self.model.sample_auxiliary(wrong, num_samples=1, generator=torch.Generator())

    @pytest.mark.parametrize("chunk_size", [2, 256])
    def test_all_samples_share_one_set_of_inputs(self, chunk_size: int) -> None:
        with pytest.raises(ValueError, match=r"^inputs .*4"):
            self.model.sample_auxiliary(
                self.context,
                num_samples=4,
                inputs=draw_set(4, 3, 1).x,
                generator=torch.Generator(),
                chunk_size=chunk_size,
            )

    @pytest.mark.parametrize(
        "change",
        [
            {"beta": 1.5},
            {"num_levels": -1},
            {"num_auxiliary": 0},
            {"defensive_weight": 1.0},
            {"defensive_weight": -0.1},
        ],
    )
    def test_configuration(self, change: dict[str, Any]) -> None:
        ((name, value),) = change.items()
        with pytest.raises(ValueError, match=rf"^{name} .*{value}"):
            DANPConfig(**change)


def test_every_auxiliary_input_is_drawn_by_itself() -> None:
    model = seeded(DANP, DANPConfig(small_config(), 3, 0.2, 5))
    generator = torch.Generator().manual_seed(0)
    x = model.draw_inputs(4, generator=generator, dtype=torch.float64)
    assert len(x.unique()) == x.numel()
