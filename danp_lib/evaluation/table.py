"""Table 1: the paper's numbers, ours, and the ceiling."""

import os
from pathlib import Path
from typing import Any

from danp_lib.data.generators import PAPER_SUFFIX, join_name, split_name
from danp_lib.evaluation import results
from danp_lib.evaluation.marginals import Marginals
from danp_lib.evaluation.results import CEILING, DEFENDED, NAMES
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

FIGURE_OF = {
    "sawtooth": "figure-4",
    "square": "figure-7",
    "square-released": "figure-7-released",
    "gp": "figure-9",
}
"""The paper's figure of each dataset, of average likelihood against context size."""

ESTIMATOR_OF = {
    "danp": "both",
    "convcnp": "exact",
    "convgnp": "exact",
    "ar-convcnp": "autoregressive",
    CEILING: "exact",
}
"""The models that have a row without a result too, and the estimator that it shows."""

_LABELS = {
    "exact": "in closed form",
    "both": "balance heuristic",
    f"both{DEFENDED}": "defended, balance heuristic",
    "noising": "forward-noised samples",
    f"noising{DEFENDED}": "defended, forward-noised samples",
    "model": "ancestral samples",
    "used": "defended",
    f"model{DEFENDED}": "defended, more samples",
    "autoregressive": "rolled out",
    f"autoregressive{DEFENDED}": "defended, rolled out",
    "outward": "rolled out outward",
    f"outward{DEFENDED}": "defended, rolled out outward",
    "orders": "rolled out, 8 orders",
    f"orders{DEFENDED}": "defended, rolled out, 8 orders",
    "orders-halved": "rolled out, 8 orders, halved",
    f"orders-halved{DEFENDED}": "defended, rolled out, 8 orders, halved",
    "orders-outward": "rolled out outward, 8 orders",
    f"orders-outward{DEFENDED}": "defended, rolled out outward, 8 orders, halved",
}
_MODELS = list(dict.fromkeys(split_name(name)[0] for name in NAMES))


def _row_name(model: str, measured: str) -> str:
    """The label of a row: a model's name alone for the estimator that it is compared by."""
    family = next((f for f in PAPER["gp"] if model.startswith(f)), model)
    usual = "model" if model == f"danp{PAPER_SUFFIX}" else ESTIMATOR_OF[family]
    return model if measured == usual else f"{model} ({_LABELS[measured]})"


ROWS: dict[str, tuple[str, str]] = {
    _row_name(model, measured): (model, measured)
    for model in _MODELS
    for measured in sorted(_LABELS, key=lambda how: _row_name(model, how) != model)
}
"""The model of each row, and the estimator of its likelihood or ``"used"``, the usual one first."""

MAIN_ROWS = (
    *("danp", "danp (ancestral samples)", "danp (defended)"),
    *(model for model in ESTIMATOR_OF if model not in ("danp", CEILING)),
    *(f"{model}{PAPER_SUFFIX}" for model in PAPER["gp"]),
    CEILING,
)
"""The rows of the models of the paper's Table 1; the others are variations of them."""

_MARGINALS = ("crps", "crps_ci95", "coverage_50", "coverage_90")
_LIKELIHOOD = ("paper_ci95", "fewest_samples", "mean_log_likelihood")
MEASURES = (*_LIKELIHOOD, *_MARGINALS, "forward_passes", "seconds")
"""What a row holds beside the scores and their estimator."""


def table(folder: str | os.PathLike[str] | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Table 1 as ``{dataset: {model: {paper, ours, ours_ci95, estimator, num_samples, ...}}}``.

    The paper's number is in the row of its own model, by its recipe. Beside these five, a row holds
    :data:`MEASURES`: the paper's 1.96 standard errors; the smallest number of samples of a task,
    where ``num_samples`` is the largest; the mean log-likelihood in nats per target; the scores of
    the marginals (see :mod:`danp_lib.evaluation.marginals`); the mean number of forward passes and
    of seconds that a task's likelihood took. All are ``None`` where there is no number. The results
    are those that come with the library, or a folder's; one of something else than its name says,
    or of other weights or tasks than those before it, is refused.
    """
    folder = results.results_folder() if folder is None else Path(folder)
    if not folder.is_dir():
        raise ValueError(f"folder must be one of results, got {folder}, which is none.")
    shown, known = {}, dict[str, str | None]()
    for dataset in PAPER:
        rows = ((label, _row(folder, dataset, label, known)) for label in ROWS)
        shown[dataset] = {
            label: row
            for label, row in rows
            if label in ESTIMATOR_OF or row["ours"] is not None or row["paper"] is not None
        }
    return shown


def _row(folder: Path, dataset: str, label: str, known: dict[str, str | None]) -> dict[str, Any]:
    """One row; ``known`` are the hashes of weights and tasks in the rows before it."""
    keys = ("paper", "ours", "ours_ci95", "estimator", "num_samples", *MEASURES)
    row: dict[str, Any] = dict.fromkeys(keys)
    model, measured = ROWS[label]
    published = PAPER[dataset].get(label.removesuffix(PAPER_SUFFIX))
    if published is not None and label.endswith(PAPER_SUFFIX):
        row["paper"], row["paper_ci95"] = published
    name = join_name(model, dataset)
    contents: dict[str, type[Any]] = {measured: Used if measured == "used" else Evaluation}
    if label == model:  # marginals depend on the model alone: one of its rows is enough
        contents["marginals"] = Marginals
    for what, content in contents.items():
        path = folder / results.result_name(name, what)
        if not path.is_file():
            continue
        result = results.load_result(path, content)
        expected, found = f"{name} ({what})", f"{result.origin.name} ({result.measured})"
        if found != expected:
            raise ValueError(f"{path} must be a result of {expected}, got one of {found}.")
        for part, key in (("weights", name), ("tasks", dataset)):
            own = getattr(result.origin, part)
            if (first := known.setdefault(f"{part} of {key}", own)) != own:
                raise ValueError(f"{path} must be of the {part} {first}, got {own}.")
        row |= _scores(result.content)
    return row


def _scores(content: Evaluation | Marginals | Used) -> dict[str, Any]:
    """What a row takes from a result."""
    if isinstance(content, Used):
        return _scores(content.evaluation) | _scores(content.marginals)
    if isinstance(content, Marginals):
        return {key: getattr(content, key) for key in _MARGINALS}
    return {
        "ours": content.average_likelihood,
        "ours_ci95": content.average_likelihood_ci95,
        "estimator": content.estimator,
        "num_samples": content.num_samples,
        "fewest_samples": min(task.num_samples for task in content.tasks),
        "mean_log_likelihood": content.mean_log_likelihood,
        "forward_passes": content.forward_passes / content.num_tasks,
        "seconds": content.seconds / content.num_tasks,
    }
