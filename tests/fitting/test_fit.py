"""One call from a table to a model: units, what is held out, saving, what is refused."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import danp_lib.fitting.fit as fitting
from danp_lib import NoiseSchedule, PointSet, fit, load_fitted
from danp_lib._config import to_dict
from danp_lib._random import spawn
from danp_lib.fitting.fit import FitConfig, Interrupted
from danp_lib.fitting.fitted import Season
from danp_lib.fitting.gaussian_process import FittedGaussianProcess
from danp_lib.fitting.prediction import predict_table
from danp_lib.fitting.records import RecordsWarning
from danp_lib.fitting.scoring import predict_as_used, score_records
from danp_lib.storage.checkpoint import CheckpointError

COLUMNS: dict[str, Any] = {"x": "hour", "y": "demand", "group": "day"}
SHORT: dict[str, Any] = {"num_steps": 4, "progress": False}
SHORTER = SHORT | {"model": "convgnp"}  # where it does not matter which


def days(count: int = 70, *, unit: float = 1.0, offset: float = 0.0) -> pd.DataFrame:
    """Sine waves of random phase, 16 hours each."""
    random = np.random.default_rng(0)
    hour = np.arange(16.0)
    phases = random.uniform(0, 2 * np.pi, (count, 1))
    y = np.sin(hour / 2 + phases) + 0.1 * random.normal(size=(count, 16))
    return pd.DataFrame(
        {
            "day": np.repeat(np.arange(count), 16),
            "hour": np.tile(hour, count),
            "demand": offset + unit * y.ravel(),
        }
    )


@pytest.fixture(scope="module")
def fitted() -> Any:
    return fit(days(), **COLUMNS, **SHORT)


def some_context() -> tuple[PointSet, torch.Tensor]:
    x = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64).reshape(1, -1, 1)
    return PointSet(x, (x / 2).sin()), torch.tensor([0.0, 2.0, 15.0])


def test_scores_stand_beside_those_of_others_on_the_same_functions(fitted: Any) -> None:
    assert list(fitted.scores) == ["danp", "convgnp", "gp"]
    assert {score.num_functions for score in fitted.scores.values()} == {14}
    best = fitted.scores["gp"]
    assert fitted.scores["danp"].behind == 0.0
    assert fitted.scores["convgnp"].behind != 0.0
    assert best.behind == pytest.approx(
        fitted.scores["danp"].log_likelihood - best.log_likelihood, abs=1e-9
    )
    # After four steps the network knows nothing; the process is close to right.
    assert best.behind_ci95 is not None
    assert best.behind + best.behind_ci95 < 0.0
    assert 0.7 < best.coverage_90 <= 1.0
    functions = fitted.provenance["functions"]
    counts = {"trained_on": 56, "held_out": 14, "by": "group"}
    assert {key: functions[key] for key in counts} == counts


def test_the_file_names_the_records_held_out(
    fitted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(tmp_path / "m.safetensors")
    functions = load_fitted(tmp_path / "m.safetensors").provenance["functions"]
    division, *_ = spawn(torch.Generator().manual_seed(0), 3)
    held_out = torch.randperm(70, generator=division)[:14].sort().values
    assert functions["held_out_names"] == [str(day) for day in held_out.tolist()]
    others = {str(day) for day in range(70)} - set(functions["held_out_names"])
    assert set(functions["trained_on_names"]) == others
    # Not of a record that is too short, nothing where parts of every record are held out, and no
    # list that is too long for a file.
    by_time = days().assign(
        hour=lambda f: f["hour"] + 16.0 * (f["day"] % 10), day=lambda f: f["day"] // 10
    )
    parts = fit(by_time, **COLUMNS, width=16.0, hold_out_by="time", compare=(), **SHORTER)
    assert parts.provenance["functions"].keys() == {"trained_on", "held_out", "by"}
    monkeypatch.setattr(fitting, "_MOST_LETTERS", 50)
    many = fit(days(), **COLUMNS, compare=(), **SHORTER).provenance["functions"]
    assert "trained_on_names" not in many
    assert many["held_out_names"] == functions["held_out_names"]
    short = days()[lambda f: ~f["day"].isin([0, 1, 2, 3]) | (f["hour"] < 3)]
    with pytest.warns(RecordsWarning, match="functions with fewer than 16 points were left out"):
        kept = fit(short, **COLUMNS, compare=(), **SHORTER).provenance["functions"]
    for part in ("trained_on", "held_out"):
        names = set(kept.get(f"{part}_names", ()))
        assert not names & {"0", "1", "2", "3"}
        assert len(names) in (0, kept[part])
    assert kept["trained_on"] + kept["held_out"] == 66


def test_another_unit_changes_the_density_and_nothing_else(fitted: Any) -> None:
    kelvin = fit(days(unit=50.0, offset=300.0), **COLUMNS, **SHORT)
    context, x = some_context()
    in_kelvin = PointSet(context.x, 300.0 + 50.0 * context.y)
    ours, theirs = fitted.predict(context, x), kelvin.predict(in_kelvin, x)
    torch.testing.assert_close(theirs.mean, 300.0 + 50.0 * ours.mean, rtol=1e-3, atol=0.05)
    torch.testing.assert_close(theirs.stddev, 50.0 * ours.stddev, rtol=1e-2, atol=0.05)
    for name, score in fitted.scores.items():
        other = kelvin.scores[name]
        assert other.log_likelihood == pytest.approx(
            score.log_likelihood - math.log(50.0), abs=0.02
        )
        assert other.crps == pytest.approx(50.0 * score.crps, rel=0.02)


def test_a_checkpoint_gives_back_the_model_to_the_last_bit(fitted: Any, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.safetensors")
    again = load_fitted(tmp_path / "m.safetensors")
    assert (again.layout, again.scaling, again.scores) == (
        fitted.layout,
        fitted.scaling,
        fitted.scores,
    )
    assert list(again.scores) == list(fitted.scores)
    context, x = some_context()
    assert torch.equal(again.predict(context, x).mean, fitted.predict(context, x).mean)
    damaged = tmp_path / "m.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError):
        load_fitted(damaged)


def test_predictions_are_of_several_functions_and_bounded_by_the_domain(fitted: Any) -> None:
    context, x = some_context()
    two = PointSet(context.x.expand(2, -1, -1), torch.stack([context.y[0], -context.y[0]]))
    generator = torch.Generator().manual_seed(0)
    both = fitted.predict(two, x, num_samples=64, generator=generator)
    assert both.mean.shape == (2, 3, 1)
    generator.manual_seed(0)
    for row in range(2):  # one stream a function, in their order
        alone = fitted.predict(two[row], x, num_samples=64, generator=generator)
        torch.testing.assert_close(both.mean[row], alone.mean[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="domain"):
        fitted.predict(context, torch.tensor([40.0]))


def series(years: int = 30) -> pd.DataFrame:
    time = 1990.0 + np.arange(12 * years) / 12.0
    random = np.random.default_rng(1)
    y = 10.0 + 5.0 * np.cos(2 * np.pi * time) + 0.3 * random.normal(size=len(time))
    return pd.DataFrame({"time": time, "celsius": y})


def test_a_season_is_taken_out_of_windows_and_put_back_into_predictions() -> None:
    columns: dict[str, Any] = {"x": "time", "y": "celsius", "width": 2.0}
    with pytest.warns(RecordsWarning, match="only 12 functions to train on"):
        fitted = fit(series(), **columns, period=1.0, compare=("gp",), **SHORTER)
    assert fitted.provenance["functions"]["by"] == "time"
    assert fitted.season is not None
    # What is left is noise of standard deviation 0.3, at any place on the axis.
    assert fitted.scaling.y_unit == pytest.approx(0.3, rel=0.15)
    assert fitted.scores["gp"].crps < 0.25
    x = torch.tensor([2050.0, 2050.5, 2051.0])
    there = fitted.predict(PointSet.empty(dtype=torch.float64), x)
    assert there.mean.flatten().tolist() == pytest.approx([15.0, 5.0, 15.0], abs=1.5)
    with pytest.warns(RecordsWarning, match="only 12"):
        plain = fit(series(), **columns, compare=("gp",), **SHORTER)
    assert plain.scaling.y_unit > 3.0


def test_what_is_held_out_reaches_the_scores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    processes, found = [], []
    real = FittedGaussianProcess.fit

    def noted(*arguments: Any, **options: Any) -> Any:
        processes.append(real(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(FittedGaussianProcess, "fit", noted)
    columns: dict[str, Any] = {"x": "time", "y": "celsius", "width": 2.0, "period": 1.0}
    for factor in (1.0, 3.0):
        frame = series()
        frame.loc[288:, "celsius"] *= factor  # the last fifth of the time
        with pytest.warns(RecordsWarning) as caught:
            found.append(fit(frame, **columns, compare=("gp",), **SHORTER))
        said = [str(warning.message) for warning in caught]
        assert sum("only 12 functions" in message for message in said) == 1
        assert sum("outputs drift" in message for message in said) == (factor > 1.0)
    one, other = found
    assert to_dict(one.scaling) == to_dict(other.scaling)
    assert one.season == other.season
    assert [process.scales for process in processes] == [processes[0].scales] * 2
    torch.testing.assert_close(one.model.state_dict(), other.model.state_dict(), rtol=0, atol=0)
    for name in ("convgnp", "gp"):
        assert one.scores[name].log_likelihood > other.scores[name].log_likelihood + 0.1


def moved(solve: Any, generator: torch.Generator) -> Any:
    """Least squares with other last digits: they do not give the same bits in every call."""

    def with_noise(*arguments: Any) -> Any:
        solution = solve(*arguments).solution
        noise = torch.randn(solution.shape, dtype=solution.dtype, generator=generator)
        return SimpleNamespace(solution=solution + 2.2e-16 * solution.abs().max() * noise)

    return with_noise


def test_a_season_does_not_depend_on_the_last_digits_of_its_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.arange(360, dtype=torch.float64) / 12
    y = 300.0 + 0.01 * torch.sin(2 * torch.pi * x) + 1e-3 * torch.sin(40.0 * x)
    exact = torch.linalg.lstsq
    expected = Season.fit(x, y, period=1.0)
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        monkeypatch.setattr(torch.linalg, "lstsq", moved(exact, generator))
        assert Season.fit(x, y, period=1.0) == expected


def test_a_run_with_a_season_goes_on_though_its_last_digits_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = series().assign(celsius=lambda f: 300.0 + 0.01 * f["celsius"])
    columns: dict[str, Any] = {"x": "time", "y": "celsius", "width": 2.0, "period": 1.0}
    options: dict[str, Any] = {**columns, **SHORTER, "compare": (), "folder": tmp_path}
    real, generator = vars(fitting)["train"], torch.Generator().manual_seed(0)

    def stopped(*arguments: Any, **others: Any) -> Any:
        return real(*arguments, **others, max_minutes=1e-9)

    monkeypatch.setattr(fitting, "train", stopped)
    with pytest.warns(RecordsWarning), pytest.raises(Interrupted, match="nothing was kept"):
        fit(frame, **options | {"folder": None})
    with pytest.warns(RecordsWarning), pytest.raises(Interrupted, match="the same call goes on"):
        fit(frame, **options)
    monkeypatch.setattr(fitting, "train", real)
    monkeypatch.setattr(torch.linalg, "lstsq", moved(torch.linalg.lstsq, generator))
    with pytest.warns(RecordsWarning):
        assert fit(frame, **options).season is not None


def test_a_season_leaves_small_variations_of_large_outputs() -> None:
    x = torch.arange(360, dtype=torch.float64) / 12
    noise = torch.randn(360, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = 1e7 + torch.cos(2 * torch.pi * x) + 5e-3 * noise
    season = Season.fit(x, y, period=1.0)
    assert season.coefficients[1] == pytest.approx(1.0, abs=2e-3)
    assert float((y - season.mean(x)).std()) == pytest.approx(5e-3, rel=0.1)


def test_windows_without_enough_points_are_not_counted() -> None:
    """A long gap holds no functions."""
    near = np.arange(0.0, 12.0, 0.05)
    time = np.concatenate([near, 172.0 + near])
    frame = pd.DataFrame({"time": time, "celsius": np.sin(3.0 * time) + 0.1 * np.cos(time)})
    with pytest.warns(RecordsWarning) as caught:
        fit(frame, x="time", y="celsius", width=2.0, compare=(), **SHORTER)
    said = [str(warning.message) for warning in caught]
    assert any(re.match(r"only \d functions to train on", message) for message in said)


def test_a_series_without_a_window_is_warned_of_once() -> None:
    time = np.arange(0.0, 40.0, 0.1)
    long = pd.DataFrame({"g": "long", "x": time, "y": np.sin(3.0 * time)})
    short = pd.DataFrame({"g": "short", "x": time[:12], "y": np.cos(time[:12])})
    frame = pd.concat([long, short])
    with pytest.warns(RecordsWarning) as caught:
        fit(frame, group="g", width=2.0, hold_out_by="time", compare=(), **SHORTER)
    said = [str(warning.message) for warning in caught if "hold no window" in str(warning.message)]
    # Once of what is trained on, and once of what is held out.
    assert said == ["series, or parts, that hold no window were left out: 1."] * 2


def test_a_width_that_is_no_multiple_of_the_spacing_loses_no_window() -> None:
    """A window that starts at a point holds one more than those that lie side by side."""
    frame = pd.DataFrame({"x": np.arange(600.0), "y": np.sin(np.arange(600.0))})
    with pytest.warns(RecordsWarning) as caught:
        fitted = fit(frame, width=10.001, compare=(), **SHORTER)
    assert not [w for w in caught if "left out" in str(w.message)]
    assert fitted.scores["convgnp"].num_functions == 11  # of 120 points


def test_long_series_are_cut_into_windows_that_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = pd.DataFrame({"x": np.arange(600.0), "y": np.sin(np.arange(600.0))})
    options: dict[str, Any] = {"width": 10.0, "compare": (), **SHORTER}
    with pytest.warns(RecordsWarning, match="only 48 functions"):
        every = fit(frame, **options)
    assert every.provenance["functions"]["trained_on"] == 471  # of 480 points
    monkeypatch.setattr(fitting, "_MOST_ENTRIES", 1000)
    with pytest.warns(RecordsWarning) as caught:
        some = fit(frame, **options)
    assert [w for w in caught if "windows start about 5 points apart" in str(w.message)]
    assert some.provenance["functions"]["trained_on"] == 95


@pytest.mark.parametrize(
    ("width", "hint"),
    [("48h", r"$"), (24.0, r" A plain number counts in years; durations such as '48h' are")],
)
def test_a_window_longer_than_the_series_is_told_of_years_where_they_were_meant(
    width: Any, hint: str
) -> None:
    hours = pd.date_range("2020-01-01", periods=30, freq="h")
    frame = pd.DataFrame({"x": hours, "y": np.arange(30.0)})
    message = rf"^in what is trained on: .* width [\d.]+ days; the longest spans 1 days\.{hint}"
    with pytest.raises(ValueError, match=message):
        fit(frame, width=width, **SHORTER)


def test_a_number_that_leaves_little_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(fitting, "_trained", stop)
    message = r"a max_context of 15 and a num_targets of 1; give a smaller max_context, or both"
    with pytest.warns(RecordsWarning, match=message), pytest.raises(Interrupted):
        fit(days(), **COLUMNS, max_context=15, **SHORTER)


@pytest.mark.parametrize(
    ("options", "more"),
    [({}, "functions with more points"), ({"width": 2.0, "hold_out_by": "time"}, "a larger width")],
)
def test_sizes_that_teach_little_are_said_unless_they_were_asked_for(
    options: dict[str, Any], more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(fitting, "_trained", stop)
    frame = days() if options else days()[lambda f: f["hour"] < 2]
    message = (
        "most functions hold 2 points, so little is learned with a max_context of 1 and a "
        f"num_targets of 1; give {more}, or both numbers."
    )
    for sizes, said in (
        ({}, 1),
        ({"max_context": 1}, 1),
        ({"max_context": 1, "num_targets": 1}, 0),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(Interrupted):
                fit(frame, **{**COLUMNS, **options, **sizes})
        assert [str(w.message) for w in caught].count(message) == said


def test_dates_take_durations() -> None:
    hours = pd.date_range("2020-01-01", periods=480, freq="h")
    y = np.sin(np.arange(480) * np.pi / 12) + 0.1 * np.random.default_rng(0).normal(size=480)
    frame = pd.DataFrame({"x": hours, "y": y})
    with pytest.warns(RecordsWarning, match="only 16 functions"):
        fitted = fit(frame, width="1 day", period="24h", compare=(), **SHORTER)
    day = 1 / 365.2425
    assert fitted.layout.width == pytest.approx(day, rel=1e-12)
    assert fitted.season is not None
    assert fitted.season.period == pytest.approx(day, rel=1e-12)
    assert fitted.provenance["fit"]["width"] == "1 day"
    with pytest.raises(ValueError, match="width must be a number in units of 'hour'"):
        fit(days(), **COLUMNS, **SHORTER, width="3h")


def test_the_process_has_a_mean_where_records_count_from_their_own_start() -> None:
    random = np.random.default_rng(0)
    frame = days().assign(
        demand=lambda f: 10.0 * np.exp(-f["hour"] / 4) + 0.1 * random.normal(size=len(f))
    )
    shifted = frame.assign(hour=frame["hour"] + 100.0 * frame["day"])
    one = fit(frame, **COLUMNS, **SHORTER, compare=("gp",))
    own = fit(shifted, **COLUMNS, **SHORTER, compare=("gp",), own_start=True)
    assert own.scores["gp"].crps == pytest.approx(one.scores["gp"].crps, rel=1e-3)


def test_options_reach_the_data_and_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def stop(name: str, data: Any, folder: Any, progress: bool) -> None:
        kept.append(data)
        raise Interrupted

    monkeypatch.setattr(fitting, "_trained", stop)
    late = days().assign(hour=lambda f: f["hour"] + 100.0 * f["day"])
    with pytest.raises(Interrupted):
        fit(
            late,
            **COLUMNS,
            own_start=True,
            num_levels=3,
            final_variance=0.2,
            max_context=5,
            num_targets=6,
            num_steps=40,
            seed=3,
        )
    (data,) = kept
    config, run = data.architecture("danp"), data.run
    assert data.layout.own_start
    assert data.scaling.x_unit == pytest.approx(15 / 4)
    assert NoiseSchedule(config.beta, 3).variance(3) == pytest.approx(0.2)
    assert (config.num_levels, config.num_auxiliary) == (3, 6)
    assert (run.num_steps, run.seed) == (40, 3)
    assert (run.batch.context_size, run.batch.num_targets) == ((0, 5), 6)


def test_functions_that_are_short_beside_the_range_of_all_are_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(fitting, "_trained", stop)
    apart = days().assign(hour=lambda f: f["hour"] + 120.0 * f["day"])
    with (
        pytest.warns(RecordsWarning, match=r"span 0\.18 % of those of all.*by own_start"),
        pytest.raises(Interrupted),
    ):
        fit(apart, **COLUMNS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Interrupted):
            fit(apart, **COLUMNS, own_start=True)


def test_forecasts_have_their_targets_after_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = []
    original = predict_as_used

    def spy(model: Any, task: Any) -> Any:
        dealt.append(task)
        return original(model, task)

    monkeypatch.setattr(fitting, "predict_as_used", spy)
    fit(days(), **COLUMNS, tasks="forecast", compare=(), **SHORTER)
    assert len(dealt) == 14
    for task in dealt:
        for row in range(task.batch_size):
            known = task.xc[row][task.context.mask[row]]
            assert not len(known) or known.max() < task.xt[row].min()


def test_a_run_that_was_stopped_goes_on_and_other_data_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {**COLUMNS, **SHORTER, "compare": (), "folder": tmp_path}
    whole = fit(days(), **{**options, "folder": None})
    real = vars(fitting)["train"]

    def stopped(*arguments: Any, **others: Any) -> Any:
        return real(*arguments, **others, max_minutes=1e-9)

    monkeypatch.setattr(fitting, "train", stopped)
    with pytest.raises(Interrupted):
        fit(days(), **options)
    monkeypatch.setattr(fitting, "train", real)
    resumed = fit(days(), **options)
    assert resumed.model.training_contexts is not None
    assert [part.largest for part in resumed.model.training_contexts.sizes] == [1, 2, 4, 8]
    context, x = some_context()
    assert torch.equal(resumed.predict(context, x).mean, whole.predict(context, x).mean)
    with pytest.raises(ValueError, match="the observations changed"):
        fit(days(69), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "gpt"}, "model must be .*danp.*got 'gpt'"),
        ({"held_out": 1.0}, "held_out must be .*> 0 and < 1"),
        ({"group": None}, "^without a group all rows are one series: give the width of a window"),
        (
            {"hold_out_by": "time"},
            "^hold_out_by 'time' divides .* give the width of a window.* or leave hold_out_by out",
        ),
        ({"max_context": 10, "num_targets": 10}, "no function has the 20 points"),
        ({"max_context": 40}, "functions must hold enough points"),
        ({"num_levels": 0}, "num_levels must be .*>= 1"),
        (
            {"model": "convgnp", "num_levels": 2},
            r"^num_levels \(--levels\) is for a danp: a convgnp has no levels, got 2",
        ),
        ({"model": "convcnp", "final_variance": 0.9}, "^final_variance is for a danp"),
        ({"y": "day"}, "columns must have different names, got hour, day, day"),
    ],
)
def test_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(days(), **{**COLUMNS, **SHORT, **options})


def test_outputs_that_are_a_cycle_and_nothing_else_are_refused() -> None:
    frame = days()
    frame["demand"] = np.sin(2 * np.pi * frame["hour"] / 12.0)
    with pytest.raises(ValueError, match=r"y must differ from a cycle of period 12\.0"):
        fit(frame, **COLUMNS, **SHORT, period=12.0)


def test_functions_that_are_too_short_are_left_out_and_counted() -> None:
    frame = days()
    short = frame[(frame["day"] > 1) | (frame["hour"] < 5)]
    with pytest.warns(RecordsWarning, match=r"fewer than 14 points were left out: [12] of \d+\."):
        fitted = fit(short, **COLUMNS, max_context=6, num_targets=8, compare=(), **SHORTER)
    functions = fitted.provenance["functions"]
    assert functions["trained_on"] + functions["held_out"] == 68


def test_the_model_that_comes_with_the_book_is_ahead_by_more_than_the_error_bars() -> None:
    root = Path(__file__).parents[2]
    shipped = load_fitted(root / "checkpoints" / "records" / "danp-power.safetensors")
    ours, *others = shipped.scores.values()
    assert [score.behind > (score.behind_ci95 or 0.0) for score in others] == [True, True]
    assert 0.85 < ours.coverage_90 < 0.95
    assert f"{ours.num_functions} days held out" in (root / "README.md").read_text("utf-8")
    row = f"| DANP | {ours.log_likelihood:.3f} ± {ours.log_likelihood_ci95:.3f} |"
    assert row in (root / "checkpoints" / "records" / "danp-power.md").read_text("utf-8")


def test_one_function_held_out_has_no_error_bars() -> None:
    frame = days(60)
    fitted = fit(frame, **COLUMNS, held_out=0.01, compare=("gp",), **SHORTER)
    assert {score.log_likelihood_ci95 for score in fitted.scores.values()} == {None}


def test_the_options_and_what_they_default_to_are_those_of_the_configuration() -> None:
    _, *shown = inspect.signature(fit).parameters.values()
    assert {one.kind for one in shown} == {inspect.Parameter.KEYWORD_ONLY}
    configured = [(field.name, field.default) for field in fields(FitConfig)]
    own = [("folder", None), ("progress", True)]
    assert [(one.name, one.default) for one in shown] == configured + own
    # Type checkers refuse these: mypy would complain of a comment that ignores nothing.
    with pytest.raises(TypeError, match="unexpected keyword argument 'steps'"):
        fit(days(), steps=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="num_steps must be an integer"):
        fit(days(), num_steps="many")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"model must be .*got 'gpt'"):
        fit(days(), model="gpt")  # type: ignore[arg-type]


def test_the_process_on_a_bound_is_said_to_be_no_fault_of_the_table() -> None:
    random = np.random.default_rng(0)
    level, noise = random.normal(size=70), 0.1 * random.normal(size=70 * 16)
    frame = days().assign(demand=lambda f: level[f["day"]] + noise)
    with pytest.warns(RecordsWarning, match=r"on its bound .*: it takes functions to be"):
        fit(frame, **COLUMNS, compare=("gp",), **SHORTER)


def test_warnings_name_the_callers_line() -> None:
    later = days(8).assign(day=lambda f: f["day"] + 100)
    known = later.assign(demand=lambda f: f["demand"].where(f["hour"] % 2 == 0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        some = fit(pd.concat([days(49), days(5)])[3:], **COLUMNS, compare=("gp",), **SHORTER)
        score_records(some, pd.concat([later, later])[5:])
        predict_table(some, pd.concat([known, known]), later.assign(day=later["day"] + 1))
    assert len({str(warning.message) for warning in caught}) > 7
    assert {warning.filename for warning in caught} == {__file__}


def test_functions_of_other_dates_are_said_to_be_off_the_domain() -> None:
    def dated(count: int) -> pd.DataFrame:
        frame = days(count)
        start = pd.Timestamp("2000-01-01") + pd.to_timedelta(366 * (frame["day"] % 4), "D")
        return frame.assign(hour=start + pd.to_timedelta(5.0 * frame["hour"], "D"))

    more: dict[str, Any] = COLUMNS | SHORTER | {"compare": ()}
    with pytest.warns(RecordsWarning) as said:
        model = fit(dated(70), **more)
    assert any("so those of other dates will be off" in str(one.message) for one in said)
    later = dated(8).assign(day=lambda f: f["day"] + 100)
    later["hour"] += pd.Timedelta(days=20 * 365)
    with pytest.raises(
        ValueError, match=r"none of the records does\. A model for other dates must"
    ):
        score_records(model, later)
