"""``danp train`` by a recipe."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import danp, good, refused, write
from safetensors.torch import load_file
from small_models import INDEPENDENT, TINY, small_config

from danp_lib._files import check_writable
from danp_lib.fitting.fitted import Fitted
from danp_lib.models.convnp import count_parameters
from danp_lib.models.danp import DANPConfig
from danp_lib.storage import pretrained
from danp_lib.storage.card import read_card, render_card
from danp_lib.storage.checkpoint import load_checkpoint, read_header
from danp_lib.training import loop, recipes
from danp_lib.training.objective import BatchConfig
from danp_lib.training.recipes import Recipe, build_model


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, here: Path) -> Path:
    """Recipes of small models and short runs, in an empty folder."""
    original = recipes.recipe

    def small(name: str, **options: Any) -> Recipe:
        made = original(name, **options)
        steps = options.get("num_steps") or 3
        base = INDEPENDENT if "convcnp" in made.model else TINY
        config = made.model_config
        return replace(
            made,
            model_config=(
                replace(config, base=base, num_auxiliary=5)
                if isinstance(config, DANPConfig)
                else base
            ),
            training=replace(
                made.training,
                num_steps=steps,
                batch=BatchConfig(batch_size=2, num_targets=5),
                num_validation_batches=1,
            ),
        )

    monkeypatch.setattr(recipes, "recipe", small)
    return here


TRAIN = ["train", "--model", "danp", "--dataset", "square"]


def test_train_makes_a_checkpoint_with_its_card(tiny: Path) -> None:
    assert good(*TRAIN, "--out", "run", "--seed", 7) == ""
    assert sorted(p.name for p in (tiny / "run").iterdir()) == [
        "danp-square.json",
        "danp-square.md",
        "danp-square.safetensors",
        "log.jsonl",
        "state.safetensors",
    ]
    path = tiny / "run" / "danp-square.safetensors"
    card = read_card(path)
    assert (card.name, card.model, card.dataset, card.recipe) == (
        "danp-square",
        "danp",
        "square",
        "fast",
    )
    assert (card.seed, card.steps, card.parameters) == (
        7,
        3,
        count_parameters(load_checkpoint(path)),
    )
    assert card.command == (
        "danp train --model danp --dataset square --recipe fast --seed 7 "
        "--out danp-square.safetensors"
    )
    assert card.validation is not None
    assert len(card.validation) == 4
    contexts = load_checkpoint(path).training_contexts
    assert contexts is not None
    assert [part.largest for part in contexts.sizes] == [1, 2, 4, 8, 16, 30]
    assert card.danp_lib == version("danp_lib")
    assert (card.torch, card.hardware.gpu) == (torch.__version__, None)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == render_card(card)
    header = read_header(path)
    assert header.provenance["steps"] == 3
    assert header.provenance["command"] == card.command
    assert header.task_generator is not None
    assert header.task_generator.name == "square"
    shown = json.loads(good("info", path, "--json"))
    assert shown["card"]["sha256"] == card.sha256
    # What the header says is not said again.
    assert not shown["card"].keys() & (shown.keys() | header.provenance.keys())


@pytest.mark.parametrize(
    ("last", "expected"),
    [({"validation": [0.5], "kept": 2}, (2, (1.0,))), ({}, (None, None))],
)
def test_the_card_is_of_the_weights_that_are_shipped(
    last: dict[str, Any],
    expected: tuple[int | None, tuple[float] | None],
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = [{"step": 2, "validation": [1.0]}, {"step": 3, "minutes": 0.2, **last}]
    monkeypatch.setattr(loop, "train", lambda *_, **__: history)
    options = ("--model", "convcnp", "--dataset", "gp", "--recipe", "paper", "--max-minutes", 1e-9)
    good("train", *options, "--compile", "--out", "m.safetensors")
    card = read_card(tiny / "m.safetensors")
    assert (card.steps, card.kept_step, card.validation) == (3, *expected)
    assert card.command.endswith("--out m.safetensors --compile")


def test_a_model_of_ones_own_may_lie_beside_any_json(tiny: Path) -> None:
    convgnp = build_model("convgnp", small_config(), seed=0)
    Fitted(convgnp).save(tiny / "m.safetensors")
    write(tiny / "m.json", '{"mine": 1}')
    assert "card" not in json.loads(good("info", "m.safetensors", "--json"))


def test_what_is_no_file_is_not_replaced(tiny: Path) -> None:
    os.mkfifo(tiny / "pipe")
    says = refused(*TRAIN, "--out", "pipe/m.safetensors")
    assert "not a folder" in says
    with pytest.raises(OSError, match="pipe is no regular file"):
        check_writable(tiny / "pipe")


def test_a_link_is_judged_by_where_it_leads(tiny: Path) -> None:
    write(tiny / "file", "")
    (tiny / "link.safetensors").symlink_to(tiny / "file" / "m.safetensors")
    says = refused(*TRAIN, "--out", "link.safetensors")
    assert "not a folder" in says


def test_a_checkpoint_of_another_run_is_not_replaced(tiny: Path) -> None:
    (tiny / "danp.safetensors").write_bytes(b"weights of a week")
    says = refused(*TRAIN, "--out", "danp.safetensors")
    assert "got danp.safetensors" in says
    assert (tiny / "danp.safetensors").read_bytes() == b"weights of a week"


@pytest.mark.parametrize("name", ["notes.md", "notes.json"])
def test_a_file_where_a_card_goes_is_not_replaced(tiny: Path, name: str) -> None:
    write(tiny / name, "mine")
    says = refused(*TRAIN, "--out", "notes.safetensors")
    assert f"got {name}" in says
    assert (tiny / name).read_text(encoding="utf-8") == "mine"
    assert list(tiny.iterdir()) == [tiny / name]


def test_a_trained_model_is_a_pretrained_one(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "pretrained_folders", lambda: (tiny,))
    good(*TRAIN, "--levels", 2, "--steps", 2, "--out", "danp-f2-square.safetensors")
    assert sorted(p.name for p in tiny.iterdir()) == [
        "danp-f2-square.json",
        "danp-f2-square.md",
        "danp-f2-square.run",
        "danp-f2-square.safetensors",
    ]
    assert sorted(p.name for p in (tiny / "danp-f2-square.run").iterdir()) == [
        "log.jsonl",
        "state.safetensors",
    ]
    found = json.loads(good("info", "danp-f2-square", "--json"))
    assert found["config"]["num_levels"] == 2
    command = found["provenance"]["command"]
    assert "--levels 2 --steps 2 --out danp-f2-square.safetensors" in command
    good(*TRAIN, "--levels", 2, "--out", "folder")
    assert (tiny / "folder" / "danp-f2-square.safetensors").is_file()


def test_checkpoints_of_one_name_in_two_folders_have_a_run_each(tiny: Path) -> None:
    good(*TRAIN, "--out", "a/m.safetensors")
    good(*TRAIN, "--out", "b/m.safetensors", "--seed", 1)
    cards = [read_card(tiny / folder / "m.safetensors") for folder in "ab"]
    assert [card.seed for card in cards] == [0, 1]
    assert cards[0].sha256 != cards[1].sha256
    assert all((tiny / folder / "m.run" / "state.safetensors").is_file() for folder in "ab")


def test_a_run_of_the_paper_can_be_lengthened(tiny: Path) -> None:
    paper = [*TRAIN, "--recipe", "paper"]
    good(*paper, "--steps", 2, "--out", "parts.safetensors")
    good(*paper, "--steps", 4, "--out", "parts.safetensors")
    good(*paper, "--steps", 4, "--out", "whole.safetensors")
    card = read_card(tiny / "parts.safetensors")
    assert card.steps == 4
    assert "--steps 4" in card.command
    whole, parts = (load_file(f"{name}.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[k], parts[k]) for k in whole)


def test_a_stopped_run_goes_on_to_the_same_weights(tiny: Path) -> None:
    good(*TRAIN, "--out", "whole.safetensors")
    good(*TRAIN, "--out", "parts.safetensors", "--max-minutes", 1e-9)
    card = read_card(tiny / "parts.safetensors")
    assert (card.steps, card.validation) == (1, None)
    assert "--max-minutes 1e-09" in card.command
    good(*TRAIN, "--out", "parts.safetensors")
    assert read_card(tiny / "parts.safetensors").steps == 3
    whole, parts = (load_file(f"{name}.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[k], parts[k]) for k in whole)


def test_an_interrupted_run_writes_no_checkpoint(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"step": 2, "minutes": 0.1}]

    monkeypatch.setattr(loop, "train", interrupted)
    result = danp(*TRAIN, "--out", "m.safetensors")
    assert result.exit_code == 130
    assert result.stderr.startswith("danp: stopped")
    assert not list(tiny.rglob("m.*"))


def test_a_full_disk_keeps_the_old_checkpoint(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(*TRAIN, "--out", "m.safetensors")
    old = {path.name: path.read_bytes() for path in tiny.iterdir() if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    line = danp(*TRAIN, "--seed", 1, "--out", "other.safetensors").stderr.splitlines()[-1]
    assert "No space left" in line
    assert {path.name: path.read_bytes() for path in tiny.iterdir() if path.is_file()} == old


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "cnp"], "'cnp'"),
        (["--dataset", "sine"], "'sine'"),
        (["--recipe", "slow"], "'slow'"),
        (["--model", "convcnp", "--levels", "2"], "num_levels"),
        (["--levels", "0"], "num_levels"),
        (["--seed", str(-(2**63) - 1)], "--seed"),
        (["--steps", "-1"], "num_steps"),
        (["--max-minutes", "0"], "--max-minutes must be a finite number > 0, got 0.0."),
        (["--threads", "0"], "--threads must be an integer >= 1, got 0."),
        (["--threads", "3000000000"], "--threads: "),
        (["--device", "tpu"], "'tpu'"),
        (["--device", "meta"], "'meta'"),
        (["--out", "taken"], "taken"),
        (["--out", "taken/m.safetensors"], "taken"),
    ],
)
def test_train_refuses_before_it_starts(tiny: Path, options: list[str], message: str) -> None:
    write(tiny / "taken", "")
    assert message in refused(*TRAIN, "--out", "run", *options)
    assert [p.name for p in tiny.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--seed", 1], "training.seed: 0 "),
        (["--dataset", "sawtooth"], "dataset: 'gp' "),
        (["--model", "ar-convcnp"], "model: 'convcnp' "),
        (["--recipe", "paper", "--steps", 9], "training.optimizer: 'muon' "),
        (["--steps", 9], "training.num_steps: 3 there, 9 here; a quadratic schedule depends on it"),
    ],
)
def test_another_run_in_the_folder_is_refused(
    tiny: Path, options: list[object], difference: str
) -> None:
    run = ["train", "--model", "convcnp", "--dataset", "gp", "--out", "run"]
    good(*run)
    old = {path.name: path.read_bytes() for path in (tiny / "run").iterdir()}
    line = refused(*run, *options)
    assert "another run" in line
    assert difference in line
    assert {path.name: path.read_bytes() for path in (tiny / "run").iterdir()} == old
