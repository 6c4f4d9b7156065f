"""``danp predict``: from points in CSV files to predictions in a CSV file."""

from __future__ import annotations

import csv
import io
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from danp_lib._files import check_output, write_atomically
from danp_lib.cli.info import OpenCheckpoint, open_checkpoint
from danp_lib.data.points import PointSet
from danp_lib.data.tables import read_columns, read_numbers, refuse
from danp_lib.inference.autoregressive import ar_sample
from danp_lib.models.contexts import ContextWarning
from danp_lib.storage.pretrained import find_checkpoint

AT_ONCE = 1000
"""Inputs predicted at once; a DANP's mixture takes 2 KB for each and each sample at rank 64."""


def read_points(path: Path, columns: Sequence[str], opened: OpenCheckpoint) -> list[Tensor]:
    """Read numbers from the named columns of a CSV file with a header; others are ignored.

    Args:
        path: The file; it is read once, and may be a pipe.
        columns: Names of the columns wanted: of the inputs, and where there is a second, of the
            outputs, of which some may be missing.
        opened: The model, with its domain and its units.

    Returns:
        For each column its numbers in float64, ``(rows,)``; a missing output is NaN.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column is missing or an entry is no number, not finite in float32, or an
            input off the domain; with the file and the line.
    """
    cells, *outputs = read_columns(path, columns)
    inputs = torch.from_numpy(read_numbers(cells))
    refuse(cells, ~opened.takes(inputs.unsqueeze(-1)).numpy(), opened.rule)
    return [inputs, *(torch.from_numpy(read_numbers(each, missing=True)) for each in outputs)]


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
    x: str,
    y: str,
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
    _check_columns(x, y, quantiles, samples)
    check_output(out, find_checkpoint(checkpoint), context, at)
    opened = open_checkpoint(checkpoint)
    model, scaling = opened.model, opened.scaling
    known, values = read_points(context, (x, y), opened)
    (inputs,) = read_points(at, (x,), opened)
    if not len(inputs):
        raise ValueError(f"{at} must hold at least one input, got the header alone.")
    real = ~values.isnan()
    given = scaling.apply(PointSet(known[real].reshape(1, -1, 1), values[real].reshape(1, -1, 1)))
    if missing := int((~real).sum()):
        print(f"danp: {context}: rows without an output are left out: {missing}.", file=sys.stderr)
    xt = scaling.inputs(inputs.reshape(1, -1, 1))
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ContextWarning)
        predictive = model.condition_on(given, num_samples=num_samples, generator=generator)
    for warning in caught:
        print(f"danp: {context}: {warning.message}", file=sys.stderr)
    # Joint samples need all inputs together; marginals do not.
    tables = []
    for part in xt.split(xt.shape[1] if samples else AT_ONCE, dim=1):
        scaled = scaling.predictive(predictive(part))
        table = {"mean": scaled.mean, "sd": scaled.stddev}
        table |= {f"q{level!r}": scaled.quantile(level) for level in quantiles}
        if samples and model.autoregressive:
            own = ar_sample(model, given, part, num_samples=samples, generator=generator).values
            drawn = scaling.y_offset + scaling.y_unit * own.double()
        else:
            drawn = scaled.sample((samples,), generator=generator)
        table |= {f"sample_{i + 1}": values for i, values in enumerate(drawn)}
        tables.append({name: values.flatten().tolist() for name, values in table.items()})
    columns = {name: [v for table in tables for v in table[name]] for name in tables[0]}
    _write(out, {x: inputs.tolist(), **columns})
    return len(inputs)


def _check_columns(x: str, y: str, quantiles: Sequence[float], samples: int) -> None:
    """Refuse names of columns that would meet in the result."""
    if samples < 0:
        raise ValueError(f"samples must be >= 0, got {samples}.")
    if x == y:
        raise ValueError(f"x and y must name different columns, got {x!r} for both.")
    drawn = [f"sample_{i + 1}" for i in range(samples)]
    if x in ("mean", "sd", *(f"q{level!r}" for level in quantiles), *drawn):
        raise ValueError(f"x must not be named like a column of the result, got {x!r}.")


def _write(out: Path, columns: Mapping[str, Sequence[float]]) -> None:
    """Write columns of numbers as CSV, to the last digit."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([repr(value) for value in row] for row in zip(*columns.values(), strict=True))
    write_atomically(out, text.getvalue())
