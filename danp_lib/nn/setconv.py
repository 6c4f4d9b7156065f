"""Set convolutions between sets of points and a grid (Gordon et al., 2020).

The grid belongs to a declared domain and never moves with the data: so predictions at some targets
are the exact marginals of predictions at more.
"""

import math
from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danp_lib.data.points import PointSet

DENSITY_EPSILON = 1e-4
"""Added to a density before dividing by it, so that an empty region encodes as zero."""

RADIUS = 8.0
"""Length scales beyond which a weight, less than 2e-14, adds nothing to a sum in float32."""


def _squared_distances(x1: Tensor, x2: Tensor) -> Tensor:
    """``(batch, n1, n2)``, between ``(batch or 1, n1, dim_x)`` and ``(batch or 1, n2, dim_x)``."""
    along_axes = zip(x1.unbind(dim=-1), x2.unbind(dim=-1), strict=True)
    # In place: an operation as simple as these takes longer in new memory.
    return reduce(add, ((a.unsqueeze(-1) - b.unsqueeze(-2)).square_() for a, b in along_axes))


def _near(x: Tensor, grid: Tensor, log_scale: Tensor) -> tuple[Tensor | None, Tensor]:
    """Indices of the points of an even grid that count at each input, and squared distances.

    Both are ``(batch, n, window)``. They are ``None`` and ``(batch, n, grid)`` where all points
    count: off the CPU, in float64, on a grid of several dimensions, in compiled code, for
    derivatives by the inputs, and at a length scale as large as the grid.
    """
    can_skip = grid.device.type == "cpu" and grid.shape[1] == 1 and grid.dtype != torch.float64
    if not can_skip or x.requires_grad or torch.compiler.is_compiling():
        return None, _squared_distances(x, grid[None])
    first, last = grid[0].item(), grid[-1].item()
    spacing, radius = (last - first) / (len(grid) - 1), RADIUS * log_scale.exp().item()
    if not 2.0 * radius / spacing < len(grid) - 2:
        return None, _squared_distances(x, grid[None])
    window = math.ceil(2.0 * radius / spacing) + 1
    start = ((x - (first + radius)) / spacing).ceil_().clamp_(0, len(grid) - window).nan_to_num_()
    near = start.long() + torch.arange(window)
    return near, (x - grid[:, 0][near]).square_()


def _weighted_sum(
    squared: Tensor, log_scale: Tensor, contract: Callable[[Tensor], Tensor]
) -> Tensor:
    """A linear function of the Gaussian weights of squared distances, at one length scale.

    A second derivative that goes back to the length scale, or is of one by it, is a
    ``RuntimeError``; where function transforms are nested, the latter is not noticed.
    """
    # To base 2, since torch.exp takes a CPU more than twice as long.
    learns = log_scale.requires_grad and torch.is_grad_enabled()
    scale = log_scale.detach() if learns else log_scale  # other derivatives take the usual way
    exponent = squared * (-0.5 / math.log(2.0) * torch.exp(-2.0 * scale))
    # Most weights would become subnormal numbers, with which a CPU computes far more slowly. This
    # bound, 2**-100 = 8e-31, adds nothing to a sum in float32.
    exponent.clamp_(min=-100.0)
    if not learns:
        return contract(exponent.exp2_())
    weights = torch.exp2(exponent)
    result = contract(weights)
    # The derivative by the one length scale is the same sum with each weight's own derivative.
    # That costs half of what a gradient for every weight does. The factor below is zero, and its
    # derivative one.
    with torch.no_grad():
        by_log_scale = weights * exponent if exponent.requires_grad else exponent.mul_(weights)
        slope = contract(by_log_scale) * (-2.0 * math.log(2.0))
    zero = log_scale - log_scale.detach()
    total = result + slope * zero
    # A compiled backward has no second derivatives anyway.
    if total.requires_grad and not torch.compiler.is_compiling():
        total.register_hook(partial(_refuse_second_derivative, log_scale))
        # The derivative by the length scale has no further ones.
        if result.requires_grad and zero.requires_grad:
            zero.register_hook(partial(_refuse_second_derivative, result))
    return total


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


def _refuse_second_derivative(other: Tensor, gradient: Tensor) -> Tensor | None:
    """Add a zero whose derivative by something else is an error, since that part is missing."""
    return gradient + _NoDerivative.apply(other).sum() if torch.is_grad_enabled() else None


