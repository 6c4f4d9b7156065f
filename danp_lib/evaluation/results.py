"""Benchmark results in files: the records of every task, and where they come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from danp_lib.evaluation.origin import (
    CEILING,
    NAMES,
    Origin,
    Provenance,
    check_scores,
    command_line,
    load_subject,
    read_result,
    results_folder,
    write_result,
)
from danp_lib.evaluation.score import CHUNK_SIZE, ESTIMATORS, Estimator, Evaluation, evaluate

__all__ = [
    "CEILING",
    "NAMES",
    "Origin",
    "Result",
    "load_results",
    "result_name",
    "results_folder",
    "run_benchmark",
    "save_results",
]


@dataclass(frozen=True)
class Result(Provenance):
    """An evaluation and where it comes from.

    Attributes:
        evaluation: The scores and the records.
    """

    evaluation: Evaluation


def run_benchmark(
    name: str,
    *,
    estimator: Estimator = "both",
    num_samples: int = 256,
    seed: int = 0,
    device: torch.device | str = "cpu",
    compiled: bool = False,
    progress: bool = False,
) -> Result:
    """Evaluate a pretrained model, or the ceiling, on the benchmark set of its dataset.

    Args:
        name: One of :data:`~danp_lib.evaluation.origin.NAMES`.
        estimator: As in :func:`~danp_lib.evaluation.score.evaluate`.
        num_samples: Likewise.
        seed: Of the samples.
        device: What to compute on; an oracle computes on the CPU.
        compiled: As in :func:`~danp_lib.evaluation.origin.load_subject`, where there are samples
            enough.
        progress: Show a progress bar on the standard error.

    Raises:
        ValueError: If the name or another argument is not one of its choices.
        FileNotFoundError: If the weights or the benchmark set are missing.
    """
    compiled = compiled and num_samples >= CHUNK_SIZE
    subject = load_subject(name, seed=seed, device=device, compiled=compiled)
    evaluation = evaluate(
        subject.model,
        subject.tasks,
        estimator=estimator,
        num_samples=num_samples,
        generator=subject.generator,
        progress=progress,
    )
    return Result(subject.origin, subject.configuration, evaluation)


def result_name(name: str, estimator: str) -> str:
    """The file name of a result, such as ``danp-sawtooth-both.json``."""
    return f"{name}-{estimator}.json"


def save_results(folder: str | os.PathLike[str], result: Result) -> Path:
    """Write a result to a folder, under its own name, and return the path."""
    path = Path(folder) / result_name(result.origin.name, result.evaluation.estimator)
    return write_result(path, result.origin, result.configuration, evaluation=result.evaluation)


def load_results(path: str | os.PathLike[str]) -> Result:
    """Read a result.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a result, or its scores are not those of its records.
    """
    origin, configuration, (evaluation,) = read_result(path, evaluation=Evaluation)
    check_scores(
        path,
        evaluation,
        Evaluation.summarize(evaluation.tasks),
        ("average_likelihood", "average_likelihood_ci95", "mean_log_likelihood"),
    )
    return Result(origin, configuration, evaluation)


if __name__ == "__main__":
    parser = command_line(
        "evaluation.results",
        "Evaluate on a benchmark set and write the result to a folder.",
        compilable=True,
    )
    parser.add_argument("--estimator", choices=ESTIMATORS, default="both")
    parser.add_argument("--num-samples", type=int, default=256)
    options = vars(parser.parse_args())
    out = options.pop("out")
    print(save_results(out, run_benchmark(**options, progress=True)))
