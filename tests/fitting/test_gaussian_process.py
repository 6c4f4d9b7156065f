"""The Gaussian process that models are compared with: its predictive and its fit."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from randomness import rng
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from danp_lib import PointSet
from danp_lib.fitting.gaussian_process import FittedGaussianProcess
from danp_lib.fitting.records import RecordsWarning

KNOTS = torch.linspace(-2.0, 2.0, 97, dtype=torch.float64)


@pytest.mark.parametrize("smoothness", [0.5, 1.5, 2.5, math.inf])
def test_predictive_is_that_of_scikit_learn(smoothness: float) -> None:
    ours = FittedGaussianProcess(smoothness, (1.3, 0.6, 0.2), KNOTS, torch.zeros(97).double())
    base = RBF(0.6) if smoothness == math.inf else Matern(0.6, nu=smoothness)
    kernel = ConstantKernel(1.3**2) * base + WhiteKernel(0.04)
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None)
    x = torch.rand(1, 9, 1, generator=rng(1), dtype=torch.float64) * 4 - 2
    y = torch.randn(1, 9, 1, generator=rng(2), dtype=torch.float64)
    xt = torch.linspace(-2, 2, 6, dtype=torch.float64).reshape(1, -1, 1)
    theirs.fit(x[0].numpy(), y[0, :, 0].numpy())
    mean, covariance = theirs.predict(xt[0].numpy(), return_cov=True)
    # Two more points that are masked out change nothing.
    more = PointSet(x, y).concat(PointSet(x[:, :2] + 0.1, y[:, :2], torch.zeros(1, 2).bool()))
    found = ours.predict(more, xt)
    np.testing.assert_allclose(found.mean[0, :, 0], mean, rtol=0, atol=1e-11)
    np.testing.assert_allclose(found.covariance_matrix[0], covariance, rtol=0, atol=1e-11)


def test_padding_may_hold_nan() -> None:
    x = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(1, -1, 1).expand(9, -1, -1)
    y = (x + torch.arange(9.0)[:, None, None]).sin()
    mask = torch.arange(12).expand(9, -1) < 8
    hollow = [torch.where(mask[..., None], values, math.nan) for values in (x, y)]
    fitted, again = (
        FittedGaussianProcess.fit(
            PointSet(values[0], values[1], mask), own_mean=True, generator=rng()
        )
        for values in ((x, y), hollow)
    )
    assert fitted.scales == again.scales
    clean, padded = (
        fitted.predict(PointSet(values[0], values[1], mask), x) for values in ((x, y), hollow)
    )
    assert torch.equal(clean.mean, padded.mean)
    assert torch.equal(clean.variance, padded.variance)


def test_fit_finds_the_process_and_the_mean_that_functions_were_drawn_from() -> None:
    x = torch.linspace(-2, 2, 25, dtype=torch.float64)
    truth = FittedGaussianProcess(1.5, (0.8, 0.5, 0.1), KNOTS, KNOTS.sin())
    empty = PointSet.empty(dtype=torch.float64)
    prior = truth.predict(empty, x.reshape(1, -1, 1))
    y = prior.sample((400,), generator=rng())[:, 0]
    functions = PointSet(x.reshape(1, -1, 1).expand(400, -1, -1), y)
    fitted = FittedGaussianProcess.fit(functions, own_mean=True, generator=rng())
    assert fitted.smoothness == 1.5
    assert fitted.scales == pytest.approx((0.8, 0.5, 0.1), rel=0.15)
    again = fitted.predict(empty, x.reshape(1, -1, 1))
    torch.testing.assert_close(again.mean, prior.mean, rtol=0, atol=0.15)
    assert (
        FittedGaussianProcess.fit(functions, own_mean=False, generator=rng())
        .mean_outputs.abs()
        .max()
        == 0.0
    )


def waves(amplitude: float = 1.0) -> PointSet:
    """Functions without noise, of a length scale about 1."""
    x = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(1, -1, 1).expand(9, -1, -1)
    return PointSet(x, amplitude * (x + torch.arange(9.0)[:, None, None]).sin())


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (waves(1e8), r"^the amplitude of .* on its bound 54\.6, .*: scale the outputs to"),
        (waves(1e-4), r"^the amplitude of .* on its bound 0\.00674, "),
        (
            PointSet(1e-4 * waves().x, waves().y),
            r"^the length scale of .* on its bound 0\.00674, .*: scale the inputs to",
        ),
    ],
)
def test_a_scale_on_its_bound_is_said(functions: PointSet, message: str) -> None:
    with pytest.warns(RecordsWarning) as said:
        FittedGaussianProcess.fit(functions, own_mean=False, generator=rng())
    assert any(re.match(message, str(one.message)) for one in said), [str(s.message) for s in said]


@pytest.mark.parametrize(
    ("functions", "like"),
    [
        (0.0 * waves().x + torch.arange(9.0)[:, None, None], "almost flat over a record"),
        (waves(1e-4).y, "as rough as noise"),
    ],
)
def test_a_scale_on_its_bound_is_no_fault_where_the_table_was_scaled(
    functions: torch.Tensor, like: str
) -> None:
    with pytest.warns(RecordsWarning) as said:
        FittedGaussianProcess.fit(
            PointSet(waves().x, functions.double()), own_mean=False, scaled=True, generator=rng()
        )
    messages = [str(one.message) for one in said]
    assert any(like in message for message in messages), messages
    assert all(message.endswith("see the other warnings.") for message in messages)


@pytest.mark.parametrize(
    "table", [PointSet.empty(0), PointSet.empty(3), waves().masked_where(False)]
)
def test_a_table_without_a_point_is_refused(table: PointSet) -> None:
    with pytest.raises(ValueError, match=r"^table must hold a point, got none\.$"):
        FittedGaussianProcess.fit(table, own_mean=True, generator=rng())


def test_outputs_without_noise_are_no_reason_to_warn() -> None:
    fitted = FittedGaussianProcess.fit(waves(), own_mean=False, generator=rng())
    assert fitted.scales[2] == pytest.approx(math.exp(-5.0))
