"""Table 1: the paper's numbers, ours, and the ceiling."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from danp_lib.evaluation_origin import CEILING, results_folder
from danp_lib.evaluation_results import load_results, result_name

PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "sawtooth": {
        "danp": (82.26, 2.51),
        "convcnp": (32.23, 2.80),
        "convgnp": (38.02, 3.36),
        "ar-convcnp": (63.23, 2.81),
    },
    "square": {
        "danp": (97.16, 4.90),
        "convcnp": (13.55, 1.51),
        "convgnp": (10.30, 1.31),
        "ar-convcnp": (23.25, 2.19),
    },
    "gp": {
        "danp": (39.52, 2.88),
        "convcnp": (7.19, 1.12),
        "convgnp": (45.38, 3.26),
        "ar-convcnp": (29.11, 2.29),
    },
}
"""Table 1 of the paper: average likelihood and 1.96 standard errors."""

ESTIMATOR_OF = {
    "danp": "both",
    "convcnp": "exact",
    "convgnp": "exact",
    "ar-convcnp": "autoregressive",
    CEILING: "exact",
}
"""The rows of the table, and the estimator whose result each shows."""


def table(folder: str | os.PathLike[str] | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Table 1 as ``{dataset: {model: {paper, ours, ours_ci95, estimator, num_samples}}}``.

    Args:
        folder: Where the results lie; those that come with the library where left out.

    Returns:
        The numbers, ``None`` where there is none: the paper has no ceiling, and a model without a
        result has no score of ours.

    Raises:
        ValueError: If a file is not a result, or one of something else than its name says.
    """
    folder = results_folder() if folder is None else Path(folder)
    return {
        dataset: {model: _row(folder, dataset, model) for model in ESTIMATOR_OF}
        for dataset in PAPER
    }


def _row(folder: Path, dataset: str, model: str) -> dict[str, Any]:
    paper = PAPER[dataset][model][0] if model in PAPER[dataset] else None
    name, estimator = f"{model}-{dataset}", ESTIMATOR_OF[model]
    row = {"paper": paper, "ours": None, "ours_ci95": None, "estimator": None, "num_samples": None}
    path = folder / result_name(name, estimator)
    if not path.is_file():
        return row
    result = load_results(path)
    found = (result.origin.name, result.evaluation.estimator)
    if found != (name, estimator):
        raise ValueError(f"{path} must be a result of {name} ({estimator}), got {found}.")
    return row | {
        "ours": result.evaluation.average_likelihood,
        "ours_ci95": result.evaluation.average_likelihood_ci95,
        "estimator": estimator,
        "num_samples": result.evaluation.num_samples,
    }
