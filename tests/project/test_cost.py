"""The benchmark of costs: its numbers of passes, and where it says that two costs cross."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from danp_lib.models.convnp import ARConvCNP, ConvNPConfig
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.storage.checkpoint import load_checkpoint, save_checkpoint
from danp_lib.storage.origin import sha256

FOLDER = Path(__file__).parents[2] / "benchmarks"
TINY = {"points_per_unit": 16, "channels": 4, "num_layers": 2}


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("cost")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        base = ConvNPConfig(**TINY, rank=2)  # type: ignore[arg-type]
        return {
            "ar-convcnp": ARConvCNP(ConvNPConfig(**TINY, rank=0)),  # type: ignore[arg-type]
            "danp": DANP(DANPConfig(base, 2, beta=0.2, num_auxiliary=4)),
        }


def test_the_passes_are_counted_and_those_of_the_paper(cost: Any, models: dict[str, Any]) -> None:
    rows = cost.measure(
        models, num_targets=(2, 7), num_samples=(1, 3), rounds=0, seconds=1.0, most_passes=20
    )
    found = {(row["quantity"], row["num_targets"], row["num_samples"]): row for row in rows}
    assert len(found) == len(rows) == 8
    for (quantity, num_targets, num_samples), row in found.items():
        # The paper has S (F + 1); here the noisiest level is computed once for all samples.
        assert row["danp"] == {"passes": 1 + 2 * num_samples}
        passes = num_targets * (num_samples if quantity == "samples" else 1)
        assert row["ar-convcnp"] == ({"passes": passes} if passes <= 20 else None)
    assert found["samples", 7, 3]["ar-convcnp"] is None


def test_a_wrong_number_of_passes_is_refused(cost: Any, models: dict[str, Any]) -> None:
    both = cost.sides(models["ar-convcnp"], models["danp"], cost.draw_task(3), 2)
    run = both["samples"]["ar-convcnp"]
    assert cost.count_passes(models["ar-convcnp"], run) == run() == 6
    cost._counted(models["ar-convcnp"], run, 6)()
    with pytest.raises(AssertionError, match="formula 7"):
        cost._counted(models["ar-convcnp"], run, 7)()
    with pytest.raises(AssertionError, match="said 5"):
        cost._counted(models["ar-convcnp"], lambda: run() - 1, 6)()


def row(count: int, ar: float | None, danp: float) -> dict[str, Any]:
    def side(passes: int, median: float) -> dict[str, Any]:
        return {"passes": passes, "seconds": {"median": median}}

    return {
        "quantity": "density",
        "num_samples": 4,
        "num_targets": count,
        "ar-convcnp": None if ar is None else side(count, ar),
        "danp": side(13, danp),
    }


def test_the_crossover_of_power_laws_is_exact(cost: Any) -> None:
    # The costs 0.1 N and 2 sqrt(N) are equal at N = 400.
    rows = [row(n, 0.1 * n, 2 * math.sqrt(n)) for n in (10, 100, 1000)]
    found = cost.crossover([*rows, row(2000, None, 1.0)], "density", 4)
    assert found["seconds"] == pytest.approx(400)
    assert found["faster"] is None
    assert found["passes"] == 13


@pytest.mark.parametrize(("factor", "faster"), [(1e-3, "ar-convcnp"), (1e3, "danp")])
def test_there_is_none_where_one_side_is_always_faster(
    cost: Any, factor: float, faster: str
) -> None:
    rows = [row(n, factor * n, 1.0) for n in (10, 100)]
    found = cost.crossover(rows, "density", 4)
    assert (found["seconds"], found["faster"]) == (None, faster)


def test_timings_have_a_median_between_their_quartiles(cost: Any, models: dict[str, Any]) -> None:
    (_, density) = cost.measure(
        models, num_targets=(2,), num_samples=(1,), rounds=4, seconds=0.0, most_passes=20
    )
    for name in ("ar-convcnp", "danp"):
        assert density[name]["rounds"] == 3
        seconds = density[name]["seconds"]
        assert 0.0 < seconds["lower_quartile"] <= seconds["median"] <= seconds["upper_quartile"]


def test_the_models_are_the_recipes(cost: Any) -> None:
    for kind, levels in (("danp", 3), ("ar-convcnp", None)):
        model, about = cost.load_model(kind)
        assert model.name == kind
        assert about["name"] == f"{kind}-sawtooth"
        assert about["configuration"].get("num_levels") == levels
        assert about["parameters"] > 100_000
        assert not model.training


def test_a_trained_model_is_taken_whatever_its_configuration(
    cost: Any, models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "danp-sawtooth.safetensors"
    save_checkpoint(path, models["danp"])
    monkeypatch.setattr(cost, "pretrained_path", lambda name: path)
    monkeypatch.setattr(cost, "load_pretrained", lambda name: load_checkpoint(path))
    model, about = cost.load_model("danp")
    assert model.config == models["danp"].config
    assert about["weights"] == sha256(path)


@pytest.mark.parametrize("options", [["--rounds", "0"], ["--most-passes", "1"]])
def test_a_run_without_timings_is_saved_without_crossovers(
    cost: Any,
    models: dict[str, Any],
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cost, "load_model", lambda kind: (models[kind], {}))
    sizes = ["--num-targets", "2", "--num-samples", "1"]
    threads = ["--threads", str(torch.get_num_threads())]
    monkeypatch.setattr("sys.argv", ["cost.py", *sizes, *threads, *options, "--out", str(tmp_path)])
    cost.main()
    saved = json.loads((tmp_path / "cost.json").read_text())
    assert saved["crossovers"] == []
    assert len(saved["rows"]) == 2
