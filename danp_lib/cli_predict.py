"""``danp predict``: from points in CSV files to predictions in a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from danp_lib.danp import DANP
from danp_lib.files import check_writable, write_atomically
from danp_lib.observations_reading import read_columns
from danp_lib.rollout import ARConvCNP, ar_sample
from danp_lib.scaling import IDENTITY, Scaling
from danp_lib.tasks import PointSet


def read_points(
    path: Path, columns: Sequence[str], *, domain: tuple[float, float]
) -> list[list[float]]:
    """Read numbers from the named columns of a CSV file with a header; others are ignored.

    Args:
        path: The file.
        columns: Names of the columns wanted; ``x`` is the input.
        domain: The interval that ``x`` must lie in.

    Returns:
        One list a row, in the order of ``columns``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column is missing or an entry is no number, not finite in float32, or an
            input off the domain; with the file and the line.
    """
    return [
        [_number(cell, column, where, domain) for cell, column in zip(cells, columns, strict=True)]
        for where, cells in read_columns(path, columns)
    ]


def _number(cell: str, column: str, where: str, domain: tuple[float, float]) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{where}: {column} must be a number, got {cell!r}.") from None
    # The models compute in float32.
    if not math.isfinite(value) or abs(value) > torch.finfo(torch.float32).max:
        raise ValueError(f"{where}: {column} must be finite in float32, got {cell!r}.")
    if column == "x" and not domain[0] <= value <= domain[1]:
        raise ValueError(
            f"{where}: x must lie in the model's domain [{domain[0]}, {domain[1]}], got {cell}."
        )
    return value


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
    model: Any,
    context: Path,
    at: Path,
    out: Path,
    *,
    num_samples: int,
    quantiles: Sequence[float],
    samples: int,
    seed: int,
    scaling: Scaling = IDENTITY,
) -> int:
    """Predict at the inputs of one CSV file from the points of another.

    Writes the columns ``x``, ``mean``, ``sd`` (standard deviation), one ``q`` a quantile, and one
    ``sample_`` a joint sample, to the last digit, in the order of ``at``.

    Args:
        model: The model.
        context: CSV with the columns ``x`` and ``y``; it may hold no points.
        at: CSV with the column ``x``.
        out: Where to write; the file appears whole or not at all.
        num_samples: Components of a DANP's mixture.
        quantiles: Levels of the quantiles, in (0, 1).
        samples: Number of samples to write; a model for rollouts draws them by one.
        seed: Of all randomness.
        scaling: From the units of the files to the model's.

    Returns:
        Number of rows written.

    Raises:
        OSError: If a file is missing, or the result cannot be written.
        ValueError: If a file holds what the model cannot take, or a number is out of range.
    """
    if samples < 0:
        raise ValueError(f"samples must be >= 0, got {samples}.")
    check_writable(out)
    config = model.config.base if isinstance(model, DANP) else model.config
    low, high = (scaling.x_offset + scaling.x_unit * end for end in config.domain)
    # Rounded, so that the end that a file names is not off by the last bit.
    domain = (float(f"{low:.12g}"), float(f"{high:.12g}"))
    known = read_points(context, ("x", "y"), domain=domain)
    inputs = [x for (x,) in read_points(at, ("x",), domain=domain)]
    if not inputs:
        raise ValueError(f"{at} must hold at least one input, got the header alone.")
    points = torch.tensor(known, dtype=torch.float64).reshape(1, len(known), 2)
    given = scaling.apply(PointSet(points[..., :1], points[..., 1:]))
    xt = scaling.inputs(torch.tensor(inputs, dtype=torch.float64).reshape(1, -1, 1))
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, DANP):
        scaled: Any = model.predict(given, xt, num_samples=num_samples, generator=generator)
    else:
        scaled = model.predict(given, xt)
    predictive = scaling.predictive(scaled)
    columns: dict[str, Tensor] = {"mean": predictive.mean, "sd": predictive.stddev}
    columns |= {f"q{level!r}": predictive.quantile(level) for level in quantiles}
    if samples:
        if isinstance(model, ARConvCNP):
            own = ar_sample(model, given, xt, num_samples=samples, generator=generator).values
            drawn = scaling.y_offset + scaling.y_unit * own.double()
        else:
            drawn = predictive.sample((samples,), generator=generator)
        columns |= {f"sample_{i + 1}": values for i, values in enumerate(drawn)}
    numbers = [inputs, *(values.flatten().tolist() for values in columns.values())]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["x", *columns])
    writer.writerows([repr(value) for value in row] for row in zip(*numbers, strict=True))
    write_atomically(out, text.getvalue())
    return len(inputs)
