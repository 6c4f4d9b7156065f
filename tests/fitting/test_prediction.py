"""Predictions in a table: what they agree with, depend on, and say."""

from __future__ import annotations

import re
import warnings
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from small_models import seeded

from danp_lib import DANP, ConvNPConfig, DANPConfig, PointSet
from danp_lib.data.scaling import Scaling
from danp_lib.fitting.fitted import Fitted, HeldOutScore
from danp_lib.fitting.prediction import predict_table
from danp_lib.fitting.records import Layout, RecordsWarning
from danp_lib.models.contexts import ContextWarning, SizeRange, TrainingContexts

SMALL = ConvNPConfig(points_per_unit=16, channels=4, num_layers=2, rank=2, head_layers=0)
COLUMNS: dict[str, Any] = {"x": "hour", "y": "level", "group": "station"}
UNGROUPED = Layout(x="hour", y="level")
FEW: dict[str, Any] = {"num_samples": 4, "samples": 2}


def days(*names: str) -> pd.DataFrame:
    """Three points of each station."""
    hours = [3.0, 6.5, 20.0]
    parts = [
        {"station": name, "hour": x, "level": 5.0 + x / 10 + len(name)}
        for name in names
        for x in hours
    ]
    return pd.DataFrame(parts)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    """An untrained DANP of hours of a day."""
    model = seeded(DANP, DANPConfig(base=SMALL, num_auxiliary=6), dtype=torch.float32)
    scaling = Scaling(x_offset=12.0, x_unit=6.0, y_offset=5.0, y_unit=2.0)
    return Fitted(model, scaling, Layout(**COLUMNS))


@pytest.fixture(scope="module")
def dated(fitted: Fitted) -> Fitted:
    """The same model, of dates that count from a start."""
    scaling = Scaling(x_offset=0.5, x_unit=0.25, y_offset=5.0, y_unit=2.0)
    return Fitted(fitted.model, scaling, Layout(x="day", y="level", own_start=True, dates=True))


def test_a_table_holds_the_models_prediction(fitted: Fitted) -> None:
    known, at = days("a"), pd.DataFrame({"hour": [1.0, 23.5, 12.25]})
    with pytest.warns(RecordsWarning, match="^context: all rows are taken for one function"):
        table = predict_table(fitted, known.drop(columns="station"), at, seed=7)
    x, y = (torch.tensor(known[name].to_numpy()).reshape(1, -1, 1) for name in ("hour", "level"))
    generator = torch.Generator().manual_seed(7)
    expected = fitted.predict(
        PointSet(x, y), torch.tensor(at["hour"].to_numpy()), generator=generator
    )
    assert list(table) == ["hour", "mean", "sd", "q0.05", "q0.5", "q0.95"]
    np.testing.assert_array_equal(table["hour"], at["hour"])
    np.testing.assert_allclose(table["mean"], expected.mean.flatten(), rtol=1e-5)
    np.testing.assert_allclose(table["sd"], expected.stddev.flatten(), rtol=1e-5)
    np.testing.assert_allclose(table["q0.95"], expected.quantile(0.95).flatten(), rtol=1e-5)


def test_levels_may_be_numpys(fitted: Fitted) -> None:
    at = pd.DataFrame({"hour": [1.0]})
    levels = np.array([0.1, 0.5])
    for some in (tuple(levels), levels, deque(levels), pd.Series(levels)):
        table = predict_table(fitted, days("a"), at, quantiles=some)
        assert list(table) == ["station", "hour", "mean", "sd", "q0.1", "q0.5"]


def test_a_frame_and_its_file_give_the_same_table(fitted: Fitted, tmp_path: Path) -> None:
    known, at = days("a", "bb"), pd.DataFrame({"hour": [1.0, 12.25], "station": ["bb", "a"]})
    known.to_csv(tmp_path / "known.csv", index=False)
    at.to_csv(tmp_path / "at.csv", index=False)
    own = predict_table(fitted, known, at, **FEW)
    pd.testing.assert_frame_equal(
        own, predict_table(fitted, tmp_path / "known.csv", tmp_path / "at.csv", **FEW)
    )
    assert own["station"].tolist() == ["bb", "a"]


