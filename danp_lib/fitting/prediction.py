"""Predictions for points in CSV files or DataFrames, as a DataFrame in the units of the data."""

import hashlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from danp_lib._config import Seed, check_at_least, check_kind, checked
from danp_lib.data import tables
from danp_lib.data.points import PointSet
from danp_lib.fitting.fitted import Fitted
from danp_lib.fitting.records import Layout, RecordsWarning, warn
from danp_lib.inference.autoregressive import ar_sample
from danp_lib.models.contexts import ContextWarning

_MOST_COMPLAINTS = 3
_COMPLAINTS: dict[type[Warning], str] = {
    ContextWarning: "unlike training",
    RecordsWarning: "with points at the input of another",
}
"""Kinds of warnings about contexts, and what further ones are said to be."""

AT_ONCE = 1000
"""Inputs predicted at once; a DANP's mixture takes 2 KB for each and each sample at rank 64."""


def predict_table(
    fitted: Fitted,
    context: Any,
    at: Any,
    *,
    x: str | None = None,
    y: str | None = None,
    group: str | None = None,
    start: Any = None,
    num_samples: int = 256,
    quantiles: Sequence[float] | NDArray[np.floating] = (0.05, 0.5, 0.95),
    samples: int = 0,
    seed: int = 0,
) -> Any:
    """Predict at the inputs of one table from the points of another.

    Both are CSV files with a header or pandas DataFrames, in the units of the data. Where the
    context has a column of groups, each is predicted by itself, and ``at`` may have it too. A
    :class:`~danp_lib.fitting.records.RecordsWarning` says what was left out or may be a mistake, a
    :class:`~danp_lib.models.contexts.ContextWarning` that a context is unlike those of training.

    Args:
        fitted: The model, in the units of its data.
        context: What is known; it may have no rows.
        at: Where to predict.
        x: The column of inputs; here and below, that of the training if left out.
        y: The column of outputs.
        group: The column that tells functions apart.
        start: Where every function starts, a number or a date, for a model that counts from there;
            if left out, the earliest input given or asked for.
        num_samples: Samples of the auxiliary data that a DANP averages over.
        quantiles: Their levels, in (0, 1), float64, which name the columns.
        samples: Number of joint samples.
        seed: Seed of all randomness; a group's numbers depend on its name, and on no other group.

    Returns:
        A DataFrame with the columns of groups, if any, and of inputs, then ``mean``, ``sd``
        (standard deviation), ``q0.05`` and so on, ``sample_1`` and so on. Its rows are in the order
        of ``at``, or where that names no group, of one group after the other.

    Raises:
        ValueError: If a table lacks a column, a cell cannot be read, or an input is off the model's
            domain; the message names the file or the argument, and the line or the row.
    """
    check_kind(Fitted, fitted=fitted)
    check_at_least(0, samples=samples)
    check_at_least(1, num_samples=num_samples)
    checked(Seed, seed, "seed")
    pandas, layout = tables.import_pandas(), fitted.layout
    needed = [] if group is None else [group]
    x, y, group = x or layout.x, y or layout.y, group or layout.group
    levels = _checked_levels(quantiles, x, y, group, samples)
    options: Any = {"num_samples": num_samples, "quantiles": levels, "samples": samples}
    given = _read_rows("context", context, [x, y, *needed], group, dates=layout.dates)
    asked = _read_rows("at", at, [x], group, dates=layout.dates)
    source = given.attrs["source"]
    names = _names_of_functions(given, asked, y, group, layout)
    given = given.dropna(subset="y")
    options["start"] = None if start is None else _read_start(start, dates=layout.dates)
    parts: list[Any] = []
    counts: Counter[type[Warning]] = Counter()
    for name in names:
        # Rows that name no function are of every one.
        known, wanted = (t[t["group"] == name] if "group" in t else t for t in (given, asked))
        where = f"{source}" if name is None else f"{source}, {group} {name}"
        random = _stream(seed, name)
        with _naming_warnings(where, counts):
            columns = _predict(fitted, known, wanted, x, where, generator=random, **options)
        own: dict[Any, Any] = {} if name is None else {group: name}
        parts.append(pandas.DataFrame({**own, x: wanted["label"], **columns}, index=wanted.index))
    for kind, what in _COMPLAINTS.items():
        if (more := counts[kind] - _MOST_COMPLAINTS) > 0:
            warn(f"further contexts {what}: {more}.", kind)
    result = pandas.concat(parts)
    return (result.sort_index() if "group" in asked else result).reset_index(drop=True)


