"""What all convolutional neural processes share: the network, and the Gaussian it ends in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import VARIANCE_FLOOR, DiagonalNormal, LowRankNormal
from danp_lib.models.conditioning import KNOWN_VARIANCE, MAX_CHI_SQUARE, condition
from danp_lib.models.config import ConvNPConfig
from danp_lib.nn.setconv import SetConvDecoder, SetConvEncoder
from danp_lib.nn.unet import UNETS


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

    def predictive(
        self, features: Tensor, sets: Sequence[PointSet], xt: Tensor, index: int | Tensor
    ) -> LowRankNormal:
        """The predictive of one output at target inputs; the first output's is conditioned on all
        that is known, if so set up.

        Args:
            features: ``(batch or 1, channels, grid)``.
            sets: What was encoded, one batch of sets a channel, ``(batch or 1,)``: the known values
                of the output with the channel's index.
            xt: Target inputs, ``(batch or 1, targets, dim_x)``.
            index: Which output, one for the batch or one a row, ``(batch,)``.
        """  # noqa: D205
        is_noisy = isinstance(index, int) and index > 0
        if not self.config.conditioned or self.config.rank == 0 or is_noisy:
            return self.decode(features, xt, index)
        given = [(i, points) for i, points in enumerate(sets) if points.num_points > 0]
        xs = [xt, *(torch.where(points.mask.unsqueeze(-1), points.x, 0.0) for _, points in given)]
        # Many small calls take far longer than one; but what all samples share is not copied.
        parts_of: dict[int, Iterator[Tensor]] = {}
        for batch in {len(x) for x in xs}:
            same = [x for x in xs if len(x) == batch]
            hidden = self._hidden(features, torch.cat(same, dim=1))
            parts_of[batch] = iter(hidden.split([x.shape[1] for x in same], dim=1))
        z, *parts = [next(parts_of[len(x)]) for x in xs]
        known = []
        for (i, points), part in zip(given, parts, strict=True):
            if not isinstance(index, int):
                points = points.expand(len(index)).masked_where(index == 0)
            known.append((self._output(part, i, KNOWN_VARIANCE), points))
        return condition(self._output(z, index), known, max_chi_square=MAX_CHI_SQUARE)

    def decode(self, features: Tensor, xt: Tensor, index: int | Tensor) -> LowRankNormal:
        """What the network says of one output at target inputs, before any conditioning.

        Args:
            features: ``(batch or 1, channels, grid)``.
            xt: ``(batch or 1, targets, dim_x)``.
            index: Which output, one for the batch or one a row, ``(batch,)``.
        """
        return self._output(self._hidden(features, xt), index)

    def _hidden(self, features: Tensor, x: Tensor) -> Tensor:
        z = self.decoder(features, self.grid, x, self.unet.out)
        for layer in self.hidden:
            z = F.gelu(layer(z))
        return z

    def _output(
        self, z: Tensor, index: int | Tensor, floor: float = VARIANCE_FLOOR
    ) -> LowRankNormal:
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
        variance = floor + F.softplus(raw)
        if self.config.rank == 0:
            return DiagonalNormal(mean, variance)
        return LowRankNormal(mean, factor / self.config.factor_divisor, variance)

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
