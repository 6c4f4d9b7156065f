"""Sets of points, and tasks (paper, Section 2.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from danp_lib._config import check_kind


# Tensors have no truth value to compare by: sets and tasks are equal to themselves alone.
@dataclass(frozen=True, eq=False)
class PointSet:
    """A batch of sets of input-output pairs.

    Sets of different sizes share a batch by padding: a padded entry has ``mask`` false and may hold
    anything, NaN included. Nothing in the library lets such an entry reach a result. Inputs and
    outputs have one floating dtype, which for a prediction must be the model's, float32 as a rule.
    """

    x: Tensor  #: Inputs, ``(batch, points, dim_x)``.
    y: Tensor  #: Outputs, ``(batch, points, 1)``.
    #: True where a point is real, ``(batch, points)``; all true when left out.
    mask: Tensor = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_kind(Tensor, x=self.x, y=self.y)
        if self.x.ndim != 3:
            raise ValueError(f"x must have shape (batch, points, dim), got {tuple(self.x.shape)}.")
        size = tuple(self.x.shape[:2])
        if self.mask is None:
            object.__setattr__(self, "mask", self.x.new_ones(size, dtype=torch.bool))
        check_kind(Tensor, mask=self.mask)
        if tuple(self.y.shape) != (*size, 1):
            raise ValueError(
                f"y must have shape {(*size, 1)} to go with x of shape {tuple(self.x.shape)}, "
                f"got {tuple(self.y.shape)}."
            )
        if tuple(self.mask.shape) != size or self.mask.dtype != torch.bool:
            raise ValueError(
                f"mask must be a bool tensor of shape {size}, got {self.mask.dtype} of shape "
                f"{tuple(self.mask.shape)}."
            )
        if not (self.x.is_floating_point() and self.x.dtype == self.y.dtype):
            raise ValueError(
                f"x and y must share one floating dtype, got {self.x.dtype} and {self.y.dtype}."
            )

    @classmethod
    def empty(
        cls, batch_size: int = 1, *, dim_x: int = 1, dtype: torch.dtype = torch.float32
    ) -> PointSet:
        """A batch of sets that hold no point at all."""
        x = torch.zeros(batch_size, 0, dim_x, dtype=dtype)
        return cls(x, x.new_zeros(batch_size, 0, 1))

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, outputs and mask."""
        return self.x, self.y, self.mask

    @property
    def batch_size(self) -> int:
        """Number of sets."""
        return self.x.shape[0]

    @property
    def num_points(self) -> int:
        """Number of entries a set takes, padding included."""
        return self.x.shape[1]

    @property
    def sizes(self) -> Tensor:
        """Number of real points of each set, ``(batch,)``."""
        return self.mask.sum(dim=1)

    def __getitem__(self, index: int | slice | Tensor) -> PointSet:
        """Select sets of the batch; an integer gives a batch of one."""
        if isinstance(index, Integral):
            index = torch.arange(self.batch_size)[int(index)].reshape(1)
        return PointSet(*(part[index] for part in self.parts))

    def to(self, *args: Any, **kwargs: Any) -> PointSet:
        """Move or cast as :meth:`torch.Tensor.to` does; the mask stays boolean."""
        x = self.x.to(*args, **kwargs)
        return PointSet(x, self.y.to(*args, **kwargs), self.mask.to(x.device))

    def expand(self, batch_size: int) -> PointSet:
        """Repeat a batch of one without copying."""
        if self.batch_size not in (1, batch_size):
            raise ValueError(f"expand() takes a batch of one set, got {self.batch_size}.")
        return PointSet(*(part.expand(batch_size, *part.shape[1:]) for part in self.parts))

    def concat(self, other: PointSet) -> PointSet:
        """The union, set by set, with another batch of as many sets, along the points."""
        ours, theirs = ((len(x), x.shape[-1]) for x in (self.x, other.x))
        if ours != theirs:
            raise ValueError(
                "other must have as many sets and input dimensions as this batch, got "
                f"{theirs[0]} and {theirs[1]} for {ours[0]} and {ours[1]}."
            )
        pairs = zip(self.parts, other.parts, strict=True)
        return PointSet(*(torch.cat(pair, dim=1) for pair in pairs))

    def compact(self) -> PointSet:
        """Drop the padding of a batch of one."""
        if self.batch_size != 1:
            raise ValueError(f"compact() takes a batch of one set, got {self.batch_size}.")
        keep = self.mask[0]
        return PointSet(self.x[:, keep], self.y[:, keep])

    def blanked(self) -> PointSet:
        """The same sets with zeros where no point is real."""
        blank = ~self.mask.unsqueeze(-1)
        return PointSet(self.x.masked_fill(blank, 0.0), self.y.masked_fill(blank, 0.0), self.mask)

    def masked_where(self, keep: Tensor | bool) -> PointSet:
        """The same sets, masked out where ``keep``, one for all or ``(batch,)``, is false."""
        if isinstance(keep, Tensor) and keep.numel() not in (1, self.batch_size):
            raise ValueError(f"keep must hold {self.batch_size} values, got {keep.numel()}.")
        per_set = keep.reshape(-1, 1) if isinstance(keep, Tensor) else bool(keep)
        return PointSet(self.x, self.y, self.mask & per_set)

    def check(self, name: str) -> None:
        """Refuse NaN and infinite values among the real points."""
        for part, values in (("x", self.x), ("y", self.y)):
            bad = ~values.isfinite().all(dim=-1) & self.mask
            if bad.any():
                row, point = bad.nonzero()[0].tolist()
                raise ValueError(
                    f"{name}.{part} must be finite at every real point, got "
                    f"{values[row, point].tolist()} at [{row}, {point}]; mask what is missing."
                )


