"""The noising of a task into levels of falling fidelity (paper, Section 2.1 and Appendix B.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any

import torch
from torch import Tensor

from danp_lib._config import (
    Configuration,
    Limit,
    NonNegativeInt,
    PositiveInt,
    check_kind,
    checked,
)
from danp_lib.data.generators import TaskGenerator
from danp_lib.data.points import PointSet

Beta = Annotated[float, Limit("> 0 and < 1", lambda value: 0 < value < 1)]
"""Standard deviation of one noise step."""


@dataclass(frozen=True)
class NoiseSchedule(Configuration):
    r"""The noise step :math:`y_{f+1} = \sqrt{1-\beta}\,y_f + \beta\,\epsilon`, taken F times.

    The paper calls beta a variance; in its formula and Table 2 it is a standard deviation.
    """

    beta: Beta  #: Standard deviation of one step.
    num_levels: NonNegativeInt  #: F, the index of the noisiest level.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta**2 == 0.0:  # the variance of a step
            raise ValueError(f"beta must be a number whose square is > 0, got {self.beta}.")

    @classmethod
    def from_final_variance(cls, variance: float, *, num_levels: int) -> NoiseSchedule:
        r"""The schedule whose last level has a given noise variance.

        Solves :math:`\sigma^2 = \beta - \beta(1-\beta)^F` (last equation of Appendix B.2), whose
        right side grows from 0 to 1 on (0, 1), by bisection down to neighbouring floats.
        """
        checked(PositiveInt, num_levels, "num_levels")
        checked(Beta, variance, "variance")  # the noise has the range of beta
        low, high = 0.0, 1.0
        while low < (middle := (low + high) / 2) < high:
            if cls(middle, num_levels).variance(num_levels) < variance:
                low = middle
            else:
                high = middle
        return cls(beta=high if high < 1.0 else low, num_levels=num_levels)

    def signal(self, level: int) -> float:
        """The factor of y_0 in y_level, ``(1 - beta) ** (level / 2)``."""
        return (1.0 - self.beta) ** (check_level(level, self.num_levels) / 2)

    def variance(self, level: int) -> float:
        """Variance of the noise in y_level, ``beta - beta * (1 - beta) ** level``."""
        # Written so that no digit cancels at small beta.
        level = check_level(level, self.num_levels)
        return -self.beta * math.expm1(level * math.log1p(-self.beta))

    def step(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        """One noise step, from a level to the next noisier one; any shape."""
        return math.sqrt(1.0 - self.beta) * y + self.beta * _normal_like(y, generator)

    def chain(self, y0: Tensor, *, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The levels 0 to F of the same points, each one step from the last; any shape."""
        levels = [y0]
        for _ in range(self.num_levels):
            levels.append(self.step(levels[-1], generator=generator))
        return tuple(levels)

    def noise(self, y0: Tensor, level: int, *, generator: torch.Generator) -> Tensor:
        """Level ``level`` drawn at once, by the closed form (first equation of Appendix B.2)."""
        eps = _normal_like(y0, generator)
        return self.signal(level) * y0 + math.sqrt(self.variance(level)) * eps

    def log_prob(self, y: Tensor, y0: Tensor, level: int) -> Tensor:
        """log q(y_level | y_0) of each element, in nats; level 0 is refused."""
        if level == 0:
            raise ValueError("level must be >= 1, got 0: the data themselves have no density.")
        variance = self.variance(level)
        residual = y - self.signal(level) * y0
        return -0.5 * (residual.square() / variance + math.log(2 * math.pi * variance))


def _normal_like(y: Tensor, generator: torch.Generator) -> Tensor:
    check_kind(torch.Generator, generator=generator)
    if not y.is_floating_point():
        raise ValueError(f"y must be of a floating dtype, got {y.dtype}.")
    return torch.randn(y.shape, dtype=y.dtype, device=y.device, generator=generator)


def check_level(level: int, num_levels: int) -> int:
    """A level of 0..F, NumPy's integers included, as an ``int``."""
    # A true, a float or a tensor would pass for a number and then select something else.
    if isinstance(level, bool) or not isinstance(level, Integral) or not 0 <= level <= num_levels:
        raise ValueError(f"level must be an integer in 0..{num_levels}, got {level!r}.")
    return int(level)


