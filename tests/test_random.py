from collections.abc import Callable

import pytest
import torch
from randomness import rng
from torch import Tensor

from danp_lib._random import draw_rows, spawn


def test_spawn_is_determined_by_the_generator() -> None:
    first = [torch.randn(5, generator=g) for g in spawn(rng(), 3)]
    again = [torch.randn(5, generator=g) for g in spawn(rng(), 3)]
    other = [torch.randn(5, generator=g) for g in spawn(rng(1), 3)]
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert not torch.equal(torch.stack(first), torch.stack(other))


def test_spawned_generators_differ_from_each_other_and_from_the_next_spawn() -> None:
    parent = rng()
    seeds = {g.initial_seed() for _ in range(3) for g in spawn(parent, 4)}
    assert len(seeds) == 12


def test_use_of_a_spawned_generator_does_not_move_its_parent() -> None:
    used, unused = rng(), rng()
    child, _ = spawn(used, 2)
    spawn(unused, 2)
    torch.randn(1000, generator=child)
    assert torch.equal(torch.randn(4, generator=used), torch.randn(4, generator=unused))


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
@pytest.mark.parametrize("chunks", [[12], [5, 7], [1] * 12])
def test_draw_rows_does_not_depend_on_the_chunks(
    draw: Callable[..., Tensor], chunks: list[int]
) -> None:
    whole = draw_rows(draw, 12, (3, 50), generator=rng(), dtype=torch.float64)
    generator = rng()
    parts = [draw_rows(draw, n, (3, 50), generator=generator, dtype=torch.float64) for n in chunks]
    assert whole.shape == (12, 3, 50)
    assert torch.equal(whole, torch.cat(parts))


def test_draw_rows_draws_from_the_distribution() -> None:
    n = 200_000
    normal = draw_rows(torch.randn, 20, (n // 20,), generator=rng(), dtype=torch.float64)
    uniform = draw_rows(torch.rand, 20, (n // 20,), generator=rng(), dtype=torch.float64)
    assert abs(normal.mean()) < 5 / n**0.5
    assert abs(normal.var() - 1) < 5 * (2 / n) ** 0.5
    assert abs(uniform.mean() - 0.5) < 5 * (1 / 12 / n) ** 0.5


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    child, _ = spawn(rng(), 2)
    draw_rows(torch.randn, 3, (4,), generator=child, dtype=torch.float32)
    assert torch.equal(before, torch.get_rng_state())
