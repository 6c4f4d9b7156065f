"""The ConvCNP and the ConvGNP."""

from __future__ import annotations

import math
import re
from typing import Any, get_args, get_type_hints

import pytest
import torch
from contracts import PredictiveContract, assert_same, draw_set
from small_models import seeded, small_config
from torch import Tensor, nn

from danp_lib.data.generators import Sawtooth
from danp_lib.data.observations import Observations
from danp_lib.data.points import PointSet
from danp_lib.data.scaling import Scaling
from danp_lib.distributions.gaussian import VARIANCE_FLOOR, DiagonalNormal, LowRankNormal
from danp_lib.exact.gp import GaussianProcessOracle
from danp_lib.exact.sawtooth import SawtoothOracle
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.convnp import (
    ConvCNP,
    ConvGNP,
    ConvNPConfig,
    ConvNPCore,
    count_parameters,
    paper_config,
)
from danp_lib.nn.unet import UNETS


class TestConvCNP(PredictiveContract):
    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> ConvCNP:
        return seeded(ConvCNP, small_config(domain=domain, rank=0))

    def test_outputs_are_independent(self) -> None:
        predictive = self.predict(self.build(), draw_set(1, 5, 0), draw_set(1, 4, 1).x)
        assert isinstance(predictive, DiagonalNormal)
        expected = torch.diag_embed(predictive.variance.squeeze(-1))
        assert torch.equal(predictive.covariance_matrix, expected)


class TestConvGNP(PredictiveContract):
    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> ConvGNP:
        return seeded(ConvGNP, small_config(domain=domain))

    def test_outputs_are_correlated(self) -> None:
        predictive = self.predict(self.build(), draw_set(1, 5, 0), draw_set(1, 4, 1).x)
        off_diagonal = predictive.covariance_matrix[0] - torch.diag(predictive.variance[0, :, 0])
        assert off_diagonal.abs().max() > 1e-4


class TestConditionedConvGNP(TestConvGNP):
    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> ConvGNP:
        return seeded(ConvGNP, small_config(domain=domain, conditioned=True))


class TestConvGNPOfNoise(TestConvGNP):
    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> ConvGNP:
        noise = {"observation_noise": 0.01, "largest_noise": 1.0}
        return seeded(ConvGNP, small_config(domain=domain, conditioned=True, **noise))


class TestPaperConvGNP(TestConvGNP):
    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> ConvGNP:
        scales = {"variance_gain": 1.0, "variance_offset": 0.0, "factor_divisor": 4.0}
        return seeded(ConvGNP, small_config(domain=domain, unet="paper", head_layers=0, **scales))


@pytest.mark.parametrize(
    ("config", "num_sets", "count"),
    [
        (paper_config(rank=0), 1, 329_220),
        (paper_config(), 1, 337_540),
        (paper_config(), 3, 347_402),
        (paper_config(), 4, 352_333),
        (ConvNPConfig(), 4, 361_741),
    ],
)
def test_number_of_parameters(config: ConvNPConfig, num_sets: int, count: int) -> None:
    assert count_parameters(ConvNPCore(config, num_sets)) == count


@pytest.mark.parametrize("config", [paper_config(), small_config()], ids=["paper", "small"])
def test_a_fresh_model_weighs_a_neighbor_on_the_grid_by_one_length_scale(
    config: ConvNPConfig,
) -> None:
    """Both convolutions start from one grid spacing, as in the released code.

    Between neighbors on the grid the weight is then exp(-1/2), whatever the density of the grid.
    """
    core = seeded(ConvNPCore, config, 2)
    middle = len(core.grid) // 2
    x = core.grid[middle].reshape(1, 1, 1)
    with torch.no_grad():
        densities = [core.encode_set(PointSet(x, x), index)[0, 0] for index in range(2)]
        peak = torch.zeros(1, 1, len(core.grid), dtype=torch.float64)
        peak[..., middle] = 1.0
        identity = seeded(nn.Conv2d, 1, 1, 1)
        nn.init.ones_(identity.weight)
        nn.init.zeros_(identity.bias)
        decoded = core.decoder(peak, core.grid, core.grid.reshape(1, -1, 1), identity)
    for weights in (*densities, decoded[0, :, 0]):
        expected = torch.tensor([math.exp(-0.5), 1.0, math.exp(-0.5)], dtype=torch.float64)
        # The grid is kept in float32.
        torch.testing.assert_close(weights[middle - 1 : middle + 2], expected, rtol=1e-4, atol=0)


