"""``danp evaluate``, ``danp benchmark`` and ``danp table``."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from typer import Argument, Option

from danp_lib._config import check_choice
from danp_lib._files import check_writable
from danp_lib.cli import arguments, records
from danp_lib.cli.arguments import AsJson, Defended, Device, Seed, with_error
from danp_lib.data.generators import DATASETS
from danp_lib.data.points import Task
from danp_lib.evaluation import score
from danp_lib.evaluation.results import AS_IN_PAPER, KINDS, run_benchmark, save_result
from danp_lib.evaluation.score import ESTIMATORS, Estimator, Evaluation
from danp_lib.evaluation.table import MAIN_ROWS
from danp_lib.evaluation.table import table as benchmark_table
from danp_lib.fitting.fitted import Fitted
from danp_lib.inference.likelihood import RULE_OF
from danp_lib.storage.tasks import benchmark_tasks, load_tasks

_TASKS = Option(help=f"A task file; or {arguments.DATASET_NAMES}, for the 310 benchmark tasks.")
_PER_TASK = (
    "Samples per task, in a rollout per target (where halved, per target with no known point), "
    "for a DANP"
)
_NAME = Argument(help="A pretrained model, or ceiling-gp and so on: the exact one.")
_MEASURE = Option(
    help="likelihood; marginals (CRPS and coverage); samples (the likelihood against their "
    "number); or used (likelihood and marginals from a DANP's own samples, defended)."
)
_NUM_SAMPLES = Option(
    help=f"{_PER_TASK}; 256 if left out. For the likelihood also paper: 50,000 for small contexts "
    "and 5,000 for others."
)
_PER_SIZE = Option(help="With --measure samples: tasks of each context size; 1 if left out.")
_MAX_SAMPLES = Option(help="With --measure samples: the largest number of samples to try.")
_COMPILED = Option("--compiled", help="Compile a DANP's network for 256 samples or more, on a CPU.")


def evaluate(
    checkpoint: Annotated[str, arguments.CHECKPOINT],
    tasks: Annotated[str | None, _TASKS] = None,
    estimator: Annotated[str | None, arguments.ESTIMATOR] = None,
    num_samples: Annotated[int | None, Option(help=f"{_PER_TASK}.")] = None,
    defended: Defended = False,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
    data: arguments.Data = None,
    x: arguments.XColumn = None,
    y: arguments.YColumn = None,
    group: arguments.Group = None,
) -> None:
    """Estimate the likelihood of a model on a set of tasks, or on further records of your own.

    The average likelihood is the benchmark's score: the mean over the tasks of the geometric mean
    of the density per target, with 1.96 standard errors. A ConvCNP and a ConvGNP need no estimator,
    and an AR ConvCNP is always rolled out; for a DANP it is both if left out, and the number of
    samples 256. Tasks and densities are in the units of the data that the model was trained on,
    where the checkpoint knows them.

    With --data, a model of your own records is scored on functions that were not in its training,
    beside those held out then, by tasks such as it was trained on.
    """
    if (tasks is None) == (data is None):
        raise ValueError("evaluate needs --tasks, or --data, and not both.")
    check_choice("estimator", estimator or "both", ESTIMATORS)
    fitted = arguments.open_fitted(checkpoint, device=device, defended=defended)
    if data is not None:
        if (estimator, num_samples, device) != (None, None, "cpu"):
            raise ValueError("--estimator, --num-samples and --device do not go with --data.")
        records.evaluate_records(fitted, data, as_json=as_json, x=x, y=y, group=group, seed=seed)
        return
    assert tasks is not None
    if (x, y, group) != (None, None, None):
        raise ValueError("--x, --y and --group do not go with --tasks.")
    if tasks not in DATASETS and not Path(tasks).is_file():
        raise FileNotFoundError(
            f"{tasks!r} is neither a task file nor a dataset ({', '.join(DATASETS)})."
        )
    if tasks in DATASETS and "fit" in fitted.provenance:
        raise ValueError(f"{checkpoint} is of your own records; score it by --data, not {tasks}.")
    task = benchmark_tasks(tasks) if tasks in DATASETS else load_tasks(tasks)
    result = score.evaluate(
        fitted.model,
        _scaled(task, fitted, tasks).to(device),
        estimator=cast(Estimator, estimator or "both"),
        num_samples=256 if num_samples is None else num_samples,
        generator=torch.Generator(device=device).manual_seed(seed),
        progress=True,
    )
    log_unit = math.log(fitted.scaling.y_unit)
    result = Evaluation.summarize(
        [replace(r, log_likelihood=r.log_likelihood - log_unit) for r in result.tasks]
    )
    print(arguments.as_text(result.to_dict()) if as_json else render(result))


def _scaled(task: Task, units: Fitted, name: str) -> Task:
    """Tasks in the model's units; inputs off the domain are refused in the units of the file."""
    start = units.start(task.context, task.target.x)
    for key, points in (("xc", task.context), ("xt", task.target), ("x_pool", task.pool)):
        if points is not None:
            units.check_domain(f"{name}: {key}", points.x, start, points.mask)
    return task.map(lambda points: units.to_model(points, start))


