"""Tasks from real data: from a table of observed functions, such as the windows of a series.

A table is a :class:`~danp_lib.data.points.PointSet`, one function per row, with what is missing
masked out; a series is a table of one row.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from danp_lib._config import check_kind
from danp_lib.data.generators import TaskGenerator, check_sizes
from danp_lib.data.points import PointSet, Task


def cut_windows(
    series: PointSet, width: float, *, stride: float | None = None
) -> tuple[PointSet, Tensor]:
    """Cut a series ``(1, points, 1)`` into windows of the time since their own starts.

    A window holds the points with ``start <= x < start + width``. Windows start a stride apart, in
    units of x, or at every point; only those that the series fills are cut, and it ends a median
    spacing after its last point. Windows overlap: to keep data out of training, cut the series in
    two first. They are ``(windows, points, 1)``, padded, and their starts ``(windows,)``.
    """
    check_kind(PointSet, series=series)
    if (series.batch_size, series.x.shape[-1]) != (1, 1):
        raise ValueError(
            f"series must be one function of one input, got x of shape {tuple(series.x.shape)}; "
            "cut each function by itself, and stack the windows."
        )
    if not 0.0 < width < math.inf or not (stride is None or 0.0 < stride < math.inf):
        raise ValueError(f"width and stride must be positive and finite, got {width} and {stride}.")
    x, y = series.x[series.mask, 0], series.y[series.mask, 0]
    if len(x) < 2:
        raise ValueError(f"series must hold at least 2 points, got {len(x)}.")
    if not (x.diff() > 0.0).all():
        raise ValueError("the x of series must increase; sort its points.")
    # Times such as 1950 + 1 / 12 are rounded, and so is their difference.
    slack = 1e-6 * width
    end = x[-1] + x.diff().median()
    latest = end - width + slack
    if latest < x[0]:
        longest = float(end - x[0])
        raise ValueError(f"width must be at most that of the series, {longest}, got {width}.")
    starts = x[x <= latest]
    if stride is not None:
        count = math.floor(float(latest - x[0]) / stride) + 1
        starts = x[0] + stride * torch.arange(count, dtype=x.dtype, device=x.device)
    first = torch.searchsorted(x, starts - slack)
    sizes = torch.searchsorted(x, starts + width - slack) - first
    positions = torch.arange(int(sizes.max()), device=x.device)
    index = (first.unsqueeze(1) + positions).clamp(max=len(x) - 1)
    since = (x[index] - starts.unsqueeze(1)).clamp(min=0.0)  # what the slack lets in is rounding
    mask = positions < sizes.unsqueeze(1)
    return PointSet(since.unsqueeze(-1), y[index].unsqueeze(-1), mask).blanked(), starts


def stack(tables: Sequence[PointSet]) -> PointSet:
    """One table ``(all functions, most points, dim)`` of those of several, padded with zeros."""
    check_kind(PointSet, **{f"tables[{i}]": table for i, table in enumerate(tables)})
    if len(kinds := {(table.x.dtype, table.x.shape[-1]) for table in tables}) != 1:
        raise ValueError(
            "tables must be one or more, of one dtype and one input dimension, got "
            f"{sorted(kinds, key=str)}."
        )
    if not any(table.batch_size for table in tables):
        return tables[0]
    kinds_of_parts = zip(*(table.parts for table in tables), strict=True)
    functions = ([row for part in parts for row in part] for parts in kinds_of_parts)
    return PointSet(*(pad_sequence(rows, batch_first=True) for rows in functions))


def draw_points(functions: PointSet, count: int, *, generator: torch.Generator) -> PointSet:
    """At most so many different points of each function, in random order, the real ones first."""
    where: Any = {"dtype": torch.float32, "device": generator.device}
    keys = torch.rand(functions.mask.shape, generator=generator, **where)
    return _take(functions, keys.masked_fill(~functions.mask, 2.0).argsort(dim=1)[:, :count])


def _take(points: PointSet, index: Tensor) -> PointSet:
    rows = torch.arange(len(index), device=index.device).unsqueeze(1)
    return PointSet(*(part[rows, index] for part in points.parts))


@dataclass(frozen=True, kw_only=True)
class Observations(TaskGenerator):
    """Tasks from a table of observed functions, in the model's units.

    Each task takes one function at random and divides some of its points among context and targets;
    no point is in both. The noisier levels of an augmented task lie at random points of the same
    function, which may be in the context or the targets too.
    """

    name: ClassVar[str] = "observations"
    table: InitVar[PointSet]
    #: Targets lie anywhere (``"random"``), or all of them after the context (``"forecast"``).
    order: Literal["random", "forecast"] = "random"
    #: SHA-256 of the points in float32; a run goes on with the same alone.
    digest: str = field(init=False)

    # Set on each instance, and no fields: a configuration holds plain values.
    functions: ClassVar[PointSet]  #: The table, on the device on which it was given.
    _copies: ClassVar[dict[torch.device, PointSet]]
    _fewest: ClassVar[int]

    def __post_init__(self, table: PointSet) -> None:
        super().__post_init__()
        check_kind(PointSet, table=table)
        table.check("table")
        self.box.check("table.x", table.x, table.mask)
        if self.order == "forecast" and self.box.dim_x != 1:
            raise ValueError(
                "order must be 'random' for functions of several inputs, which have no order, got "
                f"'forecast' for {self.box.dim_x} inputs."
            )
        fewest = int(table.sizes.min()) if table.batch_size else 0
        if fewest < 1:
            raise ValueError(
                "every function of the table must have a point, got one without; keep the others, "
                "as in table[table.sizes > 0]."
            )
        # As models see them: in float64 the last digits depend on the number of threads.
        data = (table.sizes, table.x[table.mask], table.y[table.mask])
        exact = (part.float().double().cpu() for part in data)
        digest = hashlib.sha256(b"".join(part.numpy().tobytes() for part in exact))
        object.__setattr__(self, "digest", digest.hexdigest())
        object.__setattr__(self, "functions", table)
        object.__setattr__(self, "_copies", {table.x.device: table})
        object.__setattr__(self, "_fewest", fewest)

    def sample_task(
        self,
        batch_size: int,
        *,
        context_size: int | tuple[int, int] = (0, 30),
        num_targets: int = 50,
        num_sets: int = 1,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> Task:
        """Draw tasks; see the base class. A set after the first may share points with others."""
        low, high = check_sizes(batch_size, context_size, num_targets, num_sets)
        if high + num_targets > self._fewest:
            raise ValueError(
                f"a context of up to {high} and {num_targets} targets need {high + num_targets} "
                f"points of a function, but one of the table has {self._fewest}; ask for fewer, "
                "cut wider windows, or keep the functions that have enough of them."
            )
        check_kind(torch.Generator, generator=generator)
        device = generator.device
        if device not in self._copies:
            self._copies[device] = self.functions.to(device)
        table = self._copies[device]
        where: Any = {"device": device, "generator": generator}
        functions = table[torch.randint(table.batch_size, (batch_size,), **where)]
        sizes = torch.randint(low, high + 1, (batch_size, 1), **where)
        drawn = draw_points(functions, high + num_targets, generator=generator)
        if self.order == "forecast":
            drawn = _context_first(drawn, sizes, high)
        for _ in range(num_sets - 1):
            drawn = drawn.concat(draw_points(functions, num_targets, generator=generator))
        x, y = drawn.x.to(dtype), self.observe(drawn.y, generator=generator).to(dtype)
        mask = torch.arange(high, device=device) < sizes
        context = PointSet(x[:, :high], y[:, :high], mask)
        return Task(context, PointSet(x[:, high:], y[:, high:]))

    def spacing(self) -> float:
        """The median distance of an input from the next one of its function."""
        apart = self._inputs(math.inf).sort(dim=1).values.diff(dim=1)
        apart = apart[apart.isfinite() & (apart > 0.0)]
        if not len(apart):
            raise ValueError(
                "the inputs of a function must differ, in float32 and in the model's units, but "
                "those of every one are equal; where functions lie far apart, count the inputs of "
                "each from its own start."
            )
        return float(apart.median())

    def span(self) -> float:
        """The median distance from the least input of a function to its largest."""
        first, last = self._inputs(math.inf).amin(dim=1), self._inputs(-math.inf).amax(dim=1)
        return float((last - first).median())

    def _inputs(self, missing: float) -> Tensor:
        """``(functions, points)`` of one dimension, with a number for those that are masked."""
        if self.box.dim_x != 1:
            raise ValueError(
                "spacing and span are of functions of one input, got a table of "
                f"{self.box.dim_x} inputs."
            )
        return self.functions.x[..., 0].masked_fill(~self.functions.mask, missing)


def _context_first(points: PointSet, sizes: Tensor, high: int) -> PointSet:
    """The first points of each function in order of x: ``sizes`` of a context, then targets.

    Of the ``high`` positions of the context, those beyond its size hold points that are not used.
    """
    positions = torch.arange(points.num_points, device=sizes.device)
    targets = points.num_points - high
    order = points.x[..., 0].masked_fill(positions >= sizes + targets, math.inf).argsort(dim=1)
    # In that order the unused come last.
    later = torch.where(positions < high, positions + targets, positions - high + sizes)
    return _take(points, order.gather(1, torch.where(positions < sizes, positions, later)))
