"""Where tasks are drawn from, and the priors over functions: the paper's and its code's."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from danp_lib._config import (
    ORDERED,
    Configuration,
    Limit,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    check_at_least,
    check_kind,
    checked,
)
from danp_lib.data.domain import Bounds, Domain
from danp_lib.data.points import PointSet, Task

#: The range of a standard deviation that is log-uniform, (lower, upper).
NoiseRange = Annotated[tuple[PositiveFloat, PositiveFloat], ORDERED]
#: The range of a wave's frequency. Below 1, the interval (1/omega, 1) of the phase is empty.
FrequencyRange = Annotated[
    tuple[float, float], Limit("with 1 <= lower <= upper", lambda pair: 1 <= pair[0] <= pair[1])
]
_ContextSize = NonNegativeInt | Annotated[tuple[NonNegativeInt, NonNegativeInt], ORDERED]


def noise_in_words(noise: float | tuple[float, float]) -> str:
    """An observation noise, or its range, in words."""
    if isinstance(noise, tuple):
        return f"standard deviation {noise[0]:g} to {noise[1]:g}, log-uniform"
    return f"standard deviation {noise:g}" if noise else "none added"


def check_sizes(
    batch_size: int,
    context_size: int | tuple[int, int],
    num_targets: int,
    num_sets: int,
    pool_size: int = 0,
) -> tuple[int, int]:
    """The range of context sizes, all sizes checked."""
    check_at_least(1, batch_size=batch_size, num_sets=num_sets)
    check_at_least(0, num_targets=num_targets, pool_size=pool_size)
    sizes = checked(_ContextSize, context_size, "context_size")
    return sizes if isinstance(sizes, tuple) else (sizes, sizes)


@dataclass(frozen=True)
class TaskGenerator(Configuration, ABC):
    """A source of tasks: what a model is trained on."""

    #: What checkpoints and runs know the class by; the class's own name where left out.
    name: ClassVar[str]
    #: Standard deviation of the observation noise of all points, those of the pool included, in
    #: units of y; or its range, where each task has one of its own. The paper's data have none.
    noise: NonNegativeFloat | NoiseRange = 0.0
    domain: Bounds = (-2.0, 2.0)  #: The box that all inputs lie in.

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A subclass may draw other tasks: it must not go by the name of its parent.
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __post_init__(self) -> None:
        super().__post_init__()
        Domain.of(self.domain)

    @property
    def box(self) -> Domain:
        """The domain, with its methods."""
        return Domain.of(self.domain)

    @property
    def noise_range(self) -> tuple[float, float]:
        """The smallest and the largest standard deviation of the observation noise."""
        return self.noise if isinstance(self.noise, tuple) else (self.noise, self.noise)

    def observe(self, y: Tensor, *, generator: torch.Generator) -> Tensor:
        """Add the observation noise to the points of each task, ``(batch, points, 1)``, if any."""
        if self.noise == 0.0:
            return y
        check_kind(torch.Generator, generator=generator)
        scale: Any = self.noise
        if isinstance(scale, tuple):
            low, high = scale
            scale = low * (high / low) ** _uniform(len(y), generator).to(y.dtype)
        eps = torch.randn(y.shape, dtype=y.dtype, device=y.device, generator=generator)
        return y + scale * eps

    @abstractmethod
    def sample_task(
        self,
        batch_size: int,
        *,
        context_size: int | tuple[int, int] = (0, 30),
        num_targets: int = 50,
        num_sets: int = 1,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Task:
        """Draw tasks, each with one function under all its points, on the generator's device.

        Each has ``context_size`` context points, or a number uniform on that inclusive range,
        padded to its upper end, and ``num_sets`` sets of ``num_targets`` targets, each set at
        inputs of its own, one after another in ``target``.
        """


@dataclass(frozen=True)
class Prior(TaskGenerator):
    """A prior over functions: they can be evaluated at any input, and inputs are uniform.

    One of your own is trained on as it is, on any domain that the model has too. Stored tasks of it
    are scored by ``danp evaluate triangle.safetensors --tasks tasks.safetensors``:

    .. code-block:: python

        @dataclass(frozen=True)
        class Triangle(Prior):
            def sample_outputs(self, x, *, generator):
                phase = torch.rand(len(x), 1, 1, generator=generator)
                return (torch.remainder(x + phase, 1.0) - 0.5).abs()

        prior = Triangle(domain=(0.0, 10.0))
        base = ConvNPConfig(domain=(0.0, 10.0), conditioned=True)
        config = DANPConfig(base=base, num_levels=2, beta=0.2)
        model = build_model("danp", config, seed=0)
        train(model, prior, TrainingConfig(num_steps=2000), folder="run")
        save_checkpoint("triangle.safetensors", model, task_generator=prior)
        generator = torch.Generator().manual_seed(1)
        tasks = prior.sample_task(100, pool_size=512, generator=generator)
        save_tasks("tasks.safetensors", tasks)
    """

    @abstractmethod
    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw one function per row and evaluate it, free of noise, at all inputs of that row.

        Inputs are ``(batch, points, dim_x)``, on the generator's device; outputs are float64.
        """

    def sample_inputs(self, shape: tuple[int, int], *, generator: torch.Generator) -> Tensor:
        """Uniform inputs, float64, ``(*shape, dim_x)``, on the generator's device."""
        check_kind(torch.Generator, generator=generator)
        size = (*shape, self.box.dim_x)
        unit = torch.rand(size, dtype=torch.float64, device=generator.device, generator=generator)
        return self.box.from_unit(unit)

    def sample_task(
        self,
        batch_size: int,
        *,
        context_size: int | tuple[int, int] = (0, 30),
        num_targets: int = 50,
        num_sets: int = 1,
        pool_size: int = 0,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Task:
        """Draw tasks; see the base class. The pool has ``pool_size`` further points.

        Functions are evaluated in float64 at the inputs as rounded to ``dtype``.
        """
        low, high = check_sizes(batch_size, context_size, num_targets, num_sets, pool_size)
        check_kind(torch.Generator, generator=generator)
        split = [high, num_sets * num_targets, pool_size]
        device = generator.device
        sizes = torch.randint(low, high + 1, (batch_size, 1), device=device, generator=generator)
        mask = torch.arange(high, device=device) < sizes
        x = self.sample_inputs((batch_size, sum(split)), generator=generator).to(dtype)
        y = self.sample_outputs(x.double(), generator=generator)
        if y.shape != (*x.shape[:-1], 1):
            raise ValueError(
                f"sample_outputs of {self.name} must return shape {(*x.shape[:-1], 1)} for inputs "
                f"{tuple(x.shape)}, got {tuple(y.shape)}."
            )
        y = self.observe(y, generator=generator).to(dtype)
        xc, xt, x_pool = x.split(split, dim=1)
        yc, yt, y_pool = y.split(split, dim=1)
        pool = PointSet(x_pool, y_pool) if pool_size else None
        return Task(PointSet(xc, yc, mask), PointSet(xt, yt), pool)


@dataclass(frozen=True)
class Wave(Prior):
    r"""Waves of one input, of frequency :math:`\omega` and phase :math:`\phi`, both uniform."""

    #: The wave at ``x``, given its parameters; all arguments broadcast.
    evaluate: ClassVar[Callable[..., Tensor]]
    frequency: FrequencyRange = (1.0, 3.0)  #: The range of :math:`\omega`.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.box.dim_x != 1:
            raise ValueError(
                f"domain must be (lower, upper): waves have one input, got {self.domain}."
            )

    @staticmethod
    def phase_range(omega: Tensor) -> tuple[Tensor, Tensor]:
        r"""The ends of the range of the phase at each frequency, :math:`(1/\omega, 1)`."""
        return 1 / omega, torch.ones_like(omega)

    def sample_parameters(
        self, batch_size: int, *, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Draw omega and phi, each ``(batch, 1, 1)``."""
        low, high = self.frequency
        omega = low + (high - low) * _uniform(batch_size, generator)
        first, last = self.phase_range(omega)
        return omega, first + (last - first) * _uniform(batch_size, generator)

    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """See the base class."""
        return self.evaluate(x.double(), *self.sample_parameters(len(x), generator=generator))


def _uniform(batch_size: int, generator: torch.Generator) -> Tensor:
    check_kind(torch.Generator, generator=generator)
    shape = (batch_size, 1, 1)
    return torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator)


@dataclass(frozen=True)
class Sawtooth(Wave):
    r"""Sawtooth waves :math:`f(x) = [\omega(dx - \phi)] \bmod 1`, with values in [0, 1).

    :math:`\omega \sim U(2, 4)` periods per unit of x, :math:`d = \pm 1` with equal probability, and
    :math:`\phi \sim U(1/\omega, 1)`. Rounding may make a value 1.
    """

    name: ClassVar[str] = "sawtooth"
    frequency: FrequencyRange = (2.0, 4.0)

    def sample_parameters(
        self, batch_size: int, *, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Draw omega, phi and d, each ``(batch, 1, 1)``."""
        omega, phi = super().sample_parameters(batch_size, generator=generator)
        sign = torch.randint(0, 2, omega.shape, device=generator.device, generator=generator)
        return omega, phi, (2 * sign - 1).double()

    @staticmethod
    def evaluate(x: Tensor, omega: Tensor, phi: Tensor, d: Tensor) -> Tensor:
        """The wave at ``x``; all arguments broadcast."""
        return torch.remainder(omega * (d * x - phi), 1.0)


@dataclass(frozen=True)
class SquareWave(Wave):
    r"""Square waves, 1 where :math:`\lfloor \omega x - \phi \rfloor` is even and 0 elsewhere.

    :math:`\omega \sim U(1, 3)` half periods per unit of x, and :math:`\phi \sim U(1/\omega, 1)`.
    """

    name: ClassVar[str] = "square"

    @staticmethod
    def evaluate(x: Tensor, omega: Tensor, phi: Tensor) -> Tensor:
        """The wave at ``x``; all arguments broadcast."""
        return (torch.remainder(torch.floor(omega * x - phi), 2.0) == 0.0).to(x.dtype)


@dataclass(frozen=True)
class ReleasedSquareWave(SquareWave):
    r"""Square waves as the authors' released code draws them: f(0) = 1, whatever the wave.

    The code takes :math:`\phi \sim U(0, 1/\omega)` and gives 0 where the floor is even, which is
    :math:`\phi \sim U(1, 1 + 1/\omega)` in the convention of :class:`SquareWave`.
    """

    name: ClassVar[str] = "square-released"

    @staticmethod
    def phase_range(omega: Tensor) -> tuple[Tensor, Tensor]:
        r"""See the base class; here :math:`(1, 1 + 1/\omega)`."""
        return torch.ones_like(omega), 1 + 1 / omega


@dataclass(frozen=True)
class GaussianProcess(Prior):
    r"""A zero-mean Gaussian process with kernel :math:`\exp(-|x - x'|^2 / 2\ell^2)`."""

    name: ClassVar[str] = "gp"
    length_scale: PositiveFloat = 0.25  #: :math:`\ell`, in units of x.
    #: Variance added to each value, without which the kernel matrix of 200 inputs on [-2, 2] has no
    #: Cholesky factor in float64. Its root is a tenth of a model's smallest standard deviation.
    jitter: PositiveFloat = 1e-8

    def kernel(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The kernel matrix ``(batch, n1, n2)`` of inputs ``(batch, n, dim_x)``, without jitter."""
        # In place: these matrices are large, and their traffic is most of a task's cost.
        squared = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square_().sum(dim=-1)
        return squared.mul_(-0.5 / self.length_scale**2).exp_()

    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """See the base class; a covariance without a factor is an error, on a GPU NaN."""
        check_kind(torch.Generator, generator=generator)
        x = x.double()
        covariance = self.kernel(x, x)
        covariance.diagonal(dim1=-2, dim2=-1).add_(self.jitter)
        factor, info = torch.linalg.cholesky_ex(covariance)
        if info.device.type == "cpu" and info.any():
            if not x.isfinite().all():
                raise ValueError(f"x must be finite, got {x[~x.isfinite()][0].item()}.")
            raise ValueError(
                f"jitter must make the covariance of {x.shape[1]} inputs positive definite in "
                f"float64, got {self.jitter}, with which it is not; the default is 1e-8."
            )
        eps = torch.randn((*x.shape[:2], 1), dtype=x.dtype, device=x.device, generator=generator)
        # A failed factor is finite. To look would wait for a GPU; training reports the NaN.
        return (factor @ eps).masked_fill_((info != 0)[:, None, None], math.nan)


#: The priors, by the names that checkpoints know them by.
GENERATORS: dict[str, type[Prior]] = {
    cls.name: cls for cls in (Sawtooth, SquareWave, ReleasedSquareWave, GaussianProcess)
}
#: The datasets that models are trained and scored on.
DATASETS: dict[str, Prior] = {name: cls() for name, cls in GENERATORS.items()}
#: Datasets with observation noise, by name. Models are trained on them; there is no benchmark. They
#: are meant for noise from 0.01 to 0.3: at the edge of its prior even exact Bayes takes the noise
#: for too small, and its intervals are too narrow.
NOISY: dict[str, Prior] = {
    f"{cls.name}-noisy": cls(noise=(0.003, 1.0)) for cls in (GaussianProcess, Sawtooth)
}
PAPER_SUFFIX = "-paper"  #: The end of the names of models trained by the paper's recipe.
PRIORS: dict[str, Prior] = DATASETS | NOISY  #: All that recipes train on.


def dataset_name(task_generator: TaskGenerator) -> str:
    """The dataset that a source of tasks is, or its own name where it is none of them."""
    return next((n for n, prior in PRIORS.items() if prior == task_generator), task_generator.name)


def split_name(name: str) -> tuple[str, str]:
    """Parts of a name: of ``danp-f2-square-paper`` they are ``danp-f2-paper`` and ``square``."""
    stem = name.removesuffix(PAPER_SUFFIX)
    for dataset in sorted(PRIORS, key=len, reverse=True):
        if stem.endswith(f"-{dataset}"):
            return stem.removesuffix(f"-{dataset}") + name.removeprefix(stem), dataset
    raise ValueError(f"name must end in -{', -'.join(PRIORS)}, got {name!r}.")


def join_name(model: str, dataset: str) -> str:
    """The name of these two parts: the inverse of :func:`split_name`."""
    stem = model.removesuffix(PAPER_SUFFIX)
    return f"{stem}-{dataset}{model.removeprefix(stem)}"
