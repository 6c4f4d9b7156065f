"""A known cycle, taken out of the data before training and put back into every prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from danp_lib._config import Configuration, PositiveFloat
from danp_lib.data.points import PointSet
from danp_lib.data.scaling import affine
from danp_lib.models.convnp import Predictive

NUM_HARMONICS = 4
LEAST_OF_A_CYCLE = 0.75
"""Of a period, what inputs must span; the harmonics run wild where there are none."""


@dataclass(frozen=True)
class Season(Configuration):
    r"""A mean that repeats, :math:`c_0 + \sum_k a_k \cos 2\pi k x / T + b_k \sin 2\pi k x / T`.

    Attributes:
        period: T, in units of x.
        coefficients: :math:`c_0, a_1, \dots, a_K, b_1, \dots, b_K`.
    """

    period: PositiveFloat
    coefficients: tuple[float, ...]

    @classmethod
    def fit(cls, x: Tensor, y: Tensor, period: float) -> Season:
        """The least-squares fit to points ``(points,)``, those to train on and no others.

        Refuses a period much longer than the inputs' range, and points that do not tell the
        harmonics apart, as monthly values do not for six of a year.
        """
        blank = cls(period, (0.0,) * (1 + 2 * NUM_HARMONICS))
        if (span := float(x.max() - x.min())) < LEAST_OF_A_CYCLE * period:
            raise ValueError(
                "period must be one of which the inputs to train on span most, since nothing is "
                f"known of the rest, got {period} for inputs that span {span:g}."
            )
        waves = blank._waves(x)
        if int(torch.linalg.matrix_rank(waves)) < waves.shape[1]:
            raise ValueError(
                f"period must be one in which the inputs lie at {waves.shape[1]} different places "
                f"or more, got {period}; take the mean out yourself."
            )
        solution = torch.linalg.lstsq(waves, y.double().unsqueeze(-1)).solution
        return cls(period, tuple(solution.flatten().tolist()))

    def mean(self, x: Tensor) -> Tensor:
        """The mean at inputs of any shape."""
        return self._waves(x) @ torch.tensor(self.coefficients, dtype=torch.float64)

    def remove(self, points: PointSet, x: Tensor) -> PointSet:
        """Points without their season, given the inputs in the table, ``(*batch, points, 1)``."""
        return PointSet(points.x, points.y.double() - self.mean(x), points.mask)

    def add(self, predictive: Predictive, x: Tensor) -> Predictive:
        """A predictive with its season, given the inputs in the table, ``(batch, points, 1)``."""
        return affine(predictive, self.mean(x))

    def _waves(self, x: Tensor) -> Tensor:
        """``(*shape, 1 + 2 K)``."""
        orders = torch.arange(1, (len(self.coefficients) + 1) // 2, dtype=torch.float64)
        angle = 2.0 * math.pi * x.double().unsqueeze(-1) / self.period * orders
        return torch.cat([torch.ones_like(angle[..., :1]), angle.cos(), angle.sin()], dim=-1)
