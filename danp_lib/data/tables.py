"""Tables of observed functions out of arrays, pandas, xarray and CSV files.

Nothing is imputed: a value that is missing is masked out, and a time that is missing is refused.
"""

from __future__ import annotations

import csv
import io
import math
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from danp_lib.data.points import PointSet

DAYS_A_YEAR = 365.2425
"""Mean length of a year; dates become years of this length, counted so that 1970 begins at 1970."""

MISSING = ("", "na", "nan", "null")
"""What stands for a missing value in a CSV file, in small or capital letters."""


def from_arrays(x: ArrayLike, y: ArrayLike) -> PointSet:
    """A table of functions that were observed at the same inputs; what is NaN is masked out.

    Args:
        x: Inputs, numbers or dates in increasing order, ``(points,)``; dates become years, and
            times with a zone are taken in UTC.
        y: Outputs, ``(points,)`` for one function or ``(functions, points)``.

    Returns:
        The table in float64, ``(functions, points, 1)``; a masked entry holds 0.

    Raises:
        ValueError: If the shapes do not fit, x is missing, infinite or does not increase, y is
            infinite or no number, or fewer than 2 values are there.
    """
    inputs = _inputs(x)
    outputs = np.atleast_2d(_outputs(y))
    if inputs.ndim != 1 or outputs.shape[1:] != inputs.shape:
        raise ValueError(
            "x must have shape (points,) and y (points,) or (functions, points), got "
            f"{np.shape(x)} and {np.shape(y)}."
        )
    steps = np.diff(inputs)
    if (late := np.flatnonzero(~(steps > 0.0))).size:
        place = int(late[0]) + 1
        raise ValueError(
            f"x must increase, got {inputs[place]} after {inputs[place - 1]} at position {place}; "
            "sort the data, merge or drop what has the same x, and give one function at a time."
        )
    values = torch.from_numpy(outputs)
    mask = ~values.isnan()
    if int(mask.sum()) < 2:
        raise ValueError(
            f"y must hold at least 2 values that are not missing, got {int(mask.sum())}."
        )
    inputs_of_all = torch.from_numpy(inputs).expand(values.shape).clone()
    return PointSet(inputs_of_all.unsqueeze(-1), values.nan_to_num(0.0).unsqueeze(-1), mask)


def from_labelled(data: Any) -> PointSet:
    """A table of functions out of a pandas or an xarray object; see :func:`from_arrays`.

    A pandas Series and an xarray DataArray of one dimension are one function of their index or
    coordinate. A DataFrame is one function a row, of its column labels, and a DataArray of two
    dimensions is one function a row, of the coordinate of its last dimension.

    Args:
        data: The object. Neither package need be installed for the other's.

    Raises:
        ValueError: If it is none of these, and as :func:`from_arrays` does.
    """
    if hasattr(data, "dims") and hasattr(data, "coords"):
        if not data.dims or data.dims[-1] not in data.coords:
            raise ValueError(
                f"the last dimension of data must have a coordinate, got dimensions {data.dims} "
                f"with coordinates {list(data.coords)}."
            )
        return from_arrays(data.coords[data.dims[-1]].values, data.values)
    if hasattr(data, "index") and hasattr(data, "to_numpy"):
        labels = data.columns if hasattr(data, "columns") else data.index
        # A period is known by its first moment.
        labels = labels.to_timestamp() if hasattr(labels, "to_timestamp") else labels
        try:
            values = data.to_numpy(dtype="float64", na_value=math.nan)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y must hold numbers: {error}.") from error
        try:
            return from_arrays(labels.to_numpy(), values)
        except ValueError as error:
            if values.ndim == 1 or not any(isinstance(label, str) for label in labels):
                raise
            raise ValueError(
                f"{error} A row of a DataFrame is one function, of the column labels; where a "
                "column is one, give the frame's .T."
            ) from error
    raise ValueError(
        "data must be a pandas Series or DataFrame or an xarray DataArray, got "
        f"{type(data).__name__}."
    )


