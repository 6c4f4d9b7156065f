r"""What a context says about the noise in its own values.

A network has to read a whole function before it can say how noisy its values are; its residuals say
it at once. With m and W of the network, and values that are independent given the noise and the
function,

.. math::
    p(\sigma \mid y) &\propto p(\sigma)\, \mathcal{N}\!\left(y \mid m,\;
    W W^\top + \operatorname{diag}\!\left(v_i(\sigma) + \sigma^2\right)\right), \\
    v_i(\sigma) &= v_i \left(\sigma / \bar\sigma\right)^{2 s_i} .

The variance free of noise, v, rises with the noise by a slope s in (0, 1): 1 where the function is
known as well as the noise permits, 0 where noise is not what hides it. The network gives m, W, v, s
at each point, and a Gaussian in :math:`\log \sigma` as the prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal

_CELLS = 24  # of the midpoint rule in log sigma: for a range of 1:300, 27 % a cell


@dataclass(frozen=True, eq=False)
class NoiseBelief:
    """Probabilities of the standard deviation of the noise."""

    relative: Tensor  #: Values of it over the middle one, ``(cells,)``, evenly spaced in the log.
    middle: float  #: The middle one, :math:`\bar\sigma`, in units of y.
    log_weight: Tensor  #: Their unnormalized log-probabilities, ``(batch or 1, cells)``.

    @classmethod
    def guess(cls, least: float, largest: float, *, mean: Tensor, precision: Tensor) -> NoiseBelief:
        r"""A Gaussian in :math:`\log (\sigma / \bar\sigma)`, cut off at the ends of the range.

        Its ``mean`` and ``precision`` are ``(batch or 1, 1)``; a precision of 0 is log-uniform.
        """
        cells = torch.arange(_CELLS, dtype=torch.float64, device=mean.device)
        relative = (largest / least) ** ((cells + 0.5) / _CELLS - 0.5)
        log_weight = -0.5 * precision * (relative.log() - mean).square()
        return cls(relative, math.sqrt(least * largest), log_weight)

    def given(self, free: LowRankNormal, slope: Tensor, values: PointSet) -> NoiseBelief:
        """The belief after some values, by Bayes' rule.

        Args:
            free: The outputs free of noise, ``(batch or 1,)``, at the middle noise.
            slope: Of their variances, ``(batch or 1, points, 1)``.
            values: What was observed, where the mask is true.
        """
        real = values.mask.unsqueeze(-1)
        residual = torch.where(real, values.y.double() - free.loc, 0.0)
        factor = torch.where(real, free.cov_factor, 0.0)
        diagonal = torch.where(real, self._variances(free.cov_diag, slope), 1.0)
        covariance = (factor @ factor.mT).unsqueeze(1) + torch.diag_embed(diagonal.mT)
        lower, _ = torch.linalg.cholesky_ex(covariance)
        white = torch.linalg.solve_triangular(lower, residual.unsqueeze(1), upper=False)
        log_det = lower.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        terms = -0.5 * white.square().sum(dim=(-2, -1)) - log_det
        return replace(self, log_weight=self.log_weight + terms)

    def observed(self, free: LowRankNormal, slope: Tensor) -> LowRankNormal:
        """Outputs as they are observed: with the mean of their variances over the belief."""
        weight = self.log_weight.softmax(dim=-1).unsqueeze(1)
        diagonal = (self._variances(free.cov_diag, slope) * weight).sum(dim=-1, keepdim=True)
        return LowRankNormal(free.loc, free.cov_factor, diagonal)

    def _variances(self, free: Tensor, slope: Tensor) -> Tensor:
        """Of observed outputs, given each noise, ``(batch, points, cells)``."""
        noise = (self.middle * self.relative).square()
        return free * self.relative ** (2.0 * slope) + noise
