"""What every model obeys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from danp_lib._config import check_kind
from danp_lib._random import spawn
from danp_lib.data.domain import Domain
from danp_lib.data.noising import MaskedTask
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.models.contexts import TrainingContexts, unchecked_contexts

LARGEST = 1e18
"""The largest size of an output that a model takes, so that its square is a number in float32."""

Predictive = LowRankNormal | Mixture
"""A joint distribution of the outputs at the targets."""


class NeuralProcess(nn.Module, ABC):
    """What every model obeys; training, evaluation and the commands ask for nothing else.

    Only a :class:`~danp_lib.models.danp.DANP` has levels: its configuration is asked for
    ``schedule`` and ``num_auxiliary``, and it is sampled by ``denoise``. A model with other latent
    variables says so by :attr:`is_sampled`, and predicts a mixture with a component for each of
    their samples.

    A model is constructed from its configuration and listed in
    :data:`~danp_lib.models.registry.MODELS`.
    """

    name: ClassVar[str]  #: The name that checkpoints and commands know the class by.
    #: Whether the joint density and joint samples of the targets come from a rollout
    #: (:mod:`danp_lib.inference.autoregressive`) instead of the predictive.
    autoregressive: ClassVar[bool] = False
    config: Any  #: The configuration, a frozen dataclass.
    #: What its contexts in training were like, where that was measured.
    training_contexts: TrainingContexts | None = None

    @property
    def num_levels(self) -> int:
        """F, the index of the noisiest level; 0 for a model without noise levels."""
        return 0

    @property
    def is_sampled(self) -> bool:
        """Whether a prediction has samples, from a generator that it then needs."""
        return self.num_levels > 0

    @property
    @abstractmethod
    def domain(self) -> Domain:
        """The box that inputs must lie in."""

    @property
    def grid_spacing(self) -> float:
        """Distance of the points of the model's grid; 0 without a grid."""
        return 0.0

    @abstractmethod
    def level_predictive(self, batch: MaskedTask) -> LowRankNormal:
        """The predictive of the batch's targets at its level, without checks, for training.

        Training maximizes its density; another objective takes a loop of your own.
        """

    @abstractmethod
    def context_log_density(self, context: PointSet) -> Tensor:
        """Log-density of the context's own outputs in nats per point, ``(batch,)``, unchecked."""

    @abstractmethod
    def predict(
        self,
        context: PointSet,
        xt: Tensor,
        *,
        num_samples: int = 256,
        generator: torch.Generator | None = None,
        chunk_size: int = 256,
    ) -> Predictive:
        """The predictive at the targets, without gradients; first :meth:`check` its inputs.

        Args:
            context: Context sets.
            xt: Target inputs, ``(batch, targets, dim_x)``.
            num_samples: S, the number of samples of each task. A model that samples nothing ignores
                this and what follows.
            generator: Source of randomness.
            chunk_size: Number of samples computed at a time; it bounds the memory only.
        """

    def condition_on(
        self,
        context: PointSet,
        *,
        num_samples: int = 256,
        generator: torch.Generator | None = None,
        chunk_size: int = 256,
    ) -> Callable[[Tensor], Predictive]:
        """:meth:`predict` as a function of the target inputs, of the same samples in each call."""
        self.check({"context": context})
        self.check_context(context)
        predict = unchecked_contexts()(self.predict)
        if not self.is_sampled:
            return lambda xt: predict(context, xt)
        check_kind(torch.Generator, generator=generator)
        assert generator is not None
        state = generator.clone_state()
        spawn(generator, 1)  # what draws from it next has other samples
        options: Any = {"num_samples": num_samples, "chunk_size": chunk_size}
        return lambda xt: predict(context, xt, generator=state.clone_state(), **options)

    def check(self, sets: Mapping[str, PointSet], **inputs: Tensor) -> None:
        """Refuse named sets and inputs of wrong shapes, not finite, or off the domain."""
        dtype, domain = next((p.dtype for p in self.parameters()), None), self.domain
        check_kind(PointSet, **sets)
        check_kind(Tensor, **inputs)
        for name, x in inputs.items():
            if x.ndim != 3 or x.shape[-1] != domain.dim_x:
                raise ValueError(
                    f"{name} must have shape (batch, points, {domain.dim_x}), got {tuple(x.shape)}."
                )
        for name, points in sets.items():
            points.check(name)
            if (large := points.y[points.mask & (points.y.abs() > LARGEST)[..., 0]]).numel():
                raise ValueError(
                    f"{name}.y must be at most {LARGEST:g} in size, got {large[0].item():g}; "
                    "rescale the outputs."
                )
        inside: dict[str, tuple[Tensor, Tensor | None]] = {n: (x, None) for n, x in inputs.items()}
        inside |= {f"{name}.x": (points.x, points.mask) for name, points in sets.items()}
        for name, (x, mask) in inside.items():
            if dtype is not None and x.dtype != dtype:
                raise ValueError(f"{name} must have the model's dtype {dtype}, got {x.dtype}.")
            domain.check(name, x, mask)
        sizes = {name.removesuffix(".x"): len(x) for name, (x, _) in inside.items()}
        if len(set(sizes.values()) - {1}) > 1 or 0 in sizes.values():
            raise ValueError(f"the batch sizes must agree (or be 1) and not be 0, got {sizes}.")

    def check_context(self, context: PointSet) -> None:
        """Give a ``ContextWarning`` if a context of the batch is unlike those of training."""
        if self.training_contexts is not None:
            self.training_contexts.warn(self, context)