@dataclass(frozen=True, eq=False)
class MaskedTask:
    r"""What the model sees of an augmented task at one level, :math:`\widehat{\psi}_f`."""

    context: PointSet  #: The context sets.
    auxiliary: tuple[PointSet, ...]  #: The levels 1 to F; those above ``level`` are unmasked.
    target: PointSet  #: The points of the level itself.
    level: int | Tensor  #: One for the batch, or one per task, ``(batch,)``.


@dataclass(frozen=True, eq=False)
class AugmentedTask:
    r"""Augmented tasks :math:`\widehat{\psi} = (\mathcal{D}_c, \mathcal{D}_t, \mathcal{D}_a)`."""

    context: PointSet  #: The context sets.
    levels: tuple[PointSet, ...]  #: The levels 0 to F; level 0 is the target set.

    def masked(self, level: int | Tensor) -> MaskedTask:
        """Mask the task for training at a level (paper, Section 2.2, "Training").

        One level for the batch, or a tensor ``(batch,)`` with one per task, which is not checked on
        a GPU; then all levels must have the same number of points.
        """
        top = len(self.levels) - 1
        if not isinstance(level, Tensor):
            level = check_level(level, top)
            target = self.levels[level]
        else:
            batch = self.context.batch_size
            if level.shape != (batch,) or level.dtype not in (torch.int32, torch.int64):
                raise ValueError(
                    f"level must be an integer, or a tensor of them of shape ({batch},), got "
                    f"{level.dtype} of shape {tuple(level.shape)}."
                )
            if level.device.type == "cpu" and ((level < 0) | (level > top)).any():
                raise ValueError(f"level must be an integer in 0..{top}, got {level.tolist()}.")
            if len(set(counts := [points.num_points for points in self.levels])) > 1:
                raise ValueError(
                    "levels must all have one number of points for a level per task, got "
                    f"{counts} points."
                )
            rows = torch.arange(len(level), device=level.device)
            parts = zip(*(points.parts for points in self.levels), strict=True)
            target = PointSet(*(torch.stack(part)[level, rows] for part in parts))
        return MaskedTask(self.context, mask_levels(self.levels[1:], level), target, level)


def mask_levels(auxiliary: Sequence[PointSet], level: int | Tensor) -> tuple[PointSet, ...]:
    """Mask out the levels, of 1 to F, not noisier than a level, or one per task, ``(batch,)``."""
    return tuple(noisy.masked_where(level < f) for f, noisy in enumerate(auxiliary, start=1))


def sample_augmented_task(
    task_generator: TaskGenerator,
    schedule: NoiseSchedule,
    batch_size: int,
    *,
    context_size: int | tuple[int, int] = (0, 30),
    num_targets: int = 50,
    shared_inputs: bool = False,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> AugmentedTask:
    """Draw augmented tasks; see :meth:`TaskGenerator.sample_task`.

    All levels have ``num_targets`` points, each at inputs of its own, as where the model samples
    them (paper, above Equation 3), or with ``shared_inputs`` at those of the targets, each level
    noised into the next (Section 2.1, Figure 1).
    """
    num_sets = 1 if shared_inputs else schedule.num_levels + 1
    sizes: Any = {"context_size": context_size, "num_targets": num_targets, "num_sets": num_sets}
    task = task_generator.sample_task(batch_size, **sizes, generator=generator, dtype=dtype)
    if shared_inputs:
        chain = schedule.chain(task.yt, generator=generator)
        return AugmentedTask(task.context, tuple(PointSet(task.xt, y) for y in chain))
    xs, ys = (part.unflatten(1, (num_sets, num_targets)).unbind(1) for part in (task.xt, task.yt))
    noised = (schedule.noise(y, f, generator=generator) for f, y in enumerate(ys) if f)
    pairs = zip(xs, (ys[0], *noised), strict=True)
    return AugmentedTask(task.context, tuple(PointSet(x, y) for x, y in pairs))
