"""Figure 5's data: the likelihood of a DANP against the number of samples, in a file."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from tqdm.auto import tqdm

from danp_lib._random import spawn
from danp_lib.data.points import Task
from danp_lib.evaluation.curves import (
    SampleAverage,
    SampleCurve,
    Samples,
    counts_up_to,
    sample_curves,
)
from danp_lib.evaluation.origin import (
    Origin,
    Provenance,
    Subject,
    check_scores,
    command_line,
    load_subject,
    read_result,
    write_result,
)
from danp_lib.evaluation.score import CHUNK_SIZE


@dataclass(frozen=True)
class SamplesResult(Provenance):
    """Curves and where they come from; of a run that was taken up again, where it began.

    Attributes:
        samples: The averages and the curves.
    """

    samples: Samples


def run_samples(
    name: str,
    folder: str | os.PathLike[str],
    *,
    tasks_per_size: int = 1,
    max_samples: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    compiled: bool = False,
    progress: bool = False,
) -> SamplesResult:
    """The curves of a pretrained DANP on the first tasks of every context size of its benchmark.

    What is done is kept in the folder after every task, in :func:`partial_name`, and taken up from
    there by the next run; :func:`save_samples` puts the whole in its place.

    Args:
        name: One of :data:`~danp_lib.storage.pretrained.PRETRAINED` that is a DANP.
        folder: Where to keep what is done.
        tasks_per_size: How many tasks of each context size.
        max_samples: As in :func:`~danp_lib.evaluation.curves.sample_curves`.
        seed: Of the samples; a task's do not depend on which others are taken.
        device: What to compute on.
        compiled: As in :func:`~danp_lib.evaluation.origin.load_subject`, where there are samples
            enough.
        progress: Show a progress bar on the standard error.

    Raises:
        ValueError: If the name is not that of a DANP, or what is kept is of other weights, tasks,
            seed or versions.
        FileNotFoundError: If the weights or the benchmark set are missing.
    """
    compiled = compiled and (max_samples is None or max_samples >= CHUNK_SIZE)
    subject = load_subject(name, seed=seed, device=device, compiled=compiled)
    if subject.model.num_levels == 0:
        raise ValueError(f"name must be that of a DANP, which draws samples, got {name!r}.")
    partial = Path(folder) / partial_name(name)
    origin, curves = _take_up(partial, subject)
    counts = set(counts_up_to(max_samples).items())
    streams = spawn(subject.generator, subject.tasks.batch_size)
    rows = _first_of_each_size(subject.tasks, tasks_per_size)
    for row in tqdm(rows, desc="tasks", disable=not progress):
        if {(c.estimator, c.num_samples) for c in curves if c.row == row} == counts:
            continue
        task, stream = subject.tasks[row], streams[row]
        new = sample_curves(subject.model, task, row=row, max_samples=max_samples, generator=stream)
        curves = [curve for curve in curves if curve.row != row] + list(new)
        write_result(partial, origin, subject.configuration, samples=Samples.summarize(curves))
    asked = [curve for row in rows for curve in curves if curve.row == row]
    return SamplesResult(origin, subject.configuration, Samples.summarize(asked))


def samples_name(name: str) -> str:
    """The file name of a result, such as ``danp-sawtooth-samples.json``."""
    return f"{name}-samples.json"


def partial_name(name: str) -> str:
    """The file name of what is done of a result."""
    return f"{name}-samples.partial.json"


def save_samples(folder: str | os.PathLike[str], result: SamplesResult) -> Path:
    """Write a whole result to a folder, drop what :func:`run_samples` kept, return the path."""
    name = result.origin.name
    path = Path(folder) / samples_name(name)
    write_result(path, result.origin, result.configuration, samples=result.samples)
    path.with_name(partial_name(name)).unlink(missing_ok=True)
    return path


def load_samples(path: str | os.PathLike[str]) -> SamplesResult:
    """Read a result.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a result, or its averages are not those of its curves.
    """
    origin, configuration, (samples,) = read_result(path, samples=Samples)
    expected = Samples.summarize(samples.curves)
    for name in ("overall", "by_context_size"):
        found, right = getattr(samples, name), getattr(expected, name)
        if len(found) != len(right):
            raise ValueError(f"{path}: {name} must hold {len(right)} averages, got {len(found)}.")
        for one, other in zip(found, right, strict=True):
            check_scores(path, one, other, [field.name for field in fields(SampleAverage)])
    return SamplesResult(origin, configuration, samples)


def _first_of_each_size(task: Task, count: int) -> list[int]:
    """The rows of the first tasks of every context size, smallest size first."""
    sizes = task.context.sizes.tolist()
    rows = {size: [row for row, s in enumerate(sizes) if s == size] for size in sorted(set(sizes))}
    most = min(map(len, rows.values()))
    if not 1 <= count <= most:
        raise ValueError(f"tasks_per_size must lie in 1..{most}, got {count}.")
    return [row for those in rows.values() for row in those[:count]]


def _take_up(partial: Path, subject: Subject) -> tuple[Origin, list[SampleCurve]]:
    """The origin and the curves of an interrupted run, if there was one."""
    if not partial.is_file():
        return subject.origin, []
    before, _, (samples,) = read_result(partial, samples=Samples)
    for key in ("name", "weights", "tasks", "seed", "danp_lib", "torch"):
        found, now = getattr(before, key), getattr(subject.origin, key)
        if found != now:
            raise ValueError(
                f"{partial} must be of {key} {now} to be taken up, got {found}; delete it to begin "
                "anew."
            )
    return before, list(samples.curves)


if __name__ == "__main__":
    parser = command_line(
        "evaluation.samples",
        "Estimate the likelihood with more and more samples and write the result to a folder; an "
        "interrupted run goes on where it stopped.",
        compilable=True,
    )
    parser.add_argument("--tasks-per-size", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--max-samples", type=int, help="leave out every number of samples above")
    options = vars(parser.parse_args())
    out = options.pop("out")
    print(save_samples(out, run_samples(folder=out, **options, progress=True)))
