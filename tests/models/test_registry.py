"""What every model in the table obeys, asked for as training and the commands ask for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contracts import assert_same, draw_set, seeded, small_config

from danp_lib.data.domain import Domain
from danp_lib.data.noising import AugmentedTask
from danp_lib.models.convnp import ConvNPConfig, NeuralProcess
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
            return {"num_samples": 3, "generator": torch.Generator().manual_seed(0)}

        expected = model.predict(context, xt, **options())
        assert not expected.mean.requires_grad
        assert_same(model.condition_on(context, **options())(xt), expected)

    def test_predicts_the_targets_of_a_batch_with_gradients(self, name: str) -> None:
        model, context, target = small(name), draw_set(2, 5, 0), draw_set(2, 4, 1)
        noisy = [draw_set(2, 4, 2 + level) for level in range(model.num_levels)]
        task = AugmentedTask(context, (target, *noisy))
        for level in range(model.num_levels + 1):
            batch = task.masked(level)
            predictive = model.level_predictive(batch)
            noisier = [noisy] if model.num_levels else []
            expected = model(context, *noisier, batch.target.x, *([level] if noisier else []))
            assert_same(predictive, expected)
            assert predictive.mean.requires_grad
