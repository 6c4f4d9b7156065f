"""Predictive distributions: Gaussians with low-rank covariance.

These and their mixtures (:mod:`danp_lib.distributions.mixture`) are
:class:`torch.distributions.Distribution` objects in float64 with event shape ``(points, 1)``, the
shape of a set of outputs.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

VARIANCE_FLOOR = 1e-6
"""The smallest predictive variance of one output, in squared units of y."""

_LOG_2PI = math.log(2.0 * math.pi)


class LowRankNormal(Distribution):
    r"""A Gaussian with covariance :math:`WW^\top + \operatorname{diag}(v)` over a set of outputs.

    Args:
        mean: ``(*batch, points, 1)``.
        variance: Diagonal part v of the covariance, positive, ``(*batch, points, 1)``.
        factor: W, ``(*batch, points, rank)``; with rank 0 the outputs are independent.

    Raises:
        ValueError: If the shapes do not fit together.
    """

    arg_constraints = {}  # noqa: RUF012  (the base class declares it so)
    support = constraints.independent(constraints.real, 2)
    has_rsample = False

    def __init__(self, mean: Tensor, variance: Tensor, factor: Tensor) -> None:
        if (
            mean.shape[-1:] != (1,)
            or mean.shape != variance.shape
            or (factor.shape[:-1] != mean.shape[:-1])
        ):
            raise ValueError(
                "mean and variance must have shape (*batch, points, 1) and factor "
                f"(*batch, points, rank), got {tuple(mean.shape)}, {tuple(variance.shape)} and "
                f"{tuple(factor.shape)}."
            )
        self.loc = mean.double()
        self.diagonal = variance.double()
        self.factor = factor.double()
        super().__init__(mean.shape[:-2], mean.shape[-2:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """``(*batch, points, 1)``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Marginal variances, ``(*batch, points, 1)``."""
        return self.diagonal + self.factor.square().sum(dim=-1, keepdim=True)

    @property
    def covariance_matrix(self) -> Tensor:
        """``(*batch, points, points)``."""
        return self.factor @ self.factor.mT + torch.diag_embed(self.diagonal.squeeze(-1))

    def log_prob(self, value: Tensor) -> Tensor:
        """Joint log-density of a set of outputs in nats, ``(*batch)``.

        The matrix that is factorised has the smaller of points and rank for its side.

        Raises:
            ValueError: If the shape of ``value`` does not end in ``(points, 1)``, the mean is not
                finite, or the covariance is not positive definite.
        """
        check_value(value, self.event_shape)
        _check_all("mean must be finite", self.loc, self.loc.abs() < math.inf)
        _check_all(
            "the covariance must be positive definite, and the variance positive and finite",
            self.diagonal,
            (self.diagonal > 0.0) & (self.diagonal < math.inf),
        )
        return self.log_prob_unchecked(value, check=True)

    def log_prob_unchecked(self, value: Tensor, *, check: bool = False) -> Tensor:
        """:meth:`log_prob` without its checks, so that a GPU need not be waited for.

        Where the covariance is not positive definite the result is NaN or meaningless.
        """
        residual = value.to(torch.float64) - self.loc
        points, rank = self.event_shape[0], self.factor.shape[-1]
        if rank == 0:
            squared = (residual.square() / self.diagonal).sum(dim=(-2, -1))
            log_det = self.diagonal.log().sum(dim=(-2, -1))
        elif rank < points:
            scaled = self.factor / self.diagonal
            capacitance = self.factor.mT @ scaled
            capacitance = capacitance + torch.eye(rank, dtype=torch.float64, device=value.device)
            lower = _cholesky(capacitance, check)
            half = torch.linalg.solve_triangular(lower, scaled.mT @ residual, upper=False)
            squared = (residual.square() / self.diagonal).sum(dim=(-2, -1))
            squared = squared - half.square().sum(dim=(-2, -1))
            log_det = _log_det(lower) + self.diagonal.log().sum(dim=(-2, -1))
        else:
            lower = _cholesky(self.covariance_matrix, check)
            half = torch.linalg.solve_triangular(lower, residual, upper=False)
            squared = half.square().sum(dim=(-2, -1))
            log_det = _log_det(lower)
        return -0.5 * (squared + log_det + points * _LOG_2PI)

    def sample(  # type: ignore[override]
        self, sample_shape: Any = (), *, generator: torch.Generator
    ) -> Tensor:
        """Joint samples, ``(*sample_shape, *batch, points, 1)``, without gradients."""
        shape = Size(sample_shape) + self.batch_shape
        points, rank = self.event_shape[0], self.factor.shape[-1]
        eps = torch.randn(
            (*shape, points + rank, 1),
            dtype=torch.float64,
            device=generator.device,
            generator=generator,
        )
        return self.transform(eps)

    def transform(self, eps: Tensor) -> Tensor:
        """Samples ``(..., points, 1)`` of standard normal numbers ``(..., points + rank, 1)``."""
        with torch.no_grad():
            points = self.event_shape[0]
            return (
                self.loc
                + self.diagonal.sqrt() * eps[..., :points, :]
                + self.factor @ eps[..., points:, :]
            )

    def cdf(self, value: Tensor | float) -> Tensor:
        """Marginal distribution functions, ``(*batch, points, 1)``."""
        return torch.special.ndtr((value - self.mean) / self.stddev)

    def icdf(self, value: Tensor | float) -> Tensor:
        """Marginal quantiles, ``(*batch, points, 1)``."""
        level = torch.as_tensor(value, dtype=torch.float64, device=self.loc.device)
        return self.mean + self.stddev * torch.special.ndtri(level)

    def quantile(self, level: float) -> Tensor:
        """Marginal quantiles at a level in (0, 1), ``(*batch, points, 1)``."""
        return self.icdf(checked_level(level))

    def marginal(self, index: slice | Tensor) -> LowRankNormal:
        """The joint distribution of some of the points."""
        return LowRankNormal(
            self.loc[..., index, :], self.diagonal[..., index, :], self.factor[..., index, :]
        )

    def __getitem__(self, index: Any) -> LowRankNormal:
        """Select from the batch."""
        return LowRankNormal(self.loc[index], self.diagonal[index], self.factor[index])


class DiagonalNormal(LowRankNormal):
    """Independent Gaussians, one an output.

    Args:
        mean: ``(*batch, points, 1)``.
        variance: Positive, ``(*batch, points, 1)``.
    """

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        super().__init__(mean, variance, mean.new_zeros((*mean.shape[:-1], 0)))


def check_value(value: Tensor, event_shape: Size) -> None:
    """Refuse outputs of another shape than ``(..., *event_shape)`` with a ``ValueError``."""
    if value.shape[-2:] != event_shape:
        raise ValueError(
            f"value must have shape (..., {event_shape[0]}, 1), got {tuple(value.shape)}."
        )


def _check_all(rule: str, values: Tensor, good: Tensor) -> None:
    if not good.all():
        raise ValueError(f"{rule}, got {values[~good][0].item()}.")


def _cholesky(matrix: Tensor, check: bool) -> Tensor:
    result = torch.linalg.cholesky_ex(matrix)
    if check and result.info.any():
        raise ValueError(
            "the covariance must be positive definite, but its Cholesky factorisation failed for "
            f"{int((result.info != 0).sum())} of {result.info.numel()} distributions."
        )
    return cast(Tensor, result.L)


def _log_det(lower: Tensor) -> Tensor:
    return 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


def checked_level(level: float) -> float:
    """The level of a quantile; one outside (0, 1) is a ``ValueError``."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"the level of a quantile must lie in (0, 1), got {level}.")
    return level
