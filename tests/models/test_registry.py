"""What every model in the table obeys, asked for as training and the commands ask for it."""

from __future__ import annotations

from typing import Any

import pytest
from contracts import assert_same, draw_set
from randomness import rng
from small_models import seeded, small_config

from danp_lib.data.domain import Domain
from danp_lib.data.generators import Sawtooth
from danp_lib.data.noising import AugmentedTask
from danp_lib.data.points import PointSet
from danp_lib.models.base import NeuralProcess
from danp_lib.models.contexts import ContextWarning, TrainingContexts
from danp_lib.models.convnp import ConvNeuralProcess, ConvNPConfig
from danp_lib.models.danp import DANPConfig
from danp_lib.models.registry import MODELS, config_class

DOMAIN = (-2.0, 3.0)


def small(name: str) -> NeuralProcess:
    config: ConvNPConfig | DANPConfig
    if config_class(name) is DANPConfig:
        config = DANPConfig(small_config(domain=DOMAIN), 2, 0.2, 5)
    else:
        config = small_config(domain=DOMAIN, rank=0 if name.endswith("convcnp") else 4)
    return seeded(MODELS[name], config)


def test_the_table_has_the_papers_models() -> None:
    assert list(MODELS) == ["danp", "convcnp", "convgnp", "ar-convcnp"]
    assert [name for name, kind in MODELS.items() if kind.autoregressive] == ["ar-convcnp"]


@pytest.mark.parametrize("name", MODELS)
class TestProtocol:
    def test_says_its_name_levels_and_domain(self, name: str) -> None:
        model = small(name)
        assert isinstance(model, NeuralProcess)
        assert isinstance(model.config, config_class(name))
        assert model.name == name
        assert model.num_levels == (2 if name == "danp" else 0)
        assert model.domain == Domain.of(DOMAIN)

    def test_conditioned_once_it_predicts_as_ever(self, name: str) -> None:
        model, context, xt = small(name), draw_set(2, 5, 0), draw_set(2, 4, 1).x

        def options() -> Any:
            return {"num_samples": 3, "generator": rng()}

        expected = model.predict(context, xt, **options())
        assert not expected.mean.requires_grad
        assert_same(model.condition_on(context, **options())(xt), expected)

    def test_tells_contexts_unlike_those_of_training(self, name: str) -> None:
        model: NeuralProcess = small(name).float()
        prior = Sawtooth(domain=DOMAIN)
        model.training_contexts = TrainingContexts.measure(model, prior, (0, 30), per_range=4)
        assert all(part.least <= part.median for part in model.training_contexts.sizes)
        task = prior.sample_task(1, context_size=5, generator=rng())
        far = PointSet(task.xc, task.yc + 100.0)
        options: Any = {"num_samples": 2, "generator": rng(1)}
        with pytest.warns(ContextWarning, match="off the scale of training"):
            model.predict(far, task.xt, **options)
        with pytest.warns(ContextWarning, match="off the scale of training"):
            model.condition_on(far, **options)

    def test_predicts_the_targets_of_a_batch_with_gradients(self, name: str) -> None:
        model, context, target = small(name), draw_set(2, 5, 0), draw_set(2, 4, 1)
        noisy = [draw_set(2, 4, 2 + level) for level in range(model.num_levels)]
        task = AugmentedTask(context, (target, *noisy))
        for level in range(model.num_levels + 1):
            batch = task.masked(level)
            predictive = model.level_predictive(batch)
            if isinstance(model, ConvNeuralProcess):  # of others no forward is asked
                noisier = [noisy] if model.num_levels else []
                expected = model(context, *noisier, batch.target.x, *([level] if noisier else []))
                assert_same(predictive, expected)
            assert predictive.mean.requires_grad
