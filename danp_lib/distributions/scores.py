"""Scores of the marginals of a predictive: CRPS and the coverage of intervals."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture


def crps(predictive: LowRankNormal | Mixture, y: Tensor) -> Tensor:
    r"""The continuous ranked probability score of each output, in units of y; lower is better.

    It is :math:`\int (F(u) - 1\{u \ge y\})^2 du = E|Y - y| - \tfrac12 E|Y - Y'|` (Gneiting and
    Raftery, 2007), computed exactly, ``(*batch, points, 1)`` as ``y``.
    """
    _check(predictive, y)
    if isinstance(predictive, LowRankNormal):
        spread = predictive.stddev / math.sqrt(math.pi)
        return _mean_distance(predictive.mean - y, predictive.variance) - spread
    weights = predictive.logits.exp()
    mean, variance = predictive.components.mean, predictive.components.variance
    distances = _mean_distance(mean - y.unsqueeze(-3), variance)
    score = (weights[..., None, None] * distances).sum(dim=-3)
    # A row for each marginal, with its components in the last place.
    mean, variance = mean.squeeze(-1).mT, variance.squeeze(-1).mT
    parts = (weights.unsqueeze(-2).expand_as(mean), mean, variance)
    spread = _half_mean_difference(*(part.flatten(end_dim=-2) for part in parts))
    return score - spread.reshape(score.shape)


def in_central_interval(predictive: LowRankNormal | Mixture, y: Tensor, level: float) -> Tensor:
    """Whether each output lies in its marginal's central interval of probability ``level``."""
    _check(predictive, y)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie in (0, 1), got {level}.")
    cdf = predictive.cdf(y)
    if cdf.isnan().any():
        raise ValueError("predictive must have a distribution function that is a number, got NaN.")
    return (cdf - 0.5).abs() <= 0.5 * level


def _half_mean_difference(weights: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Half the mean of ``|Y - Y'|`` for mixtures of Gaussians in rows, ``(rows,)``."""
    if not mean.numel():
        return mean.new_zeros(len(mean))
    mean, order = mean.sort(dim=-1)
    weights, variance = weights.gather(-1, order), variance.gather(-1, order)
    weights, mean, variance = _merged(weights, mean, variance)
    # The distances of the means, |m_i - m_j|, each pair once, by running sums over the order.
    below = weights.cumsum(dim=-1) - weights
    moment = (weights * mean).cumsum(dim=-1) - weights * mean
    total = (weights * (mean * below - moment)).sum(dim=-1)
    total += (weights.square() * variance.sqrt()).sum(dim=-1) / math.sqrt(math.pi)
    # What the variances add to them, for the pairs that are k apart in the order. Beyond nine
    # standard deviations it is below rounding, and with k the distances only grow. An infinite
    # mean ends every row, so that all rows can be one.
    width = mean.shape[-1] + 1
    left = torch.arange(total.numel() * width, device=mean.device)
    left = left[left % width < width - 1]
    reach = 9.0 * (2.0 * variance.amax(dim=-1)).sqrt()
    weights, variance = (F.pad(part, (0, 1)).flatten() for part in (weights, variance))
    mean = F.pad(mean, (0, 1), value=math.inf).flatten()
    for k in range(1, width):
        distance = mean[left + k] - mean[left]
        near = distance < reach[left // width]
        left, distance = left[near], distance[near]
        if not left.numel():
            break
        stddev = (variance[left] + variance[left + k]).sqrt()
        z = distance / stddev
        excess = 2.0 * (stddev * _density(z) - distance * torch.special.ndtr(-z))
        total.index_add_(0, left // width, weights[left] * weights[left + k] * excess)
    return total


def _merged(weights: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same mixtures with neighbours that are equal made one, and padding of weight zero."""
    new = (mean.diff(dim=-1) != 0.0) | (variance.diff(dim=-1) != 0.0)
    run = F.pad(new, (1, 0)).cumsum(dim=-1)
    width = int(run.amax()) + 1
    if width == mean.shape[-1]:
        return weights, mean, variance
    # The padding repeats the largest mean, which keeps the order.
    means, variances = (part[:, -1:].repeat(1, width) for part in (mean, variance))
    return (
        weights.new_zeros(len(mean), width).scatter_add_(-1, run, weights),
        means.scatter_(-1, run, mean),
        variances.scatter_(-1, run, variance),
    )


def _density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)


def _mean_distance(mean: Tensor, variance: Tensor) -> Tensor:
    """The mean of ``|Z|`` for a Gaussian Z."""
    stddev = variance.sqrt()
    z = mean / stddev
    return mean * (2.0 * torch.special.ndtr(z) - 1.0) + 2.0 * stddev * _density(z)


def _check(predictive: LowRankNormal | Mixture, y: Tensor) -> None:
    if y.shape != predictive.mean.shape:
        raise ValueError(f"y must have shape {tuple(predictive.mean.shape)}, got {tuple(y.shape)}.")
    if y.isnan().any():
        raise ValueError("y must hold no NaN; leave out what is missing, by predictive.marginal.")
