"""What the commands share."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import good, refused
from small_models import MODELS

from danp_lib.cli.arguments import (
    aligned,
    as_text,
    open_fitted,
    saying_warnings,
    start_run,
    with_error,
)
from danp_lib.models.danp import DANP
from danp_lib.training.resume import STATE


def test_what_is_no_json_is_not_printed_as_json() -> None:
    values: dict[str, Any] = {"one": [1, None, 0.1], "two": {"name": "é"}}
    assert json.loads(as_text(values)) == values
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_text({"one": math.nan})


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (1.25, 0.5, "1.2 ±   0.5"),
        (1.25, None, "1.2"),
        (None, None, ""),
        (1234.5, 12.34, "1234.5 ±  12.3"),
    ],
)
def test_a_number_and_its_error(value: float | None, error: float | None, shown: str) -> None:
    assert with_error(value, error, ".1f", width=5) == shown


def test_columns_are_aligned() -> None:
    rows = [("name", "n"), ("a", "10,000"), ("longer", "")]
    assert aligned(rows, left={0}) == ["name         n", "a       10,000", "longer"]


def test_every_warning_of_a_kind_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = warnings.showwarning
    with saying_warnings(UserWarning, where="a.csv"):
        for _ in range(2):  # Python itself shows a warning of one line once
            warnings.warn("twice", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "danp: a.csv: twice\n" * 2
    assert warnings.showwarning is before


def test_a_model_is_opened_by_its_name_or_its_path(checkpoints: dict[str, Path]) -> None:
    named, own = open_fitted("danp-gp"), open_fitted(str(checkpoints["danp"]))
    assert isinstance(named.model, DANP)
    assert isinstance(own.model, DANP)
    assert own.model.config == MODELS["danp"]().config
    assert own.model.config.defensive_weight == 0.0
    defended = open_fitted(str(checkpoints["danp"]), defended=True)
    assert 0.0 < defended.model.config.defensive_weight < 1.0
    with pytest.raises(FileNotFoundError, match="danp-nothing"):
        open_fitted("danp-nothing")


@pytest.mark.parametrize(
    ("option", "value", "right"),
    [("--seed", 2**64, "--seed must be .* got 18446744073709551616"), ("--device", "gpu", "'gpu'")],
)
def test_a_seed_and_a_device_that_are_none_are_refused(
    option: str, value: object, right: str, checkpoints: dict[str, Path]
) -> None:
    line = refused("evaluate", checkpoints["danp"], "--tasks", "gp", option, value)
    assert re.search(right, line)


class TestStartRun:
    def test_a_folder_holds_both_and_a_file_has_its_run_beside_it(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: list[int] = []
        monkeypatch.setattr(torch, "set_num_threads", threads.append)
        assert start_run(here, "danp-gp", None) == (here / "danp-gp.safetensors", here)
        file = here / "mine.safetensors"
        assert threads == []
        assert start_run(file, "danp-gp", 3) == (file, here / "mine.run")
        assert threads == [3]

    def test_what_another_run_has_made_is_not_replaced(self, here: Path) -> None:
        file = here / "mine.safetensors"
        file.touch()
        with pytest.raises(ValueError, match=r"out must be new, or made by the run in .*mine\.run"):
            start_run(file, "danp-gp", None)
        (here / "mine.run").mkdir()
        (here / "mine.run" / STATE).touch()
        assert start_run(file, "danp-gp", None)[0] == file

    def test_no_thread_is_refused(self, here: Path) -> None:
        with pytest.raises(ValueError, match=r"^--threads must be .*0"):
            start_run(here, "danp-gp", 0)
        assert not list(here.iterdir())


def test_help_names_the_choices_of_the_estimator() -> None:
    shown = " ".join(good("evaluate", "--help").replace("│", " ").split())
    assert "model (as published), noising, both, or a rollout" in shown
