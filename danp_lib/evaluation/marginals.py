"""Scores of the marginals on the benchmark: CRPS, and how often intervals hold the target."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from danp_lib._random import spawn
from danp_lib.data.points import Task
from danp_lib.distributions.scores import crps, in_central_interval
from danp_lib.evaluation.origin import (
    Provenance,
    check_scores,
    command_line,
    load_subject,
    read_result,
    write_result,
)
from danp_lib.evaluation.score import CHUNK_SIZE, mean_and_ci95
from danp_lib.exact.oracles import Oracle
from danp_lib.models.convnp import NeuralProcess


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


@dataclass(frozen=True)
class MarginalsResult(Provenance):
    """Scores of marginals and where they come from.

    Attributes:
        marginals: The scores and the records.
    """

    marginals: Marginals


def score_marginals(
    model: NeuralProcess | Oracle,
    task: Task,
    *,
    num_samples: int = 256,
    generator: torch.Generator,
    chunk_size: int = CHUNK_SIZE,
    progress: bool = False,
) -> Marginals:
    """Score the marginals of a model on a batch of tasks, one by one.

    The marginals are those of ``model.predict``: of a DANP the mixture over samples with uniform
    auxiliary inputs. An AR ConvCNP is called as the network that it is: a rollout may begin with
    any target, and what it says there has no other target in its context yet. Started elsewhere it
    has another marginal, one of the ways in which a rollout is no consistent process.

    The benchmarks' functions are free of noise, and no model is surer than its variance floor. So
    where a model knows a value, its intervals hold more targets than their level says, and that is
    no fault; a coverage below the level is one.

    Args:
        model: A trained model, or an oracle.
        task: The tasks.
        num_samples: S, the number of a DANP's samples a task.
        generator: Source of randomness, on the device of model and tasks; each task's is spawned
            from it.
        chunk_size: Number of samples computed at a time; it bounds the memory only.
        progress: Show a progress bar on the standard error.

    Raises:
        ValueError: If a target is masked or not finite, or the model cannot take the tasks or the
            number of samples.
    """
    task.check()
    streams = spawn(generator, task.batch_size)
    records = [
        score_task(
            model,
            task[row],
            num_samples=num_samples,
            generator=streams[row],
            chunk_size=chunk_size,
        )
        for row in tqdm(range(task.batch_size), desc="tasks", disable=not progress)
    ]
    return Marginals.summarize(records, num_samples=num_samples if model.num_levels else 1)


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
    predictive = model.predict(task.context, task.xt, **options)
    y = task.yt.double()
    half, most = (in_central_interval(predictive, y, level).double() for level in (0.5, 0.9))
    return MarginalRecord(
        context_size=int(task.context.sizes),
        crps=float(crps(predictive, y).mean()),
        coverage_50=float(half.mean()),
        coverage_90=float(most.mean()),
        seconds=time.perf_counter() - start,
    )


def run_marginals(
    name: str,
    *,
    num_samples: int = 256,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> MarginalsResult:
    """Score a pretrained model, or the ceiling, on the benchmark set of its dataset.

    Args:
        name: One of :data:`~danp_lib.evaluation.origin.NAMES`.
        num_samples: As in :func:`score_marginals`.
        seed: Of the samples.
        device: What to compute on; an oracle computes on the CPU.
        progress: Show a progress bar on the standard error.

    Raises:
        ValueError: If there is no such name.
        FileNotFoundError: If the weights or the benchmark set are missing.
    """
    subject = load_subject(name, seed=seed, device=device)
    marginals = score_marginals(
        subject.model,
        subject.tasks,
        num_samples=num_samples,
        generator=subject.generator,
        progress=progress,
    )
    return MarginalsResult(subject.origin, subject.configuration, marginals)


def marginals_name(name: str) -> str:
    """The file name of a result, such as ``danp-sawtooth-marginals.json``."""
    return f"{name}-marginals.json"


def save_marginals(folder: str | os.PathLike[str], result: MarginalsResult) -> Path:
    """Write a result to a folder, under its own name, and return the path."""
    path = Path(folder) / marginals_name(result.origin.name)
    return write_result(path, result.origin, result.configuration, marginals=result.marginals)


def load_marginals(path: str | os.PathLike[str]) -> MarginalsResult:
    """Read a result.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a result, or its scores are not those of its records.
    """
    origin, configuration, (marginals,) = read_result(path, marginals=Marginals)
    check_scores(
        path,
        marginals,
        Marginals.summarize(marginals.tasks, num_samples=marginals.num_samples),
        ("crps", "crps_ci95", "coverage_50", "coverage_90", "num_tasks"),
    )
    return MarginalsResult(origin, configuration, marginals)


if __name__ == "__main__":
    parser = command_line(
        "evaluation.marginals",
        "Score the marginals on a benchmark set and write the result to a folder.",
    )
    parser.add_argument("--num-samples", type=int, default=256)
    options = vars(parser.parse_args())
    out = options.pop("out")
    print(save_marginals(out, run_marginals(**options, progress=True)))
