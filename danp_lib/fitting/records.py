"""Records of one's own: the functions in a long table, read, put in order, and divided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from danp_lib import _warnings
from danp_lib._config import Configuration, Limit, PositiveFloat, checked
from danp_lib.data import tables
from danp_lib.data.observations import cut_windows, stack
from danp_lib.data.points import PointSet

HoldOutBy = Literal["group", "time", "blocks"]

Duration = Annotated[
    str,
    Limit(
        "such as '48h' or '7 days' (for dates a plain number counts in years)",
        lambda text: tables.years_of(text) > 0.0,
    ),
]
Length = PositiveFloat | Duration
"""A length along x, a number in its units, or for dates a duration."""

_CODED_TIMES = {
    0: "2019-01-03, not 20190103",
    2: "2019-01-03T10:00, not 2019010310",
    4: "2019-01-03T10:00, not 201901031000",
    6: "2019-01-03T10:00:00, not 20190103100000",
}
"""Examples of dates, by the digits of the time that follows them where they are written as one."""

_NINES = "-?99[9.]*"
BLOCKS = 10  # of a series, of which some are held out


class RecordsWarning(UserWarning):
    """Records could be used only after a change; the message says which."""


def warn(message: str, kind: type[Warning] = RecordsWarning) -> None:
    """Give a warning, of records if nothing else is said, that names the caller's line."""
    _warnings.warn(message, kind)


@dataclass(frozen=True)
class Columns(Configuration):
    """Where a table holds its functions, and what their inputs count from."""

    x: str = "x"  #: The column of inputs, numbers or dates, which become years.
    y: str = "y"  #: The column of outputs.
    group: str | None = None  #: That of the functions' names; without it all rows are one series.
    #: Whether the inputs of each function count from its own first one. Where all start at the same
    #: phase, such as midnight, they should not: then a model learns what is usual at each input.
    own_start: bool = False
    width: Length | None = None  #: Of the windows that series are cut into.

    @property
    def relative(self) -> bool:
        """Whether a model's inputs count from the start of what it is given."""
        return self.own_start or self.width is not None


@dataclass(frozen=True)
class Layout(Columns):
    """The columns of a table that was read, and whether its inputs are ``dates``."""

    width: PositiveFloat | None = None
    dates: bool = False
    zoned: bool | None = None  #: Whether dates had a time zone; None where that was not kept.

    def warn_of_zone(self, zoned: bool, source: str) -> None:
        """Warn of times that have a zone where those of the training had none, or the reverse."""
        if self.dates and self.zoned is not None and zoned != self.zoned:
            kinds = ("have none", "have a zone and became UTC")
            warn(
                f"the times of {source} {kinds[zoned]}; those that the model was trained on "
                f"{kinds[self.zoned]}."
            )

    def in_units_of_x(self, length: float | str | None, name: str) -> float | None:
        """A length, if any, as a number, of years where the inputs are dates; else no duration."""
        if not isinstance(length, str):
            return length
        if not self.dates:
            raise ValueError(
                f"{name} must be a number in units of {self.x!r}, which holds no dates, got "
                f"{length!r}."
            )
        return tables.years_of(length)

    def length_in_words(self, length: float) -> str:
        """A length along x, for dates in days."""
        return f"{length * tables.DAYS_A_YEAR:.6g} days" if self.dates else f"{length:.6g}"

    def in_words(self, interval: tuple[float, float]) -> str:
        """An interval of years as dates, or where inputs count from a start, in days."""
        if self.relative:
            low, high = (f"{years * tables.DAYS_A_YEAR:.6g}" for years in interval)
            return f"[{low}, {high}] days"
        seconds = (round((years - 1970.0) * tables.DAYS_A_YEAR * 86_400) for years in interval)
        dates = (str(np.datetime64(second, "s")).removesuffix("T00:00:00") for second in seconds)
        return f"[{', '.join(dates)}]" + " in UTC" * bool(self.zoned)


@dataclass(frozen=True)
class Records:
    """Functions in the units of the data, ``(functions, points, 1)``, float64, their inputs rising.

    From the inputs of each, ``starts``, ``(functions,)``, were subtracted. Their ``names``,
    ``(functions,)``, are those in the column of groups as text; without one, ``0``.
    """

    functions: PointSet
    starts: Tensor
    layout: Layout
    names: NDArray[np.str_]

    def __len__(self) -> int:
        return self.functions.batch_size

    def __getitem__(self, rows: Tensor) -> Records:
        """Some of the functions, by a mask or by their numbers."""
        names = self.names[rows.numpy()]
        return Records(self.functions[rows], self.starts[rows], self.layout, names)

    @property
    def absolute_inputs(self) -> Tensor:
        """Inputs as in the table, ``(functions, points, 1)``."""
        return self.functions.x + self.starts[:, None, None]


