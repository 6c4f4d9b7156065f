"""How likely a context is under a model, and a warning where contexts in training were likelier.

A model that learned functions free of noise takes noisy points for exact ones. Its own density of
the context tells: the Gaussian of the clean level at the inputs of the context, once the network
has read the context and before any conditioning in closed form. The network can reproduce points
like those of its training; noisy or contradictory ones it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from danp_lib._config import Configuration, NonNegativeFloat, PositiveInt
from danp_lib._warnings import warn
from danp_lib.data.generators import NoiseRange, TaskGenerator, noise_in_words
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal

CONTEXTS_PER_RANGE = 300
_SEED = 90_001
_SLACK = 0.25  # of the range of the outputs, that a further context may go beyond it


class ContextWarning(UserWarning):
    """A context is unlike those that the model was trained on; the message says in what."""


@dataclass(frozen=True)
class SizeRange(Configuration):
    """Log-densities of contexts of similar sizes, in nats per point."""

    largest: PositiveInt  #: The largest size; the smallest is above that of the range before.
    least: float  #: The log-density that 1 % of them do not reach.
    median: float  #: The median one.


@dataclass(frozen=True)
class TrainingContexts(Configuration):
    """What contexts of training look like to a trained model."""

    outputs: tuple[float, float]  #: The smallest and the largest output.
    #: Ranges of sizes, in rising order; together they are the sizes of training.
    sizes: tuple[SizeRange, ...]
    #: Standard deviation of the observation noise that was added, or its range.
    noise: NonNegativeFloat | NoiseRange

    @classmethod
    def measure(
        cls,
        model: Any,  # a NeuralProcess, whose module imports this one
        task_generator: TaskGenerator,
        context_size: tuple[int, int],
        *,
        num_targets: int = 0,
        per_range: int = CONTEXTS_PER_RANGE,
    ) -> TrainingContexts:
        """Draw contexts such as a model was trained on, of sizes 1, 2, 3 to 4, 5 to 8 and so on.

        The smallest and the largest are ``context_size``; ``num_targets`` go with each, on which
        its place depends where the targets are what follows. The bound of a range is the third
        lowest of 300 contexts, or as much of ``per_range``, so that 1 % of further ones get a
        warning for nothing. The lowest itself may lie thousands of nats below all others.
        """
        low, high = max(1, context_size[0]), context_size[1]
        if high < low:
            raise ValueError(f"context_size must reach 1 or more, got {context_size}.")
        generator = torch.Generator(next(model.parameters()).device).manual_seed(_SEED)
        sizes: list[SizeRange] = []
        outputs: list[Tensor] = []
        while low <= high:
            largest = min(2 ** (low - 1).bit_length(), high)
            task = task_generator.sample_task(
                per_range, context_size=(low, largest), num_targets=num_targets, generator=generator
            )
            outputs.append(task.yc[task.context.mask])
            values = model.context_log_density(task.context).sort().values
            # Rounded down: what is stored is read by people too.
            lowest = values[max(per_range // 100 - 1, 0)]
            least = math.floor(100.0 * float(lowest)) / 100.0
            sizes.append(SizeRange(largest, least, round(float(values.median()), 2)))
            low = largest + 1
        y = torch.cat(outputs)
        return cls((float(y.min()), float(y.max())), tuple(sizes), task_generator.noise)

    def warn(self, model: Any, context: PointSet) -> None:
        """Give a :class:`ContextWarning` of :meth:`complaint`, unless contexts go unchecked."""
        if _checking.get() and (complaint := self.complaint(model, context)):
            warn(complaint, ContextWarning)

    def complaint(self, model: Any, context: PointSet) -> str | None:
        """What is wrong with the first context of a batch that is unlike those of training."""
        if not context.mask.any():
            return None
        found = []
        low, high = self.outputs
        slack = _SLACK * (high - low)
        y = context.y[context.mask]
        if y.min() < low - slack or y.max() > high + slack:
            found.append(
                f"the outputs of the context, {float(y.min()):.3g} to {float(y.max()):.3g} in the "
                f"model's units, are off the scale of training, {low:.3g} to {high:.3g}. Give them "
                "in the units that the model was trained in."
            )
        largest, most = int(context.sizes.max()), self.sizes[-1].largest
        if largest > most:
            found.append(
                f"a context of {largest} points is larger than the {most} that the model was "
                "trained with: its uncertainty is not reliable there. Leave points out, or train "
                "with larger contexts."
            )
        if found:
            return " And ".join(found)
        values = model.context_log_density(context)
        for size, value in zip(context.sizes.tolist(), values.tolist(), strict=True):
            expected = next(part for part in self.sizes if part.largest >= size)
            if size and not value >= expected.least:
                return (
                    f"a context of {size} points is improbable under the model: {value:.2f} nats a "
                    f"point, where contexts of training had {expected.median:.2f} in the median "
                    f"and hardly ever less than {expected.least:.2f}. Its points may be noisier "
                    f"than in training (noise: {noise_in_words(self.noise)}), contradict each "
                    "other, or be repeated, and intervals be far too narrow. Use a model trained "
                    "on such data."
                )
        return None


def log_density_per_point(predictive: LowRankNormal, context: PointSet) -> Tensor:
    """Joint log-density of the real points over their number, ``(batch,)``; 0 without a point."""
    real = context.mask.unsqueeze(-1)
    # An independent output with this variance has a log-density of zero at its mean.
    masked = LowRankNormal(
        torch.where(real, predictive.loc, 0.0),
        torch.where(real, predictive.cov_factor, 0.0),
        torch.where(real, predictive.cov_diag, 0.5 / math.pi),
    )
    return masked.log_prob(context.blanked().y, check=False) / context.sizes.clamp(min=1)


_checking = ContextVar("checking", default=True)


@contextmanager
def unchecked_contexts() -> Iterator[None]:
    """Predict without looking at the contexts, also as a decorator: for scores on known tasks."""
    token = _checking.set(False)
    try:
        yield
    finally:
        _checking.reset(token)
