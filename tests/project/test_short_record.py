"""The stored benchmark of a short record: what was run, and what it shows."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
RESULT: dict[str, Any] = json.loads((ROOT / "results" / "short-record.json").read_text("utf-8"))


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("statsmodels")  # of the extra "book"
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("short_record")


def test_it_has_a_row_for_each_division_and_number_of_updates(benchmark: Any) -> None:
    assert re.fullmatch("[0-9a-f]{40}", RESULT["commit"])
    assert RESULT["options"] == benchmark.OPTIONS
    assert [(row["by"], row["seed"], row["num_steps"]) for row in RESULT["rows"]] == [
        (by, seed, count) for by, seed in benchmark.DIVISIONS for count in benchmark.NUM_STEPS
    ]


def test_the_gaussian_process_is_ahead_by_more_than_the_interval_of_the_difference() -> None:
    for row in RESULT["rows"]:
        scores = row["scores"]
        assert list(scores) == ["danp", "convgnp", "gp"]
        gap = scores["danp"]["log_likelihood"] - scores["gp"]["log_likelihood"]
        assert scores["gp"]["behind"] == pytest.approx(gap, abs=1e-9)
        assert scores["gp"]["behind"] < -scores["gp"]["behind_ci95"]


def test_networks_memorize_the_windows_with_the_usual_updates() -> None:
    longest = [row["scores"] for row in RESULT["rows"] if row["num_steps"] == 6000]
    assert len(longest) == 3
    for scores in longest:
        assert max(scores[name]["coverage_90"] for name in ("danp", "convgnp")) < 0.8
        assert scores["gp"]["coverage_90"] > 0.8


def test_a_run_is_of_the_options_and_of_the_series(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def noted(frame: pd.DataFrame, **options: Any) -> SimpleNamespace:
        asked.update(options)
        assert len(frame) == 61 * 12
        assert frame["year"].diff().dropna().between(0.083, 0.0834).all()
        assert 15.0 < frame["celsius"].min() < frame["celsius"].max() < 30.0
        return SimpleNamespace(scores={})

    monkeypatch.setattr(benchmark, "fit", noted)
    row = benchmark.score("blocks", 1, 250, tmp_path)
    assert row == {"by": "blocks", "seed": 1, "num_steps": 250, "scores": {}}
    run = {"hold_out_by": "blocks", "seed": 1, "num_steps": 250}
    files = {"x": "year", "y": "celsius", "folder": tmp_path / "blocks-1-250"}
    assert asked == benchmark.OPTIONS | run | files
