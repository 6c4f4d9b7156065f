"""Exact predictives of the four families of tasks, given the models' variance floor.

No predictive variance is below that floor. A model can reach a little more on the Gaussian process;
see :class:`~danp_lib.exact.gp.GaussianProcessOracle`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor

from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.exact.gp import GaussianProcessOracle
from danp_lib.exact.sawtooth import SawtoothOracle
from danp_lib.exact.square import ReleasedSquareWaveOracle, SquareWaveOracle

__all__ = [
    "ORACLES",
    "GaussianProcessOracle",
    "Oracle",
    "ReleasedSquareWaveOracle",
    "SawtoothOracle",
    "SquareWaveOracle",
]


class Oracle(Protocol):
    """What every exact predictive can do."""

    num_levels: ClassVar[int]
    """0: nothing is sampled."""

    def predict(self, context: PointSet, xt: Tensor) -> LowRankNormal | Mixture:
        """The predictive at target inputs ``(batch, targets, dim_x)``, batch shape ``(batch,)``."""
        ...

    def log_prob(self, context: PointSet, target: PointSet) -> Tensor:
        """Log-density of the targets given the context in nats, ``(batch,)``."""
        ...


ORACLES: dict[str, type[Oracle]] = {
    "gp": GaussianProcessOracle,
    "sawtooth": SawtoothOracle,
    "square": SquareWaveOracle,
    "square-released": ReleasedSquareWaveOracle,
}
"""The oracle of each task generator, by the generator's name."""
