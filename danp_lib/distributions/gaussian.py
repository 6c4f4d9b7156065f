"""Gaussians with low-rank covariance.

These and their mixtures are :class:`torch.distributions.Distribution` objects in float64 with event
shape ``(points, 1)``, the shape of a set of outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

VARIANCE_FLOOR = 1e-6
"""The smallest predictive variance of one output, in squared units of y."""

_LOG_2PI = math.log(2.0 * math.pi)


class OutputsDistribution(Distribution):
    """What Gaussians and mixtures of a set of outputs share."""

    arg_constraints = {}  # noqa: RUF012  (the base class declares it so)
    support = constraints.independent(constraints.real, 2)
    has_rsample = False

    def quantile(self, level: float) -> Tensor:
        """Marginal quantiles at a level in (0, 1), ``(*batch, points, 1)``."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"the level of a quantile must lie in (0, 1), got {level}.")
        return self.icdf(torch.tensor(level, dtype=torch.float64))

    def check_value(self, value: Tensor) -> None:
        """Refuse outputs of another shape than ``(..., points, 1)`` with a ``ValueError``."""
        if value.shape[-2:] != self.event_shape:
            raise ValueError(
                f"value must have shape (..., {self.event_shape[0]}, 1), got {tuple(value.shape)}."
            )


class LowRankNormal(OutputsDistribution):
    r"""A Gaussian with covariance :math:`WW^\top + \operatorname{diag}(v)` over a set of outputs.

    As :class:`~torch.distributions.LowRankMultivariateNormal`, but that a point has one output in a
    last dimension.

    Args:
        loc: The mean, ``(*batch, points, 1)``.
        cov_factor: W, ``(*batch, points, rank)``; with rank 0 the outputs are independent.
        cov_diag: v, positive, ``(*batch, points, 1)``.
    """

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor) -> None:
        if (
            loc.shape[-1:] != (1,)
            or loc.shape != cov_diag.shape
            or cov_factor.shape[:-1] != loc.shape[:-1]
        ):
            raise ValueError(
                "loc and cov_diag must have shape (*batch, points, 1) and cov_factor "
                f"(*batch, points, rank), got {tuple(loc.shape)}, {tuple(cov_diag.shape)} and "
                f"{tuple(cov_factor.shape)}."
            )
        self.loc = loc.double()
        self.cov_factor = cov_factor.double()
        self.cov_diag = cov_diag.double()
        super().__init__(loc.shape[:-2], loc.shape[-2:], validate_args=False)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, "
            f"points={self.event_shape[0]}, rank={self.cov_factor.shape[-1]})"
        )

    @property
    def mean(self) -> Tensor:
        """``(*batch, points, 1)``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Marginal variances, ``(*batch, points, 1)``."""
        return self.cov_diag + self.cov_factor.square().sum(dim=-1, keepdim=True)

    @property
    def covariance_matrix(self) -> Tensor:
        """``(*batch, points, points)``."""
        return self.cov_factor @ self.cov_factor.mT + torch.diag_embed(self.cov_diag.squeeze(-1))

    def log_prob(self, value: Tensor) -> Tensor:
        """Joint log-density of a set of outputs ``(..., points, 1)`` in nats, ``(*batch)``.

        Raises:
            ValueError: If loc is not finite, or the covariance is not positive definite.
        """
        self.check_value(value)
        _check_all("loc must be finite", self.loc, self.loc.abs() < math.inf)
        _check_all(
            "the covariance must be positive definite, and cov_diag positive and finite",
            self.cov_diag,
            (self.cov_diag > 0.0) & (self.cov_diag < math.inf),
        )
        return self.log_prob_unchecked(value, check=True)

    def log_prob_unchecked(self, value: Tensor, *, check: bool = False) -> Tensor:
        """:meth:`log_prob` without its checks, so that a GPU need not be waited for.

        Where the covariance is not positive definite the result is NaN or meaningless.
        """
        residual = value.to(torch.float64) - self.loc
        points, rank = self.event_shape[0], self.cov_factor.shape[-1]
        if rank == 0:
            squared = (residual.square() / self.cov_diag).sum(dim=(-2, -1))
            log_det = self.cov_diag.log().sum(dim=(-2, -1))
        elif rank < points:
            scaled = self.cov_factor / self.cov_diag
            eye = torch.eye(rank, dtype=torch.float64, device=value.device)
            lower = _cholesky(self.cov_factor.mT @ scaled + eye, check)
            half = torch.linalg.solve_triangular(lower, scaled.mT @ residual, upper=False)
            squared = (residual.square() / self.cov_diag).sum(dim=(-2, -1))
            squared = squared - half.square().sum(dim=(-2, -1))
            log_det = _log_det(lower) + self.cov_diag.log().sum(dim=(-2, -1))
        else:
            covariance = self.covariance_matrix
            lower = _cholesky(covariance.detach(), check)
            density: Tensor = _LogDensity.apply(covariance, residual, lower)
            return density - 0.5 * points * _LOG_2PI
        return -0.5 * (squared + log_det + points * _LOG_2PI)

    def sample(  # type: ignore[override]
        self, sample_shape: Any = (), *, generator: torch.Generator
    ) -> Tensor:
        """Joint samples, ``(*sample_shape, *batch, points, 1)``, without gradients."""
        return self.transform(self.noise(Size(sample_shape) + self.batch_shape, generator))

    def noise(self, shape: Iterable[int], generator: torch.Generator) -> Tensor:
        """Standard normal numbers for :meth:`transform`, ``(*shape, points + rank, 1)``."""
        size = (*shape, self.event_shape[0] + self.cov_factor.shape[-1], 1)
        device = generator.device
        return torch.randn(size, dtype=torch.float64, device=device, generator=generator)

    def transform(self, eps: Tensor) -> Tensor:
        """Samples ``(..., points, 1)`` of standard normal numbers ``(..., points + rank, 1)``."""
        independent, shared = eps.tensor_split([self.event_shape[0]], dim=-2)
        with torch.no_grad():
            return self.loc + self.cov_diag.sqrt() * independent + self.cov_factor @ shared

    def cdf(self, value: Tensor | float) -> Tensor:
        """Marginal distribution functions, ``(*batch, points, 1)``."""
        return torch.special.ndtr((value - self.mean) / self.stddev)

    def icdf(self, value: Tensor | float) -> Tensor:
        """Marginal quantiles, ``(*batch, points, 1)``."""
        level = torch.as_tensor(value, dtype=torch.float64, device=self.loc.device)
        return self.mean + self.stddev * torch.special.ndtri(level)

    def marginal(self, index: slice | Tensor) -> LowRankNormal:
        """The joint distribution of some of the points."""
        return self.map(lambda part: part[..., index, :])

    def __getitem__(self, index: Any) -> LowRankNormal:
        """Select from the batch, as from a tensor of the batch's shape."""
        index = batch_index(index, 2)
        return self.map(lambda part: part[index])

    def expand(self, batch_shape: Any, _instance: Any = None) -> LowRankNormal:
        """The same distribution with a larger batch, without copying."""
        return self.map(lambda part: part.expand(*batch_shape, *part.shape[-2:]))

    def map(self, function: Callable[[Tensor], Tensor]) -> LowRankNormal:
        """The distribution whose loc, cov_factor and cov_diag are a function of these."""
        return LowRankNormal(*map(function, (self.loc, self.cov_factor, self.cov_diag)))

    @staticmethod
    def cat(distributions: Sequence[LowRankNormal], dim: int = 0) -> LowRankNormal:
        """Distributions one after another along a dimension of their batches."""
        parts = [(d.loc, d.cov_factor, d.cov_diag) for d in distributions]
        return LowRankNormal(*(torch.cat(part, dim=dim) for part in zip(*parts, strict=True)))


