"""``danp predict``: from points in CSV files to predictions in a CSV file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from typer import Option

from danp_lib._config import check_at_least
from danp_lib._files import check_writable, write_atomically
from danp_lib._random import spawn
from danp_lib.cli import arguments
from danp_lib.cli.arguments import Defended, Group, Seed, XColumn, YColumn, say
from danp_lib.data import tables
from danp_lib.data.points import PointSet
from danp_lib.fitting.fitted import Fitted
from danp_lib.inference.autoregressive import ar_sample
from danp_lib.models.contexts import ContextWarning
from danp_lib.storage.pretrained import find_checkpoint

AT_ONCE = 1000
"""Inputs predicted at once; a DANP's mixture takes 2 KB for each and each sample at rank 64."""

_CONTEXT = Option(help="CSV with the columns x and y; may have no rows, and gaps in y.")
_NUM_SAMPLES = Option(help="Samples of the auxiliary data that a DANP averages over.")
_START = Option(
    help="Where every function starts, for a model that counts from there; if left out, the "
    "earliest input given or asked for."
)
_QUANTILES = Option(help="Levels of the quantiles, separated by commas; may be empty.")


def predict(
    checkpoint: Annotated[str, arguments.CHECKPOINT],
    context: Annotated[Path, _CONTEXT],
    at: Annotated[Path, Option(help="CSV with the column x.")],
    out: Annotated[Path, Option(help="CSV to write; what is there is replaced.")],
    x: XColumn = None,
    y: YColumn = None,
    group: Group = None,
    start: Annotated[str | None, _START] = None,
    defended: Defended = False,
    num_samples: Annotated[int, _NUM_SAMPLES] = 256,
    quantiles: Annotated[str, _QUANTILES] = "0.05,0.5,0.95",
    samples: Annotated[int, Option(help="Joint samples to write, a column each.")] = 0,
    seed: Seed = 0,
) -> None:
    """Predict at some inputs from a context, both in CSV files with a header.

    A model trained on your own records knows its columns; otherwise they are x and y. Where
    --context has a column of groups, each is predicted by itself, and --at may have that column
    too. The result has the columns of groups, if any, and of inputs, then mean, sd (standard
    deviation), q0.05 and so on for the quantiles, sample_1 and so on; its rows are in the order of
    --at. All are in the units of the data that the model was trained on, where the checkpoint knows
    them. Rows of the context without an output are left out, and outputs at equal inputs averaged
    where the training did so; that, and a context unlike those of the training, is said on the
    standard error.
    """
    pandas, levels = tables.import_pandas(), _parse_quantiles(quantiles)
    _check_place(out, find_checkpoint(checkpoint), context, at)
    fitted = arguments.open_fitted(checkpoint, defended=defended)
    layout = fitted.layout
    needed = [] if group is None else [group]
    x, y, group = x or layout.x, y or layout.y, group or layout.group
    check_at_least(0, samples=samples)
    made = {"mean", "sd", *(f"q{level!r}" for level in levels)}
    _check_columns(x, y, group, made | {f"sample_{i + 1}" for i in range(samples)})
    given = _read_rows(context, [x, y, *needed], group, dates=layout.dates)
    asked = _read_rows(at, [x], group, dates=layout.dates)
    _check_rows(given, asked, group, (context, at))
    if missing := int(given["y"].isna().sum()):
        say(context, f"rows without an output are left out: {missing}.")
    # Inputs that name no function are asked of every one.
    named = next((rows["group"] for rows in (asked, given) if "group" in rows), None)
    names = [None] if named is None or named.empty else list(named.unique())
    given = given.dropna(subset="y")
    if "group" in given and (new := set(names) - set(given["group"])):
        none = f"predicted from no point, since {context} has none of this {group}"
        which = ", ".join(sorted(map(str, new)))
        say(at, "predicted from no point." if new == {None} else f"{none}: {which}.")
    streams = torch.Generator().manual_seed(seed)
    starts_at = None if start is None else _read_start(start, dates=layout.dates)
    parts = []
    for name in names:
        known, wanted = (
            rows[rows["group"] == name] if "group" in rows else rows for rows in (given, asked)
        )
        where = context if name is None else f"{context}, {group} {name}"
        known = _without_repeats(known, where, averaged=bool(fitted.scores))
        with arguments.saying_warnings(where, ContextWarning):
            predicted = _predict_one(
                fitted,
                known,
                wanted,
                x=x,
                start=starts_at,
                num_samples=num_samples,
                levels=levels,
                samples=samples,
                generator=streams if len(names) == 1 else spawn(streams, 1)[0],
            )
        labels: dict[Any, Any] = {} if name is None else {group: name}
        labels[x] = wanted["text" if layout.dates else "x"]
        parts.append(pandas.DataFrame({**labels, **predicted}, index=wanted.index))
    result = pandas.concat(parts)
    if "group" in asked:
        result = result.loc[asked.index]
    write_atomically(out, result.to_csv(index=False, lineterminator="\n"))


def _check_place(out: Path, *sources: Path) -> None:
    check_writable(out)
    for source in sources:
        if out.exists() and source.exists() and source.samefile(out):
            raise ValueError(f"out must not be a file that is read, got {out}.")