def test_a_groups_numbers_depend_on_no_other_group(fitted: Fitted) -> None:
    at = pd.DataFrame({"hour": [1.0, 12.25]})
    together = predict_table(fitted, days("a", "bb", "ccc"), at, **FEW)
    alone = predict_table(fitted, days("bb"), at, **FEW)
    own = together[together["station"] == "bb"].reset_index(drop=True)
    pd.testing.assert_frame_equal(own, alone)
    # Functions that differ in their names alone have samples of their own.
    twins = days("aa", "bb")
    samples = predict_table(fitted, twins, at, **FEW).pivot(index="hour", columns="station")
    assert (samples["sample_1"]["aa"] - samples["sample_1"]["bb"]).abs().min() > 1e-3
    other = predict_table(fitted, days("bb"), at, **FEW, seed=1)
    assert (other["sample_1"] - alone["sample_1"]).abs().min() > 1e-3


def test_rows_stay_in_order_whatever_their_labels(fitted: Fitted) -> None:
    known = days("a", "bb").set_axis([5] * 6)
    asked = [("bb", 1.0), ("a", 2.0), ("bb", 1.0), ("a", 4.0)]
    at = pd.DataFrame(asked, columns=["station", "hour"]).set_axis(["p", "q", "p", "q"])
    table = predict_table(fitted, known, at, num_samples=4)
    assert list(zip(table["station"], table["hour"], strict=True)) == asked
    assert table["mean"][0] == pytest.approx(table["mean"][2], rel=1e-6)
    assert abs(table["mean"][0] - table["mean"][1]) > 1e-4


def test_dates_are_taken_and_given_back(dated: Fitted) -> None:
    day = pd.to_datetime(["2020-01-01", "2020-03-01", "2020-09-01"])
    known = pd.DataFrame({"day": day[:2], "level": [5.0, 6.0]})
    table = predict_table(dated, known, pd.DataFrame({"day": day}), start=day[0], **FEW)
    assert table["day"].tolist() == list(day)
    text = known.assign(day=["2020-01-01", "2020-03-01"])
    other = predict_table(dated, text, pd.DataFrame({"day": day}), start="2020-01-01", **FEW)
    pd.testing.assert_frame_equal(other, table)
    for wrong, message in (
        (2020.0, "start: it must be a date such as 1958-03-29, as the"),
        ("soon", "start: it must be a number"),
    ):
        with pytest.raises(ValueError, match=message):
            predict_table(dated, known, pd.DataFrame({"day": day}), start=wrong)
    with pytest.raises(ValueError, match=r"row 0: day must be a date such as 1958-03-29"):
        predict_table(dated, known, pd.DataFrame({"day": [2020.0]}))


def test_what_may_be_a_mistake_is_said(fitted: Fitted) -> None:
    known, at = days("a", "bb"), pd.DataFrame({"hour": [1.0]})
    known.loc[3:, "level"] = np.nan
    known.loc[1, "hour"] = 3.0
    with pytest.warns(RecordsWarning) as said:
        predict_table(fitted, known, at, num_samples=2)
    messages = " ".join(str(one.message) for one in said)
    assert "context: rows without an output are left out: 3." in messages
    assert (
        "at: predicted from no point, since context has none of this station: bb; it has a."
        in messages
    )
    assert "context, station a: points at the input of another were kept: 1." in messages
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict_table(fitted, days("a"), at, num_samples=2)