class TestTranslation:
    """Shifting the inputs inside a fixed domain, whose grid stays.

    The stride of the coarsest layer is 8 grid points, half a unit. Whole strides move every layer's
    activations along, so that only the zeros beyond the ends of the grid can tell; their effect
    stops at the receptive field, 53 grid points or 1.7 units to either side for the paper's U-Net.
    Other amounts are met by the sampling of the layers and of the grid too. Both bounds are about
    three times what these weights give, where the context's outputs have standard deviation 1.
    """

    @pytest.fixture(params=["paper", "full-resolution"])
    def model(self, request: pytest.FixtureRequest) -> ConvGNP:
        return seeded(ConvGNP, small_config(domain=(-6.0, 6.0), unet=request.param))

    def change(self, model: ConvGNP, shift: float) -> float:
        context, xt = draw_set(4, 6, 0, width=1.0), draw_set(4, 50, 1, width=1.0).x
        moved = PointSet(context.x + shift, context.y)
        before, after = model.predict(context, xt), model.predict(moved, xt + shift)
        return (after.mean - before.mean).abs().max().item()

    @pytest.mark.parametrize("shift", [-2.5, -0.5, 1.0, 2.0])
    def test_whole_strides_far_from_the_ends(self, model: ConvGNP, shift: float) -> None:
        assert self.change(model, shift) < 1e-12

    @pytest.mark.parametrize("shift", [-5.0, 5.0])
    def test_whole_strides_up_to_the_ends(self, model: ConvGNP, shift: float) -> None:
        assert 1e-6 < self.change(model, shift) < 0.015

    @pytest.mark.parametrize("shift", [-0.125, 1 / 16, 1 / 32, 0.01, 1.25])
    def test_other_amounts(self, model: ConvGNP, shift: float) -> None:
        assert 1e-6 < self.change(model, shift) < 0.15


def test_head_scales() -> None:
    scales = {"variance_gain": 3.0, "variance_offset": -2.0, "factor_divisor": 5.0}
    plain = {"variance_gain": 1.0, "variance_offset": 0.0, "factor_divisor": 1.0}
    scaled, model = (seeded(ConvGNP, small_config(**s)) for s in (scales, plain))
    context, xt = draw_set(2, 5, 0), draw_set(2, 7, 1).x
    actual, expected = scaled.predict(context, xt), model.predict(context, xt)
    raw = (expected.cov_diag - VARIANCE_FLOOR).expm1().log()
    variance = VARIANCE_FLOOR + torch.nn.functional.softplus(3.0 * raw - 2.0)
    assert_same(actual, LowRankNormal(expected.mean, expected.cov_factor / 5.0, variance), 1e-7)


def test_forward_has_gradients_and_predict_has_none() -> None:
    model = seeded(ConvGNP, small_config())
    context, target = draw_set(2, 5, 0), draw_set(2, 7, 1)
    assert not model.predict(context, target.x).mean.requires_grad
    model(context, target.x).log_prob(target.y).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0.0, name


def test_float32_agrees_with_float64() -> None:
    config = small_config()
    context, target = draw_set(2, 5, 0), draw_set(2, 7, 1)
    expected = seeded(ConvGNP, config).predict(context, target.x)
    single = seeded(ConvGNP, config, dtype=torch.float32)
    actual = single.predict(context.to(torch.float32), target.x.float())
    assert actual.mean.dtype == torch.float64
    torch.testing.assert_close(actual.mean, expected.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.variance, expected.variance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({"unet": "plain"}, "'paper' or 'full-resolution'"),
        ({"kernel_size": 4}, "odd"),
        ({"channels": 0}, "an integer >= 1"),
        ({"channels": 64.5}, "an integer >= 1"),
        ({"channels": "64"}, "an integer >= 1"),
        ({"num_layers": 0}, "an integer >= 1"),
        ({"rank": -1}, "an integer >= 0"),
        ({"rank": True}, "an integer >= 0"),
        ({"margin": math.nan}, "a finite number >= 0"),
        ({"variance_offset": math.inf}, "a finite number"),
        ({"variance_gain": 0.0}, "a finite number > 0"),
        ({"factor_divisor": -1.0}, "a finite number > 0"),
        ({"conditioned": 1}, "true or false"),
        ({"domain": (1.0, 1.0)}, "with lower < upper"),
        ({"domain": (1.0,)}, "a list of 2"),
        ({"domain": (1e5, 1e5 + 4.0)}, "within"),
    ],
)
def test_wrong_configurations_are_refused(change: dict[str, Any], right: str) -> None:
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=rf"^{name} must .*{right}.* got {re.escape(repr(value))}"):
        ConvNPConfig(**change)


