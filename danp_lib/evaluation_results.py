"""Benchmark results in files: the records of every task, and where they come from."""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from danp_lib.benchmark import benchmark_path, benchmark_tasks, sha256
from danp_lib.cards import Hardware
from danp_lib.cards_origin import commit, hardware
from danp_lib.configuration import from_dict, to_dict
from danp_lib.evaluation import ESTIMATORS, Estimator, Evaluation, evaluate
from danp_lib.files import write_atomically
from danp_lib.generators import GENERATORS
from danp_lib.oracle import ORACLES
from danp_lib.pretrained import PRETRAINED, load_pretrained, pretrained_path

CEILING = "ceiling"
"""The name of the exact predictives, which no model can beat, among the results."""

NAMES = (*PRETRAINED, *(f"{CEILING}-{dataset}" for dataset in GENERATORS))
"""The names of what can be evaluated: a pretrained model's, or ``"ceiling-gp"`` and so on."""


@dataclass(frozen=True)
class Origin:
    """Where a result comes from.

    Attributes:
        name: One of :data:`NAMES`.
        dataset: Name of the benchmark set.
        weights: SHA-256 of the checkpoint, or ``None`` for an oracle.
        tasks: SHA-256 of the benchmark set.
        seed: Of the samples.
        commit: The library's commit in git, or ``None`` where that is not known.
        hardware: The machine.
        danp_lib: Version of this library.
        torch: Version of PyTorch.
    """

    name: str
    dataset: str
    weights: str | None
    tasks: str
    seed: int
    commit: str | None
    hardware: Hardware
    danp_lib: str
    torch: str


@dataclass(frozen=True)
class Result:
    """An evaluation and where it comes from.

    Attributes:
        origin: Where it comes from.
        configuration: The model's, as JSON.
        evaluation: The scores and the records.
    """

    origin: Origin
    configuration: dict[str, Any]
    evaluation: Evaluation


def run_benchmark(
    name: str,
    *,
    estimator: Estimator = "both",
    num_samples: int = 256,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Result:
    """Evaluate a pretrained model, or the ceiling, on the benchmark set of its dataset.

    Args:
        name: One of :data:`NAMES`.
        estimator: As in :func:`~danp_lib.evaluation.evaluate`.
        num_samples: Likewise.
        seed: Of the samples.
        device: What to compute on; an oracle computes on the CPU.
        progress: Show a progress bar on the standard error.

    Raises:
        ValueError: If the name or another argument is not one of its choices.
        FileNotFoundError: If the weights or the benchmark set are missing.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}.")
    kind, dataset = name.rsplit("-", 1)
    if kind == CEILING:
        model: Any = ORACLES[dataset]()
        device, configuration, weights = "cpu", to_dict(model), None
    else:
        model = load_pretrained(name, device=device)
        configuration, weights = to_dict(model.config), sha256(pretrained_path(name))
    evaluation = evaluate(
        model,
        benchmark_tasks(dataset).to(device),
        estimator=estimator,
        num_samples=num_samples,
        generator=torch.Generator(device=device).manual_seed(seed),
        progress=progress,
    )
    origin = Origin(
        name=name,
        dataset=dataset,
        weights=weights,
        tasks=sha256(benchmark_path(dataset)),
        seed=seed,
        commit=commit(),
        hardware=hardware(device),
        danp_lib=version("danp_lib"),
        torch=torch.__version__,
    )
    return Result(origin, configuration, evaluation)


def result_name(name: str, estimator: str) -> str:
    """The file name of a result, such as ``danp-sawtooth-both.json``."""
    return f"{name}-{estimator}.json"


def save_results(folder: str | os.PathLike[str], result: Result) -> Path:
    """Write a result to a folder, under its own name, and return the path."""
    path = Path(folder) / result_name(result.origin.name, result.evaluation.estimator)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = to_dict(result.origin) | {
        "configuration": result.configuration,
        "evaluation": to_dict(result.evaluation),
    }
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def load_results(path: str | os.PathLike[str]) -> Result:
    """Read a result.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a result, or its scores are not those of its records.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no result at {path}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a result must be an object, got {content!r}.")
        configuration = content.pop("configuration", {})
        evaluation = from_dict(Evaluation, content.pop("evaluation", None), name="evaluation")
        origin = from_dict(Origin, content, name="result")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    expected = Evaluation.summarize(evaluation.tasks)
    for key in ("average_likelihood", "average_likelihood_ci95", "mean_log_likelihood"):
        found, right = getattr(evaluation, key), getattr(expected, key)
        if found != right and not math.isclose(found, right, rel_tol=1e-9):
            raise ValueError(f"{path}: {key} must be {right}, as its tasks say, got {found}.")
    return Result(origin, configuration, evaluation)


def results_folder() -> Path:
    """Where the results that come with the library lie: in the package, or beside it in a clone."""
    package = Path(str(resources.files("danp_lib")))
    inside = package / "results"
    return inside if inside.is_dir() else package.parent / "results"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m danp_lib.evaluation_results",
        description="Evaluate on a benchmark set and write the result to a folder.",
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", default="results", help="folder (default: %(default)s)")
    parser.add_argument("--estimator", choices=ESTIMATORS, default="both")
    parser.add_argument("--num-samples", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = vars(parser.parse_args())
    out = options.pop("out")
    print(save_results(out, run_benchmark(**options, progress=True)))
