"""The workflow of `make reproduce`, the whole of it in miniature."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from workflow_runs import jobs_of, snakemake

from danp_lib.evaluation.results import load_result
from danp_lib.evaluation.score import Evaluation
from danp_lib.storage.card import read_card
from danp_lib.storage.origin import sha256
from danp_lib.storage.tasks import benchmark_tasks, save_tasks

pytestmark = pytest.mark.thorough

MINIATURE: dict[str, Any] = {
    "device": "cpu",
    "models": {
        "danp-sawtooth": "--model danp --steps 2",
        "ar-convcnp-sawtooth": "--model ar-convcnp --steps 1",
    },
    "papers_recipe": [],
    "papers_recipe_alone": {},
    "estimators": {
        "danp": {"both": 4},
        "ar-convcnp": {"autoregressive": 1},
        "ceiling": {"exact": 1},
    },
    "more_estimators": {},
    "compiled": None,
    "marginals": "--num-samples 4",
    "used": "--num-samples 4",
    "samples": {"results/danp-sawtooth": "--max-samples 100"},
    "cost": "--threads 1 --num-targets 1 2 --num-samples 2 --seconds 0",
}
TASKS = torch.tensor([0, 20, 105, 309])
"""Benchmark tasks with 0, 2, 10 and 30 context points."""


def run_miniature(folder: Path, *options: str) -> str:
    config = ("--configfile", str(folder / "miniature.yaml"), "--replace-workflow-config")
    return snakemake(folder, "--cores", "1", *config, *options)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the workflow has run, from training to figures."""
    folder = tmp_path_factory.mktemp("miniature")
    tasks = folder / "benchmark_tasks" / "sawtooth.safetensors"
    tasks.parent.mkdir()
    save_tasks(tasks, benchmark_tasks("sawtooth")[TASKS], metadata={})
    hashes = json.dumps({"sawtooth": sha256(tasks)})
    tasks.with_name("hashes.json").write_text(hashes, encoding="utf-8")
    (folder / "miniature.yaml").write_text(yaml.safe_dump(MINIATURE), encoding="utf-8")
    run_miniature(folder)
    return folder


def test_the_miniature_leaves_weights_results_table_and_figures(miniature: Path) -> None:
    for name in MINIATURE["models"]:
        card = read_card(miniature / "checkpoints" / f"{name}.safetensors")
        assert (card.name, card.steps) == (name, 2 if name == "danp-sawtooth" else 1)
    for path in (miniature / "results").glob("*-*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["dataset"] == "sawtooth"
    result = load_result(miniature / "results" / "danp-sawtooth-both.json", Evaluation)
    assert [t.context_size for t in result.content.tasks] == [0, 2, 10, 30]
    assert result.origin.weights == sha256(miniature / "checkpoints" / "danp-sawtooth.safetensors")
    rows = json.loads((miniature / "reproduced" / "table-1.json").read_text(encoding="utf-8"))
    # The scores are the folder's own, not those that the library came with.
    assert rows["sawtooth"]["danp"]["ours"] == result.content.average_likelihood
    assert rows["sawtooth"]["convgnp"]["ours"] is None
    assert rows["square"]["ceiling"]["ours"] is None
    score = f"{result.content.average_likelihood:.2f}"
    assert score in (miniature / "reproduced" / "table-1.txt").read_text(encoding="utf-8")
    for name in ("figure-4", "figure-5", "cost"):
        picture = miniature / "reproduced" / name
        assert picture.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in picture.with_suffix(".svg").read_text(encoding="utf-8")


def test_a_second_run_does_nothing(miniature: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (miniature / "reproduced").iterdir()}
    assert "Nothing to be done" in run_miniature(miniature)
    assert len(before) == 8
    assert before == {path: path.stat().st_mtime_ns for path in before}


OF_THE_AR_CONVCNP = [
    ("cost", "results/cost.json"),
    ("evaluate", "results/ar-convcnp-sawtooth-autoregressive.json"),
    ("figures", "reproduced/figure-4.png"),
    ("marginals", "results/ar-convcnp-sawtooth-marginals.json"),
    ("table", "reproduced/table-1.txt"),
]


def test_a_missing_checkpoint_is_trained_and_what_depends_on_it_made_anew(miniature: Path) -> None:
    path = miniature / "checkpoints" / "ar-convcnp-sawtooth.safetensors"
    away = path.rename(miniature / "away")
    try:
        jobs = jobs_of(run_miniature(miniature, "--dry-run"))
    finally:
        away.rename(path)
    assert jobs == [*OF_THE_AR_CONVCNP, ("train", "checkpoints/ar-convcnp-sawtooth.safetensors")]


def test_the_cards_of_a_deleted_checkpoint_do_not_stop_its_training(tmp_path: Path) -> None:
    # As in a clone, which has no state of the runs that made them.
    (tmp_path / "miniature.yaml").write_text(yaml.safe_dump(MINIATURE), encoding="utf-8")
    path = tmp_path / "checkpoints" / "ar-convcnp-sawtooth.safetensors"
    path.parent.mkdir()
    for card in (path.with_suffix(".json"), path.with_suffix(".md")):
        card.write_text("of the checkpoint that was deleted", encoding="utf-8")
    run_miniature(tmp_path, "checkpoints/ar-convcnp-sawtooth.safetensors")
    assert read_card(path).sha256 == sha256(path)


def test_results_of_other_weights_are_made_anew(miniature: Path) -> None:
    # As after an interruption between training anew and evaluating.
    path = miniature / "checkpoints" / "ar-convcnp-sawtooth.safetensors"
    before, date = path.read_bytes(), path.stat().st_mtime_ns
    path.write_bytes(before + b" ")
    try:
        jobs = jobs_of(run_miniature(miniature, "--dry-run"))
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(date, date))
    assert jobs == OF_THE_AR_CONVCNP