def test_the_choices_of_a_unet_are_those_there_are() -> None:
    for name in UNETS:
        ConvNPConfig(unet=name)  # type: ignore[arg-type]
    assert set(get_args(get_type_hints(ConvNPConfig)["unet"])) == set(UNETS)


def test_rank_must_fit_the_model() -> None:
    with pytest.raises(ValueError, match=r"rank .*4"):
        ConvCNP(small_config())
    with pytest.raises(ValueError, match=r"rank .*0"):
        ConvGNP(small_config(rank=0))


@pytest.mark.parametrize("kind", [ConvCNP, ConvGNP])
def test_a_configuration_of_another_kind_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(ValueError, match="config must be a ConvNPConfig, got dict"):
        kind({"rank": 0})


def test_the_default_type_of_floats_changes_nothing(
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    context = draw_set(2, 5, 0).to(torch.float32)
    xt = torch.linspace(-1, 1, 4, dtype=torch.float32).expand(2, -1).unsqueeze(-1)
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        model = ConvGNP(small_config())
        assert {part.dtype for part in model.state_dict().values()} == {torch.float32}
        for part in model.parameters():
            torch.nn.init.normal_(part, std=0.1, generator=torch.Generator().manual_seed(0))
        found.append(model.predict(context, xt).mean)
    assert torch.equal(*found)


def test_function_transforms_take_the_derivative_that_autograd_takes() -> None:
    model = seeded(ConvGNP, small_config(), dtype=torch.float32)
    context, target = (
        PointSet(p.x.float(), p.y.float()) for p in (draw_set(1, 5, 0), draw_set(1, 4, 1))
    )

    def density(y: Tensor) -> Tensor:
        return model(PointSet(context.x, y), target.x).log_prob(target.y).sum()

    y = context.y.clone().requires_grad_()
    (expected,) = torch.autograd.grad(density(y), y)
    torch.testing.assert_close(torch.func.grad(density)(context.y), expected, rtol=1e-4, atol=1e-5)


def test_outputs_whose_squares_are_no_numbers_are_refused() -> None:
    model = seeded(ConvGNP, small_config(), dtype=torch.float32)
    context, xt = draw_set(2, 5, 0).to(torch.float32), draw_set(2, 4, 1).x.float()
    for size in (1e18, -1e18):
        found = model.predict(PointSet(context.x, torch.full_like(context.y, size)), xt)
        assert found.mean.isfinite().all()
        assert found.stddev.isfinite().all()
    large = context.y.clone()
    large[1, 2] = -3e38
    with pytest.raises(ValueError, match=r"^context\.y must be at most 1e\+18 .*, got -3e\+38"):
        model.predict(PointSet(context.x, large), xt)
    masked = PointSet(context.x, large, large[..., 0] > -1e38)
    assert model.predict(masked, xt).mean.isfinite().all()


def test_what_is_no_tensor_and_an_empty_batch_are_refused() -> None:
    model = seeded(ConvGNP, small_config())
    context, xt = draw_set(2, 5, 0), draw_set(2, 4, 1).x
    with pytest.raises(ValueError, match=r"xt must be a Tensor, got ndarray"):
        model(context, xt.numpy())
    with pytest.raises(ValueError, match=r"batch sizes must agree .* and not be 0"):
        model(context[:0], xt[:0])


def test_independent_outputs_cannot_be_conditioned() -> None:
    with pytest.raises(ValueError, match="conditioned must be false where rank is 0"):
        ConvNPConfig(rank=0, conditioned=True)


def test_a_task_in_the_place_of_its_context_is_named() -> None:
    task = Sawtooth().sample_task(1, num_targets=3, generator=torch.Generator().manual_seed(0))
    model: Any = seeded(ConvGNP, small_config(), dtype=torch.float32)
    with pytest.raises(ValueError, match=r"^context must be a PointSet, got Task"):
        model.predict(task, task.xt)
    with pytest.raises(ValueError, match=r"^task must be a Task, got PointSet"):
        log_likelihood(model, task.context, generator=torch.Generator())  # type: ignore[arg-type]
    for call in (GaussianProcessOracle().predict, SawtoothOracle().predict):
        with pytest.raises(ValueError, match=r"^xt must be a Tensor, got ndarray; use"):
            call(task.context, task.xt.numpy())  # type: ignore[arg-type]
    for made in (lambda x: Observations(table=x), Scaling.fit):
        with pytest.raises(ValueError, match=r"^table must be a PointSet, got Tensor"):
            made(task.xt)  # type: ignore[arg-type]
