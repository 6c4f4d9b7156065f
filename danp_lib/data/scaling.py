"""The units of the data and those of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from danp_lib._config import Configuration, PositiveFloat
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture

Predictive = TypeVar("Predictive", LowRankNormal, Mixture)


@dataclass(frozen=True)
class Scaling(Configuration):
    """An affine map from the data's units to a model's, and back.

    A model's x lies in its domain, and its y should be near zero with a spread near one. The map is
    part of the model: it is kept in its checkpoint, ``danp predict`` reads and writes the data's
    units by it, and :func:`~danp_lib.storage.checkpoint.load_scaling` gives it back.

    Attributes:
        x_offset: The data's x that becomes 0.
        x_unit: The length in the data's x that becomes 1.
        y_offset: The data's y that becomes 0.
        y_unit: The length in the data's y that becomes 1.
    """

    x_offset: float
    x_unit: PositiveFloat
    y_offset: float
    y_unit: PositiveFloat

    @classmethod
    def fit(
        cls,
        table: PointSet,
        *,
        x_range: tuple[float, float] | None = None,
        domain: tuple[float, float] = (-2.0, 2.0),
    ) -> Scaling:
        """The map that takes a range of x onto a domain, and y to zero mean and unit variance.

        Args:
            table: The functions to train on, and no others.
            x_range: The range; from the least to the greatest x of the table where left out.
            domain: The model's domain.

        Raises:
            ValueError: If the table holds no point, all its y are equal, or a range is empty.
        """
        table.check("table")
        x, y = table.x[table.mask].double(), table.y[table.mask].double()
        if x.numel() == 0:
            raise ValueError("table must hold at least one point, got none.")
        low, high = (float(x.min()), float(x.max())) if x_range is None else x_range
        if not low < high or not domain[0] < domain[1]:
            raise ValueError(
                "x_range and domain must be (lower, upper) with lower < upper, got "
                f"{(low, high)} and {domain}."
            )
        x_unit = (high - low) / (domain[1] - domain[0])
        # Rounding makes the standard deviation of equal numbers tiny, not zero.
        if not y.max() > y.min():
            raise ValueError(f"the y of table must differ, but all {y.numel()} are {float(y[0])}.")
        return cls(low - x_unit * domain[0], x_unit, float(y.mean()), float(y.std(correction=0)))

    def inputs(self, x: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """The model's x of the data's x, any shape."""
        return ((x.double() - self.x_offset) / self.x_unit).to(dtype)

    def apply(self, points: PointSet, *, dtype: torch.dtype = torch.float32) -> PointSet:
        """Sets in the model's units, of the same sets in the data's."""
        y = ((points.y.double() - self.y_offset) / self.y_unit).to(dtype)
        return PointSet(self.inputs(points.x, dtype=dtype), y, points.mask)

    def invert(self, points: PointSet) -> PointSet:
        """Sets in the data's units, float64, of the same sets in the model's."""
        x = self.x_offset + self.x_unit * points.x.double()
        return PointSet(x, self.y_offset + self.y_unit * points.y.double(), points.mask)

    def predictive(self, predictive: Predictive) -> Predictive:
        r"""A predictive of the data's y, of the same one of the model's.

        Means and standard deviations are in the data's units, and so are densities: the log-density
        of N outputs changes by :math:`-N \log u`, with u for ``y_unit``.
        """
        if isinstance(predictive, Mixture):
            return Mixture(predictive.logits, self.predictive(predictive.components))
        return LowRankNormal(
            self.y_offset + self.y_unit * predictive.loc,
            self.y_unit * predictive.cov_factor,
            self.y_unit**2 * predictive.cov_diag,
        )


IDENTITY = Scaling(0.0, 1.0, 0.0, 1.0)
"""What changes nothing: the data's units are the model's."""
