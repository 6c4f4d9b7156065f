"""The architecture of a convolutional neural process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from danp_lib._config import (
    Configuration,
    Limit,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from danp_lib.data.domain import Box, Domain, Grid

STEPS_PER_SPACING = 16
"""The fewest steps of float32 between two points of the grid, at the end of the domain."""


@dataclass(frozen=True)
class ConvNPConfig(Configuration):
    r"""The architecture of a convolutional neural process.

    The head's outputs become the predictive as :math:`v = 10^{-6} +
    \operatorname{softplus}(g z + o)` for the diagonal variance, with gain g and offset o, and
    :math:`W = z / c` for the factor, with divisor c.

    A jump of a wave is sharper than the features: the SetConv to the targets blurs them over its
    length scale. Hidden layers between it and the head make the jump after the blur, out of a
    feature that runs smoothly across it, such as the phase of the wave.

    The joint Gaussian of a ConvGNP holds at the context's inputs too, and says there what the
    network has not made of the context. Conditioned on the context
    (:func:`~danp_lib.models.conditioning.condition`), its predictive is exact in what is linear and
    Gaussian, which no number of convolutions is. A DANP's clean level is conditioned on the noisy
    sets as well, whose outputs its Gaussian has with their noise; the noisy levels are not
    conditioned, since noise hides what there is to gain. Independent outputs say nothing of each
    other, and so nothing changes at rank 0.

    Attributes:
        domain: Box that every input must lie in; the grid covers it. (lower, upper), or such a
            pair for each of several dimensions.
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
        conditioned: Whether the clean level's Gaussian is conditioned on all known points.
    """

    domain: Box = (-2.0, 2.0)
    points_per_unit: PositiveInt = 64
    margin: NonNegativeFloat = 0.1
    unet: Literal["paper", "full-resolution"] = "full-resolution"
    channels: PositiveInt = 64
    num_layers: PositiveInt = 6
    kernel_size: Annotated[PositiveInt, Limit("and odd", lambda value: value % 2 == 1)] = 5
    rank: NonNegativeInt = 64
    variance_gain: PositiveFloat = 5.0
    variance_offset: float = -4.0
    factor_divisor: PositiveFloat = 8.0
    head_layers: NonNegativeInt = 2
    head_channels: PositiveInt = 128
    conditioned: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        farthest = max(map(abs, (*self.grid.domain.lower, *self.grid.domain.upper)))
        limit = 1.0 / (STEPS_PER_SPACING * torch.finfo(torch.float32).eps * self.points_per_unit)
        if not farthest <= limit:
            raise ValueError(
                f"domain must lie within {limit:g} of 0 at {self.points_per_unit} points per unit, "
                f"for float32 to resolve inputs between the grid's points, got {self.domain}; "
                "shift or rescale the inputs."
            )

    @property
    def grid(self) -> Grid:
        """The grid of the model."""
        domain = Domain.of(self.domain)
        return Grid(domain, self.points_per_unit, self.margin, 2**self.num_layers)


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
