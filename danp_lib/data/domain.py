"""The domain that inputs come from, and the grid that covers it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from danp_lib._config import Configuration, NonNegativeFloat, PositiveInt

Bounds = tuple[float, float] | tuple[tuple[float, float], ...]
"""A domain in plain values, (lower, upper) or such a pair for each of several dimensions."""


@dataclass(frozen=True)
class Domain:
    """A box that inputs lie in, by its finite lower and upper end in each dimension."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        sides = (self.lower, self.upper)
        if not all(map(_are_numbers, sides)) or len(self.lower) != len(self.upper):
            raise ValueError(
                "lower and upper must be tuples of numbers, one per dimension, got "
                f"{self.lower!r} and {self.upper!r}."
            )
        ends = self.ends
        if not ends or not all(low < high and high - low < math.inf for low, high in ends):
            raise ValueError(
                "domain must be (lower, upper) with lower < upper, of a finite width, or such a "
                f"pair for each of several dimensions, got {ends[0] if len(ends) == 1 else ends}."
            )

    @classmethod
    def of(cls, box: Bounds) -> Domain:
        """The domain of plain values, as configurations hold them."""
        is_list = isinstance(box, (tuple, list))
        pairs: Any = (box,) if is_list and box and isinstance(box[0], Real) else box
        if not is_list or not all(_are_numbers(pair) and len(pair) == 2 for pair in pairs):
            raise ValueError(
                f"domain must be (lower, upper), or a pair per dimension, got {box!r}."
            )
        return cls(*zip(*pairs, strict=True)) if pairs else cls((), ())

    def __str__(self) -> str:
        return " x ".join(str([float(f"{end:.12g}") for end in pair]) for pair in self.ends)

    @property
    def ends(self) -> tuple[tuple[float, float], ...]:
        """(lower, upper) of each dimension."""
        return tuple(zip(self.lower, self.upper, strict=True))

    @property
    def dim_x(self) -> int:
        """Number of dimensions."""
        return len(self.lower)

    @property
    def width(self) -> tuple[float, ...]:
        """The length of each side."""
        return tuple(high - low for low, high in self.ends)

    def contains(self, x: Tensor) -> Tensor:
        """Which inputs ``(..., dim_x)`` lie in the box; NaN does not.

        A side reaches 1e-6 of its largest end, or of 1, further, for what float32 has rounded.
        """
        slack = [1e-6 * max(abs(low), abs(high), 1.0) for low, high in self.ends]
        low = x.new_tensor([low - s for low, s in zip(self.lower, slack, strict=True)])
        high = x.new_tensor([high + s for high, s in zip(self.upper, slack, strict=True)])
        return ((x >= low) & (x <= high)).all(dim=-1)

    def check(self, name: str, x: Tensor, mask: Tensor | None = None) -> None:
        """Refuse inputs off the domain, or NaN, where the mask is true."""
        if x.shape[-1] != self.dim_x:
            raise ValueError(
                f"{name} must have the input dimension of the domain {self}, {self.dim_x}, got "
                f"{x.shape[-1]}."
            )
        off = ~self.contains(x) & (True if mask is None else mask)
        if off.any():
            raise ValueError(
                f"{name} must lie in the domain {self}, got {x[off][0].tolist()}; rescale the "
                "inputs, or widen the domain."
            )

    def from_unit(self, unit: Tensor) -> Tensor:
        """The inputs ``(..., dim_x)`` at coordinates from 0 to 1 along each side."""
        sides = zip(self.lower, self.width, unit.unbind(dim=-1), strict=True)
        # By numbers: a tensor made of them on the host could not be captured on a GPU.
        return torch.stack([low + width * part for low, width, part in sides], dim=-1)


def _are_numbers(ends: Any) -> bool:
    return isinstance(ends, (tuple, list)) and all(isinstance(end, Real) for end in ends)


@dataclass(frozen=True)
class Grid(Configuration):
    """An even grid that covers a domain."""

    domain: Domain  #: The box that inputs may come from.
    points_per_unit: PositiveInt  #: Grid points per unit of x.
    margin: NonNegativeFloat  #: Least distance from the domain's ends to the grid's, in units of x.
    multiple: PositiveInt  #: The number of points along each axis is a multiple of this.

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points along each axis."""
        widths = [width + 2 * self.margin for width in self.domain.width]
        # Rounded first, so that 4.2 * 64 counts the same on every machine.
        counts = [math.ceil(round(width * self.points_per_unit, 6)) + 1 for width in widths]
        return tuple(math.ceil(count / self.multiple) * self.multiple for count in counts)

    def points(self) -> Tensor:
        """The grid, centered on the domain, float64, ``(points, dim_x)``, last axis fastest."""
        axes = []
        for (low, high), count in zip(self.domain.ends, self.shape, strict=True):
            steps = torch.arange(count, dtype=torch.float64) - (count - 1) / 2
            axes.append(0.5 * (low + high) + steps / self.points_per_unit)
        return torch.cartesian_prod(*axes).reshape(-1, self.domain.dim_x)
