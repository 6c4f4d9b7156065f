"""A Gaussian process fitted to many functions at once: what a model has to be compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from danp_lib.data.observations import draw_points
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.fitting.records import warn

MOST_FUNCTIONS = 200
MOST_POINTS = 100
NUM_STEPS = 60
_BOUNDS = (-5.0, 4.0)  # of the scales' logarithms


def matern(smoothness: float, distance: Tensor) -> Tensor:
    """The Matérn correlation of smoothness 1/2, 3/2, 5/2 or infinity, the squared exponential."""
    if smoothness == math.inf:
        return torch.exp(-0.5 * distance.square())
    scaled = math.sqrt(2.0 * smoothness) * distance
    terms = (torch.ones_like(scaled), scaled, scaled.square() / 3.0)
    return sum(terms[1 : int(smoothness + 0.5)], terms[0]) * torch.exp(-scaled)


@dataclass(frozen=True)
class FittedGaussianProcess:
    """A mean, a Matérn kernel and white noise, by the marginal likelihood of many functions.

    The scales are the amplitude, the length scale and the noise's standard deviation. The mean is
    known at evenly spaced inputs, ``(knots,)``.
    """

    smoothness: float
    scales: tuple[float, float, float]
    mean_inputs: Tensor
    mean_outputs: Tensor

    @classmethod
    def fit(
        cls, table: PointSet, *, own_mean: bool, scaled: bool = False, generator: torch.Generator
    ) -> FittedGaussianProcess:
        """The best of four kernels, on at most 200 functions ``(functions, points, 1)``.

        With ``own_mean``, the mean depends on the input, as it does where all functions start at
        the same phase; it is zero else. The generator picks functions and points. A
        :class:`~danp_lib.fitting.records.RecordsWarning` says where a scale lies on a bound, and
        what that means for a table that is ``scaled``, to standard deviations near 1.
        """
        x, y = table.x[table.mask].flatten().double(), table.y[table.mask].flatten().double()
        if not len(x):
            raise ValueError("table must hold a point, got none.")
        knots = torch.linspace(float(x.min()), float(x.max()), 97, dtype=torch.float64)
        mean = _smoothed(knots, x, y) if own_mean else torch.zeros_like(knots)
        some = table[torch.randperm(table.batch_size, generator=generator)[:MOST_FUNCTIONS]]
        count = min(MOST_POINTS, int(some.sizes.max()))
        drawn = draw_points(some, count, generator=generator).blanked().to(torch.float64)
        at, mask = drawn.x[..., 0], drawn.mask
        values = (drawn.y[..., 0] - _interpolate(at, knots, mean)).masked_fill(~mask, 0.0)
        _, smoothness, scales = max(
            _maximize(smoothness, at, values, mask) for smoothness in (0.5, 1.5, 2.5, math.inf)
        )
        _warn_of_bounds(scales, scaled=scaled)
        return cls(smoothness, scales, knots, mean)

    def predict(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        """The predictive of observed outputs at the targets, ``(batch, targets, 1)``."""
        amplitude, length, noise = self.scales
        context = context.blanked()
        xc, xt = context.x[..., 0].double(), xt[..., 0].double()

        def covariance(a: Tensor, b: Tensor) -> Tensor:
            distance = (a[:, :, None] - b[:, None]).abs() / length
            return amplitude**2 * matern(self.smoothness, distance)

        known = _with_noise(covariance(xc, xc), noise**2, context.mask)
        cross = covariance(xt, xc) * context.mask.unsqueeze(1)
        prior_c, prior_t = (_interpolate(x, self.mean_inputs, self.mean_outputs) for x in (xc, xt))
        residual = (context.y[..., 0].double() - prior_c).unsqueeze(-1)
        root = torch.linalg.cholesky(known)
        mean = prior_t.unsqueeze(-1) + cross @ torch.cholesky_solve(residual, root)
        left = covariance(xt, xt) - cross @ torch.cholesky_solve(cross.mT, root)
        # Half of the noise keeps the factor positive definite, the other half is the diagonal.
        half = 0.5 * noise**2
        factor = torch.linalg.cholesky(left + half * torch.eye(left.shape[-1], dtype=left.dtype))
        return LowRankNormal(mean, factor, torch.full_like(mean, half))


def _maximize(
    smoothness: float, x: Tensor, y: Tensor, mask: Tensor
) -> tuple[float, float, tuple[float, float, float]]:
    """Log-likelihood per point up to a constant, smoothness, (amplitude, length scale, noise)."""
    logs = torch.tensor([0.0, -0.7, -1.6], dtype=torch.float64, requires_grad=True)
    distance = (x[:, :, None] - x[:, None]).abs()
    optimizer = torch.optim.LBFGS([logs], max_iter=NUM_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        amplitude, length, noise = logs.clamp(*_BOUNDS).exp()
        both = amplitude**2 * matern(smoothness, distance / length)
        root = torch.linalg.cholesky(_with_noise(both, noise**2, mask))
        likelihood = MultivariateNormal(torch.zeros_like(y), scale_tril=root).log_prob(y).sum()
        loss = -likelihood / mask.sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    amplitude, length, noise = logs.detach().clamp(*_BOUNDS).exp().tolist()
    return -closure().item(), smoothness, (amplitude, length, noise)


def _warn_of_bounds(scales: Sequence[float], *, scaled: bool) -> None:
    low, high = map(math.exp, _BOUNDS)
    named = (("amplitude", "outputs"), ("length scale", "inputs"), ("noise", "outputs"))
    for (name, part), scale in zip(named, scales, strict=True):
        at_most, at_least = math.isclose(scale, high), math.isclose(scale, low)
        # Outputs without noise reach the lower bound: it keeps covariances invertible.
        if at_most or (at_least and name != "noise"):
            message = f"the {name} of the Gaussian process lies on its bound {scale:.3g}"
            if scaled:
                like = "almost flat over a record" if at_most else "as rough as noise"
                warn(
                    f"{message}: it takes functions to be {like}. If they are not, its score is no "
                    "fair comparison; see the other warnings."
                )
            else:
                advice = f"scale the {part} to a standard deviation near 1, without a trend"
                warn(f"{message}, so that it may fit badly: {advice}.")


def _with_noise(covariance: Tensor, noise: Tensor | float, mask: Tensor) -> Tensor:
    """Noise on the diagonal; a masked point is alone and of variance one."""
    real = mask[:, :, None] & mask[:, None]
    # As a tensor: of two plain numbers torch.where makes float32.
    noise = torch.as_tensor(noise, dtype=covariance.dtype)
    return torch.where(real, covariance, 0.0) + torch.diag_embed(torch.where(mask, noise, 1.0))


def _smoothed(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """A kernel average of many outputs, about as wide as the inputs are apart."""
    distinct = x.unique()
    apart = float(distinct.diff().median()) if len(distinct) > 1 else 1.0
    width = max(0.5 * apart, float(x.max() - x.min()) / math.sqrt(len(x)))
    # One by one, since there may be many outputs.
    weights = (torch.softmax(-0.5 * ((knot - x) / width).square(), dim=0) for knot in at)
    return torch.stack([weight @ y for weight in weights])


def _interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Straight lines between knots, constant beyond them."""
    return torch.from_numpy(np.interp(x, knots, values))
