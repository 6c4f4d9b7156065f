"""Records: what is read, changed and said, refused, and held out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from danp_lib.fitting.records import (
    Columns,
    Layout,
    Records,
    RecordsWarning,
    divide,
    read_records,
    windows_of,
)

COLUMNS: dict[str, Any] = {"x": "time", "y": "value", "group": "station"}


def table(count: int = 6, points: int = 12) -> pd.DataFrame:
    """Functions whose value tells which one it is, and when."""
    station = np.repeat(np.arange(count), points)
    time = np.tile(np.arange(points) / 4.0, count)
    return pd.DataFrame({"station": station, "time": time, "value": 100.0 * station + time})


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def points_of(records: Records) -> set[tuple[float, float]]:
    """Inputs of the table, and outputs."""
    real = records.functions.mask
    x = records.absolute_inputs[real].flatten().tolist()
    y = records.functions.y[real].flatten().tolist()
    return {(round(a, 6), round(b, 6)) for a, b in zip(x, y, strict=True)}


def test_a_frame_and_its_file_are_the_same_records(tmp_path: Path) -> None:
    frame = table()
    frame.to_csv(tmp_path / "records.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = read_records(frame, **COLUMNS)
        other = read_records(tmp_path / "records.csv", **COLUMNS)
    assert len(one) == 6
    for a, b in zip(one.functions.parts, other.functions.parts, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.functions.y[2, :, 0], 200.0 + torch.arange(12) / 4.0)


def test_what_is_changed_is_said() -> None:
    frame = table(2, 4)
    frame.loc[1, "value"] = np.nan
    shuffled = frame.iloc[[0, 2, 1, 3, 7, 6, 5, 4, 4]]
    with pytest.warns(RecordsWarning) as said:
        records = read_records(shuffled, **COLUMNS)
    messages = " ".join(str(one.message) for one in said)
    assert "left out: 1" in messages
    assert "sorted: 1" in messages
    assert "averaged: 1" in messages
    assert records.functions.sizes.tolist() == [3, 4]
    assert records.functions.y[1].flatten().tolist() == [100.0, 100.25, 100.5, 100.75]


def test_outputs_at_one_input_are_averaged() -> None:
    frame = pd.DataFrame({"time": [0.0, 1.0, 1.0], "value": [0.0, 1.0, 3.0]})
    message = r"averaged: 1\. So where inputs repeat, intervals are for means of as many\.$"
    with pytest.warns(RecordsWarning, match=message):
        records = read_records(frame, x="time", y="value")
    assert records.functions.y.flatten().tolist() == [0.0, 2.0]


def test_dates_become_years_and_may_count_from_their_start(tmp_path: Path) -> None:
    path = tmp_path / "dates.csv"
    path.write_text("time,value,station\n2020-01-01,1,a\n2021-01-01,2,a\n2020-07-01,3,b\n")
    records = read_records(path, **COLUMNS)
    assert records.layout.dates
    assert records.functions.x[0, :2, 0].tolist() == pytest.approx([2020.0, 2021.0], abs=0.01)
    own = read_records(path, **COLUMNS, own_start=True)
    assert own.functions.x[:, 0, 0].tolist() == [0.0, 0.0]
    torch.testing.assert_close(
        own.absolute_inputs,
        records.functions.x * own.functions.mask[..., None]
        + own.starts[:, None, None] * ~own.functions.mask[..., None],
    )
    frame = pd.read_csv(path, parse_dates=["time"])
    assert torch.equal(read_records(frame, **COLUMNS).functions.x, records.functions.x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(value="high"), "row 0: value must be a finite number .* got 'high'"),
        (lambda f: f.assign(value=pd.to_datetime("2020-01-01")), "dates and durations are no"),
        (lambda f: f.assign(value=pd.Timedelta("1h")), "dates and durations are no outputs"),
        (lambda f: f.assign(value=np.inf), "'value' must be finite"),
        (lambda f: f.assign(time="noon"), "must be a number in every line, or a date"),
        (lambda f: f.assign(time=np.nan), "row 0: time must have no gap"),
        (lambda f: f.assign(value=np.nan), "'value' must hold a number"),
        (lambda f: f.drop(columns="station"), "must have the column 'station' once"),
        (lambda f: f.to_numpy(), "must be a CSV file or a pandas DataFrame, got ndarray"),
    ],
)
def test_bad_tables_are_refused_by_name(change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        read_records(change(table()), **COLUMNS)


@settings(max_examples=25, deadline=None)
@given(
    fraction=st.floats(0.001, 0.9),
    by=st.sampled_from(["group", "time", "blocks"]),
    count=st.integers(2, 5),
    points=st.integers(30, 60),
)
def test_held_out_points_are_in_no_training_function(
    fraction: float, by: str, count: int, points: int
) -> None:
    records = read_records(table(count, points), **COLUMNS)
    seen, unseen = divide(records, fraction, by, generator=generator())  # type: ignore[arg-type]
    assert points_of(seen)
    assert points_of(unseen)
    assert not points_of(seen) & points_of(unseen)
    assert points_of(seen) | points_of(unseen) == points_of(records)
    windows = windows_of(seen, 0.5)
    assert points_of(windows) <= points_of(seen)
    if by == "time":
        assert max(x for x, _ in points_of(seen)) < min(x for x, _ in points_of(unseen))


def test_too_little_to_divide_is_refused() -> None:
    one = read_records(table(1), **COLUMNS)
    with pytest.raises(ValueError, match="two functions or more, got 1"):
        divide(one, 0.2, "group", generator=generator())
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match=rf"held_out must be in \(0, 1\), got {fraction}"):
            divide(one, fraction, "time", generator=generator())
    message = r"^no series holds a window of width 50; the longest spans 3\. Advice\.$"
    with pytest.raises(ValueError, match=message):
        windows_of(one, 50.0, advice=" Advice.")


def test_series_shorter_than_a_window_are_counted() -> None:
    frame = table(3, 60)
    short = frame["station"] != frame["station"].iloc[0]
    frame = frame[~short | (frame.groupby("station").cumcount() < 5)]
    records = read_records(frame, **COLUMNS)
    with pytest.warns(RecordsWarning, match=r"hold no window were left out: 2\.$"):
        assert points_of(windows_of(records, 5.0)) <= points_of(records)


@pytest.mark.parametrize("unit", ["ns", "us", "s"])
def test_groups_may_be_dates(unit: str) -> None:
    days = np.array(["2020-01-01", "2020-01-02"], dtype=f"datetime64[{unit}]").repeat(3)
    frame = pd.DataFrame({"h": [0.0, 1.0, 2.0] * 2, "y": np.arange(6.0), "day": days})
    records = read_records(frame, x="h", y="y", group="day")
    assert records.functions.sizes.tolist() == [3, 3]
    assert records.functions.y.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("by", ["time", "blocks"])
def test_series_that_are_too_short_to_be_divided_are_left_out_and_counted(by: Any) -> None:
    frame = pd.DataFrame(
        {"g": ["a"] * 30 + ["b"] * 7, "x": [*range(30), *range(7)], "y": [0.0] * 30 + [1.0] * 7}
    )
    table = read_records(frame, group="g")
    generator = torch.Generator().manual_seed(0)
    with pytest.warns(RecordsWarning, match=r"^series with fewer than 10 points were left out: 1"):
        seen, unseen = divide(table, 0.2, by, generator=generator)
    assert int(seen.functions.mask.sum() + unseen.functions.mask.sum()) == 30
    assert not seen.functions.y.any()
    with pytest.raises(ValueError, match="must hold 10 points to be divided, got 7 at most"):
        divide(table[torch.tensor([1])], 0.2, by, generator=generator)


def test_a_division_by_something_else_is_refused() -> None:
    table = read_records(pd.DataFrame({"x": range(20), "y": 0.0}))
    with pytest.raises(ValueError, match=r"^by must be 'group' or 'time' or 'blocks', got 'year'"):
        divide(table, 0.2, "year", generator=torch.Generator())  # type: ignore[arg-type]


def test_a_window_of_dates_that_is_too_long_is_said_in_days() -> None:
    dates = pd.date_range("2020-01-01", periods=48, freq="h")
    table = read_records(pd.DataFrame({"x": dates, "y": 0.0}))
    message = r"window of width 3 days; the longest spans 2 days\.$"
    with pytest.raises(ValueError, match=message):
        windows_of(table, 3 / 365.2425)
    with pytest.raises(ValueError, match=r"the longest spans 0 days\.$"):
        windows_of(read_records(pd.DataFrame({"x": dates[:1], "y": 0.0})), 1.0)


def test_lengths_along_dates_may_be_durations() -> None:
    dates, plain = Layout(dates=True), Layout(x="t")
    assert dates.in_units_of_x("48h", "width") == pytest.approx(2 / 365.2425, rel=1e-12)
    for week in ("7 days", "7d", "7 D", "1 week", "1W"):
        assert dates.in_units_of_x(week, "width") == pytest.approx(7 / 365.2425, rel=1e-12)
    assert dates.in_units_of_x("1d12h", "width") == pytest.approx(1.5 / 365.2425, rel=1e-12)
    assert dates.in_units_of_x(0.5, "width") == plain.in_units_of_x(0.5, "width") == 0.5
    with pytest.raises(ValueError, match=r"^period must be a number in units of 't'.* got '48h'"):
        plain.in_units_of_x("48h", "period")


@pytest.mark.parametrize("width", ["1 month", "48", "", "-2h", "NaT", 0.0, -3.0])
def test_what_is_no_length_is_refused(width: object) -> None:
    with pytest.raises(
        ValueError, match=r"^width must be .*'7 days' \(for dates a plain number .* years\)"
    ):
        Columns(width=width)  # type: ignore[arg-type]


def test_dates_without_dashes_are_said_to_be_plain_numbers() -> None:
    frame = table(1, 4).assign(time=[20190103, 20190131, 20190201, 20190202])
    with pytest.warns(RecordsWarning, match=r"'time' is taken for plain numbers.*2019-01-03"):
        read_records(frame, x="time", y="value")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_records(
            frame.assign(time=[20190103, 20190131, 20190201, 20191301]), x="time", y="value"
        )


@pytest.mark.parametrize("digits", [2, 4, 6])
def test_times_without_colons_are_said_to_be_plain_numbers(digits: int) -> None:
    days = [20190103, 20190131, 20190201, 20190202]
    frame = table(1, 4).assign(time=[day * 10**digits + 10 for day in days])
    with pytest.warns(RecordsWarning, match=r"'time' is taken for plain numbers"):
        read_records(frame, x="time", y="value")


def test_functions_in_one_series_are_suspected() -> None:
    """Where they follow one another; a table that is shuffled or reversed is sorted, no more."""
    frame = table(3, 8)
    frame["time"] += 0.01 * (np.arange(24) // 8)  # no input twice
    with pytest.warns(
        RecordsWarning, match=r"sorted: 1\. Places where it falls: 2\. .* as group\.$"
    ):
        read_records(frame, x="time", y="value")
    for other in (frame.sample(frac=1, random_state=0), frame[:8][::-1]):
        with pytest.warns(RecordsWarning, match=r"sorted: 1\.$"):
            read_records(other, x="time", y="value")


def test_inputs_without_their_times_of_day_are_suspected() -> None:
    frame = table(1, 12)
    frame["time"] = frame["time"].rank() // 4
    with pytest.warns(
        RecordsWarning, match=r"averaged: 8\. .* Is a part of the input, .* names another"
    ):
        read_records(frame, x="time", y="value")


def test_nines_are_marks_of_no_value_nearer_by() -> None:
    frame = table(10, 12)
    spread = (frame["value"] - frame["value"].median()).abs().median()
    frame["value"] *= 3.0 / spread  # so that -99.9 is about 30 spreads away
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame.loc[[3, 40], "value"] = -95.0
        read_records(frame, **COLUMNS)
        counts = np.random.default_rng(1).lognormal(2.0, 1.0, 120).round()
        read_records(frame.assign(value=np.append(counts[:-1], 99.0)), **COLUMNS)
    frame.loc[[3, 40], "value"] = -99.9
    with pytest.warns(RecordsWarning, match=r"'value' are far from all others \(-99\.9\): 2"):
        read_records(frame, **COLUMNS)


def test_marks_of_no_value_are_said() -> None:
    frame = table(10, 12)
    frame.loc[[3, 40], "value"] = -9999.0 * 1e3
    with pytest.warns(RecordsWarning, match=r"'value' are far from all others \(-9\.999e\+06\): 2"):
        read_records(frame, **COLUMNS)


def test_functions_that_another_column_tells_apart_are_suspected() -> None:
    frame = pd.concat([table(), table().assign(time=lambda f: f["time"] + 0.5)])
    with pytest.warns(RecordsWarning) as said:
        read_records(frame, **COLUMNS)
    assert "of as many. Does another column, such as the year," in str(said[-1].message)
    with pytest.warns(RecordsWarning) as said:
        read_records(pd.concat([table(), table()[:1]]), **COLUMNS)
    assert str(said[-1].message).endswith("for means of as many.")
