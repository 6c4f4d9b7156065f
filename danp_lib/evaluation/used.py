"""A DANP as it is used: one mixture of its own samples, defended, scored in every way."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch

from danp_lib.data.points import Task
from danp_lib.evaluation.marginals import MarginalRecord, Marginals, marginal_record
from danp_lib.evaluation.score import Evaluation, TaskRecord, score_each
from danp_lib.models.danp import DANP


@dataclass(frozen=True)
class Used:
    """The scores of a defended DANP's mixtures over ancestral samples.

    Nothing here needs the true function: it is what a user gets, likelihood and marginals of the
    same distribution.
    """

    defensive_weight: float  #: Of the defensive component.
    evaluation: Evaluation  #: The likelihoods.
    marginals: Marginals  #: CRPS and coverage.

    @classmethod
    def summarize(
        cls,
        tasks: Iterable[tuple[TaskRecord, MarginalRecord]],
        *,
        num_samples: int,
        defensive_weight: float,
    ) -> Used:
        """Sum up the two records of every task, at least one."""
        pairs = list(tasks)
        return cls(
            defensive_weight,
            Evaluation.summarize([likelihood for likelihood, _ in pairs]),
            Marginals.summarize([marginal for _, marginal in pairs], num_samples=num_samples),
        )


def score_used(
    model: DANP,
    task: Task,
    *,
    num_samples: int = 256,
    generator: torch.Generator,
    progress: bool = False,
) -> Used:
    """Score the likelihood and the marginals of a DANP, defended.

    See :meth:`~danp_lib.models.danp.DANP.defended`. The other arguments are those of
    :func:`~danp_lib.evaluation.score.evaluate`.
    """
    if model.num_levels == 0:
        raise ValueError("model must have noise levels to draw samples from, got num_levels = 0.")
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
    predictive = model.predict(task.context, task.xt, num_samples=num_samples, generator=generator)
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
