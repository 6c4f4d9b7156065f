"""Scores of the marginals on the benchmark: CRPS, and how often intervals hold the target."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch

from danp_lib.data.points import Task
from danp_lib.distributions.scores import crps, in_central_interval
from danp_lib.evaluation.score import mean_and_ci95, score_each
from danp_lib.exact.oracles import Oracle
from danp_lib.inference.autoregressive import check_model
from danp_lib.models.base import NeuralProcess, Predictive
from danp_lib.models.contexts import unchecked_contexts


@dataclass(frozen=True)
class MarginalRecord:
    """The marginals of one task."""

    context_size: int  #: Number of context points.
    crps: float  #: Mean over the targets, in units of y; lower is better.
    coverage_50: float  #: Fraction of the targets that lie in the central 50 % interval.
    coverage_90: float  #: The same of the central 90 % interval.
    seconds: float  #: Time taken, scoring included.


@dataclass(frozen=True)
class Marginals:
    """The marginals of a model on a set of tasks: means of the records."""

    crps: float  #: In units of y.
    crps_ci95: float | None  #: 1.96 standard errors of it over the tasks; ``None`` for one task.
    coverage_50: float
    coverage_90: float
    num_tasks: int  #: Number of tasks.
    num_samples: int  #: S, the number of a DANP's samples, or 1 where nothing is sampled.
    seconds: float  #: Sum over the tasks.
    tasks: tuple[MarginalRecord, ...]  #: What it is all computed from.

    @classmethod
    def summarize(cls, tasks: Sequence[MarginalRecord], *, num_samples: int) -> Self:
        """Sum up records, at least one."""
        scores, half, most = (
            mean_and_ci95(torch.tensor([getattr(t, key) for t in tasks], dtype=torch.float64))
            for key in ("crps", "coverage_50", "coverage_90")
        )
        return cls(
            *scores,
            coverage_50=half[0],
            coverage_90=most[0],
            num_tasks=len(tasks),
            num_samples=num_samples,
            seconds=sum(t.seconds for t in tasks),
            tasks=tuple(tasks),
        )


@unchecked_contexts()
def score_marginals(
    model: NeuralProcess | Oracle, task: Task, *, num_samples: int = 256, **options: Any
) -> Marginals:
    """Score the marginals of ``model.predict`` by :func:`score_each`, whose options follow.

    Those of a DANP are of the mixture over samples with uniform auxiliary inputs, and those of an
    AR ConvCNP its network's: a rollout has others at its later targets.

    Where a model knows a value free of noise, the floor of its variance makes intervals hold more
    targets than their level says; an exact predictive of the same floor says how many.
    """
    check_model(model)

    def score(one: Task, *, generator: torch.Generator) -> MarginalRecord:
        start = time.perf_counter()
        sampled: dict[str, Any] = {"num_samples": num_samples, "generator": generator}
        predictive = model.predict(one.context, one.xt, **(sampled if model.is_sampled else {}))
        return marginal_record(predictive, one, start=start)

    summarize = partial(Marginals.summarize, num_samples=num_samples if model.is_sampled else 1)
    return score_each(score, task, summarize, **options)


def marginal_record(predictive: Predictive, task: Task, *, start: float) -> MarginalRecord:
    """Score the marginals of a predictive at one task's targets; the work began at ``start``."""
    y, context_size = task.yt.double(), int(task.context.sizes)
    score = float(crps(predictive, y).mean())
    if not math.isfinite(score):  # NaN lies in no interval, which would count as a miss
        raise ValueError(
            f"the predictive's CRPS must be finite, got {score} for a task with {context_size} "
            "context points; are the model's weights finite?"
        )
    half, most = (in_central_interval(predictive, y, level).double() for level in (0.5, 0.9))
    return MarginalRecord(
        context_size=context_size,
        crps=score,
        coverage_50=float(half.mean()),
        coverage_90=float(most.mean()),
        seconds=time.perf_counter() - start,
    )