def read_records(
    data: Any, *, x: str = "x", y: str = "y", group: str | None = None, own_start: bool = False
) -> Records:
    """Read functions from a CSV file or a DataFrame, a row per measurement; see :class:`Columns`.

    Rows without an output are left out, unsorted ones sorted, and outputs at equal inputs of one
    function averaged; a :class:`RecordsWarning` says so.
    """
    table = tables.read_columns(data, [column for column in (x, y, group) if column is not None])
    inputs, dates = tables.read_inputs(table[x])
    names = [0] * len(inputs) if group is None else tables.read_names(table[group]).to_list()
    outputs = tables.read_outputs(table[y])
    _warn_of_codes(inputs, outputs, x, y, dates)
    parts, starts = [], []
    unsorted, falls, repeated = 0, 0, 0
    rows: dict[Any, list[int]] = {name: [] for name in names}
    for row in np.flatnonzero(~np.isnan(outputs)).tolist():
        rows[names[row]].append(row)
    rows = {name: own for name, own in rows.items() if own}
    for own in rows.values():
        at, values = inputs[own], outputs[own]
        falls = int((np.diff(at) < 0.0).sum())
        unsorted += int(falls > 0)
        distinct, index, counts = np.unique(at, return_inverse=True, return_counts=True)
        repeated += len(at) - len(distinct)
        means = np.bincount(index, weights=values) / counts
        starts.append(distinct[0] if own_start else 0.0)
        points = torch.from_numpy(np.stack([distinct - starts[-1], means]))[..., None, :, None]
        parts.append(PointSet(*points))
    if not parts:
        raise ValueError(f"column {y!r} must hold a number in some row, got none.")
    if missing := int(np.isnan(outputs).sum()):
        warn(f"rows without an output were left out: {missing}.")
    if unsorted:
        hint = ""
        if group is None and falls < 0.3 * len(outputs):  # and so neither shuffled nor reversed
            hint = (
                f" Places where it falls: {falls}. If several functions follow one another there, "
                "name the column that tells them apart as group."
            )
        warn(f"functions whose {x!r} did not increase were sorted: {unsorted}.{hint}")
    if repeated:
        hint = " So where inputs repeat, intervals are for means of as many."
        if repeated >= 0.5 * len(outputs):
            hint += " Is a part of the input, such as the time of day, in another column?"
            if group is None:
                hint += " Or are there several functions, whose names another column holds?"
        elif group is not None and unsorted > 0.5 * len(parts):
            hint += " Does another column, such as the year, tell functions apart, too?"
        warn(f"rows with the {x!r} of another of one function were averaged: {repeated}.{hint}")
    zoned = tables.has_zone(table[x]) if dates else None
    layout = Layout(x, y, group, own_start, dates=dates, zoned=zoned)
    known = np.array([str(name) for name in rows])
    return Records(stack(parts), torch.tensor(starts, dtype=torch.float64), layout, known)


def _warn_of_codes(
    inputs: NDArray[np.float64], outputs: NDArray[np.float64], x: str, y: str, dates: bool
) -> None:
    """Warn of numbers that are most likely codes: dates without dashes, and marks of no value."""
    for time, coded_example in _CODED_TIMES.items():
        days = inputs // 10**time
        months, years = days // 100 % 100, days // 10_000
        coded = (days % 100 >= 1) & (days % 100 <= 31) & (months >= 1) & (months <= 12)
        coded &= (years >= 1800) & (years <= 2200) & (inputs == inputs.round())
        if not dates and len(inputs) > 1 and coded.all():
            warn(f"{x!r} is taken for plain numbers; write dates as {coded_example}.")
    known = outputs[~np.isnan(outputs)]
    if len(known) == 0:
        return
    away = np.abs(known - np.median(known))
    if not (spread := np.median(away)) > 0.0:
        return
    # Nines are told by standing alone, also where they are nearer or many.
    codes = [v for v in np.unique(known[away > 10.0 * spread]) if re.fullmatch(_NINES, f"{v:g}")]
    rest = known[~np.isin(known, codes)]
    nines = [v for v in codes if np.abs(rest - v).min() > 10.0 * spread]
    far = (away > 100.0 * spread) | np.isin(known, nines)
    if nines or 0 < far.sum() < 0.05 * len(known):
        marks = ", ".join(f"{value:g}" for value in np.unique(known[far])[:3])
        message = f"outputs of {y!r} are far from all others ({marks}): {far.sum()}; leave a cell"
        warn(f"{message} empty where there is no value.")