def _parse_quantiles(text: str) -> list[float]:
    """The levels in a text such as ``0.05,0.5,0.95``; none in an empty one."""
    try:
        levels = [float(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        levels = [math.nan]
    if not all(0.0 < level < 1.0 for level in levels) or len(set(levels)) < len(levels):
        raise ValueError(
            f"quantiles must be different numbers in (0, 1), as in 0.05,0.5,0.95, got {text!r}."
        )
    return levels


def _check_columns(x: str, y: str, group: str | None, made: set[str]) -> None:
    """Refuse names of columns that would meet, also with those made for the result."""
    if y in (x, group) or x == group or {x, group} & made:
        raise ValueError(
            "x, y and group must name different columns, and x and group none that the result "
            f"makes, such as mean, got {x!r}, {y!r} and {group!r}."
        )


def _check_rows(given: Any, asked: Any, group: str | None, files: tuple[Path, Path]) -> None:
    """Refuse to predict at no input, or a group at a time from points that name no group."""
    context, at = files
    if asked.empty:
        raise ValueError(f"{at} must hold at least one input, got the header alone.")
    if "group" in asked and "group" not in given and not given.empty:
        raise ValueError(
            f"{context}, line 1: the header must name {group!r}, as that of {at} does."
        )
    if group is not None and "group" not in given and not given.empty:
        say(context, f"all rows are taken for one function, since no column is {group!r}.")


def _without_repeats(known: Any, where: Path | str, *, averaged: bool) -> Any:
    """Rows as a model of one's own records knows them: one for each input."""
    if not (repeated := known["x"].duplicated().sum()):
        return known
    done = "averaged, as in training" if averaged else "kept"
    say(where, f"points at the input of another were {done}: {repeated}.")
    if not averaged:
        return known
    return known.assign(y=known.groupby("x")["y"].transform("mean")).drop_duplicates("x")


def _read_rows(path: Path, columns: list[str], group: str | None, *, dates: bool) -> Any:
    """The rows of a CSV file as a pandas DataFrame of text and x, and of y and group if there.

    The columns are that of x and perhaps that of y. Inputs must be dates if the model's were.
    """
    table = tables.read_columns(path, columns, optional=group)
    text = table[columns[0]]
    if dates and len(text):
        inputs, dated = tables.read_inputs(text)
        if not dated:
            tables.refuse(text, slice(None), "be a date such as 1958-03-29")
    else:
        inputs = tables.read_numbers(text)
    rows = text.to_frame("text").assign(x=inputs)
    if len(columns) > 1:
        rows["y"] = tables.read_numbers(table[columns[1]], missing=True)
    if group in table:
        tables.refuse(table[group], table[group] == "", "name a function in every row")
        rows["group"] = table[group]
    return rows


def _read_start(text: str, *, dates: bool) -> float:
    """An input in the command line, which must be a date where the model's were."""
    cell = tables.import_pandas().Series([text.strip()], index=["--start"], name="start")
    inputs, dated = tables.read_inputs(cell)
    if dated != dates:
        tables.refuse(
            cell, slice(None), "be a date, as the model's inputs are" if dates else "be a number"
        )
    return float(inputs[0])


def _predict_one(
    fitted: Fitted,
    given: Any,
    asked: Any,
    *,
    x: str,
    start: float | None,
    num_samples: int,
    levels: list[float],
    samples: int,
    generator: torch.Generator,
) -> dict[str, list[float]]:
    """The columns of the result for one function; ``x`` is the name of its inputs."""
    known, inputs = PointSet(_points(given["x"]), _points(given["y"])), _points(asked["x"])
    origin = fitted.start(known, inputs, start)
    for rows, places in ((given, known.x), (asked, inputs)):
        tables.refuse(rows["text"].rename(x), ~fitted.takes(places, origin)[0].numpy(), fitted.rule)
    scaled, xt = fitted.to_model(known, origin), fitted.scaling.inputs(inputs - origin)
    predictive = fitted.model.condition_on(scaled, num_samples=num_samples, generator=generator)
    # Joint samples need all inputs together; marginals do not.
    size = xt.shape[1] if samples else AT_ONCE
    table: dict[str, list[float]] = {}
    for part, place in zip(xt.split(size, dim=1), inputs.split(size, dim=1), strict=True):
        there = fitted.to_data(predictive(part), place)
        columns = {"mean": there.mean, "sd": there.stddev}
        columns |= {f"q{level!r}": there.quantile(level) for level in levels}
        if samples and fitted.model.autoregressive:
            own = ar_sample(fitted.model, scaled, part, num_samples=samples, generator=generator)
            drawn = fitted.outputs(own.values, place)
        else:
            drawn = there.sample((samples,), generator=generator)
        columns |= {f"sample_{i + 1}": values for i, values in enumerate(drawn)}
        for key, values in columns.items():
            table.setdefault(key, []).extend(values.flatten().tolist())
    return table


def _points(column: Any) -> Tensor:
    return torch.tensor(column.to_numpy()).reshape(1, -1, 1)
