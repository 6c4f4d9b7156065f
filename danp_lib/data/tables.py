"""Tables of observed functions out of arrays, pandas and xarray objects, and CSV files.

Nothing is imputed: a missing output is masked out, and a missing input refused. Files need pandas.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Sequence
from datetime import UTC, date
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from danp_lib._config import naming
from danp_lib.data.points import PointSet

#: Mean length of a year; dates become years of this length, counted so that 1970 begins at 1970.
DAYS_A_YEAR = 365.2425
# An offset follows a time, since -03 also ends a date.
_ZONE = r"(?:[zZ]|[T ]\d{2}[\d:.,]*\s*[+-]\d{2}(?::?\d{2})?)$"
_COMMAS = (
    " Columns must be separated by commas; read other files with pandas and its sep, and give the "
    "DataFrame."
)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"


def from_arrays(x: ArrayLike, y: ArrayLike) -> PointSet:
    """A table ``(functions, points, 1)``, float64, of functions observed at the same inputs.

    Inputs, ``(points,)``, are numbers or dates in increasing order; dates become years, and times
    with a zone are taken in UTC. Outputs are ``(points,)`` for one function or
    ``(functions, points)``; what is NaN is masked out and becomes 0.
    """
    inputs, outputs = _inputs(x), np.atleast_2d(outputs_of(y))
    if inputs.ndim != 1 or outputs.shape[1:] != inputs.shape:
        raise ValueError(
            "x must have shape (points,) and y (points,) or (functions, points), got "
            f"{np.shape(x)} and {np.shape(y)}."
        )
    if (late := np.flatnonzero(~(np.diff(inputs) > 0.0))).size:
        place = int(late[0]) + 1
        raise ValueError(
            f"x must increase, got {inputs[place]} after {inputs[place - 1]} at position {place}; "
            "sort the data, merge or drop what has the same x, and give one function at a time."
        )
    values = torch.from_numpy(outputs).unsqueeze(-1)
    mask = ~values.isnan().squeeze(-1)
    if (count := int(mask.sum())) < 2:
        raise ValueError(f"y must hold at least 2 values that are not missing, got {count}.")
    return PointSet(torch.from_numpy(inputs[:, None]).expand_as(values), values.nan_to_num(0), mask)


def from_labelled(data: Any) -> PointSet:
    """A table of functions out of a pandas or an xarray object; see :func:`from_arrays`.

    A Series is one function of its index, and a DataFrame one function per row, of its column
    labels; a DataArray of one or two dimensions likewise, of the coordinate of its last dimension.
    """
    if hasattr(data, "dims") and hasattr(data, "coords"):
        if not data.dims or data.dims[-1] not in data.coords:
            raise ValueError(
                f"the last dimension of data must have a coordinate, got dimensions {data.dims} "
                f"with coordinates {list(data.coords)}."
            )
        return from_arrays(data.coords[data.dims[-1]].values, data.values)
    if not (hasattr(data, "index") and hasattr(data, "to_numpy")):
        raise ValueError(
            "data must be a pandas Series or DataFrame or an xarray DataArray, got "
            f"{type(data).__name__}."
        )
    labels = data.columns if hasattr(data, "columns") else data.index
    if hasattr(labels, "to_timestamp"):
        labels = labels.to_timestamp()  # the first moment of each period
    return from_arrays(labels, data)


def from_csv(path: str | os.PathLike[str], *, x: str = "x", y: str = "y") -> PointSet:
    """One function out of two columns of a CSV file with a header; see :func:`from_arrays`.

    Inputs are numbers, or dates such as ``1958-03-29``. An output is missing where a cell is empty,
    ``NA``, ``NaN`` or ``null``. A cell that cannot be read is refused by the file and the line.
    """
    table = read_columns(path, (x, y))
    inputs, _ = read_inputs(table[x])
    values = read_outputs(table[y])
    with naming(path):
        return from_arrays(inputs, values)


def read_columns(
    data: Any, columns: Sequence[str], *, optional: str | None = None, name: str = "data"
) -> Any:
    """The named columns of a CSV file or a pandas DataFrame, and one if there, as a DataFrame.

    Those of a file, which has a header, are text. The index says where each row is, such as
    ``a.csv, line 3`` or ``row 3``, and ``at, row 3`` of one of several DataFrames that has a
    ``name``; ``attrs["columns"]`` are the names of all columns. What is no such table, or lacks a
    column, is refused by the file or the name.
    """
    check_different(columns)
    if isinstance(data, (str, os.PathLike)):
        return _read_file(data, columns, optional)
    if not (hasattr(data, "columns") and hasattr(data, "index")):
        found = type(data).__name__
        raise ValueError(f"{name} must be a CSV file or a pandas DataFrame, got {found}.")
    present = list(data.columns)
    named = [*columns, *([optional] if optional in present and optional not in columns else [])]
    for column in named:
        if present.count(column) != 1:
            hint = _other_separator(present)
            if column in data.index.names:
                hint = f" That is the index; give {name}.reset_index()."
            raise ValueError(f"{name} must have the column {column!r} once, got {present}.{hint}")
    where = "row" if name == "data" else f"{name}, row"
    table = data[named].set_axis([f"{where} {place!r}" for place in data.index])
    table.attrs["columns"] = set(present)
    return table


def check_different(columns: Sequence[str]) -> None:
    """Refuse two columns of one name."""
    if len(set(columns)) < len(columns):
        raise ValueError(f"columns must have different names, got {', '.join(columns)}.")


def read_inputs(column: Any) -> tuple[NDArray[np.float64], bool]:
    """The inputs in one of :func:`read_columns`, and whether they were dates, or text of dates."""
    refuse(column, column.isna(), "have no gap")
    if column.dtype.kind == "O" or str(column.dtype).startswith("str"):
        return _read_text(column.astype(str).str.strip())
    return _inputs(column), column.dtype.kind == "M"


def has_zone(column: Any) -> bool:
    """Whether the dates in one of :func:`read_columns` have a time zone."""
    if column.dtype.kind == "M":
        return getattr(column.dtype, "tz", None) is not None
    return bool(column.astype(str).str.strip().str.contains(_ZONE).any())


def read_outputs(column: Any) -> NDArray[np.float64]:
    """The outputs in one of :func:`read_columns`, NaN where one is missing."""
    if column.dtype.kind not in "biufmM" and column.map(lambda cell: isinstance(cell, str)).all():
        return _read_numbers(column, missing=True)
    return outputs_of(column, f"the column {column.name!r}")


def read_names(column: Any) -> Any:
    """The functions' names in one of :func:`read_columns`, none of them empty."""
    empty = column.isna() | (column.astype(str).str.strip() == "")
    refuse(column, empty, "name a function in every row")
    return column


