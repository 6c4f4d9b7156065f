"""What the exact predictives of the two families of waves share."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from danp_lib._config import PositiveFloat, PositiveInt
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import VARIANCE_FLOOR, DiagonalNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.exact.base import Oracle


@dataclass(frozen=True)
class WaveOracle(Oracle):
    """Exact inference over waves of two parameters, given points that lie on one free of noise.

    A prediction mixes over the waves that the context allows, with a Gaussian around each.
    """

    frequency: tuple[float, float]  #: The range of the prior's frequency.
    #: Variance of a target around the wave, in squared units of y; no model here can be surer.
    variance_floor: PositiveFloat = VARIANCE_FLOOR
    #: Number of waves that stand for a continuum of them in :meth:`predict`.
    num_nodes: PositiveInt = 4096

    def predict(self, context: PointSet, xt: Tensor) -> Mixture:
        """See the base class: a mixture of one component a wave, some perhaps of weight zero.

        Against eight times the nodes, the default's means and marginal distribution functions are
        within 0.005. For the joint density, ask :meth:`log_prob`: where a continuum of waves is
        left, none of the nodes lies within the floor's standard deviation of many targets.
        """
        self.check_inputs(context, xt)
        inputs = enumerate(xt[:, :, 0].double())
        rows = [self._nodes(*real_points(context[row]), x) for row, x in inputs]
        log_weights, outputs = map(list, zip(*rows, strict=True))
        logits = pad_sequence(log_weights, batch_first=True, padding_value=-math.inf)
        means = pad_sequence(outputs, batch_first=True).unsqueeze(-1)
        return Mixture(logits, DiagonalNormal(means, torch.full_like(means, self.variance_floor)))

    def check_inputs(self, context: PointSet, xt: Tensor, name: str = "xt") -> None:
        """See the base class."""
        super().check_inputs(context, xt, name)
        if xt.shape[-1] != 1:
            raise ValueError(f"waves take inputs of one dimension, got {name}, {tuple(xt.shape)}.")

    @abstractmethod
    def _nodes(self, x: Tensor, y: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        """Log-weights ``(nodes,)`` of waves and their values ``(nodes, targets)`` for one task."""


def lattice(size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """A golden-ratio lattice: points of the unit square, two tensors ``(size,)``.

    Nearly any combination of the two coordinates is evenly spread too, which is what a marginal of
    a prediction looks at.
    """
    place = torch.arange(size, dtype=torch.float64, device=like.device) + 0.5
    return place / size, torch.remainder(place * 0.5 * (math.sqrt(5.0) - 1.0), 1.0)


def midpoints(low: float, high: float, count: int, like: Tensor) -> Tensor:
    """The midpoints of equal parts of an interval, ``(count,)``."""
    place = torch.arange(count, dtype=torch.float64, device=like.device) + 0.5
    return low + (high - low) * place / count


def real_points(points: PointSet) -> tuple[Tensor, Tensor]:
    """Inputs and outputs of a batch of one set of one input, float64, ``(points,)``, unpadded."""
    return points.x[points.mask, 0].double(), points.y[points.mask, 0].double()
