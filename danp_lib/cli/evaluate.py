"""``danp evaluate``, ``danp benchmark`` and ``danp table``: scores, and how they are printed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from danp_lib._files import check_writable
from danp_lib.cli.info import open_fitted
from danp_lib.cli.train import checked_device
from danp_lib.data.generators import DATASETS
from danp_lib.data.points import Task, load_tasks
from danp_lib.evaluation.results import AS_IN_PAPER, KINDS, run_benchmark, save_result
from danp_lib.evaluation.score import ESTIMATORS, Estimator, Evaluation, TaskRecord, evaluate
from danp_lib.fitting.fitted import Fitted
from danp_lib.storage.tasks import benchmark_tasks


def evaluate_checkpoint(
    checkpoint: str,
    tasks: str,
    *,
    estimator: str,
    num_samples: int,
    seed: int,
    device: str = "cpu",
) -> Evaluation:
    """Evaluate a checkpoint on tasks, both in the data's units, and so is the score."""
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}.")
    target = checked_device(device)
    fitted = open_fitted(checkpoint, device=device)
    if tasks not in DATASETS and not Path(tasks).is_file():
        raise FileNotFoundError(
            f"{tasks!r} is neither a task file nor a dataset ({', '.join(DATASETS)})."
        )
    task = benchmark_tasks(tasks) if tasks in DATASETS else load_tasks(tasks)
    result = evaluate(
        fitted.model,
        _scaled(task, fitted, tasks).to(target),
        estimator=cast(Estimator, estimator),
        num_samples=num_samples,
        generator=torch.Generator(device=target).manual_seed(seed),
        progress=True,
    )
    log_unit = math.log(fitted.scaling.y_unit)
    records = [replace(r, log_likelihood=r.log_likelihood - log_unit) for r in result.tasks]
    return Evaluation.summarize(records)


def _scaled(task: Task, units: Fitted, name: str) -> Task:
    """Tasks in the model's units; inputs off the domain are refused in the units of the file."""
    start = units.start(task.context, task.target.x)
    for key, points in (("xc", task.context), ("xt", task.target), ("x_pool", task.pool)):
        if points is not None:
            off = points.x[points.mask & ~units.takes(points.x, start)]
            if len(off):
                raise ValueError(f"{name}: {key} must {units.rule}, got {off[0].tolist()}.")
    return task.map(lambda points: units.to_model(points, start))


def benchmark(
    name: str,
    measure: str,
    out: Path,
    *,
    num_samples: str | None,
    seed: int,
    device: str,
    compiled: bool,
    **options: Any,
) -> Path:
    """Run one measure on the benchmark, as ``danp benchmark`` says; the file of the result."""
    measures = {kind.measure: content for content, kind in KINDS.items()}
    if measure not in measures:
        raise ValueError(f"measure must be one of {', '.join(measures)}, got {measure!r}.")
    try:
        count = num_samples if num_samples in (None, AS_IN_PAPER) else int(num_samples)
    except ValueError:
        raise ValueError(
            f"num-samples must be a number or {AS_IN_PAPER}, got {num_samples!r}."
        ) from None
    check_writable(out / "result.json")
    options["num_samples"] = count
    result = run_benchmark(
        name,
        measures[measure],
        seed=seed,
        device=checked_device(device),
        compiled=compiled,
        folder=out,
        progress=True,
        **{key: value for key, value in options.items() if value is not None},
    )
    return save_result(out, result)


def render(result: Evaluation) -> str:
    """An evaluation as lines: the score, and a row for each context size."""
    error = result.average_likelihood_ci95
    interval = "" if error is None else f" ± {error:.2f}"
    by_size: dict[int, list[TaskRecord]] = {}
    for task in result.tasks:
        by_size.setdefault(task.context_size, []).append(task)
    headings = "context size, tasks, average likelihood, log-likelihood, effective sample size"
    rows = [headings.split(", ")]
    for size, group in sorted(by_size.items()):
        part = Evaluation.summarize(group)
        sizes = [s for task in group if (s := task.effective_sample_size) is not None]
        numbers = [f"{part.average_likelihood:.2f}", f"{part.mean_log_likelihood:.3f}"]
        effective = f"{sum(sizes) / len(sizes):.1f}" if sizes else "-"
        rows.append([str(size), str(len(group)), *numbers, effective])
    return "\n".join(
        [
            f"average likelihood   {result.average_likelihood:.2f}{interval}",
            f"mean log-likelihood  {result.mean_log_likelihood:.3f} nats per target",
            f"tasks                {result.num_tasks}",
            f"estimator            {result.estimator}, {result.num_samples} samples a task",
            f"cost                 {result.forward_passes} forward passes, {result.seconds:.1f} s",
            "",
            *aligned(rows),
        ]
    )


COLUMNS = {
    "nats": ("mean_log_likelihood", ".3f"),
    "CRPS": ("crps", ".4f"),
    "50 %": ("coverage_50", ".1%"),
    "90 %": ("coverage_90", ".1%"),
    "passes": ("forward_passes", ",.0f"),
    "seconds": ("seconds", ".2f"),
}
"""Headings of the last columns of the benchmark's table: the key of each, and its format."""


def render_table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The benchmark's table as lines, with a blank where there is no number."""
    table = [("dataset", "model", "paper", "ours", "estimator", *COLUMNS)]
    for dataset, models in rows.items():
        for model, row in models.items():
            most = row["num_samples"] or 1
            least = row.get("fewest_samples") or most
            count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            estimator = (row["estimator"] or "") + (f" (S = {count})" if most > 1 else "")
            scores = (_interval(row, "paper"), _interval(row, "ours"))
            numbers = (_number(row, key, form) for key, form in COLUMNS.values())
            table.append((dataset, model, *scores, estimator, *numbers))
    legend = [
        "",
        "paper, ours: average likelihood ± 1.96 standard errors over the tasks; nats: mean",
        "log-likelihood per target; CRPS, 50 %, 90 %: of the marginals, and how many targets their",
        "central intervals hold; passes, seconds: U-Net passes and time for a task's likelihood,",
        "by a compiled network where the file of the result says so. The paper's one row of square",
        "waves most likely belongs to square-released: its code draws none of its text's, square.",
    ]
    return "\n".join([*aligned(table, left=(0, 1, 4)), *legend])


def aligned(rows: Sequence[Sequence[str]], *, left: Collection[int] = ()) -> list[str]:
    """Rows as lines of columns; those in ``left`` are flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<" if i in left else ">" for i in range(len(widths))]
    return [
        "  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def _interval(row: Mapping[str, Any], key: str) -> str:
    """A score and its 1.96 standard errors."""
    error = _number(row, f"{key}_ci95", "5.2f")
    return _number(row, key, ".2f") + (f" ± {error}" if error else "")


def _number(row: Mapping[str, Any], key: str, form: str) -> str:
    value = row.get(key)
    return "" if value is None else format(value, form)