def from_csv(path: str | os.PathLike[str], *, x: str = "x", y: str = "y") -> PointSet:
    """One function out of two columns of a CSV file with a header; see :func:`from_arrays`.

    Args:
        path: The file, in UTF-8.
        x: Name of the column of inputs: numbers, or dates such as ``1958-03-29``.
        y: Name of the column of outputs; an empty cell, ``NA``, ``NaN`` and ``null`` are missing.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column is missing or a cell cannot be read, with the file and the line; and
            as :func:`from_arrays` does.
    """
    path = Path(path)
    rows = read_columns(path, (x, y))
    outputs = [read_output(cells[1], y, where) for where, cells in rows]
    # The first tells what they all must be, so that one wrong cell is the one that is named.
    read = read_number if rows and _is_number(rows[0][1][0]) else _date
    inputs: NDArray[Any] = np.array([read(cells[0], x, where) for where, cells in rows])
    try:
        return from_arrays(inputs, outputs)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_columns(path: Path, columns: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The cells of the named columns of a CSV file with a header; other columns are ignored.

    Args:
        path: The file, in UTF-8.
        columns: Names of the columns wanted.

    Returns:
        For each row its place, as in ``a.csv, line 3``, and its cells in the order of ``columns``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no CSV file, a column is missing or a row has too few or many cells.
    """
    try:
        # Spreadsheets put a byte order mark first.
        text = path.read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file in UTF-8, save it as one: {error}.") from error
    wanted = ",".join(columns)
    if not lines:
        raise ValueError(f"{path} is empty: its first line must be the header {wanted}.")
    header = lines[0][1]
    for column in columns:
        if header.count(column) != 1:
            hint = " Columns must be separated by commas." if len(header) == 1 else ""
            raise ValueError(
                f"{path}, line {lines[0][0]}: the header must name the column {column!r} once "
                f"(as in {wanted}), got {','.join(header)!r}.{hint}"
            )
    rows = []
    for number, cells in lines[1:]:
        where = f"{path}, line {number}"
        if len(cells) != len(header):
            raise ValueError(f"{where}: {len(header)} values must stand here, got {len(cells)}.")
        rows.append((where, [cells[header.index(column)] for column in columns]))
    return rows


def read_number(cell: str, column: str, where: str) -> float:
    """The number in a cell; not of necessity a finite one.

    Raises:
        ValueError: If it holds something else; with its place.
    """
    if _is_number(cell):
        return float(cell)
    comma = "; write it with a decimal point, and thousands without a separator"
    hint = comma if _is_number(cell.replace(",", "")) else ""
    raise ValueError(f"{where}: {column} must be a number, got {cell!r}{hint}.")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    # Python reads 2_5 as 25; in a file it is a slip.
    return "_" not in cell


def _inputs(x: ArrayLike) -> NDArray[np.float64]:
    """Inputs as finite numbers."""
    labels = _dates(np.asarray(x))
    if np.issubdtype(labels.dtype, np.timedelta64):
        raise ValueError(
            f"x must be numbers or dates, got {labels.dtype}; divide it by a unit, as in "
            "x / numpy.timedelta64(1, 'D')."
        )
    if np.issubdtype(labels.dtype, np.datetime64):
        seconds = labels.astype("datetime64[us]").astype(np.float64) / 1e6
        seconds[np.isnat(labels)] = math.nan
        numbers = 1970.0 + seconds / (86400.0 * DAYS_A_YEAR)
    else:
        try:
            numbers = labels.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"x must be numbers or dates, got {labels.dtype} such as {labels.flat[0]!r}."
            ) from None
    if (bad := np.flatnonzero(~np.isfinite(numbers))).size:
        place = int(bad[0])
        raise ValueError(
            f"x must be finite, got {labels.flat[place]} at position {place}; a value may be "
            "missing, its x may not."
        )
    return numbers


def _dates(labels: NDArray[Any]) -> NDArray[Any]:
    """Dates and spans of time that NumPy keeps as objects, as its own; what else there is, as is.

    A time with a zone becomes that of UTC.
    """
    if labels.dtype != object or not labels.size:
        return labels
    items = labels.ravel().tolist()
    if all(isinstance(item, (timedelta, np.timedelta64)) for item in items):
        return labels.astype("timedelta64[us]")
    if not all(isinstance(item, (date, np.datetime64)) for item in items):
        return labels
    return np.array([_without_zone(item) for item in items], "datetime64[us]").reshape(labels.shape)


def _without_zone(item: date | np.datetime64) -> date | np.datetime64:
    if isinstance(item, datetime) and item.tzinfo is not None:
        return item.astimezone(UTC).replace(tzinfo=None)
    # The NaT of pandas is a date that NumPy cannot read.
    return item if item == item else np.datetime64("NaT")


def _outputs(y: ArrayLike) -> NDArray[np.float64]:
    """Outputs as numbers or NaN."""
    try:
        numbers = np.ma.filled(np.ma.asarray(y).astype(np.float64), math.nan)
    except (TypeError, ValueError):
        raise ValueError(f"y must hold numbers, got {np.asarray(y).dtype}.") from None
    if (bad := np.argwhere(np.isinf(numbers))).size:
        raise ValueError(
            f"y must be finite, or NaN where it is missing, got {numbers[tuple(bad[0])]} at "
            f"position {bad[0].tolist()}."
        )
    return numbers


def read_output(cell: str, column: str, where: str) -> float:
    """The finite number in a cell; NaN where it is missing.

    Raises:
        ValueError: If it holds something else; with its place.
    """
    if cell.lower() in MISSING:
        return math.nan
    if not _is_number(cell) and not any(character.isdigit() for character in cell):
        raise ValueError(
            f"{where}: {column} must be a number, or missing (an empty cell, NA, NaN or null), got "
            f"{cell!r}."
        )
    value = read_number(cell, column, where)
    if not math.isfinite(value):
        raise ValueError(f"{where}: {column} must be finite, or empty, got {cell!r}.")
    return value


def _date(cell: str, column: str, where: str) -> np.datetime64:
    # A time in a zone may leave the calendar.
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(cell)
        if moment.tzinfo is not None:
            return np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "us")
    # NumPy takes words such as "today" too, and warns of zones.
    if cell[:1].isdigit():
        with suppress(ValueError, UserWarning), warnings.catch_warnings(action="error"):
            return np.datetime64(cell, "us")
    raise ValueError(
        f"{where}: {column} must be a number in every line, or a date such as 1958-03-29 in "
        f"every line, got {cell!r}."
    )