def years_of(duration: str) -> float:
    """A duration with its unit, such as ``"48h"`` or ``"7 days"``, in years; NaN if it is none."""
    if not any(map(str.isalpha, duration)):
        return math.nan
    pandas = import_pandas()
    # pandas has no word for weeks, and will have no small d.
    duration = re.sub("weeks?", "W", duration)
    duration = re.sub(r"(?<=\d)\s*d(?![a-z])", " D", duration)
    try:
        return float(pandas.Timedelta(duration) / pandas.Timedelta(days=DAYS_A_YEAR))
    except ValueError:
        return math.nan


def refuse(cells: Any, wrong: Any, rule: str) -> None:
    """Refuse the first wrong cell of a column of :func:`read_columns`: its place, rule and text."""
    for where, cell in cells[wrong].items():
        raise ValueError(f"{where}: {cells.name} must {rule}, got {cell!r}.")


def import_pandas() -> Any:
    """The module; a ``ModuleNotFoundError`` that says how to install it."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pandas must be installed for files to be read: pip install 'danp_lib[tables]'."
        ) from error
    return pandas


def _read_file(path: str | os.PathLike[str], columns: Sequence[str], optional: str | None) -> Any:
    pandas = import_pandas()
    try:
        # Spreadsheets put a byte order mark first.
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [cell.strip() for cell in next(reader, [])]
            rows = {f"{path}, line {reader.line_num}": row for row in reader if row}
    except (ValueError, csv.Error) as error:
        hint = ""
        if isinstance(error, UnicodeDecodeError):
            hint = (
                " Read it with pandas, naming its encoding, and give the DataFrame; if it is "
                "compressed, unpack it."
            )
        raise ValueError(f"{path} must be a CSV file in UTF-8: {error}.{hint}") from error
    present = list(columns)
    if optional in header and optional not in columns:
        present.append(optional)
    for column in present:
        if header.count(column) != 1:
            raise ValueError(
                f"{path}, line 1: the header must name the column {column!r} once "
                f"(as in {','.join(columns)}), got {','.join(header)!r}.{_other_separator(header)}"
            )
    for where, row in rows.items():
        if len(row) != len(header):
            raise ValueError(f"{where}: {len(header)} values must stand here, got {len(row)}.")
    table = pandas.DataFrame.from_dict(rows, orient="index", columns=header, dtype=object)
    table = table[present].apply(lambda cells: cells.str.strip())
    table.attrs["columns"] = set(header)
    return table


def _other_separator(header: Sequence[Any]) -> str:
    """What to do where the columns stand in one, as of a file with another separator."""
    other = len(header) == 1 and any(mark in str(header[0]) for mark in ";\t|")
    return _COMMAS if other else ""


def _read_numbers(cells: Any, *, missing: bool = False) -> NDArray[np.float64]:
    """Numbers in text; NaN where one may be missing and is."""
    numbers = cells.where(cells.str.fullmatch(_NUMBER).astype(bool)).to_numpy(dtype=np.float64)
    absent = cells.str.lower().isin(["", "na", "nan", "null"] if missing else [])
    fits = absent | (np.abs(numbers) <= torch.finfo(torch.float32).max)
    rule = "be a finite number in float32 with a decimal point, as in 2.5"
    refuse(cells, ~fits, f"{rule}, or missing ('', NA, NaN or null)" if missing else rule)
    return numbers


def _read_text(cells: Any) -> tuple[NDArray[np.float64], bool]:
    """Inputs in text, and whether they, as the first, are dates."""
    if cells[:1].str.fullmatch(_NUMBER).all():
        return _read_numbers(cells), False
    # pandas takes words such as "today" too.
    dated = cells.where(cells.str.match(r"\d{4}-"))
    dates = import_pandas().to_datetime(dated, utc=True, format="ISO8601", errors="coerce")
    refuse(cells, dates.isna(), "be a number in every line, or a date such as 1958-03-29 in every")
    zoned = cells.str.contains(_ZONE)
    refuse(cells, zoned != zoned.iloc[:1].any(), "have a time zone in every line, or in none")
    return _inputs(dates), True


def _inputs(x: ArrayLike) -> NDArray[np.float64]:
    """Inputs as finite numbers; dates, those of the standard library too, become years."""
    if np.ma.is_masked(x):
        raise ValueError("x must have no masked entry; a value may be missing, its x may not.")
    values: Any = getattr(x, "array", x)  # of pandas
    zoned = getattr(values, "tz", None) is not None
    labels = np.asarray(values.tz_convert(None) if zoned else values)
    if labels.dtype == object and all(isinstance(v, (date, np.datetime64)) for v in labels.flat):
        labels = np.array([_in_utc(item) for item in labels.flat], "datetime64[us]")
    if labels.dtype.kind == "M":
        days = (labels - np.datetime64("1970", "us")) / np.timedelta64(1, "D")
        numbers = 1970.0 + days / DAYS_A_YEAR
    elif labels.dtype.kind == "m":
        raise ValueError(
            f"x must be numbers or dates, got {labels.dtype}; divide it by a unit, as in "
            "x / numpy.timedelta64(1, 'D')."
        )
    else:
        try:
            if labels.dtype.kind == "c":
                raise TypeError("complex numbers would lose their imaginary part")
            numbers = labels.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"x must be numbers or dates, got {labels.dtype} such as {labels.flat[0]!r}; where "
                "the columns of a DataFrame are functions, and not its rows, give its .T."
            ) from None
    if (bad := np.flatnonzero(~np.isfinite(numbers))).size:
        raise ValueError(
            f"x must be finite, got {labels.flat[bad[0]]} at position {bad[0]}; a value may be "
            "missing, its x may not."
        )
    return numbers


def _in_utc(item: Any) -> Any:
    return item.astimezone(UTC).replace(tzinfo=None) if getattr(item, "tzinfo", None) else item


def outputs_of(y: Any, name: str = "y") -> NDArray[np.float64]:
    """Outputs as numbers, NaN where one is missing, of pandas or of arrays, masked ones too."""
    try:
        own: Any = np.asarray(y).dtype
    except ValueError as error:  # lists of different lengths are no array
        raise ValueError(f"{name} must hold numbers, got a ragged list: {error}.") from error
    try:
        # One of an array, or of each column of pandas.
        if any(dtype.kind in "cmM" for dtype in np.ravel(getattr(y, "dtypes", own))):
            raise TypeError("complex numbers, dates and durations are no outputs")
        if hasattr(y, "index") and hasattr(y, "to_numpy"):
            numbers = y.to_numpy(dtype=np.float64, na_value=math.nan, copy=True)
        else:
            numbers = np.ma.filled(np.ma.asarray(y).astype(np.float64), math.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold numbers, got {own}: {error}.") from error
    if (bad := np.argwhere(np.isinf(numbers))).size:
        raise ValueError(
            f"{name} must be finite, or NaN where it is missing, got {numbers[tuple(bad[0])]} at "
            f"position {bad[0].tolist()}."
        )
    return numbers