def test_columns_that_do_not_fit_together_are_said(fitted: Fitted, dated: Fitted) -> None:
    at = pd.DataFrame({"hour": [1.0, 2.0], "Station": ["a", "bb"]})
    with pytest.warns(RecordsWarning, match=r"^at: all functions .*no column is 'station'\.$"):
        table = predict_table(fitted, days("a", "bb"), at, num_samples=2)
    assert len(table) == 4
    day = pd.to_datetime(["2020-01-01", "2020-03-01"])
    known = pd.DataFrame({"day": day, "level": [5.0, 6.0]})
    for zoned in (day.tz_localize("Europe/Rome"), ["2020-01-01T22:00+01:00"]):
        with pytest.warns(RecordsWarning, match="^the times of at have a zone .* of context have"):
            predict_table(dated, known, pd.DataFrame({"day": zoned}), **FEW, start="2019-12-31")


def test_contexts_unlike_training_are_counted(fitted: Fitted) -> None:
    scale = TrainingContexts(outputs=(-1e-3, 1e-3), sizes=(SizeRange(4, -99.0, 0.0),), noise=0.0)
    fitted.model.training_contexts = scale
    try:
        with pytest.warns(ContextWarning) as said:
            predict_table(fitted, days(*"abcde"), pd.DataFrame({"hour": [1.0]}), num_samples=2)
    finally:
        fitted.model.training_contexts = None
    messages = [str(one.message) for one in said]
    assert len(messages) == 4
    assert messages[0].startswith("context, station a: the outputs of the context")
    assert messages[3] == "further contexts unlike training: 2."
    assert {one.filename for one in said} == {__file__}


def test_contexts_with_repeated_inputs_are_counted(fitted: Fitted) -> None:
    twice = pd.concat([days(*"abcde"), days(*"abcde")])
    with pytest.warns(RecordsWarning) as said:
        predict_table(fitted, twice, pd.DataFrame({"hour": [1.0]}), num_samples=2)
    messages = [str(one.message) for one in said]
    assert messages == [
        *(f"context, station {n}: points at the input of another were kept: 3." for n in "abc"),
        "further contexts with points at the input of another: 2.",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"at": pd.DataFrame({"hour": [1.0, 25.0]}, index=["p", "q"])},
            r"^at, row 'q': hour must lie",
        ),
        ({"at": pd.DataFrame({"hour": [1.0, np.nan]})}, "^at, row 1: hour must have no gap"),
        ({"at": pd.DataFrame({"time": [1.0]})}, "^at must have the column 'hour' once"),
        ({"context": days("a").set_index("hour")}, r"^context must .* give context\.reset_index"),
        ({"at": pd.DataFrame({"hour": []})}, "at must hold at least one input"),
        ({"at": [1.0, 2.0]}, "^at must be a CSV file or a pandas DataFrame, got list"),
        ({"context": days("a").assign(station=None)}, "^context, row 0: station must name a"),
        (
            {"context": days("a").assign(hour=[-1.0, 0, 1])},
            "^context, row 0: hour must lie in the model's domain",
        ),
        ({"context": days("a").assign(level="high")}, "^context, row 0: level must be a finite"),
        ({"quantiles": (0.5, 1.0)}, r"quantiles must be different numbers in \(0, 1\)"),
        ({"quantiles": ("0.5",)}, r"quantiles\[0\] must be a finite number, got '0.5'"),
        ({"quantiles": "0.5"}, r"^quantiles must be a list with a finite number in every place"),
        ({"quantiles": np.array([[0.5]])}, r"^quantiles\[0\] must be a finite number, got \[0.5\]"),
        ({"samples": -1}, "samples must be >= 0"),
        ({"num_samples": 0}, "num_samples must be >= 1"),
        ({"seed": 0.5}, "seed must be"),
        ({"y": "hour"}, "columns must have different names, got hour, hour, station"),
        ({"x": "mean"}, "x and group must name no column that the result makes, .* got 'mean'"),
        ({"x": "sample_2", "samples": 10**12}, "x and group must name no column .* 'sample_2'"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    fitted: Fitted, options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"context": days("a"), "at": pd.DataFrame({"hour": [1.0]})} | options
    with pytest.raises(ValueError, match=message):
        predict_table(fitted, given.pop("context"), given.pop("at"), **given)


