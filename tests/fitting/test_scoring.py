"""Scores on further records: what they agree with, and what cannot be scored."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from danp_lib import PointSet, fit, load_fitted
from danp_lib.data.observations import Observations
from danp_lib.data.points import Task
from danp_lib.fitting import scoring
from danp_lib.fitting.fitted import Fitted
from danp_lib.fitting.records import RecordsWarning, read_records
from danp_lib.fitting.scoring import SCORING_SAMPLES, TASKS_PER_FUNCTION, score_records
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.storage.pretrained import load_pretrained

SHORT: dict[str, Any] = {"num_steps": 80, "compare": (), "progress": False}


def days(count: int, *, seed: int, shift: float = 0.0) -> pd.DataFrame:
    """Sine waves of random phase, 16 hours each."""
    random = np.random.default_rng(seed)
    hour = np.arange(16.0)
    y = 20.0 + 5.0 * np.sin(hour / 2 + random.uniform(0, 2 * np.pi, (count, 1))) + shift
    names = 1000 * seed + np.arange(count)
    columns = {"day": np.repeat(names, 16), "hour": np.tile(hour, count)}
    return pd.DataFrame(columns | {"demand": y.ravel()})


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit(days(70, seed=0), x="hour", y="demand", group="day", **SHORT)


def test_a_score_is_that_of_predictions_in_the_units_of_the_data(fitted: Fitted) -> None:
    later = days(5, seed=1)
    score = score_records(fitted, later, seed=3)
    functions = read_records(later, x="hour", y="demand", group="day").functions
    generator = torch.Generator().manual_seed(3)
    values = []
    for row in torch.randperm(5, generator=generator).tolist():
        # The tasks in the data's units, with inputs in a domain of their own.
        table = PointSet(functions.x[[row]] / 8.0, functions.y[[row]])
        task = Observations(table=table).sample_task(
            TASKS_PER_FUNCTION, context_size=(0, 8), num_targets=8, generator=generator
        )
        context = PointSet(8.0 * task.xc.double(), task.yc.double(), task.context.mask)
        with unchecked_contexts():
            predictive = fitted.predict(
                context, 8.0 * task.xt.double(), num_samples=SCORING_SAMPLES
            )
        values.append(predictive.log_prob(task.yt.double()).mean() / 8)
    assert score.num_functions == 5
    assert score.log_likelihood == pytest.approx(float(torch.stack(values).mean()), abs=1e-3)
    assert score_records(fitted, later, seed=3) == score


def test_what_a_model_has_not_seen_the_like_of_scores_less(fitted: Fitted, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.safetensors")
    days(20, seed=1).to_csv(tmp_path / "later.csv", index=False)
    usual = score_records(load_fitted(tmp_path / "m.safetensors"), tmp_path / "later.csv")
    shifted = score_records(fitted, days(20, seed=1, shift=30.0))
    assert usual.log_likelihood == pytest.approx(fitted.scores["danp"].log_likelihood, abs=0.6)
    assert shifted.log_likelihood < usual.log_likelihood - 5.0
    assert shifted.crps > 3.0 * usual.crps
    assert shifted.coverage_90 < 0.1 < 0.2 < usual.coverage_90


def test_functions_that_are_too_short_are_counted_without_advice(fitted: Fitted) -> None:
    later = days(4, seed=1)
    with pytest.warns(RecordsWarning) as said:
        score = score_records(fitted, later[(later["day"] > 1001) | (later["hour"] < 5)])
    assert score.num_functions == 2
    (message,) = (str(warning.message) for warning in said)
    assert message == "functions with fewer than 8 points were left out: 2 of 4."
    assert said[0].filename == __file__


@pytest.mark.parametrize("tasks", ["random", "forecast"])
def test_a_function_with_few_points_has_a_smaller_context_and_changes_no_other(
    fitted: Fitted, monkeypatch: pytest.MonkeyPatch, tasks: str
) -> None:
    dealt: list[Task] = []
    real = scoring.predict_as_used

    def noted(model: Any, task: Task) -> Any:
        dealt.append(task)
        return real(model, task)

    monkeypatch.setattr(scoring, "predict_as_used", noted)
    model = replace(fitted, provenance=fitted.provenance | {"fit": {"tasks": tasks}})
    later = days(6, seed=1)
    whole = later["day"] % 1000 > 1
    score_records(model, later[whole])
    few = (later["day"] == 1000) & (later["hour"] < 8) | (later["day"] == 1001) & (
        later["hour"] > 4
    )
    with pytest.warns(RecordsWarning) as said:
        score = score_records(model, later[whole | few])
    (message,) = (str(warning.message) for warning in said)
    assert message == (
        "functions with fewer than 16 points have smaller contexts, and come last of 300 at most: "
        "2 of 6."
    )
    assert score.num_functions == 6
    others, first, last = dealt[:4], dealt[4:8], dealt[8:]
    for one, other in zip(others, first, strict=True):
        assert torch.equal(one.yt, other.yt)
        assert torch.equal(one.context.mask, other.context.mask)
    assert {task.context.num_points for task in last} == {0, 3}
    assert all(task.yt.shape == (TASKS_PER_FUNCTION, 8, 1) for task in last)


def test_a_record_without_its_first_value_can_be_scored(fitted: Fitted) -> None:
    gap = days(5, seed=1).assign(demand=lambda f: f["demand"].where(f["hour"] > 0))
    with pytest.warns(RecordsWarning) as said:
        assert score_records(fitted, gap).num_functions == 5
    assert str(said[-1].message).endswith("come last of 300 at most: 5 of 5.")


def test_records_that_were_trained_on_are_said_to_be(fitted: Fitted) -> None:
    functions, every = fitted.provenance["functions"], days(70, seed=0)
    again, held_out = (functions[key][:2] for key in ("trained_on_names", "held_out_names"))
    some = every[every["day"].astype(str).isin(again + held_out)]
    message = rf"trained on: 2 of 4, such as {min(again)}; the score is too good if they are the"
    with pytest.warns(RecordsWarning, match=message):
        score_records(fitted, some)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_records(fitted, some[some["day"].astype(str).isin(held_out)])


def test_points_off_the_domain_are_left_out_and_counted(fitted: Fitted) -> None:
    later = days(5, seed=1)
    beyond = pd.DataFrame({"day": [1000, 1003], "hour": [16.5, -0.5], "demand": [0.0, 99.0]})
    with pytest.warns(RecordsWarning) as said:
        score = score_records(fitted, pd.concat([later, beyond]))
    messages = [str(one.message) for one in said]
    assert messages[-1] == "points off the model's domain were left out: 2 of 82."
    assert score.log_likelihood == pytest.approx(
        score_records(fitted, later).log_likelihood, abs=0.5
    )


def test_windows_of_a_later_series_are_scored_without_their_season() -> None:
    time = 1990.0 + np.arange(12 * 40) / 12.0
    random = np.random.default_rng(1)
    noise = 0.3 * random.normal(size=len(time))
    y = 10.0 + 5.0 * np.cos(2 * np.pi * time) + noise
    series = pd.DataFrame({"x": time, "y": y})
    with pytest.warns(RecordsWarning, match="functions to train on"):
        model = fit(series[:360], width=2.0, period=1.0, model="convgnp", **SHORT)
    with pytest.raises(
        ValueError, match=r"width 2; the longest spans 1\. The width is that of the"
    ):
        score_records(model, series[-12:])
    later = score_records(model, series[360:])
    assert later.num_functions == 5
    assert later.log_likelihood == pytest.approx(model.scores["convgnp"].log_likelihood, abs=1.5)
    off = score_records(model, series[360:].assign(y=10.0 + noise[360:]))
    assert off.log_likelihood < later.log_likelihood - 20.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(hour=f["hour"] + 19.0), r"^hour must lie in the model's domain \[0"),
        (lambda f: f.assign(hour=pd.to_datetime("2020-01-01")), "'hour' must hold numbers, as"),
        (
            lambda f: f[:3],
            "^no function has the 8 points of the targets, as in training; give longer records",
        ),
        (lambda f: f.drop(columns="day"), "must have the column 'day' once"),
    ],
)
def test_what_cannot_be_scored_is_refused(fitted: Fitted, change: Any, message: str) -> None:
    table = change(days(1, seed=1))
    if len(set(table["hour"])) == 1:  # all at one date
        table = table[:1]
    with pytest.raises(ValueError, match=message):
        score_records(fitted, table)
    with pytest.raises(ValueError, match=r"^seed must be"):
        score_records(fitted, table, seed=2**70)
    with pytest.raises(ValueError, match="fitted must be a Fitted, got DANP"):
        score_records(fitted.model, table)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trained on records, got a convcnp that was not"):
        score_records(Fitted(load_pretrained("convcnp-gp")), table)


def test_records_without_the_zone_of_the_training_are_said() -> None:
    times = pd.date_range("2020-01-01", periods=16, freq="h", tz="UTC")
    table = pd.concat([days(1, seed=s).assign(hour=times, day=s) for s in range(70)])
    columns: dict[str, Any] = {"x": "hour", "y": "demand", "group": "day"}
    model = fit(table, **columns, model="convgnp", **SHORT | {"num_steps": 4})
    assert model.layout.zoned is True
    assert model.rule.endswith("in UTC")
    table["day"] += 100
    naive = table.assign(hour=table["hour"].dt.tz_localize(None))
    with pytest.warns(RecordsWarning) as said:
        score_records(model, naive)
    messages = [str(one.message) for one in said]
    assert any(m.startswith("the times of the records have none; those") for m in messages)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score_records(model, table)