def windows_of(
    records: Records,
    width: float,
    *,
    stride: float | None = None,
    quiet: bool = False,
    advice: str = "",
) -> Records:
    """The windows of every series that holds one; a ``ValueError``, with ``advice``, if none does.

    A :class:`RecordsWarning` says how many do not, unless ``quiet``.
    """
    parts, problems = [], []
    layout = replace(records.layout, width=width)
    for row, start in enumerate(records.starts):
        try:
            table, since = cut_windows(records.functions[row], width, stride=stride)
            names = records.names[[row] * len(since)]
            parts.append(Records(table, since + start, layout, names))
        except ValueError as error:
            problems.append(error)
    if not parts:
        longest = max(_span(records.functions[row]) for row in range(len(records)))
        if longest >= width:  # the stride is wrong
            raise problems[-1]
        raise ValueError(
            f"no series holds a window of width {layout.length_in_words(width)}; the longest spans "
            f"{layout.length_in_words(longest)}.{advice}"
        ) from problems[-1]
    if problems and not quiet:
        warn(f"series, or parts, that hold no window were left out: {len(problems)}.")
    return _joined(parts)


def divide(
    records: Records, fraction: float, by: HoldOutBy, *, generator: torch.Generator
) -> tuple[Records, Records]:
    """Records to train on, and records that are held out; they share no point.

    Held out is a fraction of the functions at random, by ``"group"``; of every series the last
    part, by ``"time"``; or of ten successive parts of every series some at random, by ``"blocks"``.
    By time and by blocks, series of fewer than ten points are left out, with a
    :class:`RecordsWarning`.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"held_out must be in (0, 1), got {fraction}.")
    checked(HoldOutBy, by, "by")
    if by == "group":
        if len(records) < 2:
            raise ValueError(
                "held_out by group needs two functions or more, got 1; name the column that tells "
                "them apart as group, or cut windows of a width with hold_out_by 'time' "
                "(--hold-out-by time)."
            )
        out = _some(len(records), fraction, generator)
        return records[~out], records[out]
    halves: tuple[list[Records], list[Records]] = ([], [])
    sizes = records.functions.sizes
    if (most := int(sizes.max())) < BLOCKS:
        raise ValueError(f"a series must hold {BLOCKS} points to be divided, got {most} at most.")
    if short := int((sizes < BLOCKS).sum()):
        warn(f"series with fewer than {BLOCKS} points were left out: {short}.")
    for row in (sizes >= BLOCKS).nonzero().flatten().tolist():
        series = records[torch.tensor([row])]
        points = series.functions.compact()
        count = points.num_points
        position = torch.arange(count)
        if by == "time":
            out = position >= _share(1.0 - fraction, count)
        else:
            out = _some(BLOCKS, fraction, generator)[position * BLOCKS // count]
        # Neighbouring blocks of one kind stay together, for windows to span both.
        kinds, sizes = out.unique_consecutive(return_counts=True)
        parts = (part.split(sizes.tolist(), dim=1) for part in (points.x, points.y))
        for kind, x, y in zip(kinds.tolist(), *parts, strict=True):
            halves[kind].append(replace(series, functions=PointSet(x, y)))
    return _joined(halves[0]), _joined(halves[1])


def _span(series: PointSet) -> float:
    """How long a series is, which ends a median spacing after its last point."""
    x = series.x[series.mask].flatten()
    return float(x[-1] - x[0] + x.diff().median()) if len(x) > 1 else 0.0


def _share(fraction: float, count: int) -> int:
    """About a fraction of so many, one at least and not all."""
    return min(max(1, round(fraction * count)), count - 1)


def _some(count: int, fraction: float, generator: torch.Generator) -> Tensor:
    """A random mask of so many."""
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.randperm(count, generator=generator)[: _share(fraction, count)]] = True
    return chosen


def _joined(parts: Sequence[Records]) -> Records:
    functions, starts = stack([p.functions for p in parts]), torch.cat([p.starts for p in parts])
    return Records(functions, starts, parts[0].layout, np.concatenate([p.names for p in parts]))