def test_a_bare_model_is_refused(fitted: Fitted) -> None:
    with pytest.raises(ValueError, match="fitted must be a Fitted, got DANP"):
        predict_table(fitted.model, days("a"), days("a"))  # type: ignore[arg-type]


def test_times_without_the_zone_of_the_training_are_said(dated: Fitted) -> None:
    zoned = replace(dated, layout=replace(dated.layout, zoned=True))
    day = pd.to_datetime(["2020-01-01", "2020-03-01"])
    known, at = pd.DataFrame({"day": day, "level": [5.0, 6.0]}), pd.DataFrame({"day": day})
    for context, who in ((known, "context and at"), (known[:0], "at")):
        message = f"^the times of {who} have none; .* trained on have a zone and became UTC"
        with pytest.warns(RecordsWarning, match=message):
            predict_table(zoned, context, at, **FEW, start="2020-01-01")
    there = at.assign(day=day.tz_localize("UTC"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict_table(dated, known, at, **FEW, start="2020-01-01")
        predict_table(
            zoned, known.assign(day=there["day"]), there, **FEW, start="2020-01-01T00:00Z"
        )


def test_names_that_differ_in_their_type_alone_are_refused(fitted: Fitted) -> None:
    known = days("a").assign(station=31)
    at = pd.DataFrame({"hour": [1.0], "station": ["31"]})
    message = r"^at must name every station as context does, got '31' \(str\), .* 31 \(int\)"
    with pytest.raises(ValueError, match=message):
        predict_table(fitted, known, at, num_samples=2)
    predict_table(fitted, known, at.assign(station=31), num_samples=2)


def test_a_context_that_begins_too_early_is_told_what_to_leave_out(dated: Fitted) -> None:
    day = pd.to_datetime(["2000-01-01", "2020-01-01"])
    known = pd.DataFrame({"day": day, "level": [5.0, 6.0]})
    with pytest.raises(ValueError, match=r"on \(they count from the earliest one here: leave out"):
        predict_table(dated, known, pd.DataFrame({"day": day[1:]}), **FEW)


@pytest.mark.parametrize("own_records", [True, False])
def test_repeated_inputs_count_alike_in_a_table_and_in_tensors(
    fitted: Fitted, own_records: bool
) -> None:
    score = HeldOutScore(1, 0.0, None, 0.0, 0.5, 0.9)
    model = replace(fitted, scores={"danp": score}) if own_records else fitted
    x, y = [20.0, 3.0, 20.0, 6.5, 20.0, 3.0], [5.0, 6.0, 7.0, 4.0, 9.0, 5.0]
    once = [20.0, 3.0, 6.5], [7.0, 5.5, 4.0]
    at = torch.tensor([1.0, 12.25, 20.0], dtype=torch.float64)

    def mean(x: list[float], y: list[float]) -> NDArray[np.float64]:
        context = PointSet(*(torch.tensor([v]).double().unsqueeze(-1) for v in (x, y)))
        generator = torch.Generator().manual_seed(0)
        found = model.predict(context, at, num_samples=4, generator=generator)
        return found.mean.flatten().numpy()

    done = "averaged, as in training" if own_records else "kept"
    message = f"^context: points at the input of another were {done}: 3"
    with pytest.warns(RecordsWarning, match=message):
        by_tensors = mean(x, y)
    known, asked = pd.DataFrame({"hour": x, "level": y}), pd.DataFrame({"hour": at})
    with pytest.warns(RecordsWarning) as said:
        table = predict_table(replace(model, layout=UNGROUPED), known, asked, num_samples=4)
    assert re.match(message, str(said[0].message))
    np.testing.assert_allclose(by_tensors, table["mean"], rtol=1e-6)
    apart = np.abs(by_tensors - mean(*once)).max()
    assert apart < 1e-6 if own_records else apart > 1e-3
