"""The units of the data and those of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from danp_lib._config import Configuration, PositiveFloat, check_kind, naming
from danp_lib.data.domain import Bounds, Domain
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture

AnyPredictive = TypeVar("AnyPredictive", LowRankNormal, Mixture, LowRankNormal | Mixture)


@dataclass(frozen=True)
class Scaling(Configuration):
    """An affine map between the data's units and a model's; checkpoints keep it.

    A model's x lies in its domain, and its y should be near zero with a spread near one. The offset
    becomes 0, and the unit is the length that becomes 1, of x in each of several dimensions, or a
    number for all.
    """

    x_offset: float | tuple[float, ...]
    x_unit: PositiveFloat | tuple[PositiveFloat, ...]
    y_offset: float
    y_unit: PositiveFloat

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self._dims) > 1 or 0 in self._dims:
            raise ValueError(
                "x_offset and x_unit must be numbers, or hold one for each input dimension, got "
                f"{self.x_offset} and {self.x_unit}."
            )

    @classmethod
    def fit(
        cls, table: PointSet, *, x_range: Bounds | None = None, domain: Bounds = (-2.0, 2.0)
    ) -> Scaling:
        """The map that takes a range of x onto a domain, and y to zero mean and unit variance.

        The table holds the functions to train on; their x are the range where it is left out.
        """
        check_kind(PointSet, table=table)
        table.check("table")
        x, y = table.x[table.mask].double(), table.y[table.mask].double()
        if len(x) == 0:
            raise ValueError("table must hold at least one point, got none.")
        if x_range is None:
            x_range = tuple(zip(x.amin(dim=0).tolist(), x.amax(dim=0).tolist(), strict=True))
        with naming("x_range or domain"):
            data, model = Domain.of(x_range), Domain.of(domain)
        if not data.dim_x == model.dim_x == x.shape[-1]:
            raise ValueError(
                f"x_range and domain must have the input dimension of table, {x.shape[-1]}, got "
                f"{data} and {model}."
            )
        # Rounding makes the standard deviation of equal numbers tiny, not zero.
        if not y.max() > y.min():
            raise ValueError(
                f"the outputs of the functions must differ, but all {len(y)} are {float(y[0])}."
            )
        unit = [ours / theirs for ours, theirs in zip(data.width, model.width, strict=True)]
        ends = zip(data.lower, unit, model.lower, strict=True)
        offset = [ours - scale * theirs for ours, scale, theirs in ends]
        x_offset, x_unit = (v[0] if len(v) == 1 else tuple(v) for v in (offset, unit))
        return cls(x_offset, x_unit, float(y.mean()), float(y.std(correction=0)))

    def inputs(self, x: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """The model's x of the data's x, ``(..., dim_x)``."""
        offset, unit = self._x_map(x)
        return ((x.double() - offset) / unit).to(dtype)

    def apply(self, points: PointSet, *, dtype: torch.dtype = torch.float32) -> PointSet:
        """Sets in the model's units, of sets in the data's."""
        y = ((points.y.double() - self.y_offset) / self.y_unit).to(dtype)
        return PointSet(self.inputs(points.x, dtype=dtype), y, points.mask)

    def data_domain(self, domain: Domain) -> Domain:
        """The domain in the data's units of one in the model's."""
        ends = torch.tensor([domain.lower, domain.upper], dtype=torch.float64)
        offset, unit = self._x_map(ends)
        return Domain(*map(tuple, (offset + unit * ends).tolist()))

    def outputs(self, y: Tensor) -> Tensor:
        """The data's y, float64, of the model's."""
        return self.y_offset + self.y_unit * y.double()

    def predictive(self, predictive: AnyPredictive) -> AnyPredictive:
        """The predictive of the data's y, of one of the model's."""
        return affine(predictive, self.y_offset, self.y_unit)

    @property
    def _dims(self) -> set[int]:
        """The numbers of dimensions that the map of x is given for; none where it is for all."""
        return {len(part) for part in (self.x_offset, self.x_unit) if isinstance(part, tuple)}

    def _x_map(self, x: Tensor) -> Iterator[Tensor]:
        if wrong := self._dims - {x.shape[-1]}:
            raise ValueError(
                f"x must have the input dimension of the scaling, {max(wrong)}, got {x.shape[-1]}."
            )
        pair = self.x_offset, self.x_unit
        return (torch.tensor(each, dtype=torch.float64, device=x.device) for each in pair)


def affine(predictive: AnyPredictive, offset: float | Tensor, unit: float = 1.0) -> AnyPredictive:
    """The predictive of ``offset + unit * y``; an offset may be one of each y, as its mean is."""
    if isinstance(predictive, Mixture):
        each = offset.unsqueeze(-3) if isinstance(offset, Tensor) else offset
        return Mixture(predictive.logits, affine(predictive.components, each, unit))
    return LowRankNormal(
        offset + unit * predictive.loc, unit * predictive.cov_factor, unit**2 * predictive.cov_diag
    )


IDENTITY = Scaling(0.0, 1.0, 0.0, 1.0)  #: Changes nothing; the data's units are the model's.
