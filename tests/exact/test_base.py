"""What every exact posterior refuses."""

from __future__ import annotations

import math

import pytest
import torch
from exact_tasks import task_of

from danp_lib.data.points import PointSet
from danp_lib.exact.oracles import ORACLES

NAMES = sorted(ORACLES)


@pytest.mark.parametrize("name", NAMES)
def test_bad_inputs_are_refused_by_name(name: str) -> None:
    task = task_of(name, 2, context_size=3, num_targets=4)
    oracle = ORACLES[name]()
    bad = PointSet(task.xc, torch.full_like(task.yc, math.nan))
    with pytest.raises(ValueError, match=r"^context\.y "):
        oracle.predict(bad, task.xt)
    with pytest.raises(ValueError, match=r"^xt .*shape"):
        oracle.predict(task.context, task.xt[:1])
    with pytest.raises(ValueError, match=r"^xt .*(inf|nan)"):
        oracle.predict(task.context, task.xt * math.inf)
    with pytest.raises(ValueError, match=r"^target\.y "):
        oracle.log_prob(task.context, PointSet(task.xt, task.yt * math.nan))


@pytest.mark.parametrize("name", NAMES)
def test_batches_that_do_not_agree_are_refused(name: str) -> None:
    oracle = ORACLES[name]()
    context, target = PointSet.empty(2), PointSet(torch.zeros(1, 3, 1), torch.zeros(1, 3, 1))
    with pytest.raises(ValueError, match=r"^target\.x must have shape \(2, targets, 1\)"):
        oracle.log_prob(context, target)
    with pytest.raises(ValueError, match="context must hold at least one set"):
        oracle.predict(context[:0], target.x[:0])
