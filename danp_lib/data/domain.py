"""The domain that inputs come from, and the grid that covers it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """An even grid that covers a domain with a margin on either side.

    Attributes:
        domain: The interval that inputs may come from.
        points_per_unit: Grid points per unit of x.
        margin: Least distance from the domain's ends to the grid's, in units of x.
        multiple: The number of grid points is rounded up to a multiple of this.
    """

    domain: tuple[float, float]
    points_per_unit: int
    margin: float
    multiple: int

    def __post_init__(self) -> None:
        if not self.domain[0] < self.domain[1]:
            raise ValueError(
                f"domain must be (lower, upper) with lower < upper, got {self.domain}."
            )
        if self.points_per_unit < 1 or self.margin < 0.0 or self.multiple < 1:
            raise ValueError(
                "points_per_unit and multiple must be >= 1 and margin >= 0, got "
                f"{self.points_per_unit}, {self.multiple} and {self.margin}."
            )

    @property
    def num_points(self) -> int:
        """Number of grid points."""
        intervals = (self.domain[1] - self.domain[0] + 2 * self.margin) * self.points_per_unit
        # Rounded first, so that 4.2 * 64 counts the same on every machine.
        return math.ceil((math.ceil(round(intervals, 6)) + 1) / self.multiple) * self.multiple

    def points(self) -> Tensor:
        """The grid, centered on the domain, float64, ``(num_points,)``."""
        center = 0.5 * (self.domain[0] + self.domain[1])
        steps = torch.arange(self.num_points, dtype=torch.float64) - (self.num_points - 1) / 2
        return center + steps / self.points_per_unit

    def check(self, name: str, x: Tensor, mask: Tensor | None = None) -> None:
        """Refuse inputs off the domain.

        Raises:
            ValueError: If a real input is NaN or outside the domain. ``name`` is what it is called.
        """
        lower, upper = self.domain
        # The slack is one rounding of float32 at the domain's ends.
        slack = 1e-6 * max(abs(lower), abs(upper), 1.0)
        bad = ~((x >= lower - slack) & (x <= upper + slack)).all(dim=-1)
        if mask is not None:
            bad &= mask
        if bad.any():
            value = x[bad][0].tolist()
            raise ValueError(
                f"{name} must lie in the model's domain [{lower}, {upper}], got {value}; rescale "
                "the inputs, or build the model with a wider domain."
            )
