"""The exact predictive of the sawtooth tasks."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from danp_lib._config import Limit, PositiveInt
from danp_lib.data.points import PointSet
from danp_lib.exact.waves import WaveOracle, lattice, midpoints, real_points

_CELLS = 4096  # of the frequency range; 1 / (omega - 1) is taken as constant within one
_CHUNK = 512  # frequencies integrated at once, to bound the memory


@dataclass(frozen=True)
class SawtoothOracle(WaveOracle):
    r"""Exact inference over sawtooth waves, :class:`~danp_lib.Sawtooth`.

    A wave is :math:`f(x) = (\omega d x - \psi) \bmod 1` with :math:`\psi = \omega\phi \bmod 1`, and
    its prior density is :math:`p(\omega)\, \tfrac12\, m(\omega, \psi) / (\omega - 1)` on
    :math:`\psi \in [0, 1)`, where m counts the phases :math:`\omega\phi \in (1, \omega)` that give
    the same wave.

    **Context.** One point (the leftmost, x') fixes psi. For every further point,
    :math:`\omega d (x - x') + y' - y` has to be an integer, up to ``tolerance``. That leaves an
    interval of frequencies for each integer in range: two points leave sixteen waves or fewer, and
    three almost always one. A value beside a jump may be on either side of it.

    **Density of the targets.** Any targets have one, on a wave or far off all. Between two
    frequencies (or, without a context, phases) at which a target meets a jump, every target is
    linear in the parameter, and the integral of the Gaussian floor is a difference of normal
    distribution functions. Without a context there is an integral over the frequency too, by the
    midpoint rule. A rule four to eight times as fine changes :meth:`log_prob` of 50 targets by at
    most 1e-12 nats per target without a context and 2e-6 given one point, and that of two targets
    without a context by 2e-4.
    """

    #: The range of omega, in periods per unit of x. At 1 the density above is infinite.
    frequency: Annotated[
        tuple[float, float], Limit("with 1 < lower < upper", lambda pair: 1 < pair[0] < pair[1])
    ] = (2.0, 4.0)
    #: How far, in units of y, points may be off a wave; by default three units in the last place of
    #: a float32 just below 1.
    tolerance: Annotated[float, Limit("> 0 and < 0.25", lambda value: 0 < value < 0.25)] = 2e-7
    #: Nodes of the midpoint rule to a standard deviation of the frequency.
    nodes_per_stddev: PositiveInt = 4

    def _nodes(self, x: Tensor, y: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = self.frequency
        if x.numel() == 0:
            first, second = lattice(self.num_nodes, xt)
            omega = lower + (upper - lower) * first
            psi = omega * (1.0 / omega + (1.0 - 1.0 / omega) * second)
            slopes = torch.cat([omega, -omega])
            outputs = torch.remainder(slopes[:, None] * xt - psi.repeat(2)[:, None], 1.0)
            return torch.zeros_like(slopes), outputs
        x0, y0 = x[x.argmin()], y[x.argmin()]
        weights, waves = [], []
        for d, low, high in self._intervals(x, y):
            share = (high - low) / (upper - lower)
            count = math.ceil(self.num_nodes * share)
            omega = midpoints(low, high, count, x)
            prior = _log_prior(omega, torch.remainder(d * omega * x0 - y0, 1.0))
            weights.append(prior + math.log(share / count))
            waves.append(torch.remainder(d * omega[:, None] * (xt - x0) + y0, 1.0))
        return torch.cat(weights), torch.cat(waves)

    def _log_density(self, context: PointSet, target: PointSet) -> Tensor:
        x, y, xt, yt = *real_points(context), *real_points(target)
        if xt.numel() == 0:
            return xt.new_zeros(())
        constant = -0.5 * xt.numel() * math.log(2.0 * math.pi * self.variance_floor)
        if x.numel() == 0:
            return constant + self._log_evidence(xt, yt)
        x0, y0 = (part[x.argmin()].reshape(1) for part in (x, y))
        grid = torch.linspace(*self.frequency, _CELLS + 1, dtype=x.dtype, device=x.device)
        joint, alone = [], []
        for d, low, high in self._intervals(x, y):
            slope, offset = d * (xt - x0), y0.expand_as(xt)
            # The prior jumps too: its m changes with psi and with omega - psi.
            slopes, offsets = torch.cat([slope, d * x0, 1.0 - d * x0]), torch.cat([offset, -y0, y0])
            points = torch.cat([grid, _integer_crossings(slopes, offsets, low, high)])
            inner = points[(points > low) & (points < high)]
            edges = torch.cat([inner, inner.new_tensor([low, high])]).sort().values
            integral = _integrate_pieces(edges, slope, offset, yt, self.variance_floor)
            middle = 0.5 * (edges[1:] + edges[:-1])
            prior = _log_prior(middle, torch.remainder(d * middle * x0 - y0, 1.0))
            joint.append(integral + prior)
            alone.append(edges.diff().log() + prior)
        return constant + torch.cat(joint).logsumexp(0) - torch.cat(alone).logsumexp(0)

    def _intervals(self, x: Tensor, y: Tensor) -> list[tuple[float, float, float]]:
        """The frequencies that agree with at least one point, as (d, lowest, highest)."""
        if not ((y >= -self.tolerance) & (y <= 1.0 + self.tolerance)).all():
            raise ValueError(f"the context must have outputs from 0 to 1, got {y.tolist()}.")
        near, far = x.argmin(), x.argmax()
        found = []
        for d in (1.0, -1.0):
            slope, offset = d * (x - x[near]), y[near] - y
            ends = slope[far] * x.new_tensor(self.frequency) + offset[far]
            low, high = self._solve(slope[far], offset[far], _integers(ends, self.tolerance))
            low, high = low.clamp(min=self.frequency[0]), high.clamp(max=self.frequency[1])
            low, high = low[low < high], high[low < high]
            # No point is further from the anchor than the farthest, so over one of these intervals
            # its phase moves by at most twice the tolerance, and one integer is in reach.
            middle = 0.5 * (low + high)
            lows, highs = self._solve(slope, offset, torch.round(middle[:, None] * slope + offset))
            low = torch.maximum(low, lows.amax(dim=1))
            high = torch.minimum(high, highs.amin(dim=1))
            both = torch.stack([low, high], dim=1)[low < high]
            found += [(d, first, last) for first, last in both.tolist()]
        if not found:
            raise ValueError(
                f"the context must lie on a sawtooth wave with frequency in {self.frequency} to "
                f"within {self.tolerance}, but no such wave goes through its {x.numel()} points: "
                f"x = {x.tolist()}, y = {y.tolist()}."
            )
        return found

    def _solve(self, slope: Tensor, offset: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The interval of omega in which ``slope omega + offset`` is within tolerance of k."""
        # The slope of a repeated input is zero: all of the line, or none of it, at one infinity.
        a, b = (k - self.tolerance - offset) / slope, (k + self.tolerance - offset) / slope
        return torch.minimum(a, b), torch.maximum(a, b)

    def _log_evidence(self, x: Tensor, y: Tensor) -> Tensor:
        """Log-integral over all waves of the Gaussian floor, without its constant."""
        lower, upper = self.frequency
        stddev = math.sqrt(self.variance_floor)
        spread = float((x - x.mean()).square().sum().sqrt())
        cells = max(_CELLS, math.ceil((upper - lower) * spread / stddev * self.nodes_per_stddev))
        omega = midpoints(lower, upper, cells, x)
        signed = torch.cat([omega, -omega])
        near, far = x.argmin(), x.argmax()
        phase = signed * (x[far] - x[near]) - (y[far] - y[near])
        mismatch = (phase - phase.round()).abs()
        # The outermost targets' mismatch r, a difference of two residuals, costs at least a factor
        # exp(-r^2 / 4v); widen the net until what it leaves out is below 1e-10 of the integral.
        bound = 16.0 * stddev
        while True:
            chosen = signed[mismatch <= bound]
            chunks = [self._log_phase_integral(part, x, y) for part in chosen.split(_CHUNK)]
            result = torch.cat([*chunks, x.new_full((1,), -math.inf)]).logsumexp(0)
            result = result - math.log(2.0 * cells)
            left_out = -(bound**2) / (4.0 * self.variance_floor)
            if bound >= 0.5 or left_out - result < math.log(1e-10):
                return result
            bound *= 2.0

    def _log_phase_integral(self, signed: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The integral over psi at each signed frequency ``(n,)``, prior included."""
        omega = signed.abs().unsqueeze(-1)
        offset = signed.unsqueeze(-1) * x
        crossings = torch.remainder(torch.cat([offset, omega], dim=-1), 1.0)
        ends = torch.zeros_like(omega), torch.ones_like(omega)
        edges = torch.cat([*ends, crossings], dim=-1).sort(dim=-1).values
        slope = -torch.ones_like(x)
        integral = _integrate_pieces(edges, slope, offset.unsqueeze(-2), y, self.variance_floor)
        middle = 0.5 * (edges[..., 1:] + edges[..., :-1])
        return (integral + _log_prior(omega, middle)).logsumexp(dim=-1)


def _log_prior(omega: Tensor, psi: Tensor) -> Tensor:
    """Log-density of waves, up to a constant; m counts the integers from 1 below omega - psi."""
    m = torch.ceil(omega - psi) - 1.0
    return torch.log(m / (omega - 1.0))


def _integer_crossings(slope: Tensor, offset: Tensor, low: float, high: float) -> Tensor:
    """Where any of ``slope u + offset`` is an integer, in (low, high) and beyond."""
    moving = slope != 0.0
    k = _integers(torch.stack([slope * low + offset, slope * high + offset]), 0.0)
    return ((k - offset[moving, None]) / slope[moving, None]).flatten()


def _integers(values: Tensor, slack: float) -> Tensor:
    """The integers in the range of some values, and in a slack around it."""
    first, last = math.floor(values.amin() - slack), math.ceil(values.amax() + slack)
    return torch.arange(first, last + 1, dtype=values.dtype, device=values.device)


def _integrate_pieces(
    edges: Tensor, slope: Tensor, offset: Tensor, y: Tensor, variance: float
) -> Tensor:
    r"""Integrals of :math:`\exp(-\sum_n ((a_n u + b_n) \bmod 1 - y_n)^2 / 2v)` over u, as logs.

    They are over pieces without a jump, whose ``edges`` ascend, ``(..., pieces + 1)``; slopes a and
    outputs y are ``(targets,)``, and offsets b ``(targets,)`` or ``(..., 1, targets)``.
    """
    low, high = edges[..., :-1], edges[..., 1:]
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    residual = torch.remainder(middle.unsqueeze(-1) * slope + offset, 1.0) - y
    # The exponent at u = middle + t is height - gradient t - curvature t^2 / 2.
    height = -0.5 * residual.square().sum(dim=-1) / variance
    gradient = (residual * slope).sum(dim=-1) / variance
    curvature = slope.square().sum() / variance
    flat = (gradient.abs() + curvature * half) * half < 1e-3
    best = torch.where(flat, 0.0, -gradient / curvature)
    upper = curvature.sqrt() * (half - best)
    lower = curvature.sqrt() * (-half - best)
    scale = height + 0.5 * gradient * -best + 0.5 * torch.log(2.0 * math.pi / curvature)
    return torch.where(flat, height + edges.diff().log(), scale + _log_mass(lower, upper))


def _log_mass(lower: Tensor, upper: Tensor) -> Tensor:
    """Log-probability of an interval under the standard normal distribution."""
    # In the lower tail, where the logs of both distribution functions keep their digits.
    flip = lower + upper > 0.0
    low, high = torch.where(flip, -upper, lower), torch.where(flip, -lower, upper)
    high_log = torch.special.log_ndtr(high)
    return high_log + torch.log(-torch.expm1(torch.special.log_ndtr(low) - high_log))