@contextmanager
def _naming_warnings(where: str, counts: Counter[type[Warning]]) -> Iterator[None]:
    """Count warnings, and give the first few of each kind, of contexts with their function."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ContextWarning)
        yield
    for one in said:
        counts[one.category] += 1
        if counts[one.category] <= _MOST_COMPLAINTS or one.category not in _COMPLAINTS:
            of = f"{where}: " if one.category is ContextWarning else ""
            warn(f"{of}{one.message}", one.category)


def _stream(seed: int, name: Any) -> torch.Generator:
    """A group's own random numbers, whatever other groups there are."""
    if name is not None:
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        seed = int.from_bytes(digest[:8], "big") >> 1
    return torch.Generator().manual_seed(seed)


def _checked_levels(
    quantiles: Any, x: str, y: str, group: str | None, samples: int
) -> tuple[float, ...]:
    """The quantiles' levels as Python's floats, by which columns of the result are named.

    Names of columns that would meet, also with those made for the result, are refused.
    """
    if hasattr(quantiles, "tolist"):
        quantiles = quantiles.tolist()
    elif isinstance(quantiles, Sequence) and not isinstance(quantiles, str):
        quantiles = list(quantiles)
    levels: tuple[float, ...] = checked(tuple[float, ...], quantiles, "quantiles")
    if not all(0.0 < q < 1.0 for q in levels) or len(set(levels)) < len(levels):
        raise ValueError(f"quantiles must be different numbers in (0, 1), got {list(levels)}.")
    tables.check_different([column for column in (x, y, group) if column is not None])
    made = {"mean", "sd", *(f"q{q!r}" for q in levels)}
    numbers = (re.fullmatch(r"sample_([1-9]\d*)", str(name)) for name in (x, group))
    is_sample = any(number and int(number[1]) <= samples for number in numbers)
    if is_sample or {x, group} & made:
        raise ValueError(
            "x and group must name no column that the result makes, such as mean, got "
            f"{x!r} and {group!r}."
        )
    return levels


def _read_rows(name: str, data: Any, columns: list[str], group: str | None, *, dates: bool) -> Any:
    """The rows of a table: their source, label and x, and y and group if there.

    The columns are that of x and perhaps that of y.
    """
    table = tables.read_columns(data, columns, optional=group, name=name)
    cells = table[columns[0]]
    inputs = _read_inputs(cells, dates=dates)
    is_file = isinstance(data, (str, os.PathLike))
    rows = tables.import_pandas().DataFrame({"source": table.index, "x": inputs})
    rows["label"] = inputs if is_file and not dates else cells.to_numpy()
    if len(columns) > 1:
        rows["y"] = tables.read_outputs(table[columns[1]])
    if group in table:
        rows["group"] = tables.read_names(table[group]).to_numpy()
    rows.attrs["source"] = data if is_file else name
    rows.attrs["zoned"] = dates and tables.has_zone(cells)
    others = table.attrs["columns"] - {*columns, group}
    rows.attrs["others"] = {name for name in others if not re.match("Unnamed:|$", str(name))}
    return rows


def _read_start(start: Any, *, dates: bool) -> float:
    cell = tables.import_pandas().Series([start], index=["start"], name="it")
    return float(_read_inputs(cell, dates=dates)[0])


def _read_inputs(cells: Any, *, dates: bool) -> NDArray[np.float64]:
    """Inputs, which must be dates if the model's were, and else numbers."""
    inputs, dated = tables.read_inputs(cells)
    if len(cells) and dated != dates:
        rule = "be a date such as 1958-03-29" if dates else "be a number"
        tables.refuse(cells, slice(None), f"{rule}, as the model's inputs are")
    return inputs


