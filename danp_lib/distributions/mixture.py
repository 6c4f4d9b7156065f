"""Mixtures of joint Gaussians over a set of outputs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from danp_lib._config import check_kind
from danp_lib.distributions.gaussian import DiagonalNormal, LowRankNormal, OutputsDistribution


class Mixture(OutputsDistribution):
    """A mixture of Gaussians over a set of outputs (paper, Equation 2).

    Args:
        logits: Log-weights up to a constant, ``(*batch, components)``; some of each mixture
            are finite.
        components: Gaussians with batch shape ``(*batch, components)``.
    """

    def __init__(self, logits: Tensor, components: LowRankNormal) -> None:
        check_kind(Tensor, logits=logits)
        check_kind(LowRankNormal, components=components)
        if logits.shape != components.batch_shape or logits.ndim < 1:
            raise ValueError(
                f"logits must have the components' batch shape {tuple(components.batch_shape)}, "
                f"got {tuple(logits.shape)}."
            )
        self.logits = logits.double().log_softmax(dim=-1)
        # A GPU would be waited for.
        if self.logits.device.type == "cpu" and self.logits.isnan().any():
            raise ValueError(
                "logits must be numbers or -inf, and not all of a mixture -inf, got "
                f"{logits[self.logits.isnan().any(dim=-1)][0].tolist()}."
            )
        self.components = components
        super().__init__(logits.shape[:-1], components.event_shape, validate_args=False)

    def __repr__(self) -> str:
        return f"Mixture(batch_shape={tuple(self.batch_shape)}, components={self.components})"

    @property
    def num_components(self) -> int:
        """Number of components of each mixture."""
        return self.logits.shape[-1]

    @property
    def _weights(self) -> Tensor:
        return self.logits.exp()[..., None, None]

    @property
    def mean(self) -> Tensor:
        """``(*batch, points, 1)``."""
        return (self._weights * self.components.mean).sum(dim=-3)

    @property
    def variance(self) -> Tensor:
        """Marginal variances, ``(*batch, points, 1)``."""
        spread = (self.components.mean - self.mean.unsqueeze(-3)).square()
        return (self._weights * (self.components.variance + spread)).sum(dim=-3)

    def log_prob(self, value: Tensor) -> Tensor:
        """As :meth:`~danp_lib.distributions.gaussian.LowRankNormal.log_prob`."""
        self.check_value(value)
        terms = self.components.log_prob(value.unsqueeze(-3))
        return (self.logits + terms).logsumexp(dim=-1)

    def sample(  # type: ignore[override]
        self, sample_shape: Any = (), *, generator: torch.Generator
    ) -> Tensor:
        """Joint samples, ``(*sample_shape, *batch, points, 1)``, without gradients."""
        check_kind(torch.Generator, generator=generator)
        shape = (*sample_shape, *self.batch_shape)
        count = math.prod(sample_shape)
        if count == 0:  # which torch.multinomial refuses
            return self.components.loc.new_empty((*shape, *self.event_shape))
        weights = self.logits.exp().reshape(-1, self.num_components)
        chosen = torch.multinomial(weights, count, replacement=True, generator=generator)
        # Components of all mixtures in one row, so that one index picks them whatever the batch.
        row = self.components.map(lambda part: part.flatten(end_dim=-3))
        first = torch.arange(len(weights), device=weights.device) * self.num_components
        return row[(first + chosen.T).reshape(shape)].sample(generator=generator)

    def cdf(self, value: Tensor | float) -> Tensor:
        """Marginal distribution functions, ``(*batch, points, 1)``."""
        each = self._across_components(value)
        return (self._weights * self.components.cdf(each)).sum(dim=-3)

    @torch.no_grad()
    def icdf(self, value: Tensor | float) -> Tensor:
        """Marginal quantiles at levels in [0, 1], ``(*batch, points, 1)``, without gradients."""
        level = torch.as_tensor(value, dtype=torch.float64, device=self.logits.device)
        # Without the factor, whose squares every step of the bisection would sum again.
        marginals = DiagonalNormal(self.components.mean, self.components.variance)
        inner = marginals.icdf(self._across_components(level))
        # A component of no weight must not widen the bracket, and its quantile may be anything.
        empty = self._weights == 0.0
        # The mixture's quantile lies between its components', where bisection finds it.
        low = inner.masked_fill(empty, math.inf).amin(dim=-3)
        high = inner.masked_fill(empty, -math.inf).amax(dim=-3)
        for _ in range(60):  # halvings, after which only rounding is left
            middle = 0.5 * (low + high)
            cdf = (self._weights * marginals.cdf(middle.unsqueeze(-3))).sum(dim=-3)
            below = cdf < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)

    @torch.no_grad()
    def moment_matched(self) -> LowRankNormal:
        r"""The one Gaussian with the mean and the covariance of the mixture, without gradients.

        By the law of total covariance, with weights :math:`\pi_s` and the mixture's mean m,

        .. math::
            \Sigma = \sum_s \pi_s \big[ W_s W_s^\top + \operatorname{diag}(v_s)
                + (m_s - m)(m_s - m)^\top \big] .

        Its diagonal variance is the mean of the components', and its rank the number of points. It
        is consistent: that of a :meth:`marginal` is the marginal of that of all points. A broad
        component, like that of a defended DANP, makes it broad too.
        """
        parts, root = self.components, self._weights.sqrt()
        columns = torch.cat([parts.cov_factor, parts.loc - self.mean.unsqueeze(-3)], dim=-1) * root
        joint = columns.transpose(-3, -2).flatten(start_dim=-2)
        values, vectors = torch.linalg.eigh(joint @ joint.mT)
        # A covariance of too few columns has eigenvalues of 0, which rounding makes negative.
        factor = vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)
        return LowRankNormal(self.mean, factor, (self._weights * parts.cov_diag).sum(dim=-3))

    def marginal(self, index: slice | Tensor) -> Mixture:
        """The joint distribution of some of the points."""
        return Mixture(self.logits, self.components.marginal(index))

    def __getitem__(self, index: Any) -> Mixture:
        """Select from the batch, as from a tensor of the batch's shape."""
        index = index if isinstance(index, tuple) else (index,)
        return Mixture(self.logits[*index, :], self.components[*index, :])

    def expand(self, batch_shape: Any, _instance: Any = None) -> Mixture:
        """The same distribution with a larger batch, without copying."""
        shape = (*batch_shape, self.num_components)
        return Mixture(self.logits.expand(shape), self.components.expand(shape))

    def _across_components(self, value: Tensor | float) -> Tensor | float:
        """A value for each output, or one for all, the same for all components."""
        self.check_each(value)
        return value.unsqueeze(-3) if isinstance(value, Tensor) and value.ndim else value
