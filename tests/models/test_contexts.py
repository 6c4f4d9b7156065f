"""Contexts unlike those of training: the measure, and the warning with its reasons."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from contracts import draw_set, pad
from small_models import seeded, small_config
from torch import Tensor

from danp_lib.data.generators import DATASETS, GaussianProcess, Sawtooth, split_name
from danp_lib.data.observations import Observations
from danp_lib.data.points import PointSet
from danp_lib.models.contexts import (
    ContextWarning,
    TrainingContexts,
    log_density_per_point,
    unchecked_contexts,
)
from danp_lib.models.convnp import ConvCNP, ConvGNP
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.storage.pretrained import load_pretrained

BUILD = {
    "convcnp": lambda: seeded(ConvCNP, small_config(rank=0), dtype=torch.float32),
    "convgnp": lambda: seeded(ConvGNP, small_config(conditioned=True), dtype=torch.float32),
    "danp": lambda: seeded(
        DANP, DANPConfig(small_config(conditioned=True), 2, 0.2, 9), dtype=torch.float32
    ),
}
models = pytest.mark.parametrize("name", BUILD)


def measured(name: str, **options: Any) -> Any:
    model = BUILD[name]()
    model.training_contexts = TrainingContexts.measure(model, Sawtooth(), (0, 5), **options)
    return model


def contexts(count: int, size: int | tuple[int, int], seed: int = 1) -> PointSet:
    generator = torch.Generator().manual_seed(seed)
    return Sawtooth().sample_task(count, context_size=size, generator=generator).context


def warned(model: Any, context: PointSet) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.predict(context, context.x[:, :1] * 0, num_samples=2, generator=generator)
    assert all(w.category is ContextWarning and w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


def complaints(model: Any, context: PointSet) -> int:
    """How many of a batch of contexts get a warning."""
    rows = (context[row] for row in range(context.batch_size))
    return sum(model.training_contexts.complaint(model, row) is not None for row in rows)


@models
def test_the_density_of_a_context_knows_no_padding_and_no_order(name: str) -> None:
    model, context = BUILD[name]().double(), draw_set(1, 6, 0)
    expected = model.context_log_density(context)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    shuffled = PointSet(context.x[:, order], context.y[:, order])
    for other in (pad(context, 3), shuffled):
        torch.testing.assert_close(model.context_log_density(other), expected)
    assert model.context_log_density(pad(PointSet.empty(dtype=torch.float64), 2)).tolist() == [0.0]


@models
def test_the_density_of_a_context_knows_no_other_of_its_batch(name: str) -> None:
    """A DANP's samples are of the same random numbers in every row, also of a second chunk."""
    model, batch = BUILD[name]().double(), draw_set(70, 6, 0)
    together = model.context_log_density(batch)
    for row in (0, 1, 69):
        torch.testing.assert_close(together[row : row + 1], model.context_log_density(batch[row]))


def test_the_density_is_that_of_the_unconditioned_gaussian() -> None:
    model, context = BUILD["convgnp"]().double(), draw_set(2, 6, 0)
    own = model.core.decode(model.core.features(model.core.encode([context])), context.x, 0)
    torch.testing.assert_close(model.context_log_density(context), own.log_prob(context.y) / 6)
    torch.testing.assert_close(log_density_per_point(own, context), own.log_prob(context.y) / 6)
    half = PointSet(context.x, context.y, torch.tensor([[True] * 4 + [False] * 2] * 2))
    expected = own.marginal(slice(4)).log_prob(context.y[:, :4]) / 4
    torch.testing.assert_close(log_density_per_point(own, half), expected)


@models
def test_the_measure_has_ranges_of_sizes_and_of_outputs(name: str) -> None:
    found = measured(name, per_range=20).training_contexts
    assert [part.largest for part in found.sizes] == [1, 2, 4, 5]
    assert all(part.least <= part.median for part in found.sizes)
    assert 0.0 <= found.outputs[0] < 0.1
    assert 0.9 < found.outputs[1] <= 1.0
    assert found.noise == 0.0
    assert found == measured(name, per_range=20).training_contexts
    with pytest.raises(ValueError, match="context_size"):
        TrainingContexts.measure(BUILD[name](), Sawtooth(), (0, 0))


@pytest.mark.parametrize(("per_range", "rank"), [(300, 3), (200, 2), (99, 1)])
def test_the_bound_is_what_one_context_in_a_hundred_does_not_reach(
    per_range: int, rank: int
) -> None:
    class Failing(ConvGNP):
        """Its densities are -1, -2 and so on, the lowest first."""

        def context_log_density(self, context: PointSet) -> Tensor:
            return -torch.arange(1.0, context.batch_size + 1.0, dtype=torch.float64).flip(0)

    found = TrainingContexts.measure(
        Failing(small_config()), Sawtooth(), (0, 4), per_range=per_range
    )
    assert [part.least for part in found.sizes] == [rank - 1.0 - per_range] * 3


@models
def test_few_contexts_of_training_get_a_warning(name: str) -> None:
    """One in per_range + 1, whatever the model: here 5 of 155 are expected."""
    model = measured(name, per_range=30)
    assert 0 < complaints(model, contexts(155, (0, 5))) < 5 + 5 * 5**0.5


