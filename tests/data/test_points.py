import math
from typing import Any

import numpy as np
import pytest
import torch
from randomness import rng
from torch import Tensor

from danp_lib.data.generators import Sawtooth
from danp_lib.data.points import PointSet, Task


def points(batch: int = 3, count: int = 4, *, masked: bool = True) -> PointSet:
    x, y = torch.randn(2, batch, count, 1, generator=rng())
    mask = torch.arange(count) < torch.arange(1, batch + 1).unsqueeze(1)
    return PointSet(x, y, mask if masked else None)  # type: ignore[arg-type]


def tasks(pool_size: int = 6) -> Task:
    return Sawtooth().sample_task(5, context_size=(0, 4), pool_size=pool_size, generator=rng())


class TestPointSet:
    def test_a_set_without_a_mask_is_all_real(self) -> None:
        assert points(masked=False).mask.all()
        assert points(masked=False).sizes.tolist() == [4, 4, 4]

    def test_sizes_count_real_points_and_num_points_counts_entries(self) -> None:
        made = points()
        assert made.sizes.tolist() == [1, 2, 3]
        assert (made.batch_size, made.num_points) == (3, 4)

    def test_the_empty_set(self) -> None:
        empty = PointSet.empty(2, dim_x=3, dtype=torch.float64)
        assert empty.x.shape == (2, 0, 3)
        assert empty.y.shape == (2, 0, 1)
        assert empty.y.dtype == torch.float64
        assert empty.sizes.tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("x", "y", "mask", "says"),
        [
            (torch.zeros(4, 1), torch.zeros(4, 1), None, "^x "),
            (torch.zeros(1, 4, 1), torch.zeros(1, 3, 1), None, r"^y .*\(1, 4, 1\)"),
            (torch.zeros(1, 4, 1), torch.zeros(1, 4), None, r"^y .*\(1, 4, 1\)"),
            (torch.zeros(1, 4, 1), torch.zeros(1, 4, 1), torch.ones(1, 4), "^mask "),
            (
                torch.zeros(1, 4, 1),
                torch.zeros(1, 4, 1),
                torch.ones(1, 3, dtype=torch.bool),
                "^mask ",
            ),
            (torch.zeros(1, 4, 1), torch.zeros(1, 4, 1).double(), None, "x and y .*dtype"),
            (torch.zeros(1, 4, 1).int(), torch.zeros(1, 4, 1).int(), None, "x and y .*dtype"),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, x: Tensor, y: Tensor, mask: Tensor, says: str
    ) -> None:
        with pytest.raises(ValueError, match=says):
            PointSet(x, y, mask)

    def test_indexing_keeps_the_batch_dimension(self) -> None:
        made = points()
        assert torch.equal(made[-1].x, made.x[2:])
        assert torch.equal(made[1:].mask, made.mask[1:])
        assert torch.equal(made[torch.tensor([2, 0])].y, made.y[[2, 0]])
        numpys: Any = np.int64(1)
        assert torch.equal(made[numpys].x, made.x[1:2])
        assert tasks()[numpys].batch_size == 1

    def test_sets_and_tasks_are_equal_to_themselves_alone(self) -> None:
        for made, other in ((points(), points()), (tasks(), tasks())):
            assert made == made
            assert made != other
            assert len({made, other}) == 2

    def test_compact_keeps_the_real_points_in_order(self) -> None:
        made = points()
        assert torch.equal(made[1].compact().x, made.x[1:2, :2])
        assert made[1].compact().mask.all()
        with pytest.raises(ValueError, match="3"):
            made.compact()

    def test_what_does_not_fit_the_batch_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^expand\(\) takes a batch of one set, got 3"):
            points().expand(2)
        with pytest.raises(ValueError, match="keep must hold 3 values, got 2"):
            points().masked_where(torch.tensor([True, False]))

    def test_only_batches_that_fit_are_joined(self) -> None:
        one = PointSet.empty(1)
        with pytest.raises(
            ValueError, match=r"^other must have as many .*, got 2 and 1 for 1 and 1"
        ):
            one.concat(PointSet.empty(2))
        with pytest.raises(
            ValueError, match=r"^other must have as many .*, got 1 and 2 for 1 and 1"
        ):
            one.concat(PointSet.empty(1, dim_x=2))

    def test_concat_and_expand(self) -> None:
        made = points()
        both = made.concat(points(count=2, masked=False))
        assert both.num_points == 6
        assert both.sizes.tolist() == [3, 4, 5]
        assert made[0].expand(7).sizes.tolist() == [1] * 7

    def test_masked_where_masks_whole_sets(self) -> None:
        kept = points().masked_where(torch.tensor([True, False, True]))
        assert kept.sizes.tolist() == [1, 0, 3]

    def test_blanked_leaves_nothing_where_no_point_is_real(self) -> None:
        made = points()
        made.x[0, 3] = made.y[0, 3] = math.nan  # padding
        blanked = made.blanked()
        assert torch.equal(blanked.mask, made.mask)
        for part, old in ((blanked.x, made.x), (blanked.y, made.y)):
            assert torch.equal(part[made.mask], old[made.mask])
            assert not part[~made.mask].any()

    def test_to_casts_values_and_keeps_the_mask_boolean(self) -> None:
        made = points().to(torch.float64)
        assert (made.x.dtype, made.y.dtype, made.mask.dtype) == (
            torch.float64,
            torch.float64,
            torch.bool,
        )

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    @pytest.mark.parametrize("part", ["x", "y"])
    def test_check_looks_at_real_points_only(self, part: str, bad: float) -> None:
        made = points()
        getattr(made, part)[0, 3] = bad  # padding
        made.check("context")
        getattr(made, part)[2, 1] = bad
        with pytest.raises(ValueError, match=rf"^context\.{part} .*\[2, 1\]"):
            made.check("context")


