"""Scores of the marginals of a predictive: CRPS and the coverage of intervals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from danp_lib.likelihoods import LowRankNormal, Mixture


def crps(predictive: LowRankNormal | Mixture, y: Tensor) -> Tensor:
    r"""The continuous ranked probability score of each output, in units of y; lower is better.

    It is :math:`\int (F(u) - 1\{u \ge y\})^2 du = E|Y - y| - \tfrac12 E|Y - Y'|` (Gneiting and
    Raftery, 2007), in closed form for Gaussians and their mixtures. For a mixture of S components
    it takes S squared terms an output.

    Args:
        predictive: The predictive; of its joint distribution only the marginals count.
        y: Outputs, ``(*batch, points, 1)``.

    Returns:
        ``(*batch, points, 1)``.

    Raises:
        ValueError: If the shape of ``y`` is not that of the predictive's mean.
    """
    _check(predictive, y)
    if isinstance(predictive, LowRankNormal):
        spread = predictive.stddev / math.sqrt(math.pi)
        return _mean_distance(predictive.mean - y, predictive.variance) - spread
    weights = predictive.logits.exp()
    mean, variance = predictive.components.mean, predictive.components.variance
    distances = _mean_distance(mean - y.unsqueeze(-3), variance)
    score = (weights[..., None, None] * distances).sum(dim=-3)
    # Point by point, which bounds the memory.
    for point in range(y.shape[-2]):
        m, v = mean[..., point, 0], variance[..., point, 0]
        pairs = _mean_distance(m.unsqueeze(-1) - m.unsqueeze(-2), v.unsqueeze(-1) + v.unsqueeze(-2))
        score[..., point, 0] -= 0.5 * torch.einsum("...i,...ij,...j", weights, pairs, weights)
    return score


def in_central_interval(predictive: LowRankNormal | Mixture, y: Tensor, level: float) -> Tensor:
    """Whether each output lies in the central interval of its marginal.

    The mean of the result is the coverage, which should be ``level``.

    Args:
        predictive: The predictive.
        y: Outputs, ``(*batch, points, 1)``.
        level: Probability of the interval, in (0, 1); 0.9 is from the 5 % to the 95 % quantile.

    Returns:
        Booleans, ``(*batch, points, 1)``.

    Raises:
        ValueError: If the level is not in (0, 1), or the shape of ``y`` is not the mean's.
    """
    _check(predictive, y)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie in (0, 1), got {level}.")
    return (predictive.cdf(y) - 0.5).abs() <= 0.5 * level


def _mean_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """The mean of ``|Z|`` for a Gaussian Z."""
    stddev = variance.sqrt()
    z = mean / stddev
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    return mean * (2.0 * torch.special.ndtr(z) - 1.0) + 2.0 * stddev * density


def _check(predictive: LowRankNormal | Mixture, y: Tensor) -> None:
    if y.shape != predictive.mean.shape:
        raise ValueError(f"y must have shape {tuple(predictive.mean.shape)}, got {tuple(y.shape)}.")
