"""A season: found, taken out, and put back."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from small_models import seeded
from torch import Tensor

from danp_lib import LowRankNormal, Mixture, PointSet
from danp_lib.data.scaling import Scaling, affine
from danp_lib.fitting.fitted import Fitted, HeldOutScore, Season
from danp_lib.fitting.records import Layout, RecordsWarning
from danp_lib.models.contexts import ContextWarning
from danp_lib.models.convnp import ConvGNP, ConvNPConfig


def test_harmonics_are_found_and_what_is_taken_out_is_put_back() -> None:
    x = 1950.0 + torch.arange(500, dtype=torch.float64) / 12.0
    angle = 2.0 * math.pi * x
    y = 20.0 + 3.0 * angle.cos() - 0.5 * (2.0 * angle).sin()
    season = Season.fit(x, y, 1.0)
    torch.testing.assert_close(season.mean(x), y, rtol=0, atol=1e-6)
    points = PointSet(x.reshape(1, -1, 1), y.reshape(1, -1, 1) + 1.0)
    left = season.remove(points, points.x)
    torch.testing.assert_close(left.y, torch.ones_like(left.y), rtol=0, atol=1e-6)
    single = season.remove(points.to(torch.float32), points.x)
    torch.testing.assert_close(single.y, left.y, rtol=0, atol=1e-5)
    at = points.x[:, :7]
    parts = LowRankNormal(torch.ones(1, 2, 7, 1), torch.ones(1, 2, 7, 3), torch.ones(1, 2, 7, 1))
    mixture = Mixture(torch.zeros(1, 2), parts)
    moved = affine(mixture, season.mean(at))
    torch.testing.assert_close(moved.mean, points.y[:, :7], rtol=0, atol=1e-6)
    torch.testing.assert_close(moved.variance, mixture.variance)
    density = moved.log_prob(points.y[:, :7])
    torch.testing.assert_close(density, mixture.log_prob(torch.ones(1, 7, 1)), rtol=1e-5, atol=0)


def test_too_few_places_in_a_period_are_refused() -> None:
    x = torch.arange(40, dtype=torch.float64) / 4.0
    with pytest.raises(ValueError, match="9 different places"):
        Season.fit(x, x, 1.0)
    with pytest.raises(ValueError, match=r"inputs to train on span most.* got 20.0 for .* 9.75"):
        Season.fit(x, x, 20.0)
    with pytest.raises(ValueError, match="period must be a finite number > 0"):
        Season.fit(x, x, 0.0)


def test_inputs_that_float32_cannot_tell_apart_are_refused() -> None:
    small = ConvNPConfig(points_per_unit=16, channels=4, num_layers=2, rank=2)
    # Two days of dates, in years.
    scaling = Scaling(x_offset=2024.0, x_unit=0.0055 / 4, y_offset=0.0, y_unit=1.0)
    fitted = Fitted(seeded(ConvGNP, small, dtype=torch.float32), scaling)
    x = torch.linspace(2023.999, 2024.001, 5, dtype=torch.float64)
    nothing = PointSet.empty(dtype=torch.float64)
    assert fitted.predict(nothing, x).mean.shape == (1, 5, 1)
    with pytest.raises(
        ValueError, match=r"^x must be in float64: torch.float32 .* near 2024 apart"
    ):
        fitted.predict(nothing, x.float())
    known = PointSet(x.float().reshape(1, -1, 1), torch.zeros(1, 5, 1))
    with pytest.raises(ValueError, match=r"^context.x must be in float64"):
        fitted.predict(known, x)


@pytest.mark.parametrize(
    "x", [torch.tensor([1e30]).double(), torch.tensor([math.inf]), torch.tensor([math.nan])]
)
def test_inputs_off_the_domain_are_refused_for_that(x: Tensor) -> None:
    fitted = Fitted(
        seeded(ConvGNP, ConvNPConfig(channels=4, num_layers=2, rank=2), dtype=torch.float32)
    )
    with pytest.raises(ValueError, match=r"^x must lie in the model's domain .* got \["):
        fitted.predict(PointSet.empty(dtype=torch.float64), x)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool])
def test_inputs_that_are_no_real_numbers_are_refused(dtype: torch.dtype) -> None:
    fitted = Fitted(
        seeded(ConvGNP, ConvNPConfig(channels=4, num_layers=2, rank=2), dtype=torch.float32)
    )
    with pytest.raises(ValueError, match=rf"^x must hold real numbers, got {dtype}\.$"):
        fitted.predict(PointSet.empty(dtype=torch.float64), torch.zeros(3, dtype=dtype))


def test_masked_inputs_may_be_off_the_domain() -> None:
    fitted = Fitted(
        seeded(ConvGNP, ConvNPConfig(channels=4, num_layers=2, rank=2), dtype=torch.float32)
    )
    x, mask = torch.tensor([[[0.5], [9.0]]]), torch.tensor([[True, False]])
    fitted.check_domain("xc", x, 0.0, mask)
    with pytest.raises(ValueError, match=r"^xc must lie in the model's domain .*, got \[9\.0\]\.$"):
        fitted.check_domain("xc", x, 0.0)


def test_nothing_known_and_nothing_asked_for_is_an_empty_prediction() -> None:
    small = ConvNPConfig(domain=(0.0, 8.0), points_per_unit=4, channels=4, num_layers=2, rank=2)
    fitted = Fitted(seeded(ConvGNP, small, dtype=torch.float32), layout=Layout(own_start=True))
    nothing = PointSet.empty(dtype=torch.float64)
    assert fitted.predict(nothing, torch.zeros(0, dtype=torch.float64)).mean.shape == (1, 0, 1)


def test_a_target_does_not_depend_on_what_else_is_asked_for_where_the_start_is_named() -> None:
    small = ConvNPConfig(
        domain=(0.0, 8.0), points_per_unit=4, channels=4, num_layers=2, rank=2, head_layers=0
    )
    model = seeded(ConvGNP, small, dtype=torch.float32)
    fitted = Fitted(model, layout=Layout(own_start=True))
    x = torch.tensor([104.0, 105.0, 105.5], dtype=torch.float64).reshape(1, -1, 1)
    context = PointSet(x, x.sin())
    alone, beside = (torch.tensor(x, dtype=torch.float64) for x in ([107.0], [100.6, 107.0]))

    def mean(x: Tensor, start: float | None = None) -> Tensor:
        return fitted.predict(context, x, start=start).mean[0, -1]

    torch.testing.assert_close(mean(alone, 100.0), mean(beside, 100.0), rtol=0, atol=1e-6)
    # Left out, it is the earliest input: of the context, or of all.
    assert torch.equal(mean(alone), mean(alone, 104.0))
    assert torch.equal(mean(beside), mean(beside, 100.6))
    assert float((mean(alone) - mean(beside)).abs()) > 1e-5
    with pytest.raises(ValueError, match=r"context\.x must lie in the model's domain"):
        mean(alone, 90.0)
    with pytest.raises(ValueError, match="start is for a model whose inputs count from the start"):
        Fitted(model).predict(context, alone, start=100.0)


@pytest.mark.parametrize("shape", [(3, 1), (2, 4, 1), ()])
def test_inputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    fitted = Fitted(
        seeded(ConvGNP, ConvNPConfig(channels=4, num_layers=2, rank=2), dtype=torch.float32)
    )
    with pytest.raises(ValueError, match=r"x must have shape \(points,\).*with 3 contexts"):
        fitted.predict(PointSet.empty(3, dtype=torch.float64), torch.zeros(shape))


def test_the_domain_of_dates_is_told_in_dates_or_days() -> None:
    small = ConvNPConfig(points_per_unit=16, channels=4, num_layers=2, rank=2)
    model = seeded(ConvGNP, small, dtype=torch.float32)
    year = 1970.0 + 18_262.0 / 365.2425  # 2020-01-01
    fixed = Scaling(x_offset=year, x_unit=1 / 365.2425, y_offset=0.0, y_unit=1.0)
    rule = Fitted(model, fixed, Layout(dates=True)).rule
    assert rule == "lie in the model's domain [2019-12-30, 2020-01-03]"
    since = Scaling(x_offset=1 / 365.2425, x_unit=0.5 / 365.2425, y_offset=0.0, y_unit=1.0)
    rule = Fitted(model, since, Layout(dates=True, own_start=True)).rule
    assert rule == "lie in the model's domain [0, 2] days from the start of their function on"
    assert Fitted(model, since).rule.startswith("lie in the model's domain [0.0, 0.005475")


def test_a_fitted_model_is_shown_in_a_line() -> None:
    small = ConvNPConfig(points_per_unit=16, channels=4, num_layers=2, rank=2)
    model = seeded(ConvGNP, small, dtype=torch.float32)
    assert repr(Fitted(model)) == (
        "Fitted(convgnp, columns x, y, inputs lie in the model's domain [-2.0, 2.0])"
    )
    scores = {
        "convgnp": HeldOutScore(9, 0.5468, None, 0.1, 0.5, 0.9),
        "gp": HeldOutScore(9, -0.19, None, 0.1, 0.5, 0.9, 0.74),
    }
    scaling = Scaling(x_offset=12.0, x_unit=6.0, y_offset=0.0, y_unit=1.0)
    assert repr(Fitted(model, scaling, Layout("hour", "demand", "day"), scores=scores)) == (
        "Fitted(convgnp, columns hour, demand, day, inputs lie in the model's domain [0.0, 24.0], "
        "nats per target held out: convgnp 0.547, gp -0.190)"
    )


def test_a_forecast_of_what_lies_before_the_context_is_warned_of() -> None:
    small = ConvNPConfig(points_per_unit=16, channels=4, num_layers=2, rank=2)
    model = seeded(ConvGNP, small, dtype=torch.float32)
    fitted = Fitted(model, provenance={"fit": {"tasks": "forecast"}})
    context = PointSet(torch.tensor([[[-1.0], [0.5]]]).double(), torch.zeros(1, 2, 1).double())
    with pytest.warns(ContextWarning, match=r"follows the context, but 2 of the inputs .* before"):
        fitted.predict(context, torch.tensor([0.0, 0.4, 0.6]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.predict(context, torch.tensor([0.5, 0.6]))
        fitted.predict(PointSet.empty(dtype=torch.float64), torch.tensor([-2.0]))
        Fitted(model).predict(context, torch.tensor([0.0]))


def test_each_function_knows_the_mean_at_a_repeated_input() -> None:
    small = ConvNPConfig(points_per_unit=16, channels=4, num_layers=2, rank=2)
    score = HeldOutScore(1, 0.0, None, 0.0, 0.5, 0.9)
    fitted = Fitted(seeded(ConvGNP, small, dtype=torch.float32), scores={ConvGNP.name: score})
    x = [[1.0, -1.0, 1.0, 1.0], [0.5, 0.0, 0.5, 0.5], [0.0, 0.5, 0.5, 0.25]]
    y = [[1.0, 2.0, 4.0, 4.0], [3.0, 9.0, 5.0, math.nan], [1.0, 2.0, math.inf, 4.0]]
    mask = torch.tensor([[True] * 4, [True] * 3 + [False], [True, True, False, False]])
    inputs, outputs = (torch.tensor(v).double().unsqueeze(-1) for v in (x, y))
    context = PointSet(inputs, outputs, mask)
    with pytest.warns(RecordsWarning, match=r"another were averaged, as in training: 3\.$"):
        known = fitted.known(context)
    assert known.sizes.tolist() == [2, 2, 2]
    assert known.x.squeeze(-1).tolist() == [[1.0, -1.0], [0.5, 0.0], [0.0, 0.5]]
    assert known.y.squeeze(-1).tolist() == [[3.0, 2.0], [4.0, 9.0], [1.0, 2.0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fitted.known(known) is known
        for size in (0, 1):
            few = PointSet.empty(size, dtype=torch.float64)
            assert fitted.known(few) is few
