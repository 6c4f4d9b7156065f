"""The workflow of `make reproduce`: what it plans, and the whole of it in miniature."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from danp_lib.data.generators import DATASETS, split_name
from danp_lib.data.points import save_tasks
from danp_lib.evaluation.marginals import Marginals
from danp_lib.evaluation.results import load_result
from danp_lib.evaluation.score import Evaluation
from danp_lib.storage.card import read_card
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import PRETRAINED
from danp_lib.storage.tasks import benchmark_tasks

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "workflow"
CONFIG = yaml.safe_load((WORKFLOW / "config.yaml").read_text(encoding="utf-8"))
SHIPPED = [name for name in PRETRAINED if (ROOT / "checkpoints" / f"{name}.json").is_file()]
SCORED = [name for name in PRETRAINED if split_name(name)[1] in DATASETS]
EVERYTHING = {
    "train": len(PRETRAINED),
    "evaluate": len(SCORED) + 3 + 3,  # the DANPs by the paper's estimator too, and the ceilings
    "marginals": len(SCORED) + 3,
    "samples": 1,
    "cost": 1,
    "table": 1,
    "figures": 1,
}
SAMPLED = sum(
    len(CONFIG["estimators"][split_name(name)[0]]) for name in SCORED if name.startswith("danp")
)
"""Estimates from samples: of every DANP by each of its estimators."""
MINIATURE: dict[str, Any] = {
    "recipe": "fast",
    "device": "cpu",
    "models": {
        "danp-sawtooth": "--model danp --steps 2",
        "ar-convcnp-sawtooth": "--model ar-convcnp --steps 1",
    },
    "estimators": CONFIG["estimators"] | {"danp": {"both": 4}},
    "compiled": None,
    "marginals": "--num-samples 4",
    "samples": "--max-samples 100",
    "cost": "--threads 1 --num-targets 1 2 --num-samples 2 --seconds 0",
}
TASKS = torch.tensor([0, 20, 105, 309])
"""Benchmark tasks with 0, 2, 10 and 30 context points."""

Jobs = list[tuple[str, str]]
"""The rules of jobs, and the first file that each makes."""


def snakemake(folder: Path, *options: str) -> str:
    """Run the workflow in a folder, and return what it says."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(WORKFLOW / "Snakefile")]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [*command, "--directory", str(folder), *options],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def plan(folder: Path, *options: str) -> Jobs:
    """What a run would do."""
    return jobs_of(snakemake(folder, "--dry-run", *(options or ("--cores", "1"))))


def jobs_of(said: str) -> Jobs:
    """The jobs that Snakemake speaks of."""
    job = r"^(?:local)?rule (\w+):\n(?:    input: .*\n)?    output: ([^,\n]*)"
    jobs = sorted(re.findall(job, said, re.MULTILINE))
    assert jobs or "Nothing to be done" in said
    return jobs


def count(jobs: Jobs) -> dict[str, int]:
    return dict(Counter(rule for rule, _ in jobs))


def test_from_nothing_it_makes_every_model_by_the_command_of_its_card(tmp_path: Path) -> None:
    said = snakemake(tmp_path, "--dry-run", "--cores", "1", "--printshellcmds")
    assert count(jobs_of(said)) == EVERYTHING
    assert len(re.findall(r"danp benchmark danp-\S+ --estimator .* --compiled ", said)) == SAMPLED
    assert len(re.findall(r"danp benchmark danp-\S+ --measure samples .* --compiled ", said)) == 1
    commands = {}
    for line in re.findall(r"danp train (.*) > ", said):
        words = shlex.split(line)
        options = dict(zip(words[::2], words[1::2], strict=True))
        commands[Path(options.pop("--out")).stem] = options
    assert set(commands) == set(PRETRAINED)
    for name in SHIPPED:
        words = shlex.split(read_card(ROOT / "checkpoints" / f"{name}.safetensors").command)[2:]
        expected = dict(zip(words[::2], words[1::2], strict=True)) | {"--device": "cpu"}
        assert expected.pop("--out") == f"{name}.safetensors"
        assert {"--seed": "0"} | commands[name] == expected


def test_the_results_that_are_shipped_were_made_with_these_options() -> None:
    for name in (*SCORED, "ceiling-sawtooth", "ceiling-square", "ceiling-gp"):
        estimators = CONFIG["estimators"][split_name(name)[0]]
        for estimator, num_samples in estimators.items():
            path = ROOT / "results" / f"{name}-{estimator}.json"
            if path.is_file():
                assert load_result(path, Evaluation).content.num_samples == num_samples
        path = ROOT / "results" / f"{name}-marginals.json"
        if path.is_file():
            sampled = name.startswith("danp-")
            scored = load_result(path, Marginals).content.num_samples
            assert CONFIG["marginals"] == f"--num-samples {scored}" or not sampled
    cost = ROOT / "results" / "cost.json"
    if cost.is_file():
        command = json.loads(cost.read_text(encoding="utf-8"))["command"]
        assert (
            command.removesuffix(" --out results") == f"python benchmarks/cost.py {CONFIG['cost']}"
        )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with all weights and results: what is shipped, and in place of the rest its hashes.

    Their dates say, wrongly, that every result is older than its weights.
    """
    made = [path for job in plan(tmp_path) if (path := Path(job[1])).parts[0] != "reproduced"]
    for path in sorted(made):
        place = tmp_path / path
        place.parent.mkdir(exist_ok=True)
        if (ROOT / path).is_file():
            shutil.copy(ROOT / path, place)
        elif path.suffix == ".safetensors":
            place.write_text(path.stem, encoding="utf-8")
        else:
            found = (tmp_path / "checkpoints").glob("*.safetensors")
            place.write_text(" ".join(map(sha256, found)), encoding="utf-8")
        date = 2_000_000_000 if path.parts[0] == "checkpoints" else 1_000_000_000
        os.utime(place, (date, date))
    return tmp_path


def test_in_a_clone_only_the_table_and_the_figures_are_made(clone: Path) -> None:
    assert count(plan(clone)) == {"table": 1, "figures": 1}
    (clone / "checkpoints" / "danp-gp.safetensors").unlink()
    assert plan(clone) == [
        ("evaluate", "results/danp-gp-both.json"),
        ("evaluate", "results/danp-gp-model.json"),
        ("figures", "reproduced/figure-9.png"),
        ("marginals", "results/danp-gp-marginals.json"),
        ("table", "reproduced/table-1.txt"),
        ("train", "checkpoints/danp-gp.safetensors"),
    ]


def test_the_slurm_profile_asks_for_one_core_and_enough_time(tmp_path: Path) -> None:
    said = snakemake(tmp_path, "--dry-run", "--profile", str(WORKFLOW / "profiles" / "slurm"))
    assert count(jobs_of(said)) == EVERYTHING
    blocks = re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)*)", said, re.MULTILINE)
    assert len(blocks) == sum(EVERYTHING.values()) + 1
    minutes = {"train": 120, "samples": 240}
    for rule, block in blocks:
        assert "threads:" not in block  # one
        assert "mem_mb=4000" in block
        assert f"runtime={minutes.get(rule, 60)}" in block


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
