"""Cards survive JSON and say everything on their page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from danp_lib.storage.card import Card, Hardware, read_card, render_card, write_card

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
ON_GPU = replace(CARD, hardware=Hardware("A Processor", "A GPU", 4), validation=None, commit=None)


@pytest.mark.parametrize("card", [CARD, ON_GPU])
def test_a_card_survives(card: Card, tmp_path: Path) -> None:
    checkpoint = tmp_path / "danp-sawtooth.safetensors"
    write_card(checkpoint, card)
    assert read_card(checkpoint) == card
    assert sorted(p.name for p in tmp_path.iterdir()) == ["danp-sawtooth.json", "danp-sawtooth.md"]


def test_the_page_says_what_the_card_says() -> None:
    page = render_card(CARD)
    for part in (
        "# danp-sawtooth\n",
        "| Model | danp, 320,013 parameters |",
        "| Trained on | sawtooth tasks, seed 3 |",
        "| Recipe | fast, 30,000 steps |",
        "| Time | 31.2 minutes |",
        "| Hardware | 1 thread of A Processor |",
        "| 4.480 nats per target (levels 1 to 3: 1.000, 0.500, -0.250) |",
        "| Versions | danp_lib 0.1.0, PyTorch 2.13.0 |",
        "| Commit | `0123abc` |",
        f"| SHA-256 | `{'f' * 64}` |",
        f"```sh\n{CARD.command}\n```\n",
    ):
        assert part in page
    page = render_card(ON_GPU)
    assert "| Hardware | A GPU, with 4 threads of A Processor |" in page
    assert "| Validation log-likelihood | not reached |" in page
    assert "| Commit | not known |" in page


def test_a_wrong_card_is_refused_with_its_key(tmp_path: Path) -> None:
    checkpoint = tmp_path / "m.safetensors"
    with pytest.raises(FileNotFoundError, match=r"no card at .*m\.json"):
        read_card(checkpoint)
    write_card(checkpoint, CARD)
    path = tmp_path / "m.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"seed": "3"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"m\.json: card\.seed must be an integer, got '3'"):
        read_card(checkpoint)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"m\.json: Expecting"):
        read_card(checkpoint)
