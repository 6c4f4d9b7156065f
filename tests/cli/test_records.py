"""``danp train --data`` and ``danp predict`` on its checkpoint: three commands from a file."""

from __future__ import annotations

import csv
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner, Result

from danp_lib import PointSet, fit, load_fitted
from danp_lib._config import to_dict
from danp_lib.cli import records as records_command
from danp_lib.cli import train as train_command
from danp_lib.cli.main import app
from danp_lib.data.points import Task
from danp_lib.fitting.fit import Interrupted
from danp_lib.fitting.records import RecordsWarning
from danp_lib.fitting.scoring import score_records
from danp_lib.storage.tasks import save_tasks


def danp(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of days in many stations, and a model of them."""
    folder = tmp_path_factory.mktemp("records")
    random = np.random.default_rng(0)
    lines = ["station,date,level"]
    for station in range(64):
        phase = random.uniform(0, 6)
        lines += [
            f"s{station},2020-01-{day + 1:02d},{np.sin(day / 3 + phase):.4f}" for day in range(20)
        ]
    (folder / "records.csv").write_text("\n".join([*lines, "s0,2020-02-01,"]))
    columns = ["--x", "date", "--y", "level", "--group", "station"]
    result = danp(
        *("train", "--data", folder / "records.csv", *columns, "--steps", 4),
        *("--threads", 1, "--out", folder / "m.safetensors"),
    )
    assert result.exit_code == 0, result.output
    assert "| DANP | " in result.stdout
    assert "| ConvGNP | " in result.stdout
    assert "| Gaussian process | " in result.stdout
    assert "rows without an output were left out: 1." in result.stderr
    return folder


def test_the_card_says_what_it_was_trained_on(trained: Path) -> None:
    card = (trained / "m.md").read_text(encoding="utf-8")
    assert "| Records | records.csv, columns date, level, station |" in card
    assert "| Functions | 51 to train on, 13 held out by group |" in card
    assert "| DANP | " in card


def test_info_begins_with_the_card_in_the_units_of_the_data(trained: Path) -> None:
    result = danp("info", trained / "m.safetensors")
    card, configuration = result.stdout.split("\nmodel ")
    named = (trained / "m.md").read_text(encoding="utf-8")
    assert card == named.replace("records.csv, columns", "columns")
    assert "| Inputs | must lie in the model's domain [2020-01-01, 2020-01-20] |" in card
    assert "scaling" in configuration
    assert json.loads(danp("info", trained / "m.safetensors", "--json").stdout)["model"] == "danp"


def test_predict_answers_every_group_with_dates_as_python_does(trained: Path) -> None:
    context, at, out = (trained / name for name in ("context.csv", "at.csv", "out.csv"))
    context.write_text("station,date,level\na,2020-01-03,0.5\nb,2020-01-03,-0.5\nb,2020-01-09,0\n")
    at.write_text("date\n2020-01-05\n2020-01-20\n")
    files = ("--context", context, "--at", at, "--out", out)
    result = danp("predict", trained / "m.safetensors", *files, "--num-samples", 16)
    assert result.exit_code == 0, result.output
    rows = read(out)
    assert [(row["station"], row["date"]) for row in rows] == [
        (station, date) for station in "ab" for date in ("2020-01-05", "2020-01-20")
    ]
    text = " ".join(danp("predict", "--help").stdout.split())
    assert "the order of --at, or where that names no group, of one group after the other." in text
    fitted = load_fitted(trained / "m.safetensors")
    x = 2020.0 + torch.tensor([2.0, 8.0], dtype=torch.float64).reshape(1, -1, 1) / 365.2425
    x = x - x[0, 0, 0] + float(_years("2020-01-03"))
    known = PointSet(x, torch.tensor([-0.5, 0.0]).reshape(1, -1, 1).double())
    wanted = torch.tensor([_years("2020-01-05"), _years("2020-01-20")], dtype=torch.float64)
    # The two random streams differ, and the mean of so many samples hardly does.
    there = fitted.predict(known, wanted, num_samples=4096)
    result = danp("predict", trained / "m.safetensors", *files, "--num-samples", 4096)
    assert result.exit_code == 0, result.output
    for row, mean, sd in zip(
        read(out)[2:], there.mean.flatten().tolist(), there.stddev.flatten().tolist(), strict=True
    ):
        assert float(row["mean"]) == pytest.approx(mean, abs=0.1 * sd)
        assert float(row["sd"]) == pytest.approx(sd, rel=0.1)


def test_what_only_the_inputs_name_is_refused(trained: Path) -> None:
    (trained / "context.csv").write_text("date,level\n2020-01-03,0.5\n")
    (trained / "at.csv").write_text("station,date\na,2020-01-05\nb,2020-01-05\n")
    files = [f"--{n}={trained / n}.csv" for n in ("context", "at")]
    result = danp("predict", trained / "m.safetensors", *files, "--out", trained / "o.csv")
    assert result.exit_code == 2
    assert "context.csv must have the column 'station', as" in result.stderr


def test_a_group_whose_outputs_are_all_missing_is_said_to_have_no_point(trained: Path) -> None:
    (trained / "context.csv").write_text("station,date,level\na,2020-01-03,0.5\nb,2020-01-03,\n")
    (trained / "at.csv").write_text("date\n2020-01-05\n")
    files = [f"--{n}={trained / n}.csv" for n in ("context", "at")]
    options = (*files, "--out", trained / "o.csv", "--num-samples", 4)
    result = danp("predict", trained / "m.safetensors", *options)
    assert result.exit_code == 0
    assert "none of this station: b;" in result.stderr
    assert [row["station"] for row in read(trained / "o.csv")] == ["a", "b"]


def test_a_warning_about_the_records_comes_before_the_training(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        warnings.warn("12 functions", RecordsWarning, stacklevel=2)
        assert "records.csv: 12 functions" in capsys.readouterr().err
        raise Interrupted

    monkeypatch.setattr(records_command, "fit", stopped)
    shown = warnings.showwarning
    with pytest.raises(Interrupted):
        records_command.run_records(
            data=Path("records.csv"),
            out=trained / "other.safetensors",
            model="danp",
            threads=None,
            num_levels=None,
        )
    assert warnings.showwarning is shown


def test_a_model_is_scored_on_records_that_come_later(trained: Path, tmp_path: Path) -> None:
    lines = ["station,date,level"]
    lines += [
        f"t{s},2020-01-{d + 1:02d},{np.sin(d / 3 + s):.4f}" for s in range(3) for d in range(20)
    ]
    (tmp_path / "later.csv").write_text("\n".join([*lines, "t0,2020-01-30,"]))
    files = ("evaluate", trained / "m.safetensors", "--data", tmp_path / "later.csv")
    result = danp(*files)
    assert result.exit_code == 0, result.output
    assert "later.csv: rows without an output were left out: 1." in result.stderr
    heading, later, held_out = (line.split("  ") for line in result.stdout.splitlines())
    assert heading[0] == "functions of"
    assert (later[0], held_out[0]) == ("later.csv", "held out in training")
    found = json.loads(danp(*files, "--json").stdout)
    assert found["data"]["num_functions"] == 3
    fitted = load_fitted(trained / "m.safetensors")
    assert found["held_out"] == to_dict(fitted.scores["danp"])
    with pytest.warns(RecordsWarning):
        assert found["data"] == to_dict(score_records(fitted, tmp_path / "later.csv"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "evaluate needs --tasks, or --data, and not both."),
        (("--tasks", "gp", "--data", "a.csv"), "evaluate needs --tasks, or --data, and not both."),
        (("--tasks", "gp", "--x", "t"), "--x, --y and --group do not go with --tasks."),
        (
            ("--data", "a.csv", "--estimator", "both"),
            "--estimator, --num-samples and --device do not go with --data.",
        ),
        (("--data", "a.csv"), "trained on records, got a convcnp that was not"),
    ],
)
def test_evaluate_refuses_options_that_do_not_go_together(
    options: tuple[str, ...], message: str
) -> None:
    result = danp("evaluate", "convcnp-gp", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def _years(date: str) -> float:
    days = (np.datetime64(date) - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
    return 1970.0 + float(days) / 365.2425


def test_inputs_may_name_their_group_and_repeated_ones_are_said(trained: Path) -> None:
    context, at, out = (trained / name for name in ("context.csv", "at.csv", "out.csv"))
    context.write_text("station,date,level\na,2020-01-03,0.5\na,2020-01-03,0.4\n")
    at.write_text("date,station\n2020-01-05,a\n2020-01-06,c\n")
    files = ("--context", context, "--at", at, "--out", out, "--num-samples", 4)
    result = danp("predict", trained / "m.safetensors", *files)
    assert result.exit_code == 0, result.output
    assert [(row["station"], row["date"]) for row in read(out)] == [
        ("a", "2020-01-05"),
        ("c", "2020-01-06"),
    ]
    assert "points at the input of another were averaged, as in training: 1." in result.stderr
    repeated = read(out)
    context.write_text("station,date,level\na,2020-01-03,0.45\n")
    assert danp("predict", trained / "m.safetensors", *files).exit_code == 0
    for one, other in zip(repeated, read(out), strict=True):
        for key in ("mean", "sd", "q0.95"):
            assert float(one[key]) == pytest.approx(float(other[key]), rel=1e-5)


def test_a_context_may_have_no_rows_and_no_groups(trained: Path) -> None:
    context, at, out = (trained / name for name in ("context.csv", "at.csv", "out.csv"))
    files = ("--context", context, "--at", at, "--out", out, "--num-samples", 4)
    at.write_text("date\n2020-01-05\n2020-01-06\n")
    context.write_text("station,date,level\n")
    result = danp("predict", trained / "m.safetensors", *files)
    assert result.exit_code == 0, result.output
    assert [row["date"] for row in read(out)] == ["2020-01-05", "2020-01-06"]
    context.write_text("Station,date,level\na,2020-01-03,0.5\nb,2020-01-04,0.1\n")
    result = danp("predict", trained / "m.safetensors", *files)
    assert "taken for one function, since no column is 'station'" in result.stderr
    assert len(read(out)) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("date\n2020-03-01\n", "line 2: date must lie in the model's domain"),
        ("date\n17.5\n", "line 2: date must be a date such as 1958-03-29"),
        ("date\nsoon\n", "line 2: date must be a number in every line, or a date"),
    ],
)
def test_predict_refuses_other_dates(trained: Path, content: str, message: str) -> None:
    (trained / "context.csv").write_text("date,level\n")
    (trained / "at.csv").write_text(content)
    files = [f"--{n}={trained / n}.csv" for n in ("context", "at")]
    result = danp("predict", trained / "m.safetensors", *files, "--out", trained / "o.csv")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "train needs --dataset, or --data"),
        (("--data", "a.csv", "--dataset", "gp"), "train needs --dataset, or --data"),
        (("--dataset", "gp", "--group", "g"), "--group does not go with --dataset."),
        (("--data", "a.csv", "--recipe", "paper"), "--recipe does not go with --data."),
        (("--data", "missing.csv", "--group", "g"), "missing.csv"),
        (("--data", "a.csv", "--hold-out-by", "luck"), "hold_out_by must be"),
        (
            ("--data", "a.csv", "--model", "convgnp", "--levels", "2"),
            "num_levels (--levels) is for a danp",
        ),
    ],
)
def test_train_refuses_options_that_do_not_go_together(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n0,0\n1,1\n")
    result = danp("train", "--out", "m.safetensors", *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_predictions_of_mixed_groups_are_in_the_order_asked(trained: Path) -> None:
    asked = [("b", "2020-01-05"), ("a", "2020-01-06"), ("b", "2020-01-04"), ("new", "2020-01-09")]
    context, at, out, alone = (trained / f"{n}.csv" for n in ("context", "at", "out", "alone"))
    context.write_text("station,date,level\na,2020-01-03,0.5\nb,2020-01-03,-0.5\n")
    at.write_text("\n".join(["station,date", *map(",".join, asked)]))
    files = ("--context", context, "--at", at, "--num-samples", 4, "--samples", 1)
    result = danp("predict", trained / "m.safetensors", *files, "--out", out)
    assert result.exit_code == 0, result.output
    rows = read(out)
    assert [(row["station"], row["date"]) for row in rows] == asked
    assert "predicted from no point" in result.stderr
    assert "none of this station: new;" in result.stderr
    # Where one group comes after the other, nothing is put back.
    at.write_text("\n".join(["station,date", *(",".join(asked[i]) for i in (0, 2, 1, 3))]))
    result = danp("predict", trained / "m.safetensors", *files, "--out", alone)
    assert [rows[i] for i in (0, 2, 1, 3)] == read(alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--group", "date"), "columns must have different names, got date, level, date."),
        (("--group", "level"), "columns must have different names, got date, level, level."),
        (
            ("--group", "mean"),
            "no column that the result makes, such as mean, got 'date' and 'mean'.",
        ),
        ((), "context.csv, line 3: station must name a function in every row, got ''."),
    ],
)
def test_predict_refuses_groups_that_it_cannot_tell_apart(
    trained: Path, options: tuple[str, ...], message: str
) -> None:
    (trained / "context.csv").write_text("station,date,level\na,2020-01-03,0\n,2020-01-04,0\n")
    (trained / "at.csv").write_text("date\n2020-01-05\n")
    files = [f"--{n}={trained / n}.csv" for n in ("context", "at")]
    result = danp("predict", trained / "m.safetensors", *files, *options, "--out", trained / "o")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.fixture(scope="module")
def seasonal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ConvGNP of series with a cycle that is far larger than all else, in windows."""
    random = np.random.default_rng(0)
    x = np.arange(1400.0)
    y = 100.0 * np.sin(2 * np.pi * x / 10) + random.normal(size=1400)
    path = tmp_path_factory.mktemp("seasonal") / "m.safetensors"
    fit(
        pd.DataFrame({"x": x, "y": y}),
        width=20.0,
        period=10.0,
        model="convgnp",
        compare=(),
        num_steps=2,
        progress=False,
    ).save(path)
    return path


def test_the_card_says_that_windows_overlap(seasonal: Path) -> None:
    row = r"\| Functions \| 1101 overlapping windows to train on, 14 held out by time \|"
    assert re.search(row, danp("info", seasonal).stdout)


def test_help_says_which_options_do_not_go_with_own_records() -> None:
    text = " ".join(danp("train", "--help").stdout.split())
    said = re.search(r"No (--[^.]*) goes with it\.", text)
    assert said
    spelled = {"compile_model": "compile", "max_minutes": "max-minutes"}
    options = {f"--{spelled.get(name, name)}" for name in train_command._OF_RECIPES}
    assert set(re.findall(r"--[\w-]+", said[1])) == options


def test_evaluate_names_the_option_for_own_records(seasonal: Path) -> None:
    result = danp("evaluate", seasonal, "--tasks", "gp")
    assert result.exit_code == 2
    assert "is of your own records; score it by --data, not gp." in result.stderr


def test_evaluate_takes_out_the_season_and_counts_from_each_start(seasonal: Path) -> None:
    x = torch.tensor([3.0, 5.0, 8.0, 1203.0, 1205.0, 1208.0], dtype=torch.float64).reshape(2, 3, 1)
    points = PointSet(x, 100.0 * (2 * torch.pi * x / 10).sin())
    first, others = slice(0, 1), slice(1, 3)
    task = Task(*(PointSet(points.x[:, s], points.y[:, s]) for s in (first, others)))
    save_tasks(seasonal.parent / "tasks", task, metadata={})
    options = ("--tasks", seasonal.parent / "tasks", "--estimator", "model", "--num-samples", 1)
    found = json.loads(danp("evaluate", seasonal, *options, "--json").stdout)
    fitted = load_fitted(seasonal)
    expected = fitted.predict(task.context, task.xt).log_prob(task.yt) / 2
    scores = [record["log_likelihood"] for record in found["tasks"]]
    assert scores == pytest.approx(expected.tolist(), rel=1e-4)
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)


def test_a_page_answers_without_the_defensive_component(trained: Path) -> None:
    pytest.importorskip("wasmtime")
    result = danp("export", "--web", trained / "m.safetensors", "--out", trained / "page")
    assert result.exit_code == 0
    assert "the page answers without the defensive component" in result.stderr
    assert (trained / "page" / "index.html").is_file()


def test_a_season_is_not_lost_on_a_page(seasonal: Path) -> None:
    result = danp("export", "--web", seasonal, "--out", seasonal.parent / "page")
    assert result.exit_code == 2
    assert "trained without --period, got" in result.stderr
