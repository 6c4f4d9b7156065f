"""``danp predict``: from points in CSV files to predictions in a CSV file."""

from __future__ import annotations

import csv
import io
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from danp_lib._files import check_output, write_atomically
from danp_lib._random import spawn
from danp_lib.cli.info import open_fitted
from danp_lib.data.points import PointSet
from danp_lib.data.tables import read_columns, read_inputs, read_numbers, refuse
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.fitting.fitted import Fitted
from danp_lib.inference.autoregressive import ar_sample
from danp_lib.models.contexts import ContextWarning
from danp_lib.storage.pretrained import find_checkpoint

AT_ONCE = 1000
"""Inputs predicted at once; a DANP's mixture takes 2 KB for each and each sample at rank 64."""


@dataclass(frozen=True)
class Rows:
    """The rows of one CSV file.

    Attributes:
        cells: The column of inputs as text, a pandas Series indexed by place.
        x: Inputs as numbers in the table's units, ``(rows,)``.
        y: Outputs, NaN where missing; ``None`` where there is no such column.
        group: The function of each row; ``None`` where there is one function.
    """

    cells: Any
    x: Tensor
    y: Tensor | None
    group: NDArray[Any] | None

    def of(self, name: str | None) -> NDArray[np.bool_]:
        """The rows of one function, all of them where the file does not tell functions apart."""
        count = len(self.x)
        return np.ones(count, dtype=bool) if self.group is None else self.group == name


def read_rows(
    path: Path, x: str, y: str | None, group: str | None, dates: bool, *, grouped: bool = False
) -> Rows:
    """Read the named columns of a CSV file with a header; others are ignored.

    The column that names functions may be missing, unless ``grouped``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column is missing, an entry is no number or not finite in float32, or
            inputs are dates where the model was trained on numbers, or numbers where on dates;
            with the file and the line.
    """
    columns = [x, *([] if y is None else [y]), *([group] if grouped and group else [])]
    cells, *others = read_columns(path, columns, optional=group)
    outputs = None if y is None else torch.from_numpy(read_numbers(others[0], missing=True))
    names = None if group is None or others[-1] is None else others[-1].to_numpy()
    if not dates or not len(cells):
        inputs = read_numbers(cells)
    else:
        inputs, found = read_inputs(cells)
        refuse(cells, np.full(len(cells), not found), "be a date such as 1958-03-29")
    if names is not None:
        refuse(others[-1], names == "", "name a function in every row")
    return Rows(cells, torch.from_numpy(inputs), outputs, names)


