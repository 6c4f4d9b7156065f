"""What every exact posterior obeys, whatever its prior."""

from __future__ import annotations

import math

import pytest
import torch
from exact_tasks import task_of
from randomness import rng

from danp_lib.data.points import PointSet
from danp_lib.exact.oracles import ORACLES

NAMES = sorted(ORACLES)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_context_does_not_matter(name: str) -> None:
    task = task_of(name, 3, context_size=6, num_targets=8)
    order = torch.randperm(6, generator=rng(1))
    shuffled = PointSet(task.xc[:, order], task.yc[:, order])
    oracle = ORACLES[name]()
    a, b = oracle.predict(task.context, task.xt), oracle.predict(shuffled, task.xt)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target),
        oracle.log_prob(shuffled, task.target),
        rtol=0,
        atol=1e-4,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_masked_point_is_an_absent_one(name: str, size: int) -> None:
    task = task_of(name, 2, context_size=size, num_targets=6)
    nan = torch.full((2, 2, 1), math.nan)
    padding = PointSet(nan, nan, torch.zeros(2, 2, dtype=torch.bool))
    context, target = padding.concat(task.context), task.target.concat(padding)
    oracle = ORACLES[name]()
    a, b = oracle.predict(task.context, task.xt), oracle.predict(context, task.xt)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(a.variance, b.variance, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target), oracle.log_prob(context, target)
    )


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_batch_do_not_meet(name: str) -> None:
    task = task_of(name, 5, context_size=(0, 3), num_targets=4)
    oracle = ORACLES[name]()
    together = oracle.predict(task.context, task.xt)
    values = oracle.log_prob(task.context, task.target)
    for row in range(5):
        alone = oracle.predict(task.context[row], task.xt[row : row + 1])
        torch.testing.assert_close(alone.mean[0], together.mean[row], rtol=0, atol=1e-10)
        value = oracle.log_prob(task.context[row], task.target[row])
        torch.testing.assert_close(value[0], values[row])