class TestTask:
    def test_shortcuts_and_indexing(self) -> None:
        task = tasks()
        assert task.batch_size == 5
        assert task.xt is task.target.x
        assert task.yc is task.context.y
        one = task[3]
        assert one.batch_size == 1
        assert one.pool is not None
        assert torch.equal(one.pool.y, task.pool.y[3:4])  # type: ignore[union-attr]
        assert tasks(pool_size=0)[:2].pool is None

    def test_to_casts_every_set(self) -> None:
        task = tasks().to(torch.float64)
        assert {task.xc.dtype, task.yt.dtype, task.pool.x.dtype} == {torch.float64}  # type: ignore[union-attr]

    def test_what_is_no_set_is_refused(self) -> None:
        wrong: Any = 2
        sets: dict[str, Any] = {
            "context": (wrong, points(3)),
            "target": (points(3), None),
            "pool": (points(3), points(3), wrong),
        }
        for name, parts in sets.items():
            with pytest.raises(ValueError, match=rf"^{name} must be a PointSet, got (int|None)"):
                Task(*parts)

    def test_batches_of_different_sizes_are_refused(self) -> None:
        with pytest.raises(ValueError, match="'context': 3, 'target': 2"):
            Task(points(3), points(2))

    def test_sets_of_another_input_dimension_or_dtype_are_refused(self) -> None:
        made = points(3)
        plane = PointSet(made.x.expand(-1, -1, 2), made.y)
        says = "^context and target must share an input dimension and a dtype, got "
        with pytest.raises(ValueError, match=rf"{says}\(1, torch.float32\) and \(2, torch.float32"):
            Task(made, plane)
        with pytest.raises(ValueError, match=rf"{says}\(1, torch.float64\) and \(1, torch.float32"):
            Task(made.to(torch.float64), made)
        assert Task(plane, plane, made.to(torch.float64)).xt.shape == (3, 4, 2)

    @pytest.mark.parametrize("name", ["target", "pool"])
    def test_a_check_refuses_padding_of_all_but_the_context(self, name: str) -> None:
        task = tasks()
        assert not task.context.mask.all()
        task.check()
        tasks(pool_size=0).check()
        getattr(task, name).mask[3, 2] = False
        with pytest.raises(ValueError, match=rf"{name} point .*\[3, 2\]"):
            task.check()

    @pytest.mark.parametrize("name", ["context", "target", "pool"])
    def test_a_check_refuses_values_that_are_not_finite(self, name: str) -> None:
        task = tasks()
        points = getattr(task, name)
        row = int(points.mask[:, 0].nonzero()[-1])
        points.y[row, 0] = math.inf
        with pytest.raises(ValueError, match=rf"^{name}\.y .*\[{row}, 0\]"):
            task.check()


def test_an_array_is_no_tensor() -> None:
    x = torch.zeros(1, 2, 1)
    for arguments in ((x.numpy(), x), (x, x.numpy()), (x, x, [[True, True]])):
        with pytest.raises(ValueError, match=r"must be a Tensor, got (ndarray|list); use"):
            PointSet(*arguments)
