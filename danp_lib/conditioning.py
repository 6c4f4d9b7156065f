r"""What some outputs of a Gaussian say about the others, in closed form.

A ConvGNP's Gaussian holds for any inputs, those of the context among them, where the outputs are
known. Written with the variables that all its outputs share,

.. math::
    y_i = m_i + w_i^\top z + \sqrt{v_i}\, \varepsilon_i, \qquad
    z \sim \mathcal{N}(0, I), \quad \varepsilon_i \sim \mathcal{N}(0, 1),

it is a Bayesian linear regression on the features w, and the known outputs give the posterior of z.
The features are learned and the regression on them is exact, as in ALPaCA (Harrison et al., 2018),
but that here the network has read the context as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from danp_lib.likelihoods import LowRankNormal
from danp_lib.tasks import PointSet


def condition(target: LowRankNormal, observed: LowRankNormal, context: PointSet) -> LowRankNormal:
    r"""The distribution of some outputs, given others of the same Gaussian.

    With W, V, m of the observed outputs and

    .. math::
        L L^\top = I + W^\top V^{-1} W, \qquad g = L^{-1} W^\top V^{-1} (y - m),

    the targets' factor :math:`W_t` becomes :math:`W_t L^{-\top}`, their mean rises by
    :math:`W_t L^{-\top} g`, and their diagonal variance stays.

    Args:
        target: The outputs asked for, ``(batch or 1,)``; their z is that of ``observed``.
        observed: The outputs at the context's inputs, ``(batch or 1,)``.
        context: Which values they took, and where the mask is false, that they are not known.

    Raises:
        ValueError: If the ranks, or the numbers of observed points, disagree.
    """
    rank = target.factor.shape[-1]
    if observed.factor.shape[-1] != rank or observed.event_shape[0] != context.num_points:
        raise ValueError(
            "target and observed must have one rank, and observed and context one number of "
            f"points, got the ranks {rank} and {observed.factor.shape[-1]} and the numbers "
            f"{observed.event_shape[0]} and {context.num_points}."
        )
    real = context.mask.unsqueeze(-1)
    # A padded value may be NaN, which times a precision of zero would be NaN.
    residual = torch.where(real, context.y.double() - observed.loc, 0.0)
    weighted = observed.factor * (real / observed.diagonal)
    identity = torch.eye(rank, dtype=torch.float64, device=residual.device)
    lower = torch.linalg.cholesky_ex(identity + observed.factor.mT @ weighted).L
    factor = _solve(lower, target.factor.mT).mT
    shift = factor @ _solve(lower, weighted.mT @ residual)
    return LowRankNormal(target.loc + shift, target.diagonal.expand_as(shift), factor)


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(lower, right, upper=False)
