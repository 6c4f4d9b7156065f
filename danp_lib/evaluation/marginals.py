"""Scores of the marginals on the benchmark: CRPS, and how often intervals hold the target."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from danp_lib.data.points import Task
from danp_lib.distributions.scores import crps, in_central_interval
from danp_lib.evaluation.score import CHUNK_SIZE, mean_and_ci95, score_each
from danp_lib.exact.oracles import Oracle
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.models.convnp import NeuralProcess, Predictive


@dataclass(frozen=True)
class MarginalRecord:
    """The marginals of one task.

    Attributes:
        context_size: Number of context points.
        crps: Mean over the targets, in units of y; lower is better.
        coverage_50: Fraction of the targets that lie in the central 50 % interval.
        coverage_90: The same of the central 90 % interval.
        seconds: Time taken, scoring included.
    """

    context_size: int
    crps: float
    coverage_50: float
    coverage_90: float
    seconds: float


@dataclass(frozen=True)
class Marginals:
    """The marginals of a model on a set of tasks.

    Attributes:
        crps: Mean over the tasks, in units of y.
        crps_ci95: 1.96 standard errors of it over the tasks; ``None`` for one task.
        coverage_50: Mean over the tasks.
        coverage_90: Likewise.
        num_tasks: Number of tasks.
        num_samples: S, the number of components of a DANP's mixture; 1 where nothing is sampled.
        seconds: Sum over the tasks.
        tasks: What it is all computed from.
    """

    crps: float
    crps_ci95: float | None
    coverage_50: float
    coverage_90: float
    num_tasks: int
    num_samples: int
    seconds: float
    tasks: tuple[MarginalRecord, ...]

    @classmethod
    def summarize(cls, tasks: Sequence[MarginalRecord], *, num_samples: int) -> Marginals:
        """Sum up records.

        Raises:
            ValueError: If there is none.
        """
        if not tasks:
            raise ValueError("tasks must hold at least one record, got none.")
        scores = torch.tensor(
            [(t.crps, t.coverage_50, t.coverage_90) for t in tasks], dtype=torch.float64
        )
        mean, error = mean_and_ci95(scores[:, 0])
        return cls(
            crps=mean,
            crps_ci95=error,
            coverage_50=float(scores[:, 1].mean()),
            coverage_90=float(scores[:, 2].mean()),
            num_tasks=len(tasks),
            num_samples=num_samples,
            seconds=sum(t.seconds for t in tasks),
            tasks=tuple(tasks),
        )


def score_marginals(
    model: NeuralProcess | Oracle,
    task: Task,
    *,
    num_samples: int = 256,
    generator: torch.Generator,
    progress: bool = False,
) -> Marginals:
    """Score the marginals of a model on a batch of tasks, one by one.

    The marginals are those of ``model.predict``: of a DANP the mixture over samples with uniform
    auxiliary inputs, and of an AR ConvCNP its network's, without a rollout. A rollout has other
    marginals at its later targets, one of the ways in which it is no consistent process.

    The benchmarks' functions are free of noise, and no model's variance is below its floor. So
    where a model knows a value, its intervals hold more targets than their level says, which is no
    fault; a coverage below the level is one.

    Args:
        model: A trained model, or an oracle.
        task: The tasks.
        num_samples: S, the number of a DANP's samples a task.
        generator: Source of randomness, on the device of model and tasks; each task's is spawned
            from it.
        progress: Show a progress bar on the standard error.

    Raises:
        ValueError: If a target is masked or not finite, or the model cannot take the tasks or the
            number of samples.
    """
    task.check()
    score = partial(score_task, model, num_samples=num_samples)
    records = score_each(score, task, generator=generator, progress=progress)
    return Marginals.summarize(records, num_samples=num_samples if model.num_levels else 1)


@unchecked_contexts()
def score_task(
    model: NeuralProcess | Oracle,
    task: Task,
    *,
    num_samples: int,
    generator: torch.Generator,
    chunk_size: int = CHUNK_SIZE,
) -> MarginalRecord:
    """Score the marginals of a model on one task; see :func:`score_marginals`.

    Raises:
        ValueError: As :func:`score_marginals`, or if there is more than one task.
    """
    if task.batch_size != 1:
        raise ValueError(f"task must be a batch of one, got {task.batch_size}.")
    task.check()
    start = time.perf_counter()
    options: dict[str, Any] = {}
    if model.num_levels:
        options = {"num_samples": num_samples, "generator": generator, "chunk_size": chunk_size}
    return marginal_record(model.predict(task.context, task.xt, **options), task, start=start)


def marginal_record(predictive: Predictive, task: Task, *, start: float) -> MarginalRecord:
    """Score the marginals of a predictive at the targets of one task.

    Args:
        predictive: The joint distribution of the targets.
        task: The task.
        start: When the work on it began, in seconds of :func:`time.perf_counter`.
    """
    y = task.yt.double()
    half, most = (in_central_interval(predictive, y, level).double() for level in (0.5, 0.9))
    return MarginalRecord(
        context_size=int(task.context.sizes),
        crps=float(crps(predictive, y).mean()),
        coverage_50=float(half.mean()),
        coverage_90=float(most.mean()),
        seconds=time.perf_counter() - start,
    )
