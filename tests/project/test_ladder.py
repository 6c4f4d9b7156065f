"""The ladder: its ends are the two recipes, and every rung changes what it names and no more."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from danp_lib._config import from_dict, to_dict
from danp_lib.models.danp import DANPConfig
from danp_lib.storage.origin import sha256
from danp_lib.training.config import TrainingConfig
from danp_lib.training.recipes import recipe

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
OBSERVING = ("log_every", "validate_every", "num_validation_batches", "keep_best")


@pytest.fixture
def ladder(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("ladder")


def leaves(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        more = leaves(value, f"{path}{key}.") if isinstance(value, Mapping) else {path + key: value}
        found |= more
    return found


def settings(configs: tuple[Any, Any]) -> dict[str, Any]:
    """All settings of a run, those of the network under ``base`` for any model."""
    config, training = configs
    parts = to_dict(config) if isinstance(config, DANPConfig) else {"base": to_dict(config)}
    found = leaves(parts | {"training": to_dict(training)})
    return {key: value for key, value in found.items() if key.rpartition(".")[2] not in OBSERVING}


@pytest.mark.parametrize("dataset", ["sawtooth", "square-released"])
@pytest.mark.parametrize("model", ["danp", "convgnp"])
def test_each_rung_changes_only_what_it_names(ladder: Any, model: str, dataset: str) -> None:
    runs = [ladder.Run(model, dataset, rung, 0, 14_000) for rung in ladder.RUNGS]
    steps = [settings(run.configs()) for run in runs]
    ends = (
        recipe(name, model=model, dataset=dataset, num_steps=14_000) for name in ("paper", "fast")
    )
    first, last = (settings((end.model_config, end.training)) for end in ends)
    assert (steps[0], steps[-1]) == (first, last)
    for run, before, after in zip(runs[1:], steps, steps[1:], strict=False):
        changed = {key for key in after if before[key] != after[key]}
        named = ladder.RUNGS[run.rung]
        assert changed, run.rung
        for path in named:
            assert any(key == path or key.startswith(f"{path}.") for key in changed), path
        assert all(any(f"{key}.".startswith(f"{path}.") for path in named) for key in changed)


@pytest.mark.parametrize("dataset", ["sawtooth", "square-released"])
@pytest.mark.parametrize("model", ["danp", "convgnp"])
def test_what_is_taken_back_is_the_papers(ladder: Any, model: str, dataset: str) -> None:
    first, last = (
        settings(ladder.Run(model, dataset, rung, 0, 14_000).configs())
        for rung in (ladder.PAPER, ladder.FAST)
    )
    for rung, paths in ladder.TAKEN_BACK.items():
        found = settings(ladder.Run(model, dataset, rung, 0, 14_000).configs())
        for key in found.keys() | last.keys():
            back = any(f"{key}.".startswith(f"{path}.") for path in paths)
            assert found.get(key) == (first if back else last).get(key), (rung, key)


def test_of_the_rung_of_muon_either_part_is_the_papers(ladder: Any) -> None:
    def made(rung: str) -> dict[str, Any]:
        return settings(ladder.Run("danp", "sawtooth", rung, 0, 14_000).configs())

    first, whole = made(ladder.PAPER), made(ladder.MUON)
    changed = {
        rung: {
            key.removeprefix("training."): found[key] for key in found if found[key] != whole[key]
        }
        for rung in ladder.TAKEN_APART
        if (found := made(rung))
    }
    adam = {"optimizer": "adam", "muon_weight_decay": 0.0}
    assert list(changed.values()) == [
        {"schedule": "constant"},
        adam,
        adam | {"learning_rate": first["training.learning_rate"]},
    ]


def test_the_ends_have_a_second_seed(ladder: Any) -> None:
    runs = list(ladder.ladder(["danp", "convgnp"], ["sawtooth", "square-released"], 14_000))
    assert len(runs) == len({run.name for run in runs}) == 2 * 2 * (7 + 4 + 3 + 2)
    second = {run.rung for run in runs if run.seed == 1}
    assert second == {"paper", "conditioning"}
    assert {run.num_steps for run in runs} == {14_000}


def test_the_last_rung_is_the_shipped_model_and_no_other_is(ladder: Any) -> None:
    runs = ladder.ladder(["danp", "convgnp"], ["sawtooth", "square-released"], 14_000)
    found = {run.name: path for run in runs if (path := ladder.shipped(run)) is not None}
    assert {path.stem for path in found.values()} == {
        "danp-sawtooth",
        "danp-seed1-sawtooth",
        "danp-square-released",
        "convgnp-sawtooth",
        "convgnp-square-released",
    }
    assert all(f"-{list(ladder.RUNGS).index(ladder.FAST)}-" in name for name in found)
    assert ladder.shipped(ladder.Run("danp", "sawtooth", ladder.FAST, 0, 7_000)) is None


class InPlace:
    """The pool's part, in this process, where the small network is."""

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def __enter__(self) -> InPlace:
        return self

    def __exit__(self, *error: object) -> None: ...

    def submit(self, function: Any, *arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        return type("Done", (), {"result": lambda self: result})()


def test_what_is_scored_stays(
    ladder: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tiny(*names: str, **options: Any) -> Any:
        made = recipe(*names, **options)
        config: Any = made.model_config
        size: dict[str, Any] = {"points_per_unit": 16, "channels": 4, "num_layers": 2, "rank": 2}
        if isinstance(config, DANPConfig):
            return replace(made, model_config=replace(config, base=replace(config.base, **size)))
        return replace(made, model_config=replace(config, **size))

    monkeypatch.setattr(ladder, "recipe", tiny)
    monkeypatch.setattr(ladder, "CONTEXT_SIZES", (0, 3))
    monkeypatch.setattr(ladder.torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(ladder, "ProcessPoolExecutor", InPlace)
    monkeypatch.setattr(ladder, "as_completed", lambda jobs: jobs)
    path = tmp_path / "results" / "ladder.json"
    shared = ["--steps", "2", "--num-samples", "4", "--datasets", "sawtooth"]
    shared += ["--runs", str(tmp_path / "runs"), "--out", str(path)]
    for rungs in (["paper"], ["paper", "conditioning"]):
        monkeypatch.setattr("sys.argv", ["ladder.py", *shared, "--rungs", *rungs])
        ladder.main()
        said = capsys.readouterr().out.splitlines()
        assert len(said) == 4  # two models, two seeds: the first rung is not run again
        assert all(rungs[-1] in line for line in said)
    saved = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert [run["seed"] for run in saved] == 4 * [0, 1]
    for run in saved:
        assert (run["num_tasks"], run["num_steps"]) == (4, 2)
        assert run["estimator"] == ("both" if run["model"] == "danp" else "exact")
        assert run["origin"].keys() == {"commit", "hardware", "danp_lib", "torch"}
        assert len(run["validation"]) == (4 if run["model"] == "danp" else 1)


def test_stored_runs_are_those_of_the_ladder(ladder: Any) -> None:
    stored = json.loads((ROOT / "results" / "ladder.json").read_text(encoding="utf-8"))
    assert stored["rungs"] == {rung: list(paths) for rung, paths in ladder.RUNGS.items()}
    assert stored["taken_back"] == {name: list(paths) for name, paths in ladder.TAKEN_BACK.items()}
    assert stored["taken_apart"] == {
        name: list(paths) for name, paths in ladder.TAKEN_APART.items()
    }
    assert stored["seed"] == ladder.SEED
    runs = {
        ladder.Run(*(run[f.name] for f in dataclasses.fields(ladder.Run))): run
        for run in stored["runs"]
    }
    assert len(runs) == len(stored["runs"])
    climbed = {(rung, 0) for rung in (*ladder.RUNGS, "the paper's network again")}
    seeds = {(rung, 1) for rung in (ladder.PAPER, ladder.FAST)}
    alone = {(rung, 0) for rung in ladder.BRANCHES}
    expected = {
        ("danp", "sawtooth"): climbed | seeds | alone,
        ("convgnp", "sawtooth"): climbed | seeds,
        ("danp", "square-released"): climbed | seeds,
        ("convgnp", "square-released"): climbed | seeds,
    }
    for model, dataset in expected:
        of_both = (run for run in runs if (run.model, run.dataset) == (model, dataset))
        assert {(run.rung, run.seed) for run in of_both} == expected[model, dataset]
    assert {(run.model, run.dataset) for run in runs} == expected.keys()
    for run, record in runs.items():
        config, training = run.configs()
        assert from_dict(type(config), record["config"], name="config") == config
        assert TrainingConfig.from_provenance(record["training"]) == training
        checkpoint, path = record["origin"].get("checkpoint"), ladder.shipped(run)
        assert (checkpoint and checkpoint["sha256"]) == (path and sha256(path))
        assert not record["origin"]["commit"].endswith("-dirty")
