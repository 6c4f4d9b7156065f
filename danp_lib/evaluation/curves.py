"""The likelihood of a DANP against the number of samples (paper, Figure 5).

The samples of a task are drawn once; the first S of them give the estimate with S.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from tqdm.auto import tqdm

from danp_lib._config import check_at_least
from danp_lib._random import spawn
from danp_lib.data.points import Task
from danp_lib.inference.autoregressive import check_model
from danp_lib.inference.likelihood import Estimator, effective_sample_size, log_weights
from danp_lib.models.danp import DANP, log_mean

NUM_SAMPLES: dict[Estimator, tuple[int, ...]] = {
    "model": (100, 500, 1000, 5000, 10_000, 50_000),
    "both": (32, 128, 512, 2048),
}
"""S of each estimator, for the paper's as in Figure 5; for ``"both"``, half of either kind."""


@dataclass(frozen=True)
class SampleCurve:
    """The estimates of one task by one estimator."""

    row: int  #: The task's place in the benchmark set.
    context_size: int  #: Number of context points.
    estimator: Estimator  #: ``"model"``, the paper's, or ``"both"``.
    num_samples: tuple[int, ...]  #: Every S, ascending.
    #: With the first S samples, log-density of the targets divided by their number, in nats.
    log_likelihood: tuple[float, ...]
    effective_sample_size: tuple[float, ...]  #: Of the first S samples.
    forward_passes: int  #: Passes of one set of points through the U-Net, for the largest S.
    seconds: float  #: Time taken, for the largest S.

    def __post_init__(self) -> None:
        count = len(self.num_samples)
        for key in ("log_likelihood", "effective_sample_size"):
            if (found := len(getattr(self, key))) != count:
                raise ValueError(f"{key} must have {count} numbers, one for each S, got {found}.")


@dataclass(frozen=True)
class Samples:
    """The curves of a model on tasks of a benchmark set."""

    curves: tuple[SampleCurve, ...]  #: One of each task and estimator.


def score_samples(
    model: DANP,
    task: Task,
    *,
    tasks_per_size: int = 1,
    max_samples: int | None = None,
    generator: torch.Generator,
    done: Sequence[SampleCurve] = (),
    keep: Callable[[Samples], None] | None = None,
    progress: bool = False,
) -> Samples:
    """The curves of the first ``tasks_per_size`` tasks of every context size, which have a pool.

    Every S above ``max_samples`` is left out. Curves of an earlier call, ``done``, are not computed
    again; ``keep`` is called after every task with all curves there are.
    """
    check_model(model)
    if model.num_levels < 1:
        kind = type(model).__name__
        raise ValueError(f"model must be a DANP with num_levels >= 1, got a {kind} with 0.")
    if task.batch_size == 0 or task.target.num_points == 0:
        raise ValueError(
            "task must hold at least one task and one target, got "
            f"{task.batch_size} and {task.target.num_points}."
        )
    if (noise := model.config.base.largest_noise) > 0.0:
        raise ValueError(
            "model must not weight its samples by the context, since the first of them are then no "
            f"estimate, got one with largest_noise={noise}."
        )
    counts, sizes = counts_up_to(max_samples), task.context.sizes
    groups = [(sizes == size).nonzero().flatten().tolist() for size in sizes.unique()]
    most = min(map(len, groups))
    check_at_least(1, tasks_per_size=tasks_per_size)
    if tasks_per_size > most:
        raise ValueError(f"tasks_per_size must lie in 1..{most}, got {tasks_per_size}.")
    rows = [row for group in groups for row in group[:tasks_per_size]]
    streams = spawn(generator, task.batch_size)
    curves = list(done)
    for row in tqdm(rows, desc="tasks", disable=not progress):
        if {c.estimator: c.num_samples for c in curves if c.row == row} == counts:
            continue
        new = sample_curves(model, task[row], counts, row=row, generator=streams[row])
        curves = [curve for curve in curves if curve.row != row] + list(new)
        if keep is not None:
            keep(Samples(tuple(curves)))
    return Samples(tuple(curve for row in rows for curve in curves if curve.row == row))


def sample_curves(
    model: DANP,
    task: Task,
    num_samples: Mapping[Estimator, tuple[int, ...]],
    *,
    row: int,
    generator: torch.Generator,
) -> tuple[SampleCurve, ...]:
    """The curves of one task, number ``row`` of the benchmark set: one for each estimator."""
    curves = []
    streams = spawn(generator, len(num_samples))
    for stream, (estimator, counts) in zip(streams, num_samples.items(), strict=True):
        start, most = time.perf_counter(), counts[-1]
        terms = log_weights(model, task, estimator=estimator, num_samples=most, generator=stream)
        firsts = [terms[:count] for count in counts]
        curve = SampleCurve(
            row=row,
            context_size=int(task.context.sizes),
            estimator=estimator,
            num_samples=counts,
            log_likelihood=tuple(float(log_mean(t)) / task.target.num_points for t in firsts),
            effective_sample_size=tuple(float(effective_sample_size(t)) for t in firsts),
            forward_passes=1 + model.num_levels * most,
            seconds=time.perf_counter() - start,
        )
        curves.append(curve)
    return tuple(curves)


def counts_up_to(max_samples: int | None) -> dict[Estimator, tuple[int, ...]]:
    """Every S of each estimator up to a largest one; a ``ValueError`` if one has none left."""
    kept = {
        estimator: tuple(s for s in every if max_samples is None or s <= max_samples)
        for estimator, every in NUM_SAMPLES.items()
    }
    if not all(kept.values()):
        least = max(every[0] for every in NUM_SAMPLES.values())
        raise ValueError(f"max_samples must be >= {least}, got {max_samples}.")
    return kept