class _LogDensity(torch.autograd.Function):
    """Log-density of residuals but for its constant, by the Cholesky factor of the covariance.

    The derivative needs the inverse of the covariance alone, not that of the factorisation.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(covariance: Tensor, residual: Tensor, lower: Tensor) -> Tensor:
        half = torch.linalg.solve_triangular(lower, residual, upper=False)
        return -0.5 * (half.square().sum(dim=(-2, -1)) + _log_det(lower))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        covariance, residual, lower = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            lower = torch.linalg.cholesky_ex(covariance).L
        inverse = torch.cholesky_inverse(lower)
        solved = inverse @ residual
        gradient = gradient[..., None, None]
        by_covariance = 0.5 * gradient * (solved * solved.mT - inverse)
        by_residual = -gradient * solved
        return (
            by_covariance.sum_to_size(covariance.shape),
            by_residual.sum_to_size(residual.shape),
            None,
        )


class DiagonalNormal(LowRankNormal):
    """Independent Gaussians, by means and variances ``(*batch, points, 1)``."""

    def __init__(self, loc: Tensor, variance: Tensor) -> None:
        super().__init__(loc, loc.new_zeros((*loc.shape[:-1], 0)), variance)


def batch_index(index: Any, event_dims: int) -> Any:
    """An index into a batch as one into a tensor with further dimensions behind the batch's."""
    index = index if isinstance(index, tuple) else (index,)
    return (*index, *(slice(None),) * event_dims)


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
