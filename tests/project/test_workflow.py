"""What the workflow of `make reproduce` plans."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from workflow_runs import CONFIG, ROOT, WORKFLOW, count, jobs_of, plan, snakemake

from danp_lib.data.generators import DATASETS, split_name
from danp_lib.evaluation.marginals import Marginals
from danp_lib.evaluation.results import AS_IN_PAPER, DEFENDED, load_result
from danp_lib.evaluation.score import Evaluation
from danp_lib.inference.likelihood import num_orders
from danp_lib.storage.card import read_card
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import PRETRAINED

SHIPPED = [name for name in PRETRAINED if (ROOT / "checkpoints" / f"{name}.json").is_file()]
SCORED = [name for name in PRETRAINED if split_name(name)[1] in DATASETS]


def estimators_of(name: str) -> dict[str, Any]:
    """The numbers of samples of a model's estimators."""
    more: dict[str, Any] = CONFIG["more_estimators"].get(name, {})
    return CONFIG["estimators"][split_name(name)[0]] | more


CEILINGS = [f"ceiling-{dataset}" for dataset in DATASETS]
EVERYTHING = {
    "train": len(PRETRAINED),
    "evaluate": sum(len(estimators_of(name)) for name in (*SCORED, *CEILINGS)),
    "marginals": len(SCORED) + len(DATASETS),
    "used": len(DATASETS) + 7,  # and the seven of longer runs
    "samples": len(CONFIG["samples"]),
    "cost": 1,
    "table": 1,
    "figures": 1,
}
SAMPLED = sum(len(estimators_of(name)) for name in SCORED if name.startswith("danp"))
"""Estimates from samples: of every DANP by each of its estimators."""


@pytest.fixture(scope="module")
def from_nothing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What Snakemake would do in an empty folder."""
    folder = tmp_path_factory.mktemp("empty")
    return snakemake(folder, "--dry-run", "--cores", "1", "--printshellcmds")


def test_from_nothing_it_makes_every_model_by_the_command_of_its_card(from_nothing: str) -> None:
    said = from_nothing
    assert count(jobs_of(said)) == EVERYTHING
    assert len(re.findall(r"danp benchmark danp-\S+ --estimator .* --compiled ", said)) == SAMPLED
    curves = re.findall(r"danp benchmark danp-\S+ --measure samples .* --compiled ", said)
    assert len(curves) == len(CONFIG["samples"])
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
        made = {"--seed": "0"} | commands[name]
        for options in (made, expected):
            options.pop("--threads", None)  # changes the last bits alone
        assert made == expected


def test_the_results_that_are_shipped_were_made_with_these_options() -> None:
    for name in (*SCORED, *CEILINGS):
        for estimator, num_samples in estimators_of(name).items():
            path = ROOT / "results" / f"{name}-{estimator}.json"
            if path.is_file():
                drawn = load_result(path, Evaluation).content.num_samples
                each = 50_000 if num_samples == AS_IN_PAPER else num_samples
                assert drawn == each * num_orders(estimator.removesuffix(DEFENDED))
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
def clone(tmp_path: Path, from_nothing: str) -> Path:
    """A folder with all weights and results: what is shipped, and in place of the rest its hashes.

    Their dates say, wrongly, that every result is older than its weights.
    """
    jobs = jobs_of(from_nothing)
    made = [path for job in jobs if (path := Path(job[1])).parts[0] != "reproduced"]
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
        ("evaluate", "results/danp-gp-autoregressive-defended.json"),
        ("evaluate", "results/danp-gp-autoregressive.json"),
        ("evaluate", "results/danp-gp-both.json"),
        ("evaluate", "results/danp-gp-model.json"),
        ("evaluate", "results/danp-gp-orders-defended.json"),
        ("evaluate", "results/danp-gp-outward-defended.json"),
        ("figures", "reproduced/figure-9.png"),
        ("marginals", "results/danp-gp-marginals.json"),
        ("table", "reproduced/table-1.txt"),
        ("train", "checkpoints/danp-gp.safetensors"),
        ("used", "results/danp-gp-used.json"),
    ]


def test_the_slurm_profile_asks_for_one_core_and_enough_time(tmp_path: Path) -> None:
    said = snakemake(tmp_path, "--dry-run", "--profile", str(WORKFLOW / "profiles" / "slurm"))
    assert count(jobs_of(said)) == EVERYTHING
    blocks = re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)*)", said, re.MULTILINE)
    assert len(blocks) == sum(EVERYTHING.values()) + 1
    minutes = {"train": 600, "evaluate": 240, "samples": 240}
    for rule, block in blocks:
        assert "threads:" not in block  # one
        assert "mem_mb=4000" in block
        assert f"runtime={minutes.get(rule, 60)}" in block
