"""The exact predictive of the square-wave tasks."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from danp_lib._config import Limit, PositiveInt
from danp_lib.data.generators import ReleasedSquareWave, SquareWave
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import VARIANCE_FLOOR
from danp_lib.exact.waves import WaveOracle, lattice, midpoints, real_points

_COARSEST = 1024  # cells of the frequency range to start from
_SPLIT = 4  # parts that a cell is cut into
_NARROWEST = 1e-13  # cells of this width are at the end of float64
_TOUCHING = 1e-14  # phases; above the rounding of omega x
_CLEAR = 25.0  # floors from 1/2 to an output: the nearer value is exp(25) times as likely
_UNDECIDED = 1 << 16  # cells; so many are left only where points contradict along a whole line


@dataclass(frozen=True)
class SquareWaveOracle(WaveOracle):
    r"""Exact inference over square waves, :class:`~danp_lib.SquareWave`.

    The parity of :math:`\lfloor\omega x - \phi\rfloor` changes at most once as the phase runs over
    its range, which is shorter than 1. At a given frequency the phases that agree with all points
    are therefore one interval. Its length over that of the range, averaged over the frequency, is
    the probability of the points. That integral is by the midpoint rule, on cells that are cut in
    four until ``num_cells`` of them hold agreeing waves; those that cannot hold one are dropped,
    since the bounds are Lipschitz in the frequency. A rule 64 to 128 times as fine changes
    :meth:`log_prob` of 50 targets by at most 5e-7 nats per target.

    :meth:`log_prob` counts only waves that have at every target the value, 0 or 1, that is nearer
    to it. A wave with the other value at one has exp(-25) of their density or less, since outputs
    within 25 v of 1/2, with the floor v, are refused. So are targets whose nearer values are on no
    wave through the context: each value that a wave misses costs 500,000 nats at the default floor,
    and which waves miss the fewest is not searched for. The density of
    :class:`~danp_lib.exact.sawtooth.SawtoothOracle`, an integral over all waves, takes any targets.
    """

    family: ClassVar[type[SquareWave]] = SquareWave  #: The prior, for its range of the phase.
    #: The range of omega, in half periods per unit of x. Below 1, that of the phase may be empty.
    frequency: Annotated[
        tuple[float, float], Limit("with 1 <= lower < upper", lambda pair: 1 <= pair[0] < pair[1])
    ] = (1.0, 3.0)
    variance_floor: Annotated[
        float,
        Limit("> 0, and <= 0.01 for a wrong value to be negligible", lambda v: 0 < v <= 1e-2),
    ] = VARIANCE_FLOOR
    num_cells: PositiveInt = 1024  #: The fewest cells of the frequency to hold agreeing waves.

    def _nodes(self, x: Tensor, y: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        omega, low, high, log_weights = self._agreeing(x, y, "context")
        first, second = lattice(self.num_nodes, x)
        cell = torch.searchsorted(log_weights.softmax(0).cumsum(0), first)
        cell = cell.clamp(max=omega.numel() - 1)  # the last sum may round to below 1
        phi = low[cell] + (high - low)[cell] * second
        outputs = SquareWave.evaluate(xt, omega[cell, None], phi[:, None])
        return torch.zeros_like(phi), outputs

    def _log_density(self, context: PointSet, target: PointSet) -> Tensor:
        x, y, xt, yt = *real_points(context), *real_points(target)
        clear = _CLEAR * self.variance_floor
        if ((yt - 0.5).abs() < clear).any():
            raise ValueError(
                f"target must have outputs nearer to one of 0 and 1, at most {0.5 - clear:g} or at "
                f"least {0.5 + clear:g}, got {yt.tolist()}."
            )
        values = (yt > 0.5).to(yt.dtype)
        joint = self._agreeing(torch.cat([x, xt]), torch.cat([y, values]), "context and target")[-1]
        alone = self._agreeing(x, y, "context")[-1]
        constant = -0.5 * xt.numel() * math.log(2.0 * math.pi * self.variance_floor)
        misses = 0.5 * (yt - values).square().sum() / self.variance_floor
        return constant + joint.logsumexp(0) - alone.logsumexp(0) - misses

    def _agreeing(self, x: Tensor, y: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The waves through all points, in cells of equal width of the frequency.

        Returns the frequency, the lowest and the highest phase, and the log-probability of each.
        """
        if not ((y == 0.0) | (y == 1.0)).all():
            raise ValueError(f"{name} must have outputs 0 and 1 alone, got {y.tolist()}.")
        # As the frequency grows, a bound moves at a rate of x, 0 or -1 / omega^2 >= -1.
        steepest = float(x.amax().clamp(min=0.0) - x.amin().clamp(max=-1.0)) if x.numel() else 1.0
        scope = self.frequency[1] - self.frequency[0]
        width = scope / _COARSEST
        omega = midpoints(*self.frequency, _COARSEST, x)
        parts = midpoints(-0.5, 0.5, _SPLIT, x)
        while True:
            first, last = self.family.phase_range(omega)
            low, high = _phase_bounds(omega, x, y, (first, last))
            # Intervals of points that contradict each other touch, up to rounding.
            agree = high - low > _TOUCHING
            if int(agree.sum()) >= self.num_cells:
                break
            # From an agreeing wave to the middle of its cell, the bounds move by so much at most;
            # unless they jump on the way, where the range of phases leaves so little out.
            reach = steepest * width
            omega = omega[(high - low > -0.5 * reach) | (1.0 - (last - first) <= reach)]
            too_many = omega.numel() > self.num_cells + _UNDECIDED
            if omega.numel() == 0 or width < _NARROWEST or too_many:
                raise ValueError(
                    f"{name} must lie on a square wave with frequency in {self.frequency}, but no "
                    "such wave, or too narrow a set of them to resolve, goes through the "
                    f"{x.numel()} points: x = {x.tolist()}, y = {y.tolist()}."
                )
            omega = (omega[:, None] + width * parts).flatten()
            width = width / _SPLIT
        log_weights = math.log(width / scope) + ((high - low) / (last - first))[agree].log()
        return omega[agree], low[agree], high[agree], log_weights


def _phase_bounds(
    omega: Tensor, x: Tensor, y: Tensor, ends: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    r"""The interval of phases that agree with all points at each frequency; empty if low > high.

    Its length, high - low, is Lipschitz in the frequency as long as it is above
    :math:`-(1 - R) / 2`, with phases of a range of length R, of ``ends`` ``(cells,)``.
    """
    first, last = (end[:, None] for end in ends)
    middle = 0.5 * (first + last)
    # A point agrees with an interval of phases of length 1 and its shifts by 2. The one nearest to
    # the range holds all phases of it that agree, since the range is no longer than 1.
    center = omega[:, None] * x - 0.5 + (y == 0.0)
    center = middle + torch.remainder(center - middle + 1.0, 2.0) - 1.0
    low = torch.cat([first, center - 0.5], dim=1).amax(dim=1)
    high = torch.cat([last, center + 0.5], dim=1).amin(dim=1)
    return low, high


@dataclass(frozen=True)
class ReleasedSquareWaveOracle(SquareWaveOracle):
    """Exact inference over :class:`~danp_lib.data.generators.ReleasedSquareWave`."""

    family: ClassVar[type[SquareWave]] = ReleasedSquareWave
