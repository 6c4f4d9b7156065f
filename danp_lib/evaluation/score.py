r"""The benchmark's score, and how one task's share of it is computed (paper, Table 1).

The paper's "average likelihood" is the mean over tasks of
:math:`\exp(\log p(y_t \mid x_t, D_c) / N_t)`, the geometric mean of the density per target, in
units of 1/y.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, TypeVar, get_args

import torch
from torch import Tensor
from tqdm.auto import tqdm

from danp_lib._config import to_dict
from danp_lib._random import spawn
from danp_lib.data.points import Task
from danp_lib.exact.oracles import Oracle
from danp_lib.inference import likelihood
from danp_lib.models.base import NeuralProcess

Estimator = Literal[likelihood.Estimator, likelihood.Rollouts]
"""Those of a DANP, and those that roll out any model."""

ESTIMATORS: tuple[str, ...] = get_args(Estimator)

T = TypeVar("T")
Content = TypeVar("Content")


@dataclass(frozen=True)
class TaskRecord:
    """The result of one task."""

    context_size: int  #: Number of context points.
    log_likelihood: float  #: Log-density of the targets divided by their number, in nats.
    estimator: str  #: As in :class:`~danp_lib.inference.likelihood.LogLikelihood`.
    num_samples: int  #: S, or 1 where nothing is sampled; times the number of orders.
    #: Of those samples or orders; ``None`` for the rollout of a DANP in one order.
    effective_sample_size: float | None
    forward_passes: int  #: Passes of one set of points through the U-Net.
    seconds: float  #: Time taken.


@dataclass(frozen=True)
class Evaluation:
    """The results of a model on a set of tasks."""

    average_likelihood: float  #: The paper's score.
    average_likelihood_ci95: float | None  #: 1.96 standard errors of it; ``None`` for one task.
    mean_log_likelihood: float  #: Mean over the tasks, in nats per target.
    num_tasks: int  #: How many tasks.
    estimator: str  #: The tasks' estimator; where they differ, all of them, joined by ``"+"``.
    num_samples: int  #: The largest number of samples of a task.
    forward_passes: int  #: Sum over the tasks.
    seconds: float  #: Sum over the tasks.
    tasks: tuple[TaskRecord, ...]  #: What it is all computed from.

    @classmethod
    def summarize(cls, tasks: Sequence[TaskRecord]) -> Self:
        """Sum up records, at least one, which may come from several runs."""
        logs = torch.tensor([t.log_likelihood for t in tasks], dtype=torch.float64)
        return cls(
            *mean_and_ci95(logs.exp()),
            mean_log_likelihood=float(logs.mean()),
            num_tasks=len(tasks),
            estimator="+".join(dict.fromkeys(t.estimator for t in tasks)),
            num_samples=max(t.num_samples for t in tasks),
            forward_passes=sum(t.forward_passes for t in tasks),
            seconds=sum(t.seconds for t in tasks),
            tasks=tuple(tasks),
        )

    def to_dict(self) -> dict[str, Any]:
        """What ``danp evaluate --json`` prints: of each task, what differs between tasks."""
        shown = ("context_size", "log_likelihood", "effective_sample_size")
        rows = [{key: getattr(task, key) for key in shown} for task in self.tasks]
        return to_dict(self) | {"tasks": rows}


def papers_samples(dataset: str, context_size: int) -> int:
    """The number of samples that the paper draws for a task of a context size (Appendix A)."""
    return 50_000 if context_size <= (9 if dataset == "gp" else 5) else 5_000


def mean_and_ci95(values: Tensor) -> tuple[float, float | None]:
    """The mean over tasks ``(tasks,)`` and 1.96 standard errors of it; ``None`` for one task."""
    if (count := len(values)) == 0:
        raise ValueError("tasks must hold at least one record, got none.")
    error = 1.96 * float(values.std()) / math.sqrt(count) if count > 1 else None
    return float(values.mean()), error


def score_each(
    score: Callable[..., T],
    task: Task,
    summarize: Callable[[list[T]], Content],
    *,
    generator: torch.Generator,
    progress: bool = False,
    done: Sequence[T] = (),
    keep: Callable[[Content], None] | None = None,
) -> Content:
    """The summary of tasks' records, each scored with a generator of its own, spawned from one.

    ``score(task, generator=...)`` makes the record of a batch of one. The first tasks may be
    ``done``, by their records of an earlier call; after each of the rest ``keep`` gets the summary.
    """
    task.check()
    if task.batch_size == 0 or task.target.num_points == 0:
        raise ValueError(
            "there must be at least one task and one target to score, got "
            f"{task.batch_size} and {task.target.num_points}."
        )
    streams = spawn(generator, task.batch_size)
    records = list(done)
    if len(records) > task.batch_size:
        raise ValueError(f"done must hold at most {task.batch_size} records, got {len(records)}.")
    rows = range(len(records), task.batch_size)
    # Left by an error too, so that its message has a line of its own.
    with tqdm(rows, "tasks", task.batch_size, initial=len(records), disable=not progress) as bar:
        for row in bar:
            records.append(score(task[row], generator=streams[row]))
            if keep is not None:
                keep(summarize(records))
    return summarize(records)


def evaluate(
    model: NeuralProcess | Oracle,
    task: Task,
    *,
    estimator: Estimator = "both",
    num_samples: int | Callable[[int], int] = 256,
    **options: Any,
) -> Evaluation:
    """Evaluate a model on a batch of tasks, by :func:`score_each`; the other options are its own.

    The estimator and S, the number of samples, are those of :func:`~danp_lib.log_likelihood`; S may
    depend on the size of the context, see :func:`papers_samples`.
    """
    score = partial(evaluate_task, model, estimator=estimator, num_samples=num_samples)
    return score_each(score, task, Evaluation.summarize, **options)


def evaluate_task(
    model: NeuralProcess | Oracle,
    task: Task,
    *,
    estimator: Estimator,
    num_samples: int | Callable[[int], int],
    generator: torch.Generator,
) -> TaskRecord:
    """Evaluate a model on one task; see :func:`evaluate`."""
    if task.batch_size != 1 or task.target.num_points == 0:
        raise ValueError(
            "task must be a batch of one with at least one target, got "
            f"{task.batch_size} and {task.target.num_points}."
        )
    context_size = int(task.context.sizes)
    count = num_samples(context_size) if callable(num_samples) else num_samples
    start = time.perf_counter()
    result = likelihood.log_likelihood(
        model, task, estimator=estimator, num_samples=count, generator=generator
    )
    value = float(result.values) / task.target.num_points
    size = float(result.effective_sample_size)
    if not math.isfinite(value):
        raise ValueError(
            f"the model's log-likelihood must be finite, got {value} for a task with "
            f"{context_size} context points; are its weights finite?"
        )
    return TaskRecord(
        context_size=context_size,
        log_likelihood=value,
        estimator=result.estimator,
        num_samples=result.num_samples,
        effective_sample_size=None if math.isnan(size) else size,
        forward_passes=result.forward_passes,
        seconds=time.perf_counter() - start,
    )
