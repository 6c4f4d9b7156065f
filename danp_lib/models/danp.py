"""The diffusion-augmented neural process (paper, Section 2)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from danp_lib._config import (
    Configuration,
    Limit,
    NonNegativeInt,
    PositiveInt,
    check_at_least,
    check_kind,
    checked,
)
from danp_lib._random import draw_rows, spawn
from danp_lib.data.noising import Beta, NoiseSchedule, check_level, mask_levels
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.models.contexts import log_density_per_point
from danp_lib.models.convnp import ConvNeuralProcess, ConvNPConfig, ConvNPCore

AuxiliaryInputs = Literal["uniform", "target"]
"""Where the inputs of the auxiliary sets are, uniform on the domain or those of the targets."""

DEFENSIVE_WEIGHT = 0.05
"""The weight of the defensive component where none is named; see :meth:`DANP.defended`."""

_SAMPLES_TO_CHECK = 4  # per context, far fewer than a prediction takes
_CONTEXTS_AT_ONCE = 64

Proposal = Callable[[int, LowRankNormal], Tensor]
"""Given a level and its predictive, the outputs of its auxiliary sets, ``(rows, points, 1)``."""


@dataclass(frozen=True)
class DANPConfig(Configuration):
    """The architecture and the noise of a DANP."""

    base: ConvNPConfig = field(default_factory=ConvNPConfig)  #: What models every level.
    num_levels: NonNegativeInt = 3  #: F, the number of noise levels.
    beta: Beta = 0.08526  #: Standard deviation of one noise step.
    num_auxiliary: PositiveInt = 50  #: Points of each auxiliary set, in training and in samples.
    #: Of the defensive component in predictions; see :meth:`DANP.defended`.
    defensive_weight: Annotated[float, Limit(">= 0 and < 1", lambda value: 0 <= value < 1)] = 0.0
    #: Whether a conditioned level 0 is conditioned on the samples of the noisy sets too, as in
    #: training on true ones; see :meth:`DANP.defended`.
    samples_known: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.defensive_weight > 0.0 and self.num_levels == 0:
            raise ValueError(
                "defensive_weight must be 0 where num_levels is 0, since the defensive component "
                f"is made of the noisiest level, got {self.defensive_weight}."
            )

    @property
    def schedule(self) -> NoiseSchedule:
        """The noise."""
        return NoiseSchedule(self.beta, self.num_levels)


@dataclass(frozen=True, eq=False)
class EncodedContext:
    """The part of the computation that all samples of a task share."""

    context: PointSet  #: ``(tasks,)``.
    encoding: Tensor  #: With empty channels for the levels, ``(tasks, 2 * (F + 1), grid)``.
    features: Tensor  #: The U-Net's for the noisiest level, ``(tasks, channels, grid)``.


@dataclass(frozen=True, eq=False)
class AuxiliarySamples:
    """Samples of the auxiliary sets; the samples of a task are successive rows."""

    auxiliary: tuple[PointSet, ...]  #: The levels 1 to F, ``(rows,)`` each.
    predictives: tuple[LowRankNormal, ...]  #: Of these levels at these points, ``(rows,)`` each.
    core: ConvNPCore  #: The network.
    context: PointSet  #: That of each row, or one for all.
    features: Tensor  #: The U-Net's for level 0, ``(rows, channels, grid)``.
    known: tuple[PointSet, ...]  #: What level 0 is conditioned on, if it is.

    def log_prob(self) -> Tensor:
        r""":math:`\log p_\theta(D_a | D_c)` of every sample in nats, ``(rows,)``; Equation 3."""
        terms = [p.log_prob(a.y) for p, a in zip(self.predictives, self.auxiliary, strict=True)]
        zero = self.features.new_zeros(len(self.features), dtype=torch.float64)
        return torch.stack([zero, *terms]).sum(dim=0)

    @torch.no_grad()
    def context_log_prob(self) -> Tensor:
        """Log-density of the context's own outputs at level 0 given each sample, ``(rows,)``."""
        context = self.context.expand(len(self.features))
        level = self.core.at_context(self.features, context)
        return log_density_per_point(level, context) * context.sizes

    def log_weight(self) -> Tensor:
        """Logarithm of each sample's weight in a prediction, ``(rows,)``, up to a constant.

        Where the noise is inferred (:mod:`~danp_lib.models.noise`), a sample that makes the
        context improbable, by a mistake of the levels above, takes the noise for large. So there a
        sample counts as much as it makes the context probable. Elsewhere all count alike, as in
        Equation 2 of the paper.
        """
        if self.core.config.largest_noise > 0.0:
            return self.context_log_prob()
        return self.features.new_zeros(len(self.features), dtype=torch.float64)

    @torch.no_grad()
    def at(self, xt: Tensor) -> LowRankNormal:
        """Level 0 per sample, ``(rows,)``, at ``(tasks or 1, targets, dim_x)``; Equation 2."""
        if len(xt) > 1:
            xt = xt.repeat_interleave(len(self.features) // len(xt), dim=0)
        return self.core.predictive(self.features, self.known, xt, 0)


class DANP(ConvNeuralProcess):
    """A convolutional neural process on F + 1 channels that denoises level by level."""

    name = "danp"

    def __init__(self, config: DANPConfig = DANPConfig()) -> None:
        super().__init__()
        check_kind(DANPConfig, config=config)
        self.config: DANPConfig = config
        self.schedule = config.schedule
        self.core = ConvNPCore(config.base, num_sets=config.num_levels + 1)

    def forward(
        self, context: PointSet, auxiliary: Sequence[PointSet], xt: Tensor, level: int = 0
    ) -> LowRankNormal:
        r"""The predictive of one level, :math:`p_\theta(y_f | x_f, D_c, D_a^{f+1:F})`.

        The ``auxiliary`` sets are the levels 1 to F; those not noisier than f have no effect.
        """
        level = check_level(level, self.num_levels)
        check_kind(Sequence, auxiliary=auxiliary)
        check_kind(PointSet, **{f"auxiliary[{f}]": points for f, points in enumerate(auxiliary)})
        if len(auxiliary) != self.num_levels:
            raise ValueError(
                f"auxiliary must hold the levels 1 to {self.num_levels}, got {len(auxiliary)} sets."
            )
        masked = mask_levels(auxiliary, level)
        named = {f"auxiliary[{f}]": points for f, points in enumerate(masked)}
        self.check({"context": context} | named, xt=xt)
        return self.core([context, *masked], xt, level)

    @torch.no_grad()
    def encode(self, context: PointSet) -> EncodedContext:
        """Encode contexts and compute the noisiest level's features, one U-Net pass each."""
        nothing = PointSet(context.x[:1, :0], context.y[:1, :0])
        encoding = self.core.encode([context, *(nothing,) * self.num_levels])
        return EncodedContext(context, encoding, self.core.features(encoding))

    def defended(self, weight: float | None = None) -> DANP:
        r"""This model, of the same weights, with two guards in all that it predicts.

        Samples of the auxiliary sets, taken as known, make each component of the mixture so narrow
        that a few hundred leave gaps. So a conditioned level 0 is conditioned on the context alone;
        the features are still those of the samples. Where the noise is inferred, they stay known.

        Where all samples are wrong, the mixture can still miss the targets by thousands of nats. A
        defensive mixture (Hesterberg, 1995) predicts

        .. math::
            (1 - \delta)\, p_\theta(y_0 \mid D_c) + \delta\, q(y_0 \mid D_c)

        in its place, with :meth:`defensive` for q and a weight :math:`\delta` in [0, 1). That
        costs :math:`-\log(1 - \delta)` nats per task at most, and leaves no task more than
        :math:`-\log \delta` below q. Left out, the weight is the one that the model has already,
        or :data:`DEFENSIVE_WEIGHT`. To move, cast or train one of the two does so to the other.
        """
        model = copy.copy(self)
        known = self.config.base.largest_noise > 0.0
        if weight is None:
            weight = self.config.defensive_weight or DEFENSIVE_WEIGHT
        model.config = replace(self.config, defensive_weight=weight, samples_known=known)
        return model

    @torch.no_grad()
    def defensive(self, encoded: EncodedContext, xt: Tensor) -> LowRankNormal:
        r"""The defensive component, a Gaussian of each task's clean outputs.

        At the noisiest level :math:`y_F = s y_0 + \text{noise}`: its predictive, divided by s, is
        one of :math:`y_0` with the noise on top, as the network learned it; it is consistent.
        """
        noisy = self.core.decode(encoded.features, xt, self.num_levels)
        s = self.schedule.signal(self.num_levels)
        return LowRankNormal(noisy.loc / s, noisy.cov_factor / s, noisy.cov_diag / s**2)

    @torch.no_grad()
    def denoise(
        self, encoded: EncodedContext, inputs: Sequence[Tensor] | Tensor, proposal: Proposal
    ) -> AuxiliarySamples:
        """Draw auxiliary sets from the noisiest level down to level 1 (paper, Equation 3).

        Args:
            encoded: The contexts of the tasks, from :meth:`encode`.
            inputs: Of the levels 1 to F, ``(rows, points, dim_x)`` each; the samples of a task are
                successive rows, as many for every task.
            proposal: Draws the outputs of a level; with :func:`ancestral`, from its predictive.
        """
        context, features = encoded.context, encoded.features
        tasks = context.batch_size
        samples = len(inputs[0]) // tasks if self.num_levels else 1
        encoding = encoded.encoding.repeat_interleave(samples, dim=0)
        if tasks > 1 and samples > 1:
            rows = torch.arange(tasks, device=features.device).repeat_interleave(samples)
            context, features = context[rows], features[rows]
        sets: tuple[PointSet, ...] = ()
        predictives: tuple[LowRankNormal, ...] = ()
        for level in range(self.num_levels, 0, -1):
            x = inputs[level - 1]
            predictive = self.core.decode(features, x, level)
            points = PointSet(x, proposal(level, predictive).to(x.dtype))
            encoding[:, 2 * level : 2 * level + 2] = self.core.encode_set(points, level)
            features = self.core.features(encoding)
            sets, predictives = (points, *sets), (predictive, *predictives)
        known = (context, *sets) if self.config.samples_known else (context,)
        return AuxiliarySamples(sets, predictives, self.core, context, features, known)

    def draw_inputs(
        self, num_samples: int, *, generator: torch.Generator, dtype: torch.dtype
    ) -> Tensor:
        """Uniform inputs for the levels 1 to F, ``(levels, samples, num_auxiliary, dim_x)``."""
        check_kind(torch.Generator, generator=generator)
        shape = (self.num_levels, self.config.num_auxiliary, self.domain.dim_x)
        unit = draw_rows(torch.rand, num_samples, shape, generator=generator, dtype=dtype)
        return self.domain.from_unit(unit).transpose(0, 1)

    def draw_noise(
        self, num_samples: int, num_points: int, *, generator: torch.Generator
    ) -> Tensor:
        """Normal numbers for :func:`ancestral`, ``(levels, samples, num_points + rank, 1)``."""
        f64, shape = torch.float64, (self.num_levels, num_points + self.config.base.rank, 1)
        noise = draw_rows(torch.randn, num_samples, shape, generator=generator, dtype=f64)
        return noise.transpose(0, 1)

    def sample_auxiliary(
        self,
        context: PointSet,
        *,
        num_samples: int,
        inputs: Tensor | None = None,
        generator: torch.Generator,
        chunk_size: int = 256,
    ) -> tuple[PointSet, ...]:
        """Ancestral samples of the auxiliary sets of one context (paper, Equation 3).

        All levels share the ``inputs``, ``(1, points, dim_x)``; left out, they are uniform and each
        level's own, as in the paper. The result is the levels 1 to F, with the samples as a batch.
        """
        given = {} if inputs is None else {"inputs": inputs}
        self.check({"context": context}, **given)
        if context.batch_size != 1:
            raise ValueError(f"context must be one set, got a batch of {context.batch_size}.")
        if inputs is not None and len(inputs) != 1:
            raise ValueError(f"inputs must be one set that all samples share, got {len(inputs)}.")
        samples = self._ancestral(context, num_samples, inputs, generator, chunk_size)
        return tuple(
            PointSet(torch.cat([a.x for a in level]), torch.cat([a.y for a in level]))
            for level in zip(*(part.auxiliary for _, part in samples), strict=True)
        )

    def predict(
        self,
        context: PointSet,
        xt: Tensor,
        *,
        num_samples: int = 256,
        auxiliary_inputs: AuxiliaryInputs = "uniform",
        generator: torch.Generator | None = None,
        chunk_size: int = 256,
    ) -> Mixture:
        """The predictive at the targets, a mixture of one Gaussian per sample (paper, Equation 2).

        See :meth:`NeuralProcess.predict <danp_lib.models.base.NeuralProcess.predict>`; a
        generator is needed unless F is 0. A defensive component is one Gaussian more. Whatever the
        chunk size, the mixture keeps ``num_samples * targets * rank`` numbers. Auxiliary inputs are
        ``"uniform"``, which keeps predictions at different targets consistent, or those of the
        targets, ``"target"``, as in the paper's released code.
        """
        self.check({"context": context}, xt=xt)
        self.check_context(context)
        checked(AuxiliaryInputs, auxiliary_inputs, "auxiliary_inputs")
        batch = max(context.batch_size, len(xt))
        context, xt = context.expand(batch), xt.expand(batch, -1, -1)
        inputs = xt if auxiliary_inputs == "target" else None
        samples = self._ancestral(context, num_samples, inputs, generator, chunk_size)
        encoded = self.encode(context) if self.config.defensive_weight else None
        return self._mixture(samples, encoded, xt)

    def condition_on(
        self,
        context: PointSet,
        *,
        num_samples: int = 256,
        generator: torch.Generator | None = None,
        chunk_size: int = 256,
    ) -> Callable[[Tensor], Mixture]:
        """:meth:`predict` as a function of the target inputs, with auxiliary sets drawn once.

        The function takes one set of inputs, or one for every context; where there is one context,
        any number of sets. It keeps the features of all samples in memory, 80 KB each with the
        default architecture.
        """
        self.check({"context": context})
        self.check_context(context)
        count = context.batch_size
        samples = [
            # Without the predictives, which take as much memory and are read no more.
            (tasks, replace(some, predictives=()))
            for tasks, some in self._ancestral(context, num_samples, None, generator, chunk_size)
        ]
        encoded = self.encode(context) if self.config.defensive_weight else None

        def predictive(xt: Tensor) -> Mixture:
            self.check({"context": context}, xt=xt)
            if len(xt) <= count:
                return self._mixture(samples, encoded, xt.expand(count, -1, -1))
            # One context: all sets of inputs as one, cut up afterwards.
            joint = self._mixture(samples, encoded, xt.flatten(end_dim=1).unsqueeze(0))
            cut = joint.components.map(lambda p: p[0].unflatten(1, xt.shape[:2]).transpose(0, 1))
            return Mixture(joint.logits.expand(len(xt), -1), cut)

        return predictive

    @torch.no_grad()
    def context_log_density(self, context: PointSet) -> Tensor:
        """See the base class: the mean over a few ancestral samples, of the same random numbers."""
        generator = torch.Generator(context.x.device).manual_seed(0)
        x = self.draw_inputs(_SAMPLES_TO_CHECK, generator=generator, dtype=context.x.dtype)
        noise = self.draw_noise(_SAMPLES_TO_CHECK, x.shape[2], generator=generator)
        values = []
        for start in range(0, context.batch_size, _CONTEXTS_AT_ONCE):
            encoded = self.encode(context[start : start + _CONTEXTS_AT_ONCE])
            count = encoded.context.batch_size
            inputs, proposal = x.repeat(1, count, 1, 1), ancestral(noise.repeat(1, count, 1, 1))
            samples = self.denoise(encoded, inputs, proposal)
            values.append(log_mean(samples.context_log_prob().unflatten(0, (count, -1)), dim=1))
        return torch.cat(values) / context.sizes.clamp(min=1)

    def _mixture(
        self,
        samples: Iterable[tuple[slice, AuxiliarySamples]],
        encoded: EncodedContext | None,
        xt: Tensor,
    ) -> Mixture:
        """That of each task over its samples, and the defensive component if that has a weight."""
        parts = [(some.log_weight(), some.at(xt[tasks])) for tasks, some in samples]
        logits = torch.cat([weights for weights, _ in parts]).unflatten(0, (len(xt), -1))
        components = LowRankNormal.cat([level for _, level in parts])
        mixture = Mixture(logits, components.map(lambda p: p.unflatten(0, (len(xt), -1))))
        if encoded is None:
            return mixture
        weight, last = self.config.defensive_weight, self.defensive(encoded, xt)
        components = LowRankNormal.cat([mixture.components, last[:, None]], dim=1)
        others = mixture.logits + math.log1p(-weight)
        return Mixture(F.pad(others, (0, 1), value=math.log(weight)), components)

    def _ancestral(
        self,
        context: PointSet,
        num_samples: int,
        inputs: Tensor | None,
        generator: torch.Generator | None,
        chunk_size: int,
    ) -> Iterator[tuple[slice, AuxiliarySamples]]:
        """Ancestral samples, of some tasks or some samples of one at a time, with these tasks.

        Every task has random streams of its own, so that neither chunks nor batch change a sample.
        """
        check_at_least(1, num_samples=num_samples, chunk_size=chunk_size)
        if self.num_levels == 0:  # nothing is drawn
            num_samples, generator = 1, torch.Generator(context.x.device)
        if not isinstance(generator, torch.Generator):
            raise ValueError(
                f"generator must be a torch.Generator, which a DANP needs, got {generator!r}."
            )
        if generator.device.type != context.x.device.type:
            raise ValueError(
                f"generator must be on the device of the context, {context.x.device}, got one on "
                f"{generator.device}."
            )
        streams = [spawn(generator, 2) for _ in range(context.batch_size)]
        tasks_at_once = max(1, chunk_size // num_samples)
        for start in range(0, context.batch_size, tasks_at_once):
            tasks = slice(start, start + tasks_at_once)
            encoded = self.encode(context[tasks])
            for count in chunks(num_samples, chunk_size):
                if inputs is None:
                    draw = partial(self.draw_inputs, count, dtype=context.x.dtype)
                    x = torch.cat([draw(generator=g) for g, _ in streams[tasks]], dim=1)
                else:
                    shared = inputs[tasks].repeat_interleave(count, dim=0)
                    x = shared.expand(self.num_levels, -1, -1, -1)
                noise = [self.draw_noise(count, x.shape[2], generator=g) for _, g in streams[tasks]]
                yield tasks, self.denoise(encoded, x, ancestral(torch.cat(noise, dim=1)))


def log_mean(log_weights: Tensor, dim: int = 0) -> Tensor:
    """The logarithm of the mean of weights along a dimension: that of an estimate by samples."""
    return log_weights.logsumexp(dim) - math.log(log_weights.shape[dim])


def defend(model: Any) -> DANP:
    """:meth:`DANP.defended` of a model, which is refused if it is no DANP."""
    if not isinstance(model, DANP):
        kind = getattr(model, "name", type(model).__name__)
        raise ValueError(f"defended is for a DANP, got a {kind}.")
    return model.defended()


def ancestral(noise: Tensor) -> Proposal:
    """The proposal of ancestral sampling, by noise ``(levels, rows, points + rank, 1)``."""
    return lambda level, predictive: predictive.transform(noise[level - 1])


def chunks(total: int, size: int) -> Iterator[int]:
    """Sizes of the chunks that a total is cut into."""
    for start in range(0, total, size):
        yield min(size, total - start)
