"""Windows of a series, and the tasks that are dealt from observed functions."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from randomness import rng
from small_models import small_config
from torch import Tensor

from danp_lib._config import to_dict
from danp_lib.data.noising import NoiseSchedule, sample_augmented_task
from danp_lib.data.observations import Observations, cut_windows, stack
from danp_lib.data.points import PointSet
from danp_lib.data.scaling import Scaling
from danp_lib.data.tables import from_arrays
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.danp import DANPConfig
from danp_lib.training.config import TrainingConfig
from danp_lib.training.loop import train
from danp_lib.training.objective import BatchConfig
from danp_lib.training.recipes import build_model

property_test = settings(deadline=None, max_examples=50, derandomize=True)


def series_of(x: list[float]) -> PointSet:
    """A series whose y tells which point it is."""
    return from_arrays(x, [float(i) for i in range(len(x))])


def table_of(functions: int = 5, points: int = 12, missing: float = 0.0) -> PointSet:
    """Functions on [-2, 2] whose y are all different, so that a value names its point."""
    x = torch.linspace(-2, 2, points).expand(functions, -1).unsqueeze(-1)
    y = torch.arange(functions * points, dtype=torch.float32).reshape(functions, points, 1)
    mask = torch.rand(functions, points, generator=rng(7)) >= missing
    hidden = ~mask.unsqueeze(-1)
    return PointSet(x.masked_fill(hidden, math.nan), y.masked_fill(hidden, math.nan), mask)


gaps = st.lists(st.floats(0.1, 3.0), min_size=2, max_size=40)


class TestStack:
    def test_functions_of_different_inputs_become_one_table(self) -> None:
        one, other = table_of(2, 5, missing=0.4), table_of(3, 9)
        both = stack([one, other])
        assert both.x.shape == (5, 9, 1)
        for row, function in enumerate([one[0], one[1], other[0], other[1], other[2]]):
            kept = both[row].compact()
            assert torch.equal(kept.x, function.compact().x)
            assert torch.equal(kept.y, function.compact().y)
        assert Observations(table=both).digest == Observations(table=stack([both])).digest

    def test_tables_without_a_function_make_one_without(self) -> None:
        nothing = PointSet.empty(0, dtype=torch.float64)
        both = stack([nothing, PointSet.empty(0, dtype=torch.float64)])
        assert (both.batch_size, both.x.dtype) == (0, torch.float64)
        table = table_of(2, 5, missing=0.4).to(torch.float64)
        assert torch.equal(stack([nothing, table]).blanked().y, table.blanked().y)

    def test_no_table_and_two_dtypes_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^tables .*\[\]"):
            stack([])
        with pytest.raises(ValueError, match=r"^tables .*float32.*float64"):
            stack([table_of(), table_of().to(torch.float64)])
        plane = PointSet(torch.zeros(1, 3, 2), torch.zeros(1, 3, 1))
        with pytest.raises(ValueError, match=r"^tables .* 1.* 2"):
            stack([table_of(), plane])

    def test_windows_are_stacked_without_their_starts(self) -> None:
        cut: Any = cut_windows(table_of(1, 9), 1.0)
        with pytest.raises(ValueError, match=r"^tables\[0\] must be a PointSet, got tuple"):
            stack([cut])


class TestWindows:
    @given(gaps=gaps, share=st.floats(0.05, 0.9), stride=st.one_of(st.none(), st.floats(0.2, 5.0)))
    @property_test
    def test_a_window_holds_its_part_of_the_series_and_nothing_else(
        self, gaps: list[float], share: float, stride: float | None
    ) -> None:
        x = [1950.0]
        for gap in gaps:
            x.append(x[-1] + gap)
        width = share * (x[-1] - x[0])
        windows, starts = cut_windows(series_of(x), width, stride=stride)
        assert windows.batch_size == len(starts) >= 1
        for row, start in enumerate(starts.tolist()):
            slack = 1e-6 * width
            inside = [i for i, at in enumerate(x) if -slack <= at - start < width - slack]
            window = windows[row].compact()
            assert window.y.flatten().tolist() == inside
            torch.testing.assert_close(
                window.x.flatten() + start, torch.tensor([x[i] for i in inside]).double()
            )

    def test_points_close_together_start_no_window_before_its_start(self) -> None:
        x = [float(i) for i in range(100)]
        x[50:50] = [50.0 - 3e-5]
        windows, _ = cut_windows(series_of(x), 40.0)
        assert float(windows.x.min()) == 0.0

    @given(
        gaps=st.lists(st.floats(0.1, 3.0), min_size=4, max_size=40),
        cut=st.integers(2, 38),
        seed=st.integers(0, 99),
    )
    @property_test
    def test_windows_and_scaling_of_one_part_know_nothing_of_the_other(
        self, gaps: list[float], cut: int, seed: int
    ) -> None:
        x = torch.tensor(gaps).cumsum(0)
        kept, y = x < x[min(cut, len(x) - 1)], torch.randn(len(x), generator=rng(seed))
        held_out = torch.where(kept, y, 1e6)
        width = 0.5 * float(x[kept][-1] - x[0])
        both = from_arrays(x, held_out)
        first, second = (
            cut_windows(part, width)[0]
            for part in (
                from_arrays(x[kept], y[kept]),
                PointSet(both.x[:, kept], both.y[:, kept], both.mask[:, kept]),
            )
        )
        assert torch.equal(first.x, second.x)
        assert torch.equal(first.y, second.y)
        values = second.y[second.mask].flatten().tolist()
        assert set(values) <= set(y[kept].double().tolist())
        assume(len(set(values)) > 1)
        ends = (0.0, width)
        assert Scaling.fit(first, x_range=ends) == Scaling.fit(second, x_range=ends)

    def test_months_of_whole_years(self) -> None:
        # 1950 + m / 12 is rounded; no window may gain or lose a month by that.
        x = [1950 + m / 12 for m in range(600)]
        windows, starts = cut_windows(series_of(x), 3.0)
        assert windows.sizes.unique().tolist() == [36]
        assert len(starts) == 600 - 36 + 1
        assert windows.y[-1, -1].item() == 599.0
        apart, _ = cut_windows(series_of(x), 3.0, stride=3.0)
        assert apart.y.flatten().tolist() == list(range(576))

    def test_a_missing_value_is_missing_from_its_windows(self) -> None:
        y = [float(i) for i in range(10)]
        y[4] = math.nan
        windows, starts = cut_windows(from_arrays(list(range(10)), y), 3.0)
        assert 4.0 not in starts
        assert windows.sizes.tolist() == [3, 3, 2, 2, 3, 3, 3]
        assert windows.y.isfinite().all()
        assert 4.0 not in windows.y[windows.mask]

    @pytest.mark.parametrize(
        ("width", "stride", "says"),
        [
            (0.0, None, "^width .*0.0"),
            (2.0, -1.0, "stride .*-1.0"),
            (math.inf, None, "^width .*inf"),
            (10.5, None, r"^width .*10\.0.*10\.5"),
        ],
    )
    def test_a_wrong_size_is_refused(self, width: float, stride: float | None, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            cut_windows(series_of([float(i) for i in range(10)]), width, stride=stride)

    def test_what_is_no_series_is_refused(self) -> None:
        wrong: Any = [1.0, 2.0]
        with pytest.raises(ValueError, match=r"^series must be a PointSet, got list"):
            cut_windows(wrong, 1.0)
        with pytest.raises(ValueError, match=r"^series .*5"):
            cut_windows(table_of(), 1.0)
        one = PointSet(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
        with pytest.raises(ValueError, match=r"^series .*1"):
            cut_windows(one, 1.0)
        with pytest.raises(ValueError, match="series must increase"):
            cut_windows(one.concat(one), 1.0)
        plane = PointSet(torch.zeros(1, 5, 2), torch.zeros(1, 5, 1))
        with pytest.raises(ValueError, match=r"^series .*one input.*\(1, 5, 2\)"):
            cut_windows(plane, 1.0)


class TestTasks:
    @given(
        seed=st.integers(0, 999),
        context=st.tuples(st.integers(0, 3), st.integers(3, 5)),
        targets=st.integers(0, 4),
        levels=st.integers(1, 4),
        missing=st.sampled_from([0.0, 0.2]),
    )
    @property_test
    def test_points_are_those_of_one_function_and_none_is_dealt_twice(
        self, seed: int, context: tuple[int, int], targets: int, levels: int, missing: float
    ) -> None:
        table = table_of(missing=missing)
        number_at = {float(y): row for row in range(5) for y in table.y[row][table.mask[row]]}
        real = (part[table.mask].flatten().tolist() for part in (table.y, table.x))
        place_of = dict(zip(*real, strict=True))
        task = Observations(table=table).sample_task(
            4, context_size=context, num_targets=targets, num_sets=levels, generator=rng(seed)
        )
        given_sets = task.context
        pairs = (p.unflatten(1, (levels, targets)).unbind(1) for p in (task.xt, task.yt))
        sets = [PointSet(x, y) for x, y in zip(*pairs, strict=True)]
        assert ((given_sets.sizes >= context[0]) & (given_sets.sizes <= context[1])).all()
        for row in range(4):
            parts = [points[row].compact() for points in (given_sets, *sets)]
            rows = set()
            for points in parts:
                values = points.y.flatten().tolist()
                assert len(set(values)) == len(values)
                rows |= {number_at[value] for value in values}
                assert [place_of[v] for v in values] == points.x.flatten().tolist()
            assert len(rows) <= 1
            dealt = parts[0].y.flatten().tolist() + parts[1].y.flatten().tolist()
            assert len(set(dealt)) == len(dealt), "no target is in the context"
        assert all(points.num_points == targets for points in sets)

    def test_every_function_and_every_point_is_dealt_alike(self) -> None:
        n = 4000
        task = Observations(table=table_of()).sample_task(
            n, context_size=3, num_targets=6, generator=rng()
        )
        for values, each in ((task.yc, 3), (task.yt, 6)):
            counts = values.flatten().long().bincount(minlength=60).double()
            share = each / 60
            assert (counts - n * share).abs().max() < 5 * math.sqrt(n * share)

    def test_a_task_has_no_pool_and_the_type_asked_for(self) -> None:
        task = Observations(table=table_of()).sample_task(
            2, context_size=(0, 4), num_targets=5, generator=rng(), dtype=torch.float64
        )
        assert task.pool is None
        assert task.xc.dtype == task.yt.dtype == torch.float64
        assert task.xc.shape == (2, 4, 1)
        assert task.xt.shape == (2, 5, 1)

    def test_levels_are_noised_values_of_the_function(self) -> None:
        schedule = NoiseSchedule.from_final_variance(0.3, num_levels=2)
        table = table_of(functions=1)
        # A table in float32 is dealt in any type.
        task = sample_augmented_task(
            Observations(table=table),
            schedule,
            2000,
            context_size=(0, 4),
            num_targets=6,
            generator=rng(),
            dtype=torch.float64,
        )
        value_at = dict(zip(*(part[0, :, 0].tolist() for part in (table.x, table.y)), strict=True))
        places: list[Tensor] = []
        for level, points in enumerate(task.levels):
            clean = torch.tensor([value_at[x] for x in points.x.flatten().tolist()])
            residual = points.y.flatten() - schedule.signal(level) * clean.double()
            assert float(residual.var()) == pytest.approx(schedule.variance(level), rel=0.05)
            places.append(points.x)
        assert not torch.equal(places[0], places[1])
        assert not torch.equal(places[1], places[2])

    def test_the_generator_determines_the_tasks(self) -> None:
        prior = Observations(table=table_of())
        first, second, third = (
            prior.sample_task(3, context_size=2, num_targets=5, generator=rng(seed)).yt
            for seed in (1, 1, 2)
        )
        assert torch.equal(first, second)
        assert not torch.equal(first, third)

    def test_added_noise_has_its_standard_deviation(self) -> None:
        task = Observations(table=table_of(functions=1), noise=0.1).sample_task(
            2000, context_size=2, num_targets=8, generator=rng()
        )
        added = task.yt - task.yt.round()
        assert float(added.std()) == pytest.approx(0.1, rel=0.05)

    def test_all_sets_of_a_task_share_its_noise(self) -> None:
        task = Observations(table=table_of(functions=1), noise=(0.001, 0.1)).sample_task(
            500, context_size=2, num_targets=10, num_sets=6, generator=rng()
        )
        added = (task.yt - task.yt.round()).unflatten(1, (6, 10)).square().mean(dim=(2, 3)).log()
        # A mean of 10 squares has a log with a standard deviation of 0.48.
        assert float(added.std(dim=1).mean()) < 0.6
        assert float(added.mean(dim=1).std()) > 2.0

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"context_size": (0, 8), "num_targets": 5}, "13 points.*12"),
            ({"context_size": (3, 2)}, r"^context_size .*\(3, 2\)"),
            ({"batch_size": 0}, "^batch_size .*0"),
        ],
    )
    def test_a_wrong_size_is_refused(self, arguments: dict[str, Any], says: str) -> None:
        sizes: dict[str, Any] = {"batch_size": 2, "context_size": 2, "num_targets": 5}
        with pytest.raises(ValueError, match=says):
            Observations(table=table_of()).sample_task(**{**sizes, **arguments}, generator=rng())

    def test_a_table_that_serves_no_model_is_refused(self) -> None:
        table = table_of()
        with pytest.raises(ValueError, match=r"^table\.x .*\[-1\.0, 1\.0\]"):
            Observations(table=table, domain=(-1, 1))
        with pytest.raises(ValueError, match="function of the table"):
            Observations(table=table.masked_where(torch.arange(5) > 0))
        with pytest.raises(ValueError, match=r"^table\.y"):
            Observations(table=PointSet(table.x, table.y * math.inf))
        with pytest.raises(ValueError, match=r"^table\.x .*dimension.* 1, got 2"):
            Observations(table=PointSet(table.x.expand(-1, -1, 2), table.y))

    def test_it_offers_nothing_that_it_cannot_do(self) -> None:
        prior: Any = Observations(table=table_of())
        assert not hasattr(prior, "sample_outputs")
        with pytest.raises(TypeError, match="pool_size"):
            prior.sample_task(2, num_targets=3, pool_size=3, generator=rng())

    def test_points_of_two_dimensions_stay_whole(self) -> None:
        x = torch.rand(4, 9, 2, generator=rng(1))
        table = PointSet(x, x[..., :1] + 10 * x[..., 1:])
        prior = Observations(table=table, domain=((0.0, 1.0), (0.0, 1.0)))
        task = prior.sample_task(6, context_size=4, num_targets=5, generator=rng())
        for points in (task.context, task.target):
            assert points.x.shape[-1] == 2
            assert torch.equal(points.y, points.x[..., :1] + 10 * points.x[..., 1:])

    def test_several_inputs_have_no_order(self) -> None:
        x = torch.rand(4, 9, 2, generator=rng(1))
        table = PointSet(x, x[..., :1])
        plane: Any = {"table": table, "domain": ((0.0, 1.0), (0.0, 1.0))}
        with pytest.raises(ValueError, match=r"^order must be 'random' .*, got 'forecast' for 2"):
            Observations(**plane, order="forecast")
        for method in ("spacing", "span"):
            with pytest.raises(
                ValueError, match=r"^spacing and span are of functions of one input"
            ):
                getattr(Observations(**plane), method)()

    def test_it_is_described_by_plain_values_that_tell_tables_apart(self) -> None:
        table = table_of(missing=0.2)
        prior = Observations(table=table)
        keys = json.loads(json.dumps(to_dict(prior))).keys()
        assert keys == {"noise", "domain", "order", "digest"}
        hidden = ~table.mask.unsqueeze(-1)
        same = PointSet(table.x.masked_fill(hidden, 9.0), table.y, table.mask)
        assert Observations(table=same) == prior
        assert Observations(table=PointSet(table.x, table.y + 1, table.mask)) != prior


def test_a_run_goes_on_with_the_same_data_only(tmp_path: Any) -> None:
    table = Scaling.fit(table_of()).apply(table_of())
    config = DANPConfig(base=small_config(), num_levels=2, beta=0.4, num_auxiliary=6)
    run = TrainingConfig(
        num_steps=3,
        batch=BatchConfig(batch_size=2, context_size=(0, 4), num_targets=6),
        num_validation_batches=1,
    )
    model = build_model("danp", config, seed=0)
    (record,) = train(model, Observations(table=table), run, folder=tmp_path, progress=False)
    assert math.isfinite(record["validation"][0])
    task = Observations(table=table).sample_task(2, context_size=3, num_targets=6, generator=rng())
    estimate = log_likelihood(model, task, num_samples=4, generator=rng())
    assert estimate.values.isfinite().all()
    other = Observations(table=PointSet(table.x, -table.y))
    with pytest.raises(ValueError, match="the observations changed"):
        train(build_model("danp", config, seed=0), other, run, folder=tmp_path, progress=False)


def test_forecasts_take_all_targets_after_the_context() -> None:
    generator = rng()
    x = torch.linspace(-2, 2, 24).reshape(1, -1, 1).expand(50, -1, -1)
    y = x + 10.0 * torch.arange(50.0)[:, None, None]
    mask = torch.rand(50, 24, generator=generator) < 0.95
    mask[:, :20] = True
    table = PointSet(x, y, mask)
    task = Observations(table=table, order="forecast").sample_task(
        300, context_size=(0, 8), num_targets=12, generator=generator
    )
    assert set(task.context.sizes.tolist()) == set(range(9))
    for row in range(300):
        known, wanted = task.xc[row][task.context.mask[row]], task.xt[row]
        assert len(torch.cat([known, wanted]).unique()) == len(known) + 12
        assert not len(known) or known.max() < wanted.min()
        assert len(((task.yt[row] - wanted) / 10.0).round().unique()) == 1
    # Given the cut, the context is any of the points before it.
    first = task.xc[:, 0, 0][task.context.sizes > 0]
    assert len(first.unique()) >= 4


def test_functions_whose_inputs_are_all_equal_have_no_spacing() -> None:
    x, y = torch.zeros(2, 3, 1), torch.arange(6.0).reshape(2, 3, 1)
    with pytest.raises(ValueError, match="the inputs of a function must differ, in float32"):
        Observations(table=PointSet(x, y)).spacing()


def test_tasks_need_a_source_of_randomness() -> None:
    with pytest.raises(ValueError, match="generator must be a Generator, got NoneType"):
        Observations(table=table_of(points=99)).sample_task(2, generator=None)  # type: ignore[arg-type]
