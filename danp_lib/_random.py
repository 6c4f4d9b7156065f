"""Random numbers that do not depend on how the work is cut up."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def spawn(generator: torch.Generator, count: int) -> tuple[torch.Generator, ...]:
    """Independent generators on the same device, seeded from one and advancing it once."""
    seeds = torch.randint(2**62, (count,), device=generator.device, generator=generator)
    return tuple(
        torch.Generator(device=generator.device).manual_seed(seed) for seed in seeds.tolist()
    )


def draw_rows(
    draw: Callable[..., Tensor],
    count: int,
    shape: tuple[int, ...],
    *,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    """Draw ``(count, *shape)`` numbers one row at a time.

    PyTorch lays out a large draw differently from several small ones; drawn row by row, the numbers
    of a sample are the same whatever the size of the chunk that it is computed in.

    Args:
        draw: :func:`torch.rand` or :func:`torch.randn`.
        count: Number of rows.
        shape: Shape of a row.
        generator: Source of randomness; the result is on its device.
        dtype: Floating type of the result.
    """
    out = torch.empty((count, *shape), dtype=dtype, device=generator.device)
    for row in out:
        draw(shape, dtype=dtype, device=generator.device, generator=generator, out=row)
    return out
