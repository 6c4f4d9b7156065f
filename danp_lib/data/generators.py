"""The three priors over functions that the paper's tasks are drawn from (Appendix B.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from danp_lib._config import (
    ORDERED,
    STRICTLY_ORDERED,
    Configuration,
    NonNegativeFloat,
    PositiveFloat,
)
from danp_lib.data.points import PointSet, Task

Frequency = Annotated[tuple[PositiveFloat, PositiveFloat], ORDERED]
"""The range of a frequency, (lower, upper)."""


def _uniform(
    shape: tuple[int, ...], low: Tensor | float, high: Tensor | float, generator: torch.Generator
) -> Tensor:
    unit = torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator)
    return low + (high - low) * unit


def check_sizes(
    batch_size: int, context_size: int | tuple[int, int], num_targets: int, pool_size: int = 0
) -> tuple[int, int]:
    """The range of context sizes.

    Raises:
        ValueError: If a size is negative, there is no task, or the range is not one.
    """
    low, high = (context_size,) * 2 if isinstance(context_size, int) else context_size
    if not 0 <= low <= high:
        raise ValueError(f"context_size must be n or (low, high) >= 0, got {context_size}.")
    if batch_size < 1 or num_targets < 0 or pool_size < 0:
        raise ValueError(
            "batch_size must be >= 1, num_targets and pool_size >= 0, got "
            f"{batch_size}, {num_targets} and {pool_size}."
        )
    return low, high


@dataclass(frozen=True)
class TaskGenerator(Configuration, ABC):
    """A prior over functions on an interval, and the tasks drawn from it.

    Attributes:
        noise: Standard deviation of the observation noise on contexts and targets, in units of y.
            The paper's data have none.
        domain: The interval that every input is uniform on.
    """

    name: ClassVar[str]

    noise: NonNegativeFloat = 0.0
    domain: Annotated[tuple[float, float], STRICTLY_ORDERED] = (-2.0, 2.0)

    @abstractmethod
    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw one function per row and evaluate it, free of noise, at all inputs of that row.

        Args:
            x: Inputs, ``(batch, points, 1)``.
            generator: Source of randomness, on the device of ``x``.

        Returns:
            Outputs in float64, ``(batch, points, 1)``.
        """

    def sample_inputs(self, shape: tuple[int, int], *, generator: torch.Generator) -> Tensor:
        """Uniform inputs on the domain, float64, ``(*shape, 1)``, on the generator's device."""
        return _uniform((*shape, 1), *self.domain, generator)

    def observe(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        """Add the observation noise, if there is any."""
        if self.noise == 0.0:
            return y
        eps = torch.randn(y.shape, dtype=y.dtype, device=y.device, generator=generator)
        return y + self.noise * eps

    def sample_task(
        self,
        batch_size: int,
        *,
        context_size: int | tuple[int, int] = (0, 30),
        num_targets: int = 50,
        pool_size: int = 0,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Task:
        """Draw tasks, each with one true function under its context, targets and pool.

        Args:
            batch_size: Number of tasks.
            context_size: The number of context points, or an inclusive range that each task's
                number is uniform on; contexts are padded to the upper end.
            num_targets: Number of targets of each task.
            pool_size: Number of further inputs at which to give the function free of noise.
            generator: Source of randomness; the tasks are made on its device.
            dtype: Floating type of the tasks. The functions are evaluated in float64 at the inputs
                as rounded to this type, so that every point lies on its function.

        Raises:
            ValueError: If a size is negative, or the range of context sizes is not one.
        """
        low, high = check_sizes(batch_size, context_size, num_targets, pool_size)
        sizes = torch.randint(
            low, high + 1, (batch_size, 1), device=generator.device, generator=generator
        )
        mask = torch.arange(high, device=generator.device) < sizes
        total = high + num_targets + pool_size
        x = self.sample_inputs((batch_size, total), generator=generator).to(dtype)
        clean = self.sample_outputs(x.double(), generator=generator)
        y = self.observe(clean, generator=generator).to(dtype)
        split = [high, num_targets, pool_size]
        xc, xt, x_pool = x.split(split, dim=1)
        yc, yt, _ = y.split(split, dim=1)
        y_pool = clean[:, high + num_targets :].to(dtype)
        pool = PointSet(x_pool, y_pool) if pool_size else None
        return Task(PointSet(xc, yc, mask), PointSet(xt, yt), pool)

    def sample_sets(
        self,
        batch_size: int,
        *,
        context_size: int | tuple[int, int],
        num_targets: int,
        num_sets: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[PointSet, tuple[PointSet, ...]]:
        """Draw contexts, and for each several sets of targets on the same function.

        Args:
            batch_size: Number of tasks.
            context_size: As in :meth:`sample_task`.
            num_targets: Number of points of every set.
            num_sets: Number of sets a task, each with inputs of its own.
            generator: Source of randomness; the sets are made on its device.
            dtype: Floating type of the sets.
        """
        task = self.sample_task(
            batch_size,
            context_size=context_size,
            num_targets=num_sets * num_targets,
            generator=generator,
            dtype=dtype,
        )
        parts = (part.split(num_targets, dim=1) for part in (task.xt, task.yt))
        return task.context, tuple(PointSet(x, y) for x, y in zip(*parts, strict=True))


@dataclass(frozen=True)
class Sawtooth(TaskGenerator):
    r"""Sawtooth waves :math:`f(x) = [\omega(dx - \phi)] \bmod 1`, with values in [0, 1).

    :math:`\omega \sim U(2, 4)`, :math:`d = \pm 1` with equal probability, and
    :math:`\phi \sim U(1/\omega, 1)`.

    Attributes:
        frequency: The range of :math:`\omega`, in periods per unit of x.
    """

    name: ClassVar[str] = "sawtooth"

    frequency: Frequency = (2.0, 4.0)

    def sample_parameters(
        self, batch_size: int, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw omega, phi and d, each ``(batch, 1, 1)``."""
        shape = (batch_size, 1, 1)
        omega = _uniform(shape, *self.frequency, generator)
        phi = _uniform(shape, 1 / omega, 1.0, generator)
        sign = torch.randint(0, 2, shape, device=generator.device, generator=generator)
        return omega, phi, (2 * sign - 1).double()

    @staticmethod
    def evaluate(x: Tensor, omega: Tensor, phi: Tensor, d: Tensor) -> Tensor:
        """The wave at ``x``; all arguments broadcast."""
        return torch.remainder(omega * (d * x - phi), 1.0)

    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """See the base class."""
        return self.evaluate(x.double(), *self.sample_parameters(x.shape[0], generator=generator))


@dataclass(frozen=True)
class SquareWave(TaskGenerator):
    r"""Square waves, 1 where :math:`\lfloor \omega x - \phi \rfloor` is even and 0 elsewhere.

    :math:`\omega \sim U(1, 3)` and :math:`\phi \sim U(1/\omega, 1)`.

    Attributes:
        frequency: The range of :math:`\omega`, in half periods per unit of x.
    """

    name: ClassVar[str] = "square"

    frequency: Frequency = (1.0, 3.0)

    def sample_parameters(
        self, batch_size: int, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw omega and phi, each ``(batch, 1, 1)``."""
        shape = (batch_size, 1, 1)
        omega = _uniform(shape, *self.frequency, generator)
        return omega, _uniform(shape, 1 / omega, 1.0, generator)

    @staticmethod
    def evaluate(x: Tensor, omega: Tensor, phi: Tensor) -> Tensor:
        """The wave at ``x``; all arguments broadcast."""
        return (torch.remainder(torch.floor(omega * x - phi), 2.0) == 0.0).to(x.dtype)

    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """See the base class."""
        return self.evaluate(x.double(), *self.sample_parameters(x.shape[0], generator=generator))


@dataclass(frozen=True)
class GaussianProcess(TaskGenerator):
    r"""A zero-mean Gaussian process with kernel :math:`\exp(-(x - x')^2 / 2\ell^2)`.

    Attributes:
        length_scale: :math:`\ell`, in units of x.
        jitter: Variance added to each value. With 200 inputs on [-2, 2] the kernel matrix is
            singular in float64, and this makes its Cholesky factor exist. Its standard deviation of
            1e-4 is a tenth of the smallest that a model can predict.
    """

    name: ClassVar[str] = "gp"

    length_scale: PositiveFloat = 0.25
    jitter: PositiveFloat = 1e-8

    def kernel(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The kernel matrix ``(batch, n1, n2)`` of inputs ``(batch, n, dim_x)``, without jitter."""
        # In place: these matrices are large, and their traffic is most of a task's cost.
        squared = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square_().sum(dim=-1)
        return squared.mul_(-0.5 / self.length_scale**2).exp_()

    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """See the base class; on a GPU, a function whose covariance has no factor is NaN.

        Raises:
            ValueError: On a CPU, if a covariance is not positive definite in float64.
        """
        x = x.double()
        covariance = self.kernel(x, x)
        covariance.diagonal(dim1=-2, dim2=-1).add_(self.jitter)
        factor, info = torch.linalg.cholesky_ex(covariance)
        if info.device.type == "cpu" and info.any():
            raise ValueError(
                f"jitter must make the covariance of {x.shape[1]} inputs positive definite in "
                f"float64, got {self.jitter}, with which it is not; the default is 1e-8."
            )
        eps = torch.randn(
            (*x.shape[:2], 1), dtype=x.dtype, device=generator.device, generator=generator
        )
        # A failed factor is finite. To look would wait for a GPU; training reports the NaN.
        return (factor @ eps).masked_fill_((info != 0)[:, None, None], math.nan)


GENERATORS: dict[str, type[TaskGenerator]] = {
    cls.name: cls for cls in (Sawtooth, SquareWave, GaussianProcess)
}
