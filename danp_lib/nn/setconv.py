"""Set convolutions between sets of points and a grid (Gordon et al., 2020).

The grid belongs to a declared domain and never moves with the data. That is what makes predictions
at some targets the exact marginals of predictions at more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from danp_lib.data.points import PointSet

DENSITY_EPSILON = 1e-4
"""Added to a density before dividing by it, so that an empty region encodes as zero."""


def _weighted_sum(
    x1: Tensor, x2: Tensor, log_scale: Tensor, contract: Callable[[Tensor], Tensor]
) -> Tensor:
    """Apply a linear function to the Gaussian weights between inputs.

    Args:
        x1: ``(batch or 1, n1, dim_x)``.
        x2: ``(batch or 1, n2, dim_x)``.
        log_scale: Logarithm of the length scale, a scalar.
        contract: Linear function of the weights ``(batch, n1, n2)``.

    A second derivative that goes back to the length scale is a ``RuntimeError``.
    """
    along_axes = zip(x1.unbind(dim=-1), x2.unbind(dim=-1), strict=True)
    # In place where it can be: an operation as simple as these takes longer in new memory.
    squared = reduce(add, (_squared(a.unsqueeze(-1) - b.unsqueeze(-2)) for a, b in along_axes))
    # To base 2, since torch.exp takes a CPU more than twice as long.
    exponent = squared * (-0.5 / math.log(2.0) * torch.exp(-2.0 * log_scale.detach()))
    # Most weights underflow, which takes a CPU far longer than this bound, 2**-100 = 8e-31; and
    # that adds nothing to any sum either.
    exponent.clamp_(min=-100.0)
    if not (log_scale.requires_grad and torch.is_grad_enabled()):
        return contract(exponent.exp2_())
    weights = torch.exp2(exponent)
    result = contract(weights)
    # The derivative by the one length scale is the same sum with each weight's own derivative.
    # That costs half of what a gradient for every weight does. The factor below is zero.
    with torch.no_grad():
        by_log_scale = weights * exponent if exponent.requires_grad else exponent.mul_(weights)
        slope = contract(by_log_scale) * (-2.0 * math.log(2.0))
    total = result + slope * (log_scale - log_scale.detach())
    # A compiled backward has no second derivatives anyway.
    if not torch.compiler.is_compiling():
        total.register_hook(partial(_refuse_second_derivative, log_scale))
    return total


def _squared(difference: Tensor) -> Tensor:
    return difference.square() if difference.requires_grad else difference.square_()


class _NoDerivative(torch.autograd.Function):
    """Zero, with an error for a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(log_scale: Tensor) -> Tensor:
        return torch.zeros_like(log_scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise RuntimeError(
            "a SetConv has first derivatives by its length scale only; for second derivatives by "
            "others, freeze log_scale with requires_grad_(False), or name them as the inputs of "
            "torch.autograd.grad."
        )


def _refuse_second_derivative(log_scale: Tensor, gradient: Tensor) -> Tensor | None:
    """Make the gradient of a weighted sum depend on the length scale, as far as errors go."""
    return gradient + _NoDerivative.apply(log_scale) if torch.is_grad_enabled() else None


class SetConvEncoder(nn.Module):
    """From sets of points to functions on the grid, one density and one data channel a set.

    Each of the ``num_sets`` sets has its own length scale, in units of x.
    """

    def __init__(self, num_sets: int, initial_scale: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((num_sets,), math.log(initial_scale)))

    def forward(self, points: PointSet, grid: Tensor, index: int) -> Tensor:
        r"""Encode the sets that belong to one channel.

        At grid point u the density is :math:`\rho(u) = \sum_n e^{-(u - x_n)^2 / 2\ell^2}`, and the
        data channel :math:`\sum_n y_n e^{-(u - x_n)^2 / 2\ell^2} / (\rho(u) + 10^{-4})`.

        Args:
            points: The sets.
            grid: ``(grid, dim_x)`` in the dtype of the points.
            index: Which channel, and so which length scale.

        Returns:
            ``(batch, 2, grid)``.
        """
        # In training some levels are masked out in every task. A look is free on a CPU only.
        may_look = grid.device.type == "cpu" and not torch.compiler.is_compiling()
        if points.num_points == 0 or (may_look and not points.mask.any()):
            return self.log_scale[index] * grid.new_zeros(points.batch_size, 2, len(grid))
        # A padded entry may be NaN: it must be replaced, in x too, since 0 * NaN is NaN.
        blanked = points.blanked()
        x, y = blanked.x, blanked.y
        values = torch.cat([points.mask.unsqueeze(-1).to(y.dtype), y], dim=-1).mT
        sums = _weighted_sum(x, grid[None], self.log_scale[index], lambda weights: values @ weights)
        density, data = sums.split(1, dim=1)
        return torch.cat([density, data / (density + DENSITY_EPSILON)], dim=1)


class SetConvDecoder(nn.Module):
    """From functions on the grid to values at target inputs, by one length scale."""

    def __init__(self, initial_scale: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(initial_scale)))

    def forward(self, features: Tensor, grid: Tensor, xt: Tensor, pointwise: nn.Conv2d) -> Tensor:
        r"""Evaluate :math:`\sum_u (A h(u) + b) e^{-(x - u)^2 / 2\ell^2}` at each target input x.

        The linear map of the features is applied last, at the targets: they are fewer than the
        points of the grid.

        Args:
            features: h, ``(batch or 1, channels, grid)``.
            grid: ``(grid, dim_x)``.
            xt: Target inputs, ``(batch or 1, targets, dim_x)``.
            pointwise: The 1x1 convolution that holds A and b.

        Returns:
            ``(batch, targets, pointwise.out_channels)``.
        """
        assert pointwise.bias is not None
        matrix, bias = pointwise.weight.flatten(1).mT, pointwise.bias
        return _weighted_sum(
            xt,
            grid[None],
            self.log_scale,
            lambda w: (w @ features.mT) @ matrix + w.sum(dim=-1, keepdim=True) * bias,
        )
