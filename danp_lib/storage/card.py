"""Cards: what a trained model is and how it was made, as JSON and as a page to read."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danp_lib._config import (
    Configuration,
    NonNegativeFloat,
    PositiveInt,
    from_dict,
    naming,
    to_dict,
)
from danp_lib._files import write_atomically
from danp_lib.data.generators import NoiseRange, dataset_name, noise_in_words
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.origin import Hardware, sha256


@dataclass(frozen=True)
class Card(Configuration):
    """One trained model."""

    name: str  #: The checkpoint's file name without the ending.
    model: str
    dataset: str
    recipe: str
    seed: int
    steps: PositiveInt
    parameters: PositiveInt
    minutes: NonNegativeFloat
    hardware: Hardware
    #: Log-likelihood of the weights on the validation tasks, in nats per target, one number a
    #: level, the clean level first; ``None`` where they were not validated.
    validation: tuple[float, ...] | None
    commit: str | None  #: The library's commit in git, if known.
    danp_lib: str
    torch: str
    command: str
    sha256: str  #: Of the checkpoint's file.
    #: Standard deviation of the observation noise added in training, or its range.
    noise: NonNegativeFloat | NoiseRange = 0.0
    kept_step: PositiveInt | None = None  #: The best step by validation; ``None`` for the last.


def make_card(checkpoint: str | os.PathLike[str], **measured: Any) -> Card:
    """The card of a checkpoint of ``danp train``: its header, and the fields that it lacks."""
    path = Path(checkpoint)
    header = read_header(path)
    said = header.provenance
    try:
        if header.task_generator is None:
            raise KeyError("generator")
        return Card(
            name=path.stem,
            model=header.model,
            dataset=dataset_name(header.task_generator),
            noise=header.task_generator.noise,
            **{key: said[key] for key in ("recipe", "steps", "danp_lib", "torch", "command")},
            seed=said["training"]["seed"],
            kept_step=said.get("kept_step"),
            sha256=sha256(path),
            **measured,
        )
    except KeyError as error:
        message = f"{path}: the header must hold {error}, as danp train writes it."
        raise ValueError(message) from None


def card_paths(checkpoint: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Where the JSON and the page of a checkpoint lie: beside it, with other endings."""
    return Path(checkpoint).with_suffix(".json"), Path(checkpoint).with_suffix(".md")


def write_card(checkpoint: str | os.PathLike[str], card: Card) -> None:
    """Write a card beside its checkpoint, the JSON and the page, each whole or not at all."""
    for_machines, for_people = card_paths(checkpoint)
    write_atomically(for_machines, json.dumps(to_dict(card), indent=2, allow_nan=False) + "\n")
    write_atomically(for_people, render_card(card))


def read_card(checkpoint: str | os.PathLike[str]) -> Card:
    """Read the card beside a checkpoint; a ``ValueError`` names the key that is wrong."""
    path, _ = card_paths(checkpoint)
    with naming(path):
        return from_dict(Card, json.loads(path.read_text(encoding="utf-8")), name="card")


def render_card(card: Card) -> str:
    """The card as a Markdown page."""
    levels = card.validation
    clean = "not reached" if levels is None else f"{levels[0]:.3f} nats per target"
    if levels is not None and len(levels) > 1:
        clean += f" (levels 1 to {len(levels) - 1}: {', '.join(f'{v:.3f}' for v in levels[1:])})"
    hardware = card.hardware
    threads = f"{hardware.threads} thread{'s' if hardware.threads > 1 else ''} of {hardware.cpu}"
    rows = {
        "Model": f"{card.model}, {card.parameters:,} parameters",
        "Trained on": f"{card.dataset} tasks, seed {card.seed}",
        "Observation noise": noise_in_words(card.noise),
        "Recipe": f"{card.recipe}, {card.steps:,} steps"
        + (f"; step {card.kept_step:,} kept, the best by validation" if card.kept_step else ""),
        "Time": f"{card.minutes:.1f} minutes",
        "Hardware": f"{hardware.gpu}, with {threads}" if hardware.gpu else threads,
        "Validation log-likelihood": clean,
        "Versions": f"danp_lib {card.danp_lib}, PyTorch {card.torch}",
        "Commit": f"`{card.commit}`" if card.commit else "not known",
        "SHA-256": f"`{card.sha256}`",
    }
    return f"{page_head(card.name, rows)}\nMade by\n\n```sh\n{card.command}\n```\n"


def page_head(name: str, rows: dict[str, str]) -> str:
    """The title of a model's page, and a table of what is known of it."""
    lines = "".join(f"| {key} | {value} |\n" for key, value in rows.items())
    return f"# {name}\n\n| | |\n|---|---|\n{lines}"
