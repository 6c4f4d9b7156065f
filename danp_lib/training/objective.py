"""The batches that training draws and the likelihood that it maximizes (paper, Section 2.2)."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from danp_lib._config import ORDERED, Configuration, Limit, NonNegativeInt, PositiveInt
from danp_lib.data.generators import TaskGenerator
from danp_lib.data.noising import MaskedTask, sample_augmented_task
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.models.base import NeuralProcess

Fraction = Annotated[float, Limit("> 0 and <= 1", lambda value: 0 < value <= 1)]


@dataclass(frozen=True)
class BatchConfig(Configuration):
    """The batches of a run."""

    batch_size: PositiveInt = 16  #: Tasks per step.
    #: Inclusive range of the number of context points.
    context_size: Annotated[tuple[NonNegativeInt, NonNegativeInt], ORDERED] = (0, 30)
    num_targets: PositiveInt = 50  #: Points of every level.
    #: Probability of drawing level 0; the others share the rest. ``None`` draws all levels evenly.
    clean_fraction: Fraction | None = None
    level_per: Literal["batch", "task"] = "batch"  #: What has one level; in the paper a batch.


def draw_levels(num_levels: int, config: BatchConfig, *, generator: torch.Generator) -> Tensor:
    """The level of each task of a batch, ``(batch,)``, on the generator's device."""
    count = 1 if config.level_per == "batch" else config.batch_size
    where: Any = {"device": generator.device, "generator": generator}
    # A model without levels has level 0 alone.
    lowest = 0 if config.clean_fraction is None else min(num_levels, 1)
    levels = torch.randint(lowest, num_levels + 1, (count,), **where)
    if config.clean_fraction is not None:
        levels = torch.where(
            torch.rand(count, dtype=torch.float32, **where) < config.clean_fraction, 0, levels
        )
    return levels.expand(config.batch_size)


def draw_batch(
    model: NeuralProcess,
    task_generator: TaskGenerator,
    config: BatchConfig,
    *,
    levels: int | Tensor | None = None,
    generator: torch.Generator,
) -> MaskedTask:
    """Draw a batch, masked at levels drawn too or given: one, or each task's, ``(batch,)``.

    One level drawn for a batch on a CPU becomes an int, by which the model computes what that level
    needs alone. A GPU is not waited for: there it stays a tensor.
    """
    sizes: Any = {"context_size": config.context_size, "num_targets": config.num_targets}
    count = config.batch_size
    if model.num_levels == 0:
        task = task_generator.sample_task(count, **sizes, generator=generator)
        return MaskedTask(task.context, (), task.target, 0)
    schedule = model.config.schedule
    augmented = sample_augmented_task(task_generator, schedule, count, **sizes, generator=generator)
    if levels is None:
        levels = draw_levels(model.num_levels, config, generator=generator)
        if config.level_per == "batch" and levels.device.type == "cpu":
            levels = int(levels[0])
    return augmented.masked(levels)


def batch_log_likelihood(
    model: NeuralProcess, batch: MaskedTask, *, jitter: Tensor | float = 0.0
) -> Tensor:
    r"""Nats per target of each task, :math:`\log p_\theta(y_f \mid \cdot) / N_t`, ``(batch,)``."""
    predictive = model.level_predictive(batch)
    jittered = LowRankNormal(predictive.loc, predictive.cov_factor, predictive.cov_diag + jitter)
    return jittered.log_prob(batch.target.y, check=False) / batch.target.num_points


def training_loss(log_likelihood: Tensor, *, robust_threshold: float | None) -> Tensor:
    r"""Minus the mean log-likelihood of the tasks, or a robust form of it.

    With a threshold k, a task below it counts as :math:`k - \log(1 + k - \ell)` in place of
    :math:`\ell`. A value of 1 predicted as :math:`0 \pm 10^{-3}` costs 500,000 nats: in a plain
    mean, that one task sets the direction of the step.
    """
    if robust_threshold is not None:
        short = (robust_threshold - log_likelihood).clamp(min=0.0)
        log_likelihood = log_likelihood + short - torch.log1p(short)
    return -log_likelihood.mean()


def cause_of_failure(model: NeuralProcess, batch: MaskedTask, loss: Tensor) -> str:
    """Why the loss of a batch, or its gradient, is not finite, in words."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the parameter {name} holds NaN or infinity"
    auxiliary = ((f"auxiliary[{f}]", points) for f, points in enumerate(batch.auxiliary))
    for name, points in (("context", batch.context), *auxiliary, ("target", batch.target)):
        try:
            points.check(name)
        except ValueError as error:
            return f"the task generator made bad data: {str(error).rstrip('.')}"
    with torch.no_grad():
        predictive = model.level_predictive(batch)
    if not (predictive.mean.isfinite().all() and predictive.variance.isfinite().all()):
        return "the network's outputs are so large that the predictive is not finite"
    finite = predictive.log_prob(batch.target.y, check=False).isfinite()
    if bad := (~finite).nonzero().flatten().tolist():
        return f"the predictive covariance is not positive definite in tasks {bad} of the batch"
    if loss.isfinite():
        return "the loss is finite but its gradient is not"
    return f"the loss is {loss.item()}, though each likelihood without jitter is finite"


@torch.no_grad()
def validation_log_likelihoods(
    model: NeuralProcess, batches: list[list[MaskedTask]]
) -> list[Tensor]:
    """Nats per target of every task, level by level, given the true levels above it."""
    return [torch.cat([batch_log_likelihood(model, b) for b in level]) for level in batches]