def benchmark(
    name: Annotated[str, _NAME],
    measure: Annotated[str, _MEASURE] = "likelihood",
    out: Annotated[Path, Option(help="A folder for the result.")] = Path("results"),
    estimator: Annotated[str | None, arguments.ESTIMATOR] = None,
    num_samples: Annotated[str | None, _NUM_SAMPLES] = None,
    tasks_per_size: Annotated[int | None, _PER_SIZE] = None,
    max_samples: Annotated[int | None, _MAX_SAMPLES] = None,
    defended: Defended = False,
    seed: Seed = 0,
    device: Device = "cpu",
    compiled: Annotated[bool, _COMPILED] = False,
) -> None:
    """Measure a pretrained model on its benchmark tasks, and write the result to a folder.

    danp table and the book read these results. A stopped run that draws samples of likelihoods goes
    on where it was when the same command is given again.
    """
    measures = {kind.measure: content for content, kind in KINDS.items()}
    check_choice("measure", measure, measures)
    try:
        count = num_samples if num_samples in (None, AS_IN_PAPER) else int(num_samples)
    except ValueError:
        raise ValueError(
            f"num-samples must be a number or {AS_IN_PAPER}, got {num_samples!r}."
        ) from None
    check_writable(out / "result.json")
    options = {"estimator": estimator, "num_samples": count}
    options |= {"tasks_per_size": tasks_per_size, "max_samples": max_samples}
    result = run_benchmark(
        name,
        measures[measure],
        seed=seed,
        device=device,
        compiled=compiled,
        defended=defended,
        folder=out,
        progress=True,
        **{key: value for key, value in options.items() if value is not None},
    )
    print(save_result(out, result))


def table(
    everything: Annotated[bool, Option("--all", help="Print all rows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the benchmark's table: the paper's average likelihoods, ours and the ceiling.

    Without --all, these are the models of the paper's Table 1: trained by this book's recipe, and
    by the paper's where the name ends in -paper. The other rows are of models that were rolled out,
    trained longer, of another seed or with other numbers of levels. JSON has all of them.

    The ceiling is the score of the exact predictives, given the models' smallest variance. On waves
    no model can beat it by more than luck; on the GP it is a yardstick and no limit.
    """
    rows = benchmark_table()
    if as_json:
        print(arguments.as_text(rows))
    elif everything:
        print(render_table(rows))
    else:
        main = {d: {r: models[r] for r in MAIN_ROWS if r in models} for d, models in rows.items()}
        print(render_table(main))
        print("danp table --all has more rows: models rolled out, trained longer, of other seeds.")


def render(result: Evaluation) -> str:
    """An evaluation as lines: the score, and a row for each context size."""
    likelihood = with_error(result.average_likelihood, result.average_likelihood_ci95, ".2f")
    headings = "context size, tasks, average likelihood, log-likelihood, effective sample size"
    rows = [headings.split(", ")]
    for size in sorted({task.context_size for task in result.tasks}):
        part = Evaluation.summarize([t for t in result.tasks if t.context_size == size])
        sizes = [s for task in part.tasks if (s := task.effective_sample_size) is not None]
        numbers = [f"{part.average_likelihood:.2f}", f"{part.mean_log_likelihood:.3f}"]
        effective = f"{sum(sizes) / len(sizes):.1f}" if sizes else "-"
        rows.append([str(size), str(part.num_tasks), *numbers, effective])
    per = "task"
    if (rule := RULE_OF.get(result.estimator)) is not None:
        per = "target where no point is known" if rule.halved else "target"
        per += ", added up over eight orders" if rule.orders > 1 else ""
    lines = [
        f"average likelihood   {likelihood}",
        f"mean log-likelihood  {result.mean_log_likelihood:.3f} nats per target",
        f"tasks                {result.num_tasks}",
        f"estimator            {result.estimator}, {result.num_samples} samples per {per}",
        f"cost                 {result.forward_passes} forward passes, {result.seconds:.1f} s",
    ]
    return "\n".join([*lines, "", *arguments.aligned(rows)])


COLUMNS = {
    "nats": ("mean_log_likelihood", ".3f"),
    "CRPS": ("crps", ".4f"),
    "50 %": ("coverage_50", ".1%"),
    "90 %": ("coverage_90", ".1%"),
    "passes": ("forward_passes", ",.0f"),
    "seconds": ("seconds", ".2f"),
}
"""Headings of the last columns of the benchmark's table, with the key and the format of each."""

LEGEND = """
paper, ours: average likelihood ± 1.96 standard errors over the tasks; nats: mean
log-likelihood per target; CRPS, 50 %, 90 %: of the marginals, and how many targets their
central intervals hold; passes, seconds: U-Net passes and time for a task's likelihood,
by a compiled network where the file of the result says so. The paper's one row of square
waves most likely belongs to square-released: its code draws none of its text's, square."""


def render_table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The benchmark's table as lines, with a blank where there is no number."""
    table = [("dataset", "model", "paper", "ours", "estimator", *COLUMNS)]
    for dataset, models in rows.items():
        for model, row in models.items():
            most = row["num_samples"] or 1
            least = row.get("fewest_samples") or most
            count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            estimator = (row["estimator"] or "") + (f" (S = {count})" if most > 1 else "")
            paper = with_error(row["paper"], row.get("paper_ci95"), ".2f", width=5)
            ours = with_error(row["ours"], row["ours_ci95"], ".2f", width=5)
            numbers = (with_error(row.get(key), None, form) for key, form in COLUMNS.values())
            table.append((dataset, model, paper, ours, estimator, *numbers))
    return "\n".join([*arguments.aligned(table, left=(0, 1, 4)), LEGEND])
