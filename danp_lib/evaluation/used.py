"""A DANP as it is used: one mixture of its own samples, defended, scored in every way."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from danp_lib.data.points import Task
from danp_lib.evaluation.marginals import MarginalRecord, Marginals, marginal_record
from danp_lib.evaluation.score import Evaluation, TaskRecord, score_each
from danp_lib.inference.autoregressive import check_model
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.models.danp import DANP


@dataclass(frozen=True)
class Used:
    """The scores of a defended DANP's mixtures over ancestral samples: what a user gets.

    Nothing here needs the true function; likelihood and marginals are of the same distribution.
    """

    defensive_weight: float  #: Of the defensive component.
    evaluation: Evaluation  #: The likelihoods.
    marginals: Marginals  #: CRPS and coverage.

    def __post_init__(self) -> None:
        one, other = len(self.evaluation.tasks), len(self.marginals.tasks)
        if one != other:
            message = "evaluation and marginals must be of the same tasks"
            raise ValueError(f"{message}, got {one} and {other} of them.")


@unchecked_contexts()
def score_used(model: DANP, task: Task, *, num_samples: int = 256, **options: Any) -> Used:
    """Score the :meth:`~danp_lib.models.danp.DANP.defended` form of a DANP, on each task by itself.

    The other options are those of :func:`score_each`.
    """
    check_model(model)
    if model.num_levels == 0:
        raise ValueError("model must have noise levels to draw samples from, got num_levels = 0.")
    defended = model.defended()

    def score(one: Task, *, generator: torch.Generator) -> tuple[TaskRecord, MarginalRecord]:
        start = time.perf_counter()
        predictive = defended.predict(
            one.context, one.xt, num_samples=num_samples, generator=generator
        )
        likelihood = TaskRecord(
            context_size=int(one.context.sizes),
            log_likelihood=float(predictive.log_prob(one.yt)) / one.target.num_points,
            estimator="model",
            num_samples=num_samples,
            effective_sample_size=None,
            forward_passes=2 + model.num_levels * num_samples,
            seconds=time.perf_counter() - start,
        )
        return likelihood, marginal_record(predictive, one, start=start)

    def summarize(records: Sequence[tuple[TaskRecord, MarginalRecord]]) -> Used:
        likelihoods, marginals = zip(*records, strict=True)
        scores = Marginals.summarize(marginals, num_samples=num_samples)
        return Used(defended.config.defensive_weight, Evaluation.summarize(likelihoods), scores)

    return score_each(score, task, summarize, **options)
