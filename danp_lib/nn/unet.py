"""The two U-Nets that turn an encoded context into features on the grid.

The grid is an image of height 1 with the channels last in memory, kernels too: the CPU's
convolutions are faster in that layout.

The last layer, the 1x1 convolution ``out``, is linear, as is the interpolation to the targets that
follows: it is left to the decoder, which applies it at the targets alone.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def fold_average_pooling(weight: Tensor) -> Tensor:
    """The kernel of the stride-2 convolution that equals a convolution then average pooling by 2.

    It has one more weight in the last dimension; the padding stays as it was.
    """
    return 0.5 * (F.pad(weight, (0, 1)) + F.pad(weight, (1, 0)))


def paper_pooling_layers(num_layers: int, kernel_size: int) -> Iterator[bool]:
    """Whether each layer on the way down pools (true) or strides (false).

    This keeps the receptive field symmetric: a layer averages pairs of outputs where the field of
    its inputs is odd, and skips every other output where it is even.
    """
    field = 1
    for _ in range(num_layers):
        yield field % 2 == 1
        field = -(-(field + kernel_size - 1) // 2)


def _convolution(inputs: int, outputs: int, size: int, *, stride: int = 1) -> nn.Conv2d:
    """Along the grid, with an odd kernel."""
    return nn.Conv2d(inputs, outputs, (1, size), (1, stride), (0, size // 2))


class PaperUNet(nn.Module):
    """The paper's U-Net: the resolution is halved in every layer and nothing skips at the finest.

    Args:
        in_channels: Channels of the encoding.
        out_channels: Channels of the features.
        channels: Channels of every layer.
        num_layers: Number of halvings; the grid must be a multiple of ``2 ** num_layers``.
        kernel_size: Odd size of all kernels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        channels: int,
        num_layers: int,
        kernel_size: int,
    ) -> None:
        super().__init__()
        self.pools = tuple(paper_pooling_layers(num_layers, kernel_size))
        self.down = nn.ModuleList(
            _convolution(c, channels, kernel_size, stride=2)
            for c in [in_channels] + [channels] * (num_layers - 1)
        )
        size, padding = (1, kernel_size), (0, kernel_size // 2)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(c, channels, size, (1, 2), padding, output_padding=(0, 1))
            for c in [channels] + [2 * channels] * (num_layers - 1)
        )
        self.out = nn.Conv2d(channels, out_channels, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, in_channels, grid)`` to ``(batch, channels, grid)``, what ``out`` takes."""
        h = x.unsqueeze(-2).contiguous(memory_format=torch.channels_last)
        skips: list[Tensor] = []
        for layer, pools in zip(self.down, self.pools, strict=True):
            assert isinstance(layer, nn.Conv2d)
            weight = fold_average_pooling(layer.weight) if pools else layer.weight
            h = F.relu_(F.conv2d(h, weight, layer.bias, layer.stride, layer.padding))
            skips.append(h)
        skips.pop()
        for layer in self.up:
            h = F.relu_(layer(h))
            if skips:
                h = torch.cat([skips.pop(), h], dim=1)
        return h.squeeze(-2)


ACTIVATION_BOUND = 4.0
"""What :func:`soft_bound` keeps the root mean square of the channels below."""


def soft_bound(h: Tensor) -> Tensor:
    r"""Shrink large activations: :math:`h / \sqrt{1 + \overline{h^2} / b^2}` with b = 4.

    The mean is over the channels, ``(batch, channels, ...)``, at each point of the grid.
    """
    mean_square = h.square().mean(dim=1, keepdim=True)
    return h * torch.rsqrt(1.0 + mean_square / ACTIVATION_BOUND**2)


def gelu(x: Tensor) -> Tensor:
    """GELU of an image with its channels last, viewed as contiguous: a third less time on AVX2."""
    return F.gelu(x.movedim(1, -1)).movedim(-1, 1)


def bounded_gelu(x: Tensor, residual: Tensor | None = None) -> Tensor:
    """``soft_bound(residual + gelu(x))``, outside of compiled code in half the time."""
    if torch.compiler.is_compiling():
        return _bounded_gelu(x, residual)
    return _BoundedGELU.apply(x, residual)[0]


def _bounded_gelu(x: Tensor, residual: Tensor | None = None) -> Tensor:
    activation = gelu(x)
    return soft_bound(activation if residual is None else residual + activation)


class _BoundedGELU(torch.autograd.Function):
    """In few passes through memory, with the factor that it shrinks by as a second output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        h = gelu(x)
        if residual is not None:
            h += residual
        norm = torch.linalg.vector_norm(h, dim=1, keepdim=True)
        factor = torch.rsqrt(1.0 + norm.square() / (x.shape[1] * ACTIVATION_BOUND**2))
        h *= factor
        return h, factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None]:
        x, residual, bounded, factor = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives, by operations that have them
            # By vjp, for which x is no function of the residual, though it may be one.
            if residual is None:
                return torch.func.vjp(_bounded_gelu, x)[1](gradient)[0], None
            return torch.func.vjp(_bounded_gelu, x, residual)[1](gradient)
        radial = torch.linalg.vecdot(gradient, bounded, dim=1).unsqueeze(1)
        radial /= -x.shape[1] * ACTIVATION_BOUND**2
        by_sum = torch.addcmul(gradient, bounded, radial)
        by_sum *= factor
        last, x_last = by_sum.movedim(1, -1), x.movedim(1, -1)
        by_x = torch.ops.aten.gelu_backward(last, x_last).movedim(-1, 1)
        return by_x, None if residual is None else by_sum


class FullResolutionUNet(nn.Module):
    """A U-Net whose finest skip is at the resolution of the grid.

    A stem reads the encoding at full resolution, since the jumps of a wave are sharper than two
    grid points. Every resolution has an additive skip, and a residual convolution mixes after each
    upsampling. Every layer ends in :func:`soft_bound`: a DANP is given its own samples, level after
    level, and an unbounded network answers odd ones with odder ones.

    The arguments are those of :class:`PaperUNet`; ``kernel_size`` does not hold on the way up.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        channels: int,
        num_layers: int,
        kernel_size: int,
    ) -> None:
        super().__init__()
        self.stem = _convolution(in_channels, channels, kernel_size)
        self.down = nn.ModuleList(
            _convolution(channels, channels, kernel_size, stride=2) for _ in range(num_layers)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(channels, channels, (1, 4), stride=(1, 2), padding=(0, 1))
            for _ in range(num_layers)
        )
        self.mix = nn.ModuleList(_convolution(channels, channels, 3) for _ in range(num_layers))
        self.out = nn.Conv2d(channels, out_channels, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, in_channels, grid)`` to ``(batch, channels, grid)``, what ``out`` takes."""
        x = x.unsqueeze(-2).contiguous(memory_format=torch.channels_last)
        h = bounded_gelu(self.stem(x))
        skips: list[Tensor] = []
        for down in self.down:
            skips.append(h)
            h = bounded_gelu(down(h))
        for up, mix in zip(self.up, self.mix, strict=True):
            h = gelu(up(h).add_(skips.pop()))
            h = bounded_gelu(mix(h), h)
        return h.squeeze(-2)


UNETS: dict[str, type[PaperUNet] | type[FullResolutionUNet]] = {
    "paper": PaperUNet,
    "full-resolution": FullResolutionUNet,
}
