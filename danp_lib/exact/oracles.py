"""The exact predictives of the paper's families of tasks, given the models' variance floor.

No predictive variance is below that floor. A model can reach a little more on the Gaussian process;
see :class:`~danp_lib.exact.gp.GaussianProcessOracle`.
"""

from __future__ import annotations

from danp_lib.exact.base import Oracle
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

ORACLES: dict[str, type[Oracle]] = {
    "gp": GaussianProcessOracle,
    "sawtooth": SawtoothOracle,
    "square": SquareWaveOracle,
    "square-released": ReleasedSquareWaveOracle,
}
"""The oracle of each task generator, by the generator's name."""
