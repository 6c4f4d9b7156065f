"""The exact predictives of the paper's families of tasks, given the models' variance floor.

No predictive variance is below it. On the Gaussian process a model can reach a little more, and a
rollout, which conditions without the floor, a good deal: see :class:`.GaussianProcessOracle`.
"""

from danp_lib.exact.base import Oracle as Oracle
from danp_lib.exact.gp import GaussianProcessOracle as GaussianProcessOracle
from danp_lib.exact.sawtooth import SawtoothOracle as SawtoothOracle
from danp_lib.exact.square import ReleasedSquareWaveOracle as ReleasedSquareWaveOracle
from danp_lib.exact.square import SquareWaveOracle as SquareWaveOracle

#: The oracle of each task generator, by the generator's name.
ORACLES: dict[str, type[Oracle]] = {
    "gp": GaussianProcessOracle,
    "sawtooth": SawtoothOracle,
    "square": SquareWaveOracle,
    "square-released": ReleasedSquareWaveOracle,
}
