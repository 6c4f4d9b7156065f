"""A DANP as it is used: one mixture of its own samples, defended, scored in every way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from danp_lib.data.points import Task
from danp_lib.evaluation.marginals import MarginalRecord, Marginals, marginal_record
from danp_lib.evaluation.score import CHUNK_SIZE, Evaluation, TaskRecord, score_each
from danp_lib.models.danp import DANP


@dataclass(frozen=True)
class Used:
    """The scores of a DANP's mixtures over ancestral samples, with the defensive component.

    Nothing here needs the true function: it is what a user gets, likelihood and marginals of the
    same distribution.

    Attributes:
        defensive_weight: Of the defensive component.
        evaluation: The likelihoods.
        marginals: CRPS and coverage.
    """

    defensive_weight: float
    evaluation: Evaluation
    marginals: Marginals

    @classmethod
    def summarize(
        cls,
        tasks: Sequence[tuple[TaskRecord, MarginalRecord]],
        *,
        num_samples: int,
        defensive_weight: float,
    ) -> Used:
        """Sum up the two records of every task.

        Raises:
            ValueError: If there is none.
        """
        return cls(
            defensive_weight,
            Evaluation.summarize([likelihood for likelihood, _ in tasks]),
            Marginals.summarize([marginal for _, marginal in tasks], num_samples=num_samples),
        )

    def summarized(self) -> Used:
        """The same anew, from the records in it."""
        tasks = list(zip(self.evaluation.tasks, self.marginals.tasks, strict=True))
        return self.summarize(
            tasks,
            num_samples=self.marginals.num_samples,
            defensive_weight=self.defensive_weight,
        )


def score_used(
    model: DANP,
    task: Task,
    *,
    num_samples: int = 256,
    generator: torch.Generator,
    progress: bool = False,
) -> Used:
    """Score a DANP with its defensive component on a batch of tasks, one by one.

    Args:
        model: A trained DANP; :meth:`~danp_lib.models.danp.DANP.defended` gives it its weight.
        task: The tasks.
        num_samples: S, the number of ancestral samples a task.
        generator: Source of randomness; each task's is spawned from it.
        progress: Show a progress bar on the standard error.

    Raises:
        ValueError: If the model has no noise levels, a target is masked or not finite, or
            the model cannot take the tasks or the number of samples.
    """
    if model.num_levels == 0:
        raise ValueError("model must have noise levels to draw samples from, got num_levels = 0.")
    task.check()
    defended = model.defended()
    score = partial(_score_task, defended, num_samples=num_samples)
    return Used.summarize(
        score_each(score, task, generator=generator, progress=progress),
        num_samples=num_samples,
        defensive_weight=defended.config.defensive_weight,
    )


def _score_task(
    model: DANP, task: Task, *, num_samples: int, generator: torch.Generator
) -> tuple[TaskRecord, MarginalRecord]:
    start = time.perf_counter()
    predictive = model.predict(
        task.context,
        task.xt,
        num_samples=num_samples,
        generator=generator,
        chunk_size=CHUNK_SIZE,
    )
    likelihood = TaskRecord(
        context_size=int(task.context.sizes),
        log_likelihood=float(predictive.log_prob(task.yt)) / task.target.num_points,
        estimator="model",
        num_samples=num_samples,
        effective_sample_size=None,
        forward_passes=2 + model.num_levels * num_samples,
        seconds=time.perf_counter() - start,
    )
    return likelihood, marginal_record(predictive, task, start=start)