@dataclass(frozen=True, eq=False)
class Task:
    r"""A batch of tasks :math:`\psi = (\mathcal{D}_c, \mathcal{D}_t)`."""

    context: PointSet  #: Padded and masked.
    target: PointSet  #: Every entry is real, as in the pool.
    #: Further points of the same function at uniform inputs, observed as the targets are, for the
    #: noising estimator; ``None`` where it is unknown.
    pool: PointSet | None = None

    def __post_init__(self) -> None:
        sets = self._sets
        check_kind(PointSet, **sets)
        sizes = {name: points.batch_size for name, points in sets.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"context, target and pool must share a batch size, got {sizes}.")
        # A pool is looked at where it is used.
        kinds = [(x.shape[-1], x.dtype) for x in (self.xc, self.xt)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                "context and target must share an input dimension and a dtype, got "
                f"{kinds[0]} and {kinds[1]}."
            )

    @property
    def _sets(self) -> dict[str, PointSet]:
        sets = {"context": self.context, "target": self.target}
        return sets if self.pool is None else sets | {"pool": self.pool}

    @property
    def xc(self) -> Tensor:
        """Context inputs, ``(batch, points, dim_x)``."""
        return self.context.x

    @property
    def yc(self) -> Tensor:
        """Context outputs, ``(batch, points, 1)``."""
        return self.context.y

    @property
    def xt(self) -> Tensor:
        """Target inputs, ``(batch, points, dim_x)``."""
        return self.target.x

    @property
    def yt(self) -> Tensor:
        """Target outputs, ``(batch, points, 1)``."""
        return self.target.y

    @property
    def batch_size(self) -> int:
        """Number of tasks."""
        return self.context.batch_size

    def map(self, function: Callable[[PointSet], PointSet]) -> Task:
        """The tasks with every set put through a function."""
        return Task(**{name: function(points) for name, points in self._sets.items()})

    def __getitem__(self, index: int | slice | Tensor) -> Task:
        """Select tasks of the batch; an integer gives a batch of one."""
        return self.map(lambda points: points[index])

    def to(self, *args: Any, **kwargs: Any) -> Task:
        """Move or cast every set as :meth:`torch.Tensor.to` does."""
        return self.map(lambda points: points.to(*args, **kwargs))

    def check(self) -> None:
        """Refuse padded targets and pools, and values that are not finite."""
        for name, points in self._sets.items():
            if name != "context" and not points.mask.all():
                place = (~points.mask).nonzero()[0].tolist()
                raise ValueError(
                    f"every {name} point must be real, got a masked one at {place}; leave it out, "
                    "and give tasks with other numbers of points in batches of their own."
                )
            points.check(name)
