"""Table 1: the paper's numbers, ours, and the ceiling."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from danp_lib.data.generators import PAPER_SUFFIX, join_name
from danp_lib.evaluation.marginals import Marginals
from danp_lib.evaluation.results import CEILING, load_result, result_name, results_folder
from danp_lib.evaluation.score import Evaluation
from danp_lib.evaluation.used import Used

PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "sawtooth": {
        "danp": (82.26, 2.51),
        "convcnp": (32.23, 2.80),
        "convgnp": (38.02, 3.36),
        "ar-convcnp": (63.23, 2.81),
    },
    "square": {},
    "square-released": {
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
"""Average likelihood and 1.96 standard errors, from Table 1 of the paper.

It has one row of square waves. It stands beside those that the released code draws,
``"square-released"``, which it most likely scored; the code draws none of those of the text.
"""

ESTIMATOR_OF = {
    "danp": "both",
    "convcnp": "exact",
    "convgnp": "exact",
    "ar-convcnp": "autoregressive",
    CEILING: "exact",
}
"""The rows of the table, and the estimator whose result each shows."""


PAPERS_ESTIMATOR = "danp (paper's estimator)"
"""The row of the DANP with samples from the model alone, as the paper has it."""

FURTHER: dict[str, tuple[str, str]] = {
    PAPERS_ESTIMATOR: ("danp", "model"),
    "danp-seed1": ("danp-seed1", "both"),
}
"""The model and the estimator of each row that is shown where there is a result."""

PAPERS_RECIPE: dict[str, tuple[str, str]] = {
    "danp-paper": ("danp-paper", "model"),
    "danp-paper (balance heuristic)": ("danp-paper", "both"),
    "convcnp-paper": ("convcnp-paper", "exact"),
    "convgnp-paper": ("convgnp-paper", "exact"),
    "ar-convcnp-paper": ("ar-convcnp-paper", "autoregressive"),
}
"""Those of the models by the paper's recipe; the first has the paper's estimator too."""

AS_USED = "danp (as used)"
"""The row of the DANP with nothing but samples of its own, and its defensive component.

Likelihood, CRPS and coverage are those of one mixture; see :class:`~danp_lib.evaluation.used.Used`.
"""

MEASURES = (
    "paper_ci95",
    "fewest_samples",
    "mean_log_likelihood",
    "crps",
    "crps_ci95",
    "coverage_50",
    "coverage_90",
    "forward_passes",
    "seconds",
)
"""What a row holds beside the scores and their estimator."""


def table(folder: str | os.PathLike[str] | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Table 1 as ``{dataset: {model: {paper, ours, ours_ci95, estimator, num_samples, ...}}}``.

    Beside these five, a row holds :data:`MEASURES`: the paper's 1.96 standard errors; the smallest
    number of samples of a task, where ``num_samples`` is the largest; the mean log-likelihood in
    nats per target; the scores of the marginals (see :mod:`danp_lib.evaluation.marginals`); the
    mean number of forward passes and of seconds that a task's likelihood took.

    Args:
        folder: Where the results lie; those that come with the library where left out.

    Returns:
        The numbers, ``None`` where there is none: the paper has no ceiling, and a model without a
        result has no score of ours. Rows of :data:`FURTHER`, :data:`AS_USED` and
        :data:`PAPERS_RECIPE` without a result are left out.

    Raises:
        ValueError: If a file is not a result, one of something else than its name says, or one of
            other weights than the result beside it.
    """
    folder = results_folder() if folder is None else Path(folder)
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for dataset in PAPER:
        first, *others, last = (
            (label, _row(folder, dataset, label, label, estimator))
            for label, estimator in ESTIMATOR_OF.items()
        )
        further, papers = (
            [(label, _row(folder, dataset, label, *of)) for label, of in chosen.items()]
            for chosen in (FURTHER, PAPERS_RECIPE)
        )
        further.append((AS_USED, _used_row(folder, dataset)))
        shown, imitated = (
            [(label, row) for label, row in part if row["ours"] is not None]
            for part in (further, papers)
        )
        rows[dataset] = dict([first, *shown, *others, *imitated, last])
    return rows


def _row(folder: Path, dataset: str, label: str, model: str, estimator: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("paper", "ours", "ours_ci95", "estimator", "num_samples", *MEASURES)
    )
    published = PAPER[dataset].get(model.removesuffix(PAPER_SUFFIX))
    if published is not None:
        row["paper"], row["paper_ci95"] = published
    name = join_name(model, dataset)
    path, weights = folder / result_name(name, estimator), None
    if path.is_file():
        result = load_result(path, Evaluation)
        _check(path, (name, estimator), (result.origin.name, result.content.estimator))
        row |= _scores(result.content)
        weights = result.origin.weights
    # They depend on the model alone, so that one of its rows is enough.
    path = folder / result_name(name, "marginals")
    if path.is_file() and label == model:
        marginals = load_result(path, Marginals)
        if row["ours"] is None:
            weights = marginals.origin.weights
        _check(path, (name, weights), (marginals.origin.name, marginals.origin.weights))
        row |= _marginal_scores(marginals.content)
    return row


def _used_row(folder: Path, dataset: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("paper", "ours", "ours_ci95", "estimator", "num_samples", *MEASURES)
    )
    path = folder / result_name(f"danp-{dataset}", "used")
    if path.is_file():
        result = load_result(path, Used)
        _check(path, (f"danp-{dataset}", None), (result.origin.name, None))
        row |= _scores(result.content.evaluation) | _marginal_scores(result.content.marginals)
    return row


def _marginal_scores(marginals: Marginals) -> dict[str, Any]:
    keys = ("crps", "crps_ci95", "coverage_50", "coverage_90")
    return {key: getattr(marginals, key) for key in keys}


def _scores(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "ours": evaluation.average_likelihood,
        "ours_ci95": evaluation.average_likelihood_ci95,
        "estimator": evaluation.estimator,
        "num_samples": evaluation.num_samples,
        "fewest_samples": min(task.num_samples for task in evaluation.tasks),
        "mean_log_likelihood": evaluation.mean_log_likelihood,
        "forward_passes": evaluation.forward_passes / evaluation.num_tasks,
        "seconds": evaluation.seconds / evaluation.num_tasks,
    }


def _check(path: Path, expected: tuple[str, str | None], found: tuple[str, str | None]) -> None:
    if found != expected:
        (name, detail), (other, what) = expected, found
        raise ValueError(
            f"{path} must be a result of {name} ({detail}), got one of {other} ({what})."
        )