class _SumNear(torch.autograd.Function):
    """Weighted sums of features at the grid points :func:`_near` each input."""

    @staticmethod
    def forward(features: Tensor, near: Tensor, weights: Tensor) -> Tensor:
        batch = max(len(features), len(near))
        near, weights = (part.expand(batch, -1, -1) for part in (near, weights))
        row = torch.arange(len(features)).reshape(-1, 1, 1) * features.shape[2] + near
        sums = F.embedding_bag(
            row.flatten(end_dim=1).int(),
            features.mT.flatten(end_dim=1),
            per_sample_weights=weights.flatten(end_dim=1),
            mode="sum",
        )
        return sums.unflatten(0, (batch, -1))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor | None]:
        features, near, weights = ctx.saved_tensors
        # As a product with all weights: embedding_bag's own derivative takes twice as long.
        shape = features.shape
        dense = weights.new_zeros(*weights.shape[:2], shape[2]).scatter_(2, near, weights)
        by_weights = None
        if ctx.needs_input_grad[2]:
            at_each = gradient @ features
            by_weights = at_each.gather(2, near.expand(len(at_each), -1, -1))
            by_weights = by_weights.sum_to_size(weights.shape)
        return (dense.mT @ gradient).mT.sum_to_size(shape), None, by_weights


class SetConvEncoder(nn.Module):
    """From sets of points to a density and a data channel each, by length scales in units of x."""

    def __init__(self, num_sets: int, initial_scale: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((num_sets,), math.log(initial_scale)))

    def forward(self, points: PointSet, grid: Tensor, index: int) -> Tensor:
        r"""Encode the points of set ``index`` on the grid ``(grid, dim_x)``, ``(batch, 2, grid)``.

        At grid point u the density is :math:`\rho(u) = \sum_n e^{-(u - x_n)^2 / 2\ell^2}`, and the
        data channel :math:`\sum_n y_n e^{-(u - x_n)^2 / 2\ell^2} / (\rho(u) + 10^{-4})`.
        """
        # In training some levels are masked out in every task. On a GPU, to ask would synchronize.
        may_ask = grid.device.type == "cpu" and not torch.compiler.is_compiling()
        if points.num_points == 0 or (may_ask and not points.mask.any()):
            return self.log_scale[index] * grid.new_zeros(points.batch_size, 2, len(grid))
        # A padded entry may be NaN: it must be replaced, in x too, since 0 * NaN is NaN.
        x, y, mask = points.blanked().parts
        values = torch.cat([mask.unsqueeze(-1).to(y.dtype), y], dim=-1).mT
        near, squared = _near(x, grid, self.log_scale[index])

        def contract(weights: Tensor) -> Tensor:
            if near is None:
                return values @ weights
            zeros = grid.new_zeros(len(values), 2, len(grid))
            where = near.flatten(1).unsqueeze(1).expand(-1, 2, -1)
            parts = values.unsqueeze(-1) * weights.unsqueeze(1)
            return zeros.scatter_add(2, where, parts.flatten(2))

        sums = _weighted_sum(squared, self.log_scale[index], contract)
        density, data = sums.split(1, dim=1)
        return torch.cat([density, data / (density + DENSITY_EPSILON)], dim=1)


class SetConvDecoder(nn.Module):
    """From functions on the grid to values at target inputs, by one length scale."""

    def __init__(self, initial_scale: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(initial_scale)))

    def forward(
        self,
        features: Tensor,
        grid: Tensor,
        xt: Tensor,
        pointwise: nn.Conv2d,
        then: nn.Linear | None = None,
    ) -> Tensor:
        r"""Evaluate :math:`\sum_u (A h(u) + b) e^{-(x - u)^2 / 2\ell^2}` at each target input x.

        The linear map is applied last, at the targets, which are fewer than the points of the grid.

        Args:
            features: h, ``(batch or 1, channels, grid)``.
            grid: ``(grid, dim_x)``.
            xt: Target inputs, ``(batch or 1, targets, dim_x)``.
            pointwise: The 1x1 convolution that holds A and b.
            then: A layer to apply to the result ``(batch, targets, channels)`` in the same product.
        """
        assert pointwise.bias is not None
        matrix, at_each, bias = pointwise.weight.flatten(1), pointwise.bias, None
        if then is not None:
            matrix, at_each, bias = then.weight @ matrix, then.weight @ at_each, then.bias
        near, squared = _near(xt, grid, self.log_scale)
        sums = _weighted_sum(
            squared,
            self.log_scale,
            lambda w: w @ features.mT if near is None else _SumNear.apply(features, near, w),
        )
        total = _weighted_sum(squared, self.log_scale, lambda w: w.sum(dim=-1, keepdim=True))
        return F.linear(sums, matrix, bias) + total * at_each
