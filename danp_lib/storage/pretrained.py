"""The trained models that come with the library, by name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from danp_lib._files import data_folders
from danp_lib.data.generators import GENERATORS
from danp_lib.storage.card import read_card
from danp_lib.storage.checkpoint import CheckpointError, load_checkpoint

PRETRAINED = (
    *(
        f"{model}-{dataset}"
        for model in ("danp", "convcnp", "convgnp", "ar-convcnp")
        for dataset in GENERATORS
    ),
    "danp-f2-sawtooth",
    "danp-f2-square",
    *(f"danp-seed1-{dataset}" for dataset in GENERATORS),
)
"""The names that :func:`load_pretrained` knows.

``danp-f2-*`` are the models of the paper's example figures, with F = 2. ``danp-seed1-*`` differ
from ``danp-*`` in the seed alone, which shows how much of a score is chance.
"""


def load_pretrained(name: str, *, device: torch.device | str = "cpu") -> Any:
    """Load a model that comes with the library.

    Args:
        name: One of :data:`PRETRAINED`, such as ``"danp-sawtooth"``.
        device: Where to put the model.

    Returns:
        The model in evaluation mode.

    Raises:
        ValueError: If there is no such name.
        FileNotFoundError: If the name is known but its weights are not shipped.
        CheckpointError: If the file was changed, or is not the one that its card describes.
    """
    path = pretrained_path(name)
    digest, expected = hashlib.sha256(path.read_bytes()).hexdigest(), read_card(path).sha256
    if digest != expected:
        raise CheckpointError(f"{path} must have SHA-256 {expected} (its card), got {digest}.")
    return load_checkpoint(path, device=device)


def pretrained_path(name: str) -> Path:
    """The file of a pretrained model: in the installed package, or beside it in a clone.

    Raises:
        ValueError: If there is no such name.
        FileNotFoundError: If the name is known but its weights are not shipped.
    """
    if name not in PRETRAINED:
        raise ValueError(f"name must be one of {', '.join(PRETRAINED)}, got {name!r}.")
    folders = pretrained_folders()
    for folder in folders:
        if (path := folder / f"{name}.safetensors").is_file():
            return path
    shipped = [n for n in PRETRAINED if any((f / f"{n}.safetensors").is_file() for f in folders)]
    *kind, dataset = name.split("-")
    options = " --levels 2" if "f2" in kind else " --seed 1" if "seed1" in kind else ""
    model = "-".join(part for part in kind if part not in ("f2", "seed1"))
    raise FileNotFoundError(
        f"the weights of {name!r} are not shipped (shipped: {', '.join(shipped) or 'none'}). "
        f"To make them: danp train --model {model} --dataset {dataset}{options} --recipe fast "
        f"--out {name}.safetensors"
    )


def pretrained_folders() -> tuple[Path, ...]:
    """Where pretrained models may lie, first choice first."""
    return data_folders("checkpoints")
