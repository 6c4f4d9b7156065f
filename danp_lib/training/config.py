"""The settings of a training run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from danp_lib._config import (
    Configuration,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    from_dict,
)
from danp_lib.distributions.gaussian import VARIANCE_FLOOR
from danp_lib.training.objective import BatchConfig


@dataclass(frozen=True)
class TrainingConfig(Configuration):
    """The settings of a run."""

    num_steps: PositiveInt  #: Number of updates.
    batch: BatchConfig = field(default_factory=BatchConfig)  #: The batches.
    #: ``"adam"``, or ``"muon"`` for kernels and hidden layers and Adam for the rest.
    optimizer: Literal["adam", "muon"] = "muon"
    learning_rate: PositiveFloat = 1e-3  #: Adam's peak rate.
    muon_learning_rate: PositiveFloat = 1e-2  #: Muon's peak rate.
    muon_weight_decay: NonNegativeFloat = 0.0  #: Share of the weights lost by a step at rate 1.
    #: Constant, or down to zero after the last step, as half a cosine or the squared time left.
    schedule: Literal["constant", "cosine", "quadratic"] = "cosine"
    #: Steps over which the rates rise to their peaks; a shorter run does not reach them.
    warmup_steps: NonNegativeInt = 200
    gradient_clip: PositiveFloat | None = 1.0  #: Largest norm of the gradient.
    #: Added to the diagonal of the predictive covariance at first, in squared units of y.
    jitter: NonNegativeFloat = 0.0
    jitter_steps: NonNegativeInt = 0  #: Number of steps with jitter.
    #: A geometric one falls towards the variance floor, which the step after them would have.
    jitter_schedule: Literal["constant", "geometric"] = "constant"
    #: The threshold k of :func:`~danp_lib.training.objective.training_loss`, in nats per target.
    robust_threshold: float | None = None
    log_every: PositiveInt = 100  #: Steps between records.
    validate_every: PositiveInt = 1000  #: Steps between validations; the run is saved there too.
    num_validation_batches: PositiveInt = 16  #: Batches per level to validate on.
    #: Whether the model ends with the weights of the best validation, the latest that raised the
    #: lower end of the 95 % interval of the mean log-likelihood at all levels at once.
    keep_best: bool = False
    seed: Seed = 0  #: Of the initial weights, the training tasks and the validation tasks.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_best and self.num_validation_batches * self.batch.batch_size < 2:
            raise ValueError(
                "num_validation_batches times batch_size must be >= 2 for keep_best, which compares"
                " intervals of a mean, got 1."
            )
        if self.jitter_schedule == "geometric" and self.jitter < VARIANCE_FLOOR:
            raise ValueError(
                f"jitter must be >= {VARIANCE_FLOOR:g}, the variance floor, to fall to it by a "
                f"geometric schedule, got {self.jitter}."
            )

    @classmethod
    def from_provenance(cls, values: Mapping[str, Any]) -> Self:
        """The run that a checkpoint or a saved state names, under the names of today."""
        renamed = {key.replace("loss_knee", "robust_threshold"): v for key, v in values.items()}
        return from_dict(cls, renamed, name="training")

    def rate_factor_at(self, step: int) -> float:
        """What the peak rates are multiplied by at a step, from 0 on: schedule times warmup."""
        warmup = min(1.0, (step + 1) / (self.warmup_steps + 1))
        if self.schedule == "constant":
            return warmup
        if self.schedule == "quadratic":
            return warmup * (1.0 - step / self.num_steps) ** 2
        return warmup * 0.5 * (1.0 + math.cos(math.pi * step / self.num_steps))

    def jitter_at(self, step: int) -> float:
        """The jitter at a step, counted from 0.

        Without it, a value that is predicted wrongly and with confidence costs up to
        1 / (2 * 10**-6) nats an output, and the loss of a jumping function is made of little else.
        """
        if step >= self.jitter_steps:
            return 0.0
        if self.jitter_schedule == "constant":
            return self.jitter
        return float(self.jitter * (VARIANCE_FLOOR / self.jitter) ** (step / self.jitter_steps))
