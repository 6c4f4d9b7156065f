"""``danp evaluate`` and ``danp table``: scores, of one checkpoint and of the benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from danp_lib.cli.info import checkpoint_path, load_model
from danp_lib.cli.train import checked_device
from danp_lib.data.domain import Domain
from danp_lib.data.generators import GENERATORS
from danp_lib.data.points import Task, load_tasks
from danp_lib.data.scaling import Scaling
from danp_lib.evaluation.score import ESTIMATORS, Estimator, Evaluation, evaluate
from danp_lib.storage.checkpoint import load_scaling
from danp_lib.storage.tasks import benchmark_tasks


def read_tasks(tasks: str) -> Task:
    """The tasks of a file, or the benchmark's of a dataset.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file holds no tasks.
    """
    if tasks in GENERATORS:
        return benchmark_tasks(tasks)
    if not Path(tasks).is_file():
        raise FileNotFoundError(
            f"{tasks!r} is neither a task file nor a dataset ({', '.join(GENERATORS)})."
        )
    return load_tasks(tasks)


def evaluate_checkpoint(
    checkpoint: str,
    tasks: str,
    *,
    estimator: str,
    num_samples: int,
    seed: int,
    device: str = "cpu",
    progress: bool = True,
) -> dict[str, Any]:
    """Evaluate a checkpoint on tasks; see :func:`~danp_lib.evaluation.score.evaluate`.

    Tasks and score are in the data's units, as those of ``danp predict`` are.

    Raises:
        FileNotFoundError: If there is no such checkpoint or task file.
        ValueError: If an argument is not one of its choices, or a file is not what it should be.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}.")
    target = checked_device(device)
    model = load_model(checkpoint, device=device)
    scaling = load_scaling(checkpoint_path(checkpoint))
    given = read_tasks(tasks)
    _check_inputs(given, model.domain, scaling, tasks)
    result = evaluate(
        model,
        given.map(scaling.apply).to(target),
        estimator=cast(Estimator, estimator),
        num_samples=num_samples,
        generator=torch.Generator(device=target).manual_seed(seed),
        progress=progress,
    )
    log_unit = math.log(scaling.y_unit)
    records = [replace(r, log_likelihood=r.log_likelihood - log_unit) for r in result.tasks]
    return Evaluation.summarize(records).to_dict()


def _check_inputs(task: Task, domain: Domain, scaling: Scaling, tasks: str) -> None:
    """Refuse inputs off a domain before the work, and in the units of the file."""
    for key, points in (("xc", task.context), ("xt", task.target), ("x_pool", task.pool)):
        if points is not None:
            real = points.x[points.mask]
            off = real[~domain.contains(scaling.inputs(real))]
            if len(off):
                raise ValueError(
                    f"{tasks}: {key} must lie in the model's domain "
                    f"{scaling.data_domain(domain)}, got {off[0].tolist()}."
                )


def render(result: Mapping[str, Any]) -> str:
    """An evaluation as lines to read: the score, and a row for each context size."""
    error = result["average_likelihood_ci95"]
    interval = "" if error is None else f" ± {error:.2f}"
    lines = [
        f"average likelihood   {result['average_likelihood']:.2f}{interval}",
        f"mean log-likelihood  {result['mean_log_likelihood']:.3f} nats per target",
        f"tasks                {result['num_tasks']}",
        f"estimator            {result['estimator']}, {result['num_samples']} samples a task",
        f"cost                 {result['forward_passes']} forward passes, "
        f"{result['seconds']:.1f} s",
        "",
        "context size  tasks  average likelihood  log-likelihood  effective sample size",
    ]
    by_size: dict[int, list[Mapping[str, Any]]] = {}
    for task in result["tasks"]:
        by_size.setdefault(task["context_size"], []).append(task)
    for size, group in sorted(by_size.items()):
        logs = [task["log_likelihood"] for task in group]
        sizes = [s for task in group if (s := task["effective_sample_size"]) is not None]
        effective = f"{sum(sizes) / len(sizes):.1f}" if sizes else "-"
        likelihood = sum(map(math.exp, logs)) / len(logs)
        lines.append(
            f"{size:12}  {len(group):5}  {likelihood:18.2f}  {sum(logs) / len(logs):14.3f}  "
            f"{effective:>21}"
        )
    return "\n".join(lines)


# Headings of the table, and the width of each column; negative widths are of text.
COLUMNS = {
    "dataset": -8,
    "model": -24,
    "paper": 13,
    "ours": 14,
    "estimator": -27,
    "nats": 7,
    "CRPS": 6,
    "50 %": 5,
    "90 %": 5,
    "passes": 8,
    "seconds": 7,
}


def render_table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The benchmark's table as lines to read, a blank where there is no number."""
    lines = [_aligned(COLUMNS)]
    for dataset, models in rows.items():
        for model, row in models.items():
            most = row["num_samples"] or 1
            least = row.get("fewest_samples") or most
            count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            cells = (
                dataset,
                model,
                _interval(row, "paper"),
                _interval(row, "ours"),
                (row["estimator"] or "") + (f" (S = {count})" if most > 1 else ""),
                _number(row, "mean_log_likelihood", ".3f"),
                _number(row, "crps", ".4f"),
                _number(row, "coverage_50", ".1%"),
                _number(row, "coverage_90", ".1%"),
                _number(row, "forward_passes", ",.0f"),
                _number(row, "seconds", ".2f"),
            )
            lines.append(_aligned(cells))
    lines += [
        "",
        "paper, ours: average likelihood ± 1.96 standard errors over the tasks; nats: mean",
        "log-likelihood per target; CRPS, 50 %, 90 %: of the marginals, and how many targets their",
        "central intervals hold; passes, seconds: U-Net passes and time for a task's likelihood,",
        "by a compiled network where the file of the result says so.",
    ]
    return "\n".join(lines)


def _aligned(cells: Iterable[str]) -> str:
    columns = zip(cells, COLUMNS.values(), strict=True)
    return "  ".join(c.rjust(w) if w > 0 else c.ljust(-w) for c, w in columns).rstrip()


def _interval(row: Mapping[str, Any], key: str) -> str:
    """A score and its 1.96 standard errors."""
    error = _number(row, f"{key}_ci95", "5.2f")
    return _number(row, key, ".2f") + (f" ± {error}" if error else "")


def _number(row: Mapping[str, Any], key: str, form: str) -> str:
    value = row.get(key)
    return "" if value is None else format(value, form)