def parse_quantiles(text: str) -> list[float]:
    """The levels in a text such as ``0.05,0.5,0.95``; none in an empty one.

    Raises:
        ValueError: If one is no number in (0, 1) or occurs twice.
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    try:
        levels = [float(part) for part in parts]
    except ValueError:
        levels = [math.nan]
    if not all(0.0 < level < 1.0 for level in levels) or len(set(levels)) < len(levels):
        raise ValueError(
            f"quantiles must be different numbers in (0, 1), as in 0.05,0.5,0.95, got {text!r}."
        )
    return levels


def predict(
    checkpoint: str,
    context: Path,
    at: Path,
    out: Path,
    *,
    x: str | None,
    y: str | None,
    group: str | None,
    num_samples: int,
    quantiles: Sequence[float],
    samples: int,
    seed: int,
) -> int:
    """Predict at the inputs of one CSV file from the points of another, as ``danp predict`` says.

    Returns:
        Number of rows written; the file appears whole or not at all.

    Raises:
        OSError: If a file is missing, or the result cannot be written.
        ValueError: If a file holds what the model cannot take, ``out`` is a file that is read, or a
            number is out of range.
    """
    check_output(out, find_checkpoint(checkpoint), context, at)
    fitted = open_fitted(checkpoint)
    layout = fitted.layout
    needed = group is not None
    x, y, group = x or layout.x, y or layout.y, group or layout.group
    _check_columns(x, y, group, quantiles, samples)
    given = read_rows(context, x, y, group, layout.dates, grouped=needed)
    wanted = read_rows(at, x, None, group, layout.dates)
    if not len(wanted.x):
        raise ValueError(f"{at} must hold at least one input, got the header alone.")
    assert given.y is not None
    if missing := int(given.y.isnan().sum()):
        print(f"danp: {context}: rows without an output are left out: {missing}.", file=sys.stderr)
    names = _names(given, wanted)
    if given.group is not None and (new := set(names) - {None} - set(given.group.tolist())):
        print(
            f"danp: {at}: predicted from no point, since {context} has none of this {group}: "
            f"{', '.join(sorted(map(str, new)))}.",
            file=sys.stderr,
        )
    streams = torch.Generator().manual_seed(seed)
    columns: dict[str, list[Any]] = {}
    for name in names:
        generator = streams if len(names) == 1 else spawn(streams, 1)[0]
        table = _predict_one(
            fitted,
            given,
            wanted,
            name,
            num_samples=num_samples,
            quantiles=quantiles,
            samples=samples,
            generator=generator,
            where=str(context) if name is None else f"{context}, {group} {name}",
        )
        labels = {x: wanted.cells[wanted.of(name)].tolist()}
        if not layout.dates:
            labels = {x: wanted.x[torch.from_numpy(wanted.of(name))].tolist()}
        if name is not None and group is not None:
            labels = {group: [name] * len(labels[x]), **labels}
        for key, values in {**labels, **table}.items():
            columns.setdefault(key, []).extend(values)
    if wanted.group is not None:
        place = np.concatenate([np.flatnonzero(wanted.of(name)) for name in names])
        columns = {k: [v[i] for i in place.argsort()] for k, v in columns.items()}
    _write(out, columns)
    return len(columns[x])


def _names(given: Rows, wanted: Rows) -> list[str | None]:
    """The functions to predict, in the order in which they come; ``[None]`` for the one.

    Inputs that name no function are asked of every one.
    """
    named = given.group if wanted.group is None else wanted.group
    if named is None:
        return [None]
    return list(dict.fromkeys(named.tolist()))


def _predict_one(
    fitted: Fitted,
    given: Rows,
    wanted: Rows,
    name: str | None,
    *,
    num_samples: int,
    quantiles: Sequence[float],
    samples: int,
    generator: torch.Generator,
    where: str,
) -> dict[str, list[float]]:
    """The columns of the result for one function."""
    assert given.y is not None
    real = torch.from_numpy(given.of(name)) & ~given.y.isnan()
    known = PointSet(given.x[real].reshape(1, -1, 1), given.y[real].reshape(1, -1, 1))
    inputs = wanted.x[torch.from_numpy(wanted.of(name))].reshape(1, -1, 1)
    start = fitted.start(known, inputs)
    for rows, keep in ((given, real), (wanted, torch.from_numpy(wanted.of(name)))):
        outside = keep & ~fitted.takes(rows.x.reshape(1, -1, 1), start)[0]
        refuse(rows.cells, outside.numpy(), fitted.rule)
    scaled, xt = fitted.to_model(known, start), fitted.scaling.inputs(inputs - start)
    if repeated := known.num_points - len(known.x.unique()):
        print(f"danp: {where}: points at the input of another: {repeated}.", file=sys.stderr)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ContextWarning)
        predictive = fitted.model.condition_on(scaled, num_samples=num_samples, generator=generator)
    for warning in caught:
        print(f"danp: {where}: {warning.message}", file=sys.stderr)
    # Joint samples need all inputs together; marginals do not.
    size = xt.shape[1] if samples else AT_ONCE
    tables = []
    for part, place in zip(xt.split(size, dim=1), inputs.split(size, dim=1), strict=True):
        there = fitted.to_data(predictive(part), place)
        table = {"mean": there.mean, "sd": there.stddev}
        table |= {f"q{level!r}": there.quantile(level) for level in quantiles}
        drawn = _draw(fitted, scaled, part, place, there, samples, generator)
        table |= {f"sample_{i + 1}": values for i, values in enumerate(drawn)}
        tables.append({key: values.flatten().tolist() for key, values in table.items()})
    return {key: [v for table in tables for v in table[key]] for key in tables[0]}


def _draw(
    fitted: Fitted,
    context: PointSet,
    xt: Tensor,
    x: Tensor,
    predictive: LowRankNormal | Mixture,
    samples: int,
    generator: torch.Generator,
) -> Tensor:
    """Joint samples in the units of the data, ``(samples, 1, targets, 1)``."""
    if not samples or not fitted.model.autoregressive:
        return predictive.sample((samples,), generator=generator)
    own = ar_sample(fitted.model, context, xt, num_samples=samples, generator=generator).values
    drawn = fitted.scaling.y_offset + fitted.scaling.y_unit * own.double()
    return drawn if fitted.season is None else drawn + fitted.season.mean(x)


def _check_columns(
    x: str, y: str, group: str | None, quantiles: Sequence[float], samples: int
) -> None:
    """Refuse names of columns that would meet in the result."""
    if samples < 0:
        raise ValueError(f"samples must be >= 0, got {samples}.")
    if x == y:
        raise ValueError(f"x and y must name different columns, got {x!r} for both.")
    if group in (x, y):
        raise ValueError(f"group must name another column than x and y, got {group!r}.")
    drawn = [f"sample_{i + 1}" for i in range(samples)]
    made = ("mean", "sd", *(f"q{level!r}" for level in quantiles), *drawn)
    for name, column in (("x", x), ("group", group)):
        if column in made:
            raise ValueError(
                f"{name} must not be named like a column of the result, got {column!r}."
            )


def _write(out: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns as CSV, numbers to the last digit."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    texts = [[repr(v) if isinstance(v, float) else v for v in row] for row in columns.values()]
    writer.writerows(zip(*texts, strict=True))
    write_atomically(out, text.getvalue())