@models
def test_the_warning_says_what_was_seen(name: str) -> None:
    model, context = measured(name, per_range=60), contexts(1, 5)
    assert warned(model, context) == warned(model, PointSet.empty()) == []
    (many,) = warned(model, contexts(2, 7))
    assert "7 points" in many
    assert "the 5 that" in many
    (far,) = warned(model, PointSet(context.x, context.y + 5))
    assert "off the scale of training" in far
    larger = contexts(1, 7)
    (both,) = warned(model, PointSet(larger.x, larger.y + 5))
    assert both.index("off the scale") < both.index("And a context of 7 points is larger than")
    sizes = tuple(replace(part, least=99.0) for part in model.training_contexts.sizes)
    model.training_contexts = replace(model.training_contexts, sizes=sizes)
    (unlikely,) = warned(model, context)
    assert "5 points is improbable" in unlikely
    assert "hardly ever less than 99.00" in unlikely
    assert "(noise: none added)" in unlikely
    with unchecked_contexts():
        assert warned(model, context) == []
    assert len(warned(model, context)) == 1
    model.training_contexts = None
    assert warned(model, context) == []


@models
def test_a_prediction_is_the_same_with_and_without_the_check(name: str) -> None:
    model, context = measured(name, per_range=10), contexts(2, 5)
    xt = context.x[:, :3]

    def mean() -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return model.predict(context, xt, num_samples=3, generator=generator).mean

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextWarning)
        checked = mean()
    with unchecked_contexts():
        assert torch.equal(mean(), checked)


@models
def test_a_predictive_function_warns_once_for_its_context(name: str) -> None:
    model, context = measured(name, per_range=10), contexts(1, 5)
    generator = torch.Generator().manual_seed(0)
    far = PointSet(context.x, context.y + 5)
    with pytest.warns(ContextWarning, match="off the scale"):
        predictive = model.condition_on(far, num_samples=2, generator=generator)
    # Here a warning would be an error.
    predictive(context.x)


# What is shipped.

NAMES = [f"{model}-{data}" for model in ("danp", "convgnp", "convcnp") for data in DATASETS]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_tells_strange_contexts_from_those_of_training(name: str) -> None:
    model, prior = load_pretrained(name), DATASETS[split_name(name)[1]]
    generator = torch.Generator().manual_seed(11)
    usual = prior.sample_task(40, context_size=(0, 30), generator=generator).context
    # 1 % of them on average: three of forty are expected once in a hundred tests.
    assert complaints(model, usual) < 3
    many = prior.sample_task(6, context_size=25, generator=generator).context
    noise = 0.1 * torch.randn(many.y.shape, generator=generator)
    again = PointSet(many.x[:, :5], many.y[:, :5] + 0.2)
    strange = {
        "shifted": PointSet(many.x, many.y + 5),
        "scaled": PointSet(many.x, 10 * many.y),
        "noisy": PointSet(many.x, many.y + noise),
        "contradictory": many.concat(again),
        "large": many.concat(many),
    }
    found = {kind: complaints(model, context) for kind, context in strange.items()}
    assert found == dict.fromkeys(strange, 6)


@pytest.mark.parametrize("name", ["danp-square", "danp-long-seed1-square-released"])
@pytest.mark.parametrize("size", [4, 8, 14])
def test_a_wave_that_a_danp_misses_hides_no_noisy_one(name: str, size: int) -> None:
    """On one of a few hundred contexts these models' densities are -50,000 nats a point."""
    model, prior = load_pretrained(name), DATASETS[split_name(name)[1]]
    generator = torch.Generator().manual_seed(12)
    wave = prior.sample_task(6, context_size=size, generator=generator).context
    noise = 0.05 * torch.randn(wave.y.shape, generator=generator)
    assert complaints(model, PointSet(wave.x, wave.y + noise)) == 6


def test_a_few_noisy_points_are_nothing_strange() -> None:
    """Two points of a Gaussian process tell nothing of their noise, and get no warning."""
    model = load_pretrained("convgnp-gp")
    generator = torch.Generator().manual_seed(3)
    noisy = GaussianProcess(noise=0.05).sample_task(40, context_size=2, generator=generator)
    assert complaints(model, noisy.context) < 3
    assert math.isfinite(float(model.context_log_density(noisy.context).sum()))


def test_of_forecasts_the_contexts_lie_where_those_of_training_do() -> None:
    seen = []

    class Spy(ConvGNP):
        def context_log_density(self, context: PointSet) -> Tensor:
            seen.append(context.x[context.mask])
            return super().context_log_density(context)

    x = torch.linspace(-2.0, 2.0, 40).reshape(1, -1, 1).expand(60, -1, 1).contiguous()
    data = Observations(table=PointSet(x, x.sin()), order="forecast")
    model = seeded(Spy, small_config(conditioned=True), dtype=torch.float32)
    TrainingContexts.measure(model, data, (0, 15), num_targets=20, per_range=30)
    # Twenty of forty points follow every context.
    assert float(torch.cat(seen).max()) < 0.1
