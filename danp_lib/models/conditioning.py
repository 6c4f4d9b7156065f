r"""What some outputs of a Gaussian say about the others, in closed form.

A ConvGNP's Gaussian holds at the inputs of the context too, where the outputs are known; that of a
DANP's clean level holds for the noised outputs of the other levels as well. Written with the
variables that all its outputs share,

.. math::
    y_i = m_i + w_i^\top z + \sqrt{v_i}\, \varepsilon_i, \qquad
    z \sim \mathcal{N}(0, I), \quad \varepsilon_i \sim \mathcal{N}(0, 1),

it is a Bayesian linear regression on learned features w, as in ALPaCA (Harrison et al., 2018), but
that the network has read the known outputs too.
"""

import math
from collections.abc import Sequence

import torch

from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal

KNOWN_VARIANCE = 1e-8
"""In place of the variance floor where an output is known, in squared units of y.

What is known needs a variance only for the algebra, and gets one that costs less than 1 % of the
best possible score on Gaussian processes (:class:`~danp_lib.exact.gp.GaussianProcessOracle`).
"""

MAX_CHI_SQUARE = 4.0
"""The largest mean squared Mahalanobis distance at which known values are taken as they are.

It is near 1 where the values are like those of training. A DANP's own samples are not always so,
and then the values of the context, known to 1e-4, would move z by thousands to agree with them.
"""

_INFLATIONS = 3


def condition(
    target: LowRankNormal,
    known: Sequence[tuple[LowRankNormal, PointSet]],
    *,
    max_chi_square: float = math.inf,
) -> LowRankNormal:
    r"""The distribution of some outputs, given others of the same Gaussian.

    With W, V, m of all known outputs and

    .. math::
        L L^\top = I + W^\top V^{-1} W, \qquad g = L^{-1} W^\top V^{-1} (y - m),

    the targets' factor :math:`W_t` becomes :math:`W_t L^{-\top}`, their mean rises by
    :math:`W_t L^{-\top} g`, and their diagonal variance stays. Where the matrix has no factor L in
    float64, mean and factor are NaN.

    Where known values are all but impossible under their own Gaussian, their squared distance
    :math:`\chi^2 = (y - m)^\top (W W^\top + V)^{-1} (y - m)` is far above their number n. As with
    measurements that disagree by more than their errors (Birge, 1932), V is multiplied by
    :math:`\chi^2 / n` over its bound, where that is above 1; three times, since :math:`\chi^2`
    falls more slowly than V rises.

    Args:
        target: The outputs asked for, ``(batch or 1,)``.
        known: Sets of other outputs with the same z, ``(batch or 1,)``, and their values; where the
            mask is false, they are not known.
        max_chi_square: The bound on :math:`\chi^2 / n`.
    """
    if not known:
        return target
    rank = target.cov_factor.shape[-1]
    precision = weighted_residual = squared = count = target.loc.new_zeros(())
    for observed, values in known:
        if observed.cov_factor.shape[-1] != rank or observed.event_shape[0] != values.num_points:
            raise ValueError(
                "target and known outputs must have one rank, and known outputs and their values "
                f"one number of points, got the ranks {rank} and {observed.cov_factor.shape[-1]} "
                f"and the numbers {observed.event_shape[0]} and {values.num_points}."
            )
        real = values.mask.unsqueeze(-1)
        # A padded value may be NaN, which times a precision of zero would be NaN.
        residual = torch.where(real, values.y.double() - observed.loc, 0.0)
        weight = real / observed.cov_diag
        weighted = observed.cov_factor * weight
        precision = precision + observed.cov_factor.mT @ weighted
        weighted_residual = weighted_residual + weighted.mT @ residual
        squared = squared + (weight * residual.square()).sum(dim=(-2, -1))
        count = count + values.mask.sum(dim=-1)
    eye = torch.eye(rank, dtype=precision.dtype, device=precision.device)
    scale = torch.ones_like(squared)
    # On a GPU, to ask would synchronize; where nothing grows, the other rounds change nothing.
    may_ask = scale.device.type == "cpu" and not torch.compiler.is_compiling()
    for _ in range(1 + _INFLATIONS):
        inverse = 1.0 / scale[..., None, None]
        lower, info = torch.linalg.cholesky_ex(eye + precision * inverse)
        # A failed factor is finite. To ask would synchronize a GPU; densities refuse the NaN.
        lower = lower.masked_fill((info != 0)[..., None, None], math.nan)
        whitened = torch.linalg.solve_triangular(lower, weighted_residual * inverse, upper=False)
        chi_square = squared / scale - whitened.square().sum(dim=(-2, -1))
        growth = (chi_square / (max_chi_square * count.clamp(min=1))).clamp(min=1.0)
        if may_ask and (growth == 1.0).all():
            break
        scale = scale * growth
    factor = torch.linalg.solve_triangular(lower, target.cov_factor.mT, upper=False).mT
    shift = factor @ whitened
    return LowRankNormal(target.loc + shift, factor, target.cov_diag.expand_as(shift))
