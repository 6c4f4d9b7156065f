"""Convolutional neural processes: the ConvCNP and the ConvGNP (paper, Appendix B.2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danp_lib.checkpoint import register
from danp_lib.likelihoods import VARIANCE_FLOOR, DiagonalNormal, LowRankNormal
from danp_lib.setconv import Grid, SetConvDecoder, SetConvEncoder
from danp_lib.tasks import PointSet
from danp_lib.unet import UNETS


@dataclass(frozen=True)
class ConvNPConfig:
    r"""The architecture of a convolutional neural process.

    The head's outputs become the predictive as :math:`v = 10^{-6} +
    \operatorname{softplus}(g z + o)` for the diagonal variance, with gain g and offset o, and
    :math:`W = z / c` for the factor, with divisor c.

    A jump of a wave is sharper than the features: the SetConv to the targets blurs them over its
    length scale. Hidden layers between it and the head make the jump after the blur, out of a
    feature that runs smoothly across it, such as the phase of the wave.

    Attributes:
        domain: Interval that every input must lie in; the grid covers it.
        points_per_unit: Grid points per unit of x.
        margin: Distance by which the grid reaches past the domain.
        unet: ``"paper"`` or ``"full-resolution"``.
        channels: Channels of every layer of the U-Net.
        num_layers: Number of halvings of the U-Net.
        kernel_size: Odd size of its kernels.
        rank: Columns of the low-rank factor; 0 for independent outputs.
        variance_gain: The gain g.
        variance_offset: The offset o.
        factor_divisor: The divisor c.
        head_layers: Number of hidden layers between the SetConv to the targets and the outputs.
        head_channels: Units of each.
    """

    domain: tuple[float, float] = (-2.0, 2.0)
    points_per_unit: int = 64
    margin: float = 0.1
    unet: str = "full-resolution"
    channels: int = 64
    num_layers: int = 6
    kernel_size: int = 5
    rank: int = 64
    variance_gain: float = 5.0
    variance_offset: float = -4.0
    factor_divisor: float = 8.0
    head_layers: int = 2
    head_channels: int = 128

    def __post_init__(self) -> None:
        if self.unet not in UNETS:
            raise ValueError(f"unet must be one of {', '.join(UNETS)}, got {self.unet!r}.")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {self.kernel_size}.")
        for name, least in (
            ("channels", 1),
            ("num_layers", 1),
            ("kernel_size", 1),
            ("rank", 0),
            ("head_layers", 0),
            ("head_channels", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}.")
        if self.variance_gain <= 0.0 or self.factor_divisor <= 0.0:
            raise ValueError(
                "variance_gain and factor_divisor must be positive, got "
                f"{self.variance_gain} and {self.factor_divisor}."
            )
        Grid(self.domain, self.points_per_unit, self.margin, 1)

    @property
    def grid(self) -> Grid:
        """The grid of the model."""
        return Grid(self.domain, self.points_per_unit, self.margin, 2**self.num_layers)


class ConvNPCore(nn.Module):
    """SetConv, U-Net, SetConv and head, for any number of context sets and of outputs.

    Args:
        config: The architecture.
        num_sets: Number of context sets, each with its own channel, and of outputs, each with its
            own head: 1 for the baselines, F + 1 for a DANP.
    """

    grid: Tensor

    def __init__(self, config: ConvNPConfig, num_sets: int) -> None:
        super().__init__()
        self.config = config
        self.num_sets = num_sets
        scale = 1.0 / config.points_per_unit
        self.encoder = SetConvEncoder(num_sets, scale)
        head_outputs = 2 + config.rank
        # With no hidden layer, the U-Net of independent outputs ends in the two numbers itself.
        fused = config.head_layers == 0 and num_sets * head_outputs <= config.channels
        self.unet = UNETS[config.unet](
            2 * num_sets,
            num_sets * head_outputs if fused else config.channels,
            channels=config.channels,
            num_layers=config.num_layers,
            kernel_size=config.kernel_size,
        )
        self.decoder = SetConvDecoder(scale)
        widths = [config.channels] + [config.head_channels] * config.head_layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.head = None if fused else nn.Linear(widths[-1], num_sets * head_outputs)
        self.register_buffer("grid", config.grid.points().float(), persistent=False)

    def encode(self, sets: Sequence[PointSet]) -> Tensor:
        """Encode one batch of sets a channel, ``(batch, 2 * num_sets, grid)``."""
        parts = [self.encode_set(points, i) for i, points in enumerate(sets)]
        return torch.cat(torch.broadcast_tensors(*parts), dim=1)

    def encode_set(self, points: PointSet, index: int) -> Tensor:
        """Density and data channel of one batch of sets, ``(batch, 2, grid)``."""
        return self.encoder(points, self.grid, index)

    def features(self, encoding: Tensor) -> Tensor:
        """One pass of the U-Net but for its last layer, ``(batch, channels, grid)``."""
        return self.unet(encoding)

    def decode(self, features: Tensor, xt: Tensor, index: int | Tensor) -> LowRankNormal:
        """The predictive of one output at target inputs.

        Args:
            features: ``(batch or 1, channels, grid)``.
            xt: ``(batch or 1, targets, dim_x)``.
            index: Which output, one for the batch or one a row, ``(batch,)``.
        """
        z = self.decoder(features, self.grid, xt, self.unet.out)
        for layer in self.hidden:
            z = F.gelu(layer(z))
        outputs = 2 + self.config.rank
        if self.head is None:
            z = z.unflatten(-1, (self.num_sets, outputs))
            if isinstance(index, int):
                z = z[:, :, index]
            else:
                z = z[torch.arange(len(index), device=z.device), :, index]
        else:
            weight = self.head.weight.unflatten(0, (self.num_sets, outputs))
            bias = self.head.bias.unflatten(0, (self.num_sets, outputs))
            if isinstance(index, int):
                z = F.linear(z, weight[index], bias[index])
            else:
                # Select by a product with zeros and ones: the gradient of indexing is slow.
                sets = torch.arange(self.num_sets, device=index.device)
                chosen = (index.unsqueeze(1) == sets).to(z.dtype)
                weight = (chosen @ weight.flatten(1)).unflatten(1, weight.shape[1:])
                z = torch.baddbmm((chosen @ bias).unsqueeze(1), z, weight.mT)
        mean, raw, factor = z.double().split([1, 1, self.config.rank], dim=-1)
        raw = self.config.variance_gain * raw + self.config.variance_offset
        variance = VARIANCE_FLOOR + F.softplus(raw)
        if self.config.rank == 0:
            return DiagonalNormal(mean, variance)
        return LowRankNormal(mean, variance, factor / self.config.factor_divisor)

    def check(self, sets: Sequence[tuple[str, PointSet]], xt: Tensor) -> None:
        """Refuse what the model cannot take: wrong shapes, values that are not finite, inputs off
        the domain.

        Raises:
            ValueError: With the argument, its value and what would be right.
        """  # noqa: D205
        dtype = self.encoder.log_scale.dtype
        if xt.ndim != 3 or xt.shape[-1] != 1:
            raise ValueError(f"xt must have shape (batch, points, 1), got {tuple(xt.shape)}.")
        for name, x in [("xt", xt)] + [(name + ".x", points.x) for name, points in sets]:
            if x.dtype != dtype:
                raise ValueError(f"{name} must have the model's dtype {dtype}, got {x.dtype}.")
            if x.shape[-1] != 1:
                raise ValueError(f"{name} must have one input dimension, got {x.shape[-1]}.")
        self.config.grid.check("xt", xt)
        sizes = {"xt": len(xt)}
        for name, points in sets:
            points.check(name)
            self.config.grid.check(f"{name}.x", points.x, points.mask)
            sizes[name] = points.batch_size
        if len(set(sizes.values()) - {1}) > 1:
            raise ValueError(f"the batch sizes must agree (or be 1), got {sizes}.")


class ConvNP(nn.Module):
    """A convolutional neural process with one context set and one output.

    Args:
        config: The architecture.
    """

    name: ClassVar[str]

    def __init__(self, config: ConvNPConfig) -> None:
        super().__init__()
        self.config = config
        self.core = ConvNPCore(config, num_sets=1)

    def forward(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        """The predictive at the targets.

        Args:
            context: Context sets.
            xt: Target inputs, ``(batch, targets, 1)``.

        Raises:
            ValueError: If shapes or dtypes are wrong, a value is not finite, or an input is off the
                model's domain.
        """
        self.core.check([("context", context)], xt)
        return self.forward_unchecked(context, xt)

    def forward_unchecked(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        """:meth:`forward` without its checks, for training, where the library made the data."""
        features = self.core.features(self.core.encode([context]))
        return self.core.decode(features, xt, 0)

    @torch.no_grad()
    def predict(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        """:meth:`forward` without gradients."""
        return self(context, xt)


@register
class ConvCNP(ConvNP):
    """A ConvNP whose outputs are independent given the context (Gordon et al., 2020).

    Args:
        config: The architecture, with ``rank=0``.

    Raises:
        ValueError: If the rank is not 0.
    """

    name = "convcnp"

    def __init__(self, config: ConvNPConfig = ConvNPConfig(rank=0)) -> None:
        if config.rank != 0:
            raise ValueError(
                f"a ConvCNP has independent outputs: rank must be 0, got {config.rank}; "
                "for correlated ones use ConvGNP."
            )
        super().__init__(config)


@register
class ConvGNP(ConvNP):
    """A ConvNP whose outputs are jointly Gaussian with a low-rank covariance (Markou et al., 2022).

    Args:
        config: The architecture, with ``rank >= 1``.

    Raises:
        ValueError: If the rank is 0.
    """

    name = "convgnp"

    def __init__(self, config: ConvNPConfig = ConvNPConfig()) -> None:
        if config.rank == 0:
            raise ValueError(
                "a ConvGNP has correlated outputs: rank must be >= 1, got 0; "
                "for independent ones use ConvCNP."
            )
        super().__init__(config)


def paper_config(*, rank: int = 64) -> ConvNPConfig:
    """The architecture that the paper used, its U-Net and the scales of its head.

    Args:
        rank: 64 for the ConvGNP and the DANP, 0 for the ConvCNP.
    """
    return ConvNPConfig(
        unet="paper",
        rank=rank,
        variance_gain=1.0,
        variance_offset=0.0,
        factor_divisor=float(max(rank, 1)),
        head_layers=0,
    )


def count_parameters(model: nn.Module) -> int:
    """Number of scalars that training changes."""
    return sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)
