"""Pretrained models are found by name, and only as they were published."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from danp_lib._config import to_dict
from danp_lib.models.contexts import SizeRange, TrainingContexts
from danp_lib.models.convnp import ConvCNP, ConvNPConfig
from danp_lib.storage import pretrained
from danp_lib.storage.card import Card, read_card, write_card
from danp_lib.storage.checkpoint import CONTEXTS, CheckpointError, load_checkpoint, save_checkpoint
from danp_lib.storage.origin import Hardware, sha256
from danp_lib.storage.pretrained import (
    PRETRAINED,
    find_checkpoint,
    load_pretrained,
    pretrained_folders,
    pretrained_path,
)

TINY = ConvNPConfig(points_per_unit=16, channels=8, num_layers=3, rank=0)
CARD = Card(
    name="convcnp-gp",
    model="convcnp",
    dataset="gp",
    recipe="fast",
    seed=0,
    steps=1,
    parameters=1,
    minutes=0.0,
    hardware=Hardware("cpu", None, 1),
    validation=None,
    commit=None,
    danp_lib="0",
    torch="0",
    command="danp train",
    sha256="",
)
SHIPPED = [name for name in PRETRAINED if (pretrained_folders()[1] / f"{name}.json").is_file()]


def ship(folder: Path, model: ConvCNP) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "convcnp-gp.safetensors"
    save_checkpoint(path, model)
    write_card(path, replace(CARD, sha256=sha256(path)))
    return path


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The two places, empty."""
    found = tmp_path / "package", tmp_path / "clone"
    monkeypatch.setattr(pretrained, "pretrained_folders", lambda: found)
    return found


def test_the_package_alone_knows_every_kind_of_model() -> None:
    # A class is registered when its module is imported, and other tests import them all.
    code = "import danp_lib.storage.checkpoint as c; print(*sorted(c.MODELS))"
    command = [sys.executable, "-c", code]
    kinds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(kinds) == {"danp", "convcnp", "convgnp", "ar-convcnp"}


@pytest.mark.parametrize("place", [0, 1])
def test_a_model_is_found_in_either_folder(folders: tuple[Path, Path], place: int) -> None:
    model = ConvCNP(TINY)
    path = ship(folders[place], model)
    assert pretrained_path("convcnp-gp") == path
    loaded = load_pretrained("convcnp-gp", device="cpu")
    assert not loaded.training
    assert all(
        torch.equal(a, b)
        for a, b in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True)
    )


def test_shipped_checkpoints_have_their_contexts_by_name_and_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANP_DATA", str(tmp_path))
    folder = tmp_path / "checkpoints"
    path = ship(folder, ConvCNP(TINY))
    assert load_checkpoint(path).training_contexts is None
    contexts = TrainingContexts((0.0, 1.0), (SizeRange(1, 0.0, 1.0),), 0.0)
    stored = json.dumps({"convcnp-gp": to_dict(contexts)})
    (folder / CONTEXTS).write_text(stored, encoding="utf-8")
    for model in (load_pretrained("convcnp-gp"), load_checkpoint(path)):
        assert model.training_contexts == contexts
    # They come before those of the file itself, which a folder of one's own has alone.
    measured = ConvCNP(TINY)
    measured.training_contexts = replace(contexts, outputs=(0.0, 2.0))
    assert load_checkpoint(ship(folder, measured)).training_contexts == contexts
    assert load_checkpoint(ship(tmp_path / "mine", measured)).training_contexts != contexts
    # A file of that name in a folder of one's own is none of the library's.
    own = ship(tmp_path / "own", ConvCNP(TINY))
    own.with_name(CONTEXTS).write_text("[]", encoding="utf-8")
    assert load_checkpoint(own).training_contexts is None


def test_the_packages_folder_comes_first(folders: tuple[Path, Path]) -> None:
    paths = [ship(folder, ConvCNP(TINY)) for folder in folders]
    assert pretrained_path("convcnp-gp") == paths[0]


def test_a_file_that_is_not_the_cards_is_refused(folders: tuple[Path, Path]) -> None:
    path = ship(folders[0], ConvCNP(TINY))
    save_checkpoint(path, ConvCNP(TINY))
    with pytest.raises(CheckpointError, match=r"convcnp-gp\.safetensors .*SHA-256"):
        load_pretrained("convcnp-gp")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^name .*'danp-sine'"):
        load_pretrained("danp-sine")
    with pytest.raises(ValueError, match=r"^name must be one of .* got \['danp-gp'\]"):
        load_pretrained(["danp-gp"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("danp-gp", "--model danp --dataset gp --recipe fast --out danp-gp.safetensors"),
        ("danp-f2-square", "--model danp --levels 2 --dataset square --recipe fast --out danp-f2-"),
        ("danp-seed1-gp", "--model danp --seed 1 --dataset gp --recipe fast --out danp-seed1-gp."),
        ("ar-convcnp-sawtooth", "--model ar-convcnp --dataset sawtooth --recipe fast"),
    ],
)
def test_an_absent_one_says_what_makes_it(
    folders: tuple[Path, Path], name: str, command: str
) -> None:
    ship(folders[1], ConvCNP(TINY))
    with pytest.raises(FileNotFoundError) as caught:
        load_pretrained(name)
    assert repr(name) in str(caught.value)
    assert "shipped: convcnp-gp" in str(caught.value)
    assert f"danp train {command}" in str(caught.value)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_the_clone_ships_is_as_published(name: str) -> None:
    model = load_pretrained(name)
    assert name.startswith(model.name)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("name", SHIPPED)
def test_what_the_clone_ships_was_made_by_the_options_of_its_name(name: str) -> None:
    made, said = (
        dict(zip(words[::2], words[1::2], strict=True))
        for words in (
            PRETRAINED[name].split(),
            read_card(pretrained_path(name)).command.removeprefix("danp train ").split(),
        )
    )
    assert {"--seed": "0"} | made == {key: said[key] for key in said if key in made | {"--seed": 0}}


def test_a_checkpoint_is_given_by_its_path_or_its_name(folders: tuple[Path, Path]) -> None:
    path = ship(folders[0], ConvCNP(TINY))
    assert find_checkpoint("convcnp-gp") == find_checkpoint(str(path)) == path
    with pytest.raises(FileNotFoundError, match=r"'none' .*convcnp-gp"):
        find_checkpoint("none")