def _names_of_functions(given: Any, asked: Any, y: str, group: str | None, layout: Layout) -> Any:
    """The functions to predict, ``[None]`` for one without a name; says what may be a mistake."""
    context, at = sources = [rows.attrs["source"] for rows in (given, asked)]
    if asked.empty:
        raise ValueError(f"{at} must hold at least one input, got none.")
    if "group" not in given and not given.empty:
        if "group" in asked:
            raise ValueError(f"{context} must have the column {group!r}, as {at} does.")
        if group is not None:
            none = f"all rows are taken for one function, since no column is {group!r}"
            warn(f"{context}: {none}.")
    several = "group" in given and given["group"].nunique() > 1
    if several and "group" not in asked and asked.attrs["others"] - {y}:
        warn(f"{at}: all functions are predicted at all inputs, since no column is {group!r}.")
    if not (given.empty or given.attrs["zoned"] == asked.attrs["zoned"]):
        one, other = (context, at) if given.attrs["zoned"] else (at, context)
        warn(f"the times of {one} have a zone and became UTC; those of {other} have none.")
    else:
        layout.warn_of_zone(asked.attrs["zoned"], f"{at}" if given.empty else f"{context} and {at}")
    for rows in (given, asked):
        rows.attrs.clear()  # which pandas would copy at every step
    if missing := int(given["y"].isna().sum()):
        warn(f"{context}: rows without an output are left out: {missing}.")
    # Inputs that name no function are asked of every one.
    named = next((rows["group"] for rows in (asked, given) if "group" in rows), None)
    names = [None] if named is None or named.empty else list(named.unique())
    known = given.dropna(subset="y")
    if "group" in given and (new := set(names) - set(known["group"])):
        _say_which(new, known["group"].drop_duplicates().to_list(), f"{group}", sources)
    return names


def _say_which(new: set[Any], known: Any, group: str, sources: Sequence[Any]) -> None:
    """Warn of functions that no point is known of; refuse names that differ in their type alone."""
    context, at = sources
    as_text = {str(name): name for name in known}
    for name in new:
        if str(name) in as_text:
            one, other = (f"{n!r} ({type(n).__name__})" for n in (as_text[str(name)], name))
            raise ValueError(
                f"{at} must name every {group} as {context} does, got {other}, where that has "
                f"{one}; convert one of the columns, as by astype(str)."
            )
    which = ""
    if new != {None}:
        shown = ", ".join(sorted(as_text)[:3])
        which = f", since {context} has none of this {group}: {', '.join(sorted(map(str, new)))}"
        which += f"; it has {shown}{' and others' * (len(as_text) > 3)}" if as_text else ""
    warn(f"{at}: predicted from no point{which}.")


def _predict(
    fitted: Fitted,
    given: Any,
    asked: Any,
    x: str,
    source: str,
    *,
    start: float | None,
    num_samples: int,
    quantiles: Sequence[float],
    samples: int,
    generator: torch.Generator,
) -> dict[str, list[float]]:
    """The columns of the result for one function; ``x`` is the name of its inputs."""
    known, inputs = PointSet(_points(given["x"]), _points(given["y"])), _points(asked["x"])
    origin = fitted.start(known, inputs, start)
    for rows, points in ((given, known.x), (asked, inputs)):
        cells = rows["label"].set_axis(rows["source"]).rename(x)
        hint = ""
        if start is None and fitted.layout.relative and len(given):
            hint = " (they count from the earliest one here: leave out what lies too long before)"
        tables.refuse(cells, ~fitted.takes(points, origin)[0].numpy(), fitted.rule + hint)
    fitted.warn_of_order(known, inputs)
    known = fitted.known(known, source)
    scaled, xt = fitted.to_model(known, origin), fitted.scaling.inputs(inputs - origin)
    predictive = fitted.model.condition_on(scaled, num_samples=num_samples, generator=generator)
    # Joint samples need all inputs together; marginals do not.
    size = xt.shape[1] if samples else AT_ONCE
    table: dict[str, list[float]] = {}
    for part, x_part in zip(xt.split(size, dim=1), inputs.split(size, dim=1), strict=True):
        distribution = fitted.to_data(predictive(part), x_part)
        columns = {"mean": distribution.mean, "sd": distribution.stddev}
        columns |= {f"q{level!r}": distribution.quantile(level) for level in quantiles}
        if samples and fitted.model.autoregressive:
            own = ar_sample(fitted.model, scaled, part, num_samples=samples, generator=generator)
            drawn = fitted.outputs(own.values, x_part)
        else:
            drawn = distribution.sample((samples,), generator=generator)
        columns |= {f"sample_{i + 1}": values for i, values in enumerate(drawn)}
        for key, values in columns.items():
            table.setdefault(key, []).extend(values.flatten().tolist())
    return table


def _points(column: Any) -> Tensor:
    return torch.tensor(column.to_numpy()).reshape(1, -1, 1)
