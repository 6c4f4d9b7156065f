"""Random numbers that do not depend on how the work is cut up."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def spawn(generator: torch.Generator, count: int) -> tuple[torch.Generator, ...]:
    """Independent generators on the same device, seeded from one and advancing it once."""
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"generator must be a torch.Generator, got {generator!r}.")
    device = generator.device
    seeds = torch.randint(2**62, (count,), device=device, generator=generator).tolist()
    return tuple(torch.Generator(device=device).manual_seed(seed) for seed in seeds)


def draw_rows(
    draw: Callable[..., Tensor],
    count: int,
    shape: tuple[int, ...],
    *,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    """Draw ``(count, *shape)`` numbers, by ``torch.rand`` or ``torch.randn``, one row at a time.

    PyTorch lays out a large draw differently from several small ones; drawn row by row, the numbers
    of a sample are the same whatever the size of the chunk that it is computed in.
    """
    where: Any = {"dtype": dtype, "device": generator.device, "generator": generator}
    return torch.stack([draw(shape, **where) for _ in range(count)])
