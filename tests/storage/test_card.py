"""Cards survive JSON and say everything on their page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from danp_lib._config import to_dict
from danp_lib.data.generators import GaussianProcess
from danp_lib.models.convnp import ConvCNP, ConvNPConfig
from danp_lib.storage.card import Card, make_card, read_card, render_card, write_card
from danp_lib.storage.checkpoint import save_checkpoint
from danp_lib.storage.origin import Hardware

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
CARD = Card(
    name="danp-sawtooth",
    model="danp",
    dataset="sawtooth",
    recipe="fast",
    seed=3,
    steps=30_000,
    parameters=320_013,
    minutes=31.25,
    hardware=Hardware(cpu="A Processor", gpu=None, threads=1),
    validation=(4.48, 1.0, 0.5, -0.25),
    commit="0123abc",
    danp_lib="0.1.0",
    torch="2.13.0",
    command="danp train --model danp --dataset sawtooth --out danp-sawtooth.safetensors",
    sha256="f" * 64,
)
SHIPPED = sorted(CHECKPOINTS.glob("*.safetensors"))
ON_GPU = replace(CARD, hardware=Hardware("A Processor", "A GPU", 4), validation=None, commit=None)


@pytest.mark.parametrize("card", [CARD, ON_GPU])
def test_a_card_survives(card: Card, tmp_path: Path) -> None:
    checkpoint = tmp_path / "danp-sawtooth.safetensors"
    write_card(checkpoint, card)
    assert read_card(checkpoint) == card
    assert sorted(p.name for p in tmp_path.iterdir()) == ["danp-sawtooth.json", "danp-sawtooth.md"]


def test_the_page_says_what_the_card_says() -> None:
    page = render_card(CARD)
    for value in (
        *(CARD.name, CARD.model, CARD.dataset, CARD.recipe, CARD.danp_lib, CARD.torch, CARD.sha256),
        *("seed 3", "30,000 steps", "320,013 parameters", "31.2 minutes"),
        *("1 thread of A Processor", "0123abc", "4.480", "1.000, 0.500, -0.250", CARD.command),
    ):
        assert value in page
    assert "| Observation noise | none added |" in page
    noisy = replace(CARD, noise=(0.01, 0.3))
    assert "standard deviation 0.01 to 0.3, log-uniform" in render_card(noisy)
    page = render_card(ON_GPU)
    for value in ("A GPU", "4 threads of A Processor", "not reached", "not known"):
        assert value in page


def test_a_wrong_card_is_refused_with_its_key(tmp_path: Path) -> None:
    checkpoint = tmp_path / "m.safetensors"
    with pytest.raises(FileNotFoundError, match=r"m\.json"):
        read_card(checkpoint)
    write_card(checkpoint, CARD)
    path = tmp_path / "m.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"seed": "3"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"m\.json: card\.seed .*'3'"):
        read_card(checkpoint)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"m\.json"):
        read_card(checkpoint)


def test_a_card_takes_from_the_header_what_is_there(tmp_path: Path) -> None:
    config = ConvNPConfig(points_per_unit=16, channels=8, num_layers=2, rank=0)
    path = tmp_path / "convcnp-gp.safetensors"
    said = {"recipe": "fast", "training": {"seed": 3}, "steps": 7, "command": "danp train"}
    said |= {"danp_lib": "0.1.0", "torch": "2.13.0"}
    measured: dict[str, Any] = {
        "parameters": 12,
        "minutes": 0.5,
        "hardware": CARD.hardware,
        "validation": None,
        "commit": "abc",
    }
    for fields, prior in ((said, None), (said, GaussianProcess()), ({}, GaussianProcess())):
        save_checkpoint(path, ConvCNP(config), task_generator=prior, provenance=fields)
        if fields and prior is not None:
            card = make_card(path, **measured)
        else:
            with pytest.raises(ValueError, match=r"header must hold '(recipe|generator)'"):
                make_card(path, **measured)
    shown = to_dict(card) | {"hardware": CARD.hardware}
    del said["training"]
    assert shown == said | measured | {
        "name": "convcnp-gp",
        "model": "convcnp",
        "dataset": "gp",
        "seed": 3,
        "kept_step": None,
        "sha256": shown["sha256"],
        "noise": 0.0,
    }


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_cards_that_are_shipped_say_what_the_headers_do(path: Path) -> None:
    card = read_card(path)
    again = make_card(
        path,
        parameters=card.parameters,
        minutes=card.minutes,
        hardware=card.hardware,
        validation=card.validation,
        commit=card.commit,
    )
    assert again == card
    page, text = render_card(card), path.with_suffix(".md").read_text(encoding="utf-8")
    assert page == text
