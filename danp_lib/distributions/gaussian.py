"""Gaussians with low-rank covariance, and what they share with their mixtures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn import functional as F

from danp_lib._config import check_kind

VARIANCE_FLOOR = 1e-6  #: The smallest predictive variance of one output, in squared units of y.

# Of a variance to its independent part. Beyond it, a log-density by a Cholesky factorisation is off
# by 1e-5 nats and more, in proportion.
_LARGEST_RATIO = 1e10


class OutputsDistribution(Distribution):
    """A distribution in float64 with event shape ``(points, 1)``, the shape of a set of outputs."""

    arg_constraints = {}  # noqa: RUF012  (the base class declares it so)
    support = constraints.independent(constraints.real, 2)

    def quantile(self, level: float) -> Tensor:
        """Marginal quantiles at a level in (0, 1), ``(*batch, points, 1)``."""
        if not isinstance(level, Real) or not 0.0 < level < 1.0:
            raise ValueError(f"the level of a quantile must be a number in (0, 1), got {level!r}.")
        return self.icdf(torch.tensor(level, dtype=torch.float64))

    def check_value(self, value: Tensor) -> None:
        """Refuse outputs of another shape than ``(..., points, 1)``, or of another batch."""
        check_kind(Tensor, value=value)
        if value.shape[-2:] != self.event_shape or not self._goes_with(value.shape):
            points, batch = self.event_shape[0], tuple(self.batch_shape)
            raise ValueError(
                f"value must have shape (..., {points}, 1), and a batch that broadcasts with "
                f"{batch}, got {tuple(value.shape)}."
            )

    def check_each(self, value: Tensor | float) -> None:
        """Refuse what is neither one number for all outputs nor one for each."""
        if not isinstance(value, Real):
            check_kind(Tensor, value=value)
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()
        if shape and not (len(shape) > 1 and shape[-1] == 1 and self._goes_with(shape)):
            raise ValueError(
                f"value must be a number or (..., points, 1), got {shape} for "
                f"{self.event_shape[0]} points and the batch {tuple(self.batch_shape)}."
            )

    def _goes_with(self, shape: Sequence[int]) -> bool:
        """Whether a value of a shape broadcasts with the outputs."""
        pairs = zip(shape[::-1], (*self.batch_shape, *self.event_shape)[::-1], strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs)


class LowRankNormal(OutputsDistribution):
    r"""A Gaussian with covariance :math:`WW^\top + \operatorname{diag}(v)` over a set of outputs.

    As :class:`~torch.distributions.LowRankMultivariateNormal`, with outputs in a last dimension.

    Args:
        loc: The mean, ``(*batch, points, 1)``.
        cov_factor: W, ``(*batch, points, rank)``; with rank 0 the outputs are independent.
        cov_diag: v, positive, ``(*batch, points, 1)``.
    """

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor) -> None:
        check_kind(Tensor, loc=loc, cov_factor=cov_factor, cov_diag=cov_diag)
        shape = loc.shape[:-1]
        if not (
            shape and loc.shape == cov_diag.shape == (*shape, 1) and cov_factor.shape[:-1] == shape
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
    def mode(self) -> Tensor:
        """The mean."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Marginal variances, ``(*batch, points, 1)``."""
        return self.cov_diag + self.cov_factor.square().sum(dim=-1, keepdim=True)

    @property
    def covariance_matrix(self) -> Tensor:
        """``(*batch, points, points)``."""
        return self.cov_factor @ self.cov_factor.mT + torch.diag_embed(self.cov_diag.squeeze(-1))

    def log_prob(self, value: Tensor, *, check: bool = True) -> Tensor:
        """Joint log-density of a set of outputs ``(..., points, 1)`` in nats, ``(*batch)``.

        Without ``check`` a GPU need not be waited for. Then the result is NaN or meaningless where
        the covariance is not positive definite, and has lost digits where a variance is more than
        1e10 times its part in ``cov_diag``.

        Raises:
            ValueError: If the value or a parameter is not finite, or the covariance not positive
                definite.
        """
        if check:
            self.check_value(value)
            self._check_finite(value=value)
        residual = value.to(torch.float64) - self.loc
        points, rank = self.event_shape[0], self.cov_factor.shape[-1]
        if rank < points:
            scaled = self.cov_factor / self.cov_diag
            eye = torch.eye(rank, dtype=torch.float64, device=value.device)
            inner = self.cov_factor.mT @ scaled + eye
            explained, log_det = _squared_and_log_det(inner, scaled.mT @ residual, check)
            squared = (residual.square() / self.cov_diag).sum(dim=(-2, -1)) - explained
            log_det = log_det + self.cov_diag.log().sum(dim=(-2, -1))
        else:
            squared, log_det = _squared_and_log_det(self.covariance_matrix, residual, check)
        density = -0.5 * (squared + log_det + points * math.log(2.0 * math.pi))
        if not check:
            return density
        if density.isnan().any():
            raise ValueError("the covariance must be finite, got a cov_factor too large for that.")
        large = (self.variance > _LARGEST_RATIO * self.cov_diag).any(dim=-2).squeeze(-1)
        if large.any():
            density = torch.where(large, self._log_prob_by_qr(residual), density)
        return density

    def _log_prob_by_qr(self, residual: Tensor) -> Tensor:
        """The log-density of residuals to rounding, however large the factor; it takes longer."""
        scale = self.cov_diag.sqrt()
        eye = torch.eye(self.cov_factor.shape[-1], dtype=scale.dtype, device=scale.device)
        prior = eye.expand(*self.batch_shape, *eye.shape)
        basis, upper = torch.linalg.qr(torch.cat([self.cov_factor / scale, prior], dim=-2))
        white = F.pad(residual / scale, (0, 0, 0, len(eye)))
        # A least-squares residual, where log_prob takes the difference of two large squares.
        squared = (white - basis @ (basis.mT @ white)).square().sum(dim=(-2, -1))
        log_det = upper.diagonal(dim1=-2, dim2=-1).abs().log().sum(dim=-1)
        log_scale = scale.log() + 0.5 * math.log(2.0 * math.pi)
        return -0.5 * squared - log_det - log_scale.sum(dim=(-2, -1))

    def entropy(self) -> Tensor:
        """Joint differential entropy in nats, ``(*batch,)``."""
        return 0.5 * self.event_shape[0] - self.log_prob(self.loc)

    def _check_finite(self, **others: Tensor) -> None:
        """Refuse a mean, or another tensor, that is not finite, and variances that are none."""
        for name, part in (others | {"loc": self.loc}).items():
            if not (finite := part.isfinite()).all():
                raise ValueError(f"{name} must be finite, got {part[~finite][0].item()}.")
        positive = (self.cov_diag > 0.0) & (self.cov_diag < math.inf)
        if not positive.all():
            raise ValueError(
                "the covariance must be positive definite, and cov_diag positive and finite, got "
                f"{self.cov_diag[~positive][0].item()}."
            )

    def sample(  # type: ignore[override]
        self, sample_shape: Any = (), *, generator: torch.Generator
    ) -> Tensor:
        """Joint samples, ``(*sample_shape, *batch, points, 1)``, without gradients."""
        check_kind(torch.Generator, generator=generator)
        if self.loc.device.type == "cpu":  # a GPU would be waited for
            self._check_finite(cov_factor=self.cov_factor)
        count = self.event_shape[0] + self.cov_factor.shape[-1]
        shape = (*sample_shape, *self.batch_shape, count, 1)
        device = generator.device
        eps = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
        return self.transform(eps)

    def transform(self, eps: Tensor) -> Tensor:
        """Samples ``(..., points, 1)`` of standard normal numbers ``(..., points + rank, 1)``."""
        independent, shared = eps.tensor_split([self.event_shape[0]], dim=-2)
        with torch.no_grad():
            return self.loc + self.cov_diag.sqrt() * independent + self.cov_factor @ shared

    def cdf(self, value: Tensor | float) -> Tensor:
        """Marginal distribution functions at a value, or at one per point ``(..., points, 1)``."""
        self.check_each(value)
        return torch.special.ndtr((value - self.mean) / self.stddev)

    def icdf(self, value: Tensor | float) -> Tensor:
        """Marginal quantiles at one level in [0, 1], or at one per point ``(..., points, 1)``."""
        self.check_each(value)
        level = torch.as_tensor(value, dtype=torch.float64, device=self.loc.device)
        if level.device.type == "cpu":  # a GPU would be waited for
            if not (inside := (level >= 0.0) & (level <= 1.0)).all():
                wrong = level[~inside].flatten()[0]
                raise ValueError(f"the level of a quantile must lie in [0, 1], got {wrong:g}.")
            self._check_finite(cov_factor=self.cov_factor)
        return self.mean + self.stddev * torch.special.ndtri(level)

    def marginal(self, index: slice | Tensor) -> LowRankNormal:
        """The joint distribution of some of the points."""
        if isinstance(index, Integral) or (isinstance(index, Tensor) and index.ndim != 1):
            raise ValueError(f"index must be a slice or a tensor (points,), got {index}.")
        return self.map(lambda part: part[..., index, :])

    def __getitem__(self, index: Any) -> LowRankNormal:
        """Select from the batch, as from a tensor of the batch's shape."""
        index = index if isinstance(index, tuple) else (index,)
        return self.map(lambda part: part[*index, :, :])

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


class DiagonalNormal(LowRankNormal):
    """Independent Gaussians, by means and variances ``(*batch, points, 1)``."""

    def __init__(self, loc: Tensor, variance: Tensor) -> None:
        super().__init__(loc, loc[..., :0], variance)

    def map(self, function: Callable[[Tensor], Tensor]) -> DiagonalNormal:
        """The distribution whose means and variances are a function of these."""
        return DiagonalNormal(function(self.loc), function(self.cov_diag))


def _squared_and_log_det(matrix: Tensor, vector: Tensor, check: bool) -> tuple[Tensor, Tensor]:
    """The squared length of a whitened vector, and the log-determinant of the covariance."""
    lower, info = torch.linalg.cholesky_ex(matrix)
    if check and info.any():
        raise ValueError(
            "the covariance must be positive definite, but its Cholesky factorisation failed for "
            f"{int((info != 0).sum())} of {info.numel()} distributions."
        )
    white = torch.linalg.solve_triangular(lower, vector, upper=False)
    log_det = 2.0 * lower.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    return white.square().sum(dim=(-2, -1)), log_det
