"""The diffusion-augmented neural process (paper, Section 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from danp_lib._config import Configuration, NonNegativeInt, PositiveInt
from danp_lib._random import one_by_one, spawn
from danp_lib.data.noising import Beta, NoiseSchedule, check_level, mask_levels
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.models.convnp import ConvNPConfig, ConvNPCore
from danp_lib.models.denoising import Denoised, Prepared, chunks
from danp_lib.models.registry import register

AuxiliaryInputs = Literal["uniform", "target"]
"""Where the auxiliary sets lie, uniform on the domain, or at the inputs of the targets."""


@dataclass(frozen=True)
class DANPConfig(Configuration):
    """The architecture and the noise of a DANP.

    Attributes:
        base: The convolutional neural process that models every level.
        num_levels: F, the number of noise levels.
        beta: Standard deviation of one noise step.
        num_auxiliary: Number of points of each auxiliary set when the model samples them; the
            number it was trained on.
    """

    base: ConvNPConfig = field(default_factory=ConvNPConfig)
    num_levels: NonNegativeInt = 3
    beta: Beta = 0.08526
    num_auxiliary: PositiveInt = 50

    @property
    def schedule(self) -> NoiseSchedule:
        """The noise."""
        return NoiseSchedule(self.beta, self.num_levels)


@register
class DANP(nn.Module):
    """A convolutional neural process on F + 1 channels that denoises level by level.

    Args:
        config: The architecture and the noise.
    """

    name: ClassVar[str] = "danp"

    def __init__(self, config: DANPConfig = DANPConfig()) -> None:
        super().__init__()
        self.config = config
        self.schedule = config.schedule
        self.core = ConvNPCore(config.base, num_sets=config.num_levels + 1)

    @property
    def num_levels(self) -> int:
        """F, the index of the noisiest level."""
        return self.config.num_levels

    def forward(
        self, context: PointSet, auxiliary: Sequence[PointSet], xt: Tensor, level: int = 0
    ) -> LowRankNormal:
        r"""The predictive of one level given the noisier ones,
        :math:`p_\theta(y_f | x_f, D_c, D_a^{f+1:F})`.

        Args:
            context: Context sets.
            auxiliary: The levels 1 to F; those not noisier than ``level`` have no effect.
            xt: Inputs to predict the level at, ``(batch, targets, 1)``.
            level: The level f to predict.

        Raises:
            ValueError: If the level or the number of auxiliary sets is wrong, shapes or dtypes do
                not fit, a value is not finite, or an input is off the model's domain.
        """  # noqa: D205
        level = check_level(level, self.num_levels)
        if len(auxiliary) != self.num_levels:
            raise ValueError(
                f"auxiliary must hold the levels 1 to {self.num_levels}, got {len(auxiliary)} sets."
            )
        masked = mask_levels(auxiliary, level)
        named = [(f"auxiliary[{f}]", points) for f, points in enumerate(masked)]
        self.core.check([("context", context), *named], xt)
        return self.forward_unchecked(context, masked, xt, level)

    def forward_unchecked(
        self, context: PointSet, auxiliary: Sequence[PointSet], xt: Tensor, level: int | Tensor
    ) -> LowRankNormal:
        """:meth:`forward` on levels already masked, without checks; a level a task is allowed."""
        features = self.core.features(self.core.encode([context, *auxiliary]))
        return self.core.predictive(features, [context, *auxiliary], xt, level)

    @torch.no_grad()
    def prepare(self, context: PointSet) -> Prepared:
        """Encode one context and compute the noisiest level's features, in one U-Net pass."""
        x = context.x
        nothing = PointSet.empty(dim_x=x.shape[-1], dtype=x.dtype, device=x.device)
        encoding = self.core.encode([context, *(nothing,) * self.num_levels])
        return Prepared(context, encoding, self.core.features(encoding))

    @torch.no_grad()
    def denoise(
        self,
        prepared: Prepared,
        inputs: Sequence[Tensor],
        choose: Callable[[int, LowRankNormal], Tensor],
        xt: Tensor,
        callback: Callable[[int, LowRankNormal, PointSet], None] | None = None,
    ) -> Denoised:
        """Walk from the noisiest level to the clean one (paper, Equation 3).

        Args:
            prepared: From :meth:`prepare`.
            inputs: Inputs of the levels 1 to F, each ``(samples, points, 1)``.
            choose: Given a level and its predictive, the outputs to go on with,
                ``(samples, points, 1)``: a sample of the predictive, or other values to score.
            xt: Inputs of the targets, ``(1, targets, 1)``.
            callback: Called with each level, its predictive and its set, once they are made.
        """
        samples = inputs[0].shape[0] if inputs else 1
        context, features = prepared.context, prepared.features
        encoding = prepared.encoding.expand(samples, -1, -1)
        sets: list[PointSet] = []
        predictives: list[LowRankNormal] = []
        for level in range(self.num_levels, 0, -1):
            x = inputs[level - 1]
            predictive = self.core.decode(features, x, level)
            points = PointSet(x, choose(level, predictive).to(x.dtype))
            if callback is not None:
                callback(level, predictive, points)
            sets.insert(0, points)
            predictives.insert(0, predictive)
            channels = slice(2 * level, 2 * level + 2)
            encoding = encoding.clone()
            encoding[:, channels] = self.core.encode_set(points, level)
            features = self.core.features(encoding)
        target = self.core.predictive(features, [context, *sets], xt, 0)
        return Denoised(tuple(sets), tuple(predictives), target)

    def draw_inputs(
        self, num_samples: int, *, generator: torch.Generator, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Uniform inputs for the levels 1 to F, each ``(samples, num_auxiliary, dim_x)``."""
        domain = self.config.base.grid.domain
        shape = (self.num_levels, self.config.num_auxiliary, domain.dim_x)
        unit = one_by_one(torch.rand, num_samples, shape, generator=generator, dtype=dtype)
        return domain.from_unit(unit).unbind(dim=1)

    def draw_noise(
        self, num_samples: int, num_points: int, *, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Standard normal numbers that make one sample of each of the levels 1 to F."""
        shape = (self.num_levels, num_points + self.config.base.rank, 1)
        noise = one_by_one(
            torch.randn, num_samples, shape, generator=generator, dtype=torch.float64
        )
        return noise.unbind(dim=1)

    def sample_auxiliary(
        self,
        context: PointSet,
        *,
        num_samples: int,
        inputs: Tensor | None = None,
        generator: torch.Generator,
        chunk_size: int = 256,
        callback: Callable[[int, LowRankNormal, PointSet], None] | None = None,
    ) -> tuple[PointSet, ...]:
        """Draw auxiliary sets from the model, level by level (paper, Equation 3).

        Args:
            context: One context set.
            num_samples: Number of samples of all levels together.
            inputs: Inputs ``(1, points, 1)`` that all levels share; uniform and independent ones
                where left out, as the paper has it.
            generator: Source of randomness.
            chunk_size: Number of samples computed at a time; it bounds the memory only.
            callback: Called with each level, its predictive and its set, chunk by chunk.

        Returns:
            The levels 1 to F, each with the samples as its batch.

        Raises:
            ValueError: If the context or the inputs are more than one set, a number is below 1, or
                the model cannot take the context or the inputs.
        """
        _check_positive(num_samples=num_samples, chunk_size=chunk_size)
        if context.batch_size != 1:
            raise ValueError(f"context must be one set, got a batch of {context.batch_size}.")
        xt = context.x[:, :0] if inputs is None else inputs
        self.core.check([("context", context)], xt)
        if len(xt) != 1:
            raise ValueError(f"inputs must be one set that all samples share, got {len(xt)}.")
        streams = spawn(generator, 2)
        prepared = self.prepare(context)
        parts = [
            self._sample(prepared, xt[:, :0], count, inputs, streams, callback).auxiliary
            for count in chunks(num_samples, chunk_size)
        ]
        return tuple(
            PointSet(torch.cat([a.x for a in level]), torch.cat([a.y for a in level]))
            for level in zip(*parts, strict=True)
        )

    def predict(
        self,
        context: PointSet,
        xt: Tensor,
        *,
        num_samples: int = 256,
        auxiliary_inputs: AuxiliaryInputs = "uniform",
        generator: torch.Generator,
        chunk_size: int = 256,
    ) -> Mixture:
        """The predictive at the targets, a mixture of one Gaussian a sample (paper, Equation 2).

        Args:
            context: Context sets.
            xt: Target inputs, ``(batch, targets, 1)``.
            num_samples: S, the number of components.
            auxiliary_inputs: ``"uniform"``, which keeps predictions at different targets
                consistent with each other, or ``"target"``.
            generator: Source of randomness.
            chunk_size: Number of samples computed at a time; it bounds the memory of the
                network only, since the mixture keeps ``num_samples * targets * rank`` numbers.

        Raises:
            ValueError: If an argument has a wrong shape, dtype or value.
        """
        self.core.check([("context", context)], xt)
        _check_choice("auxiliary_inputs", auxiliary_inputs)
        _check_positive(num_samples=num_samples, chunk_size=chunk_size)
        batch = max(context.batch_size, len(xt))
        context, xt = context.expand(batch), xt.expand(batch, -1, -1)
        parts: list[list[LowRankNormal]] = []
        for row in range(batch):
            streams = spawn(generator, 2)
            prepared = self.prepare(context[row])
            shared = xt[row : row + 1] if auxiliary_inputs == "target" else None
            parts.append(
                [
                    self._sample(prepared, xt[row : row + 1], n, shared, streams).target
                    for n in chunks(num_samples if self.num_levels else 1, chunk_size)
                ]
            )
        components = LowRankNormal(
            *(
                torch.stack([torch.cat([getattr(p, name) for p in row]) for row in parts])
                for name in ("loc", "cov_factor", "cov_diag")
            )
        )
        return Mixture(components.mean.new_zeros(components.batch_shape), components)

    def _sample(
        self,
        prepared: Prepared,
        xt: Tensor,
        num_samples: int,
        shared: Tensor | None,
        streams: tuple[torch.Generator, ...],
        callback: Callable[[int, LowRankNormal, PointSet], None] | None = None,
    ) -> Denoised:
        for_inputs, for_noise = streams
        if shared is None:
            inputs = self.draw_inputs(num_samples, generator=for_inputs, dtype=xt.dtype)
            num_points = self.config.num_auxiliary
        else:
            inputs = (shared.expand(num_samples, -1, -1),) * self.num_levels
            num_points = shared.shape[1]
        noise = self.draw_noise(num_samples, num_points, generator=for_noise)
        return self.denoise(
            prepared, inputs, lambda level, p: p.transform(noise[level - 1]), xt, callback
        )


def _check_choice(name: str, value: str) -> None:
    if value not in ("uniform", "target"):
        raise ValueError(f"{name} must be 'uniform' or 'target', got {value!r}.")


def _check_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}.")
