"""The trained models that come with the library, by name."""

from pathlib import Path
from typing import Any

import torch

from danp_lib._config import check_choice
from danp_lib._files import data_folders, first_file
from danp_lib.data.generators import DATASETS, join_name
from danp_lib.storage.card import read_card
from danp_lib.storage.checkpoint import CheckpointError, load_checkpoint
from danp_lib.storage.origin import sha256

_LONG = "fast --steps 56000"
_VARIANTS = (
    ("danp", "--model danp", (*DATASETS, "gp-noisy"), "fast"),
    ("convcnp", "--model convcnp", DATASETS, "fast"),
    ("convgnp", "--model convgnp", (*DATASETS, "gp-noisy"), "fast"),
    ("ar-convcnp", "--model ar-convcnp", DATASETS, "fast"),
    ("danp-f2", "--model danp --levels 2", ("sawtooth", "square"), "fast"),  # danp-gp is so anyway
    ("danp-seed1", "--model danp --seed 1", ("sawtooth", "square", "gp"), "fast"),
    ("danp-long", "--model danp", ("sawtooth", "square-released", "gp"), _LONG),
    ("danp-long-seed1", "--model danp --seed 1", ("sawtooth", "square-released", "gp"), _LONG),
    ("convgnp-long", "--model convgnp", ("sawtooth", "square-released"), _LONG),
    ("convgnp-long-seed1", "--model convgnp --seed 1", ("sawtooth",), _LONG),
    ("danp-longest", "--model danp", ("sawtooth",), "fast --steps 112000"),
    ("convgnp-longest", "--model convgnp", ("sawtooth",), "fast --steps 112000"),
    ("danp", "--model danp", ("sawtooth-noisy",), "fast --steps 40000"),
    ("danp-paper", "--model danp", ("sawtooth", "square-released", "gp"), "paper"),
    ("danp-seed1-paper", "--model danp --seed 1", ("square-released",), "paper"),
    ("convcnp-paper", "--model convcnp", ("sawtooth",), "paper"),
    ("convgnp-paper", "--model convgnp", ("sawtooth", "gp"), "paper"),
    ("ar-convcnp-paper", "--model ar-convcnp", ("sawtooth", "square-released"), "paper"),
)
PRETRAINED = {
    join_name(variant, dataset): f"{options} --dataset {dataset} --recipe {recipe}"
    for variant, options, datasets, recipe in _VARIANTS
    for dataset in datasets
}
"""The names that :func:`load_pretrained` knows, and the options of ``danp train`` for each.

``danp-f2-*`` are the models of the paper's example figures, and ``*-seed1-*`` show how much of a
score is chance. ``*-long-*`` have four times the updates of the recipe, ``*-longest-*`` eight
times. What ends in ``-paper`` has the paper's architecture and training.
"""


def load_pretrained(name: str, *, device: torch.device | str = "cpu") -> Any:
    """Load one of :data:`PRETRAINED`, such as ``"danp-sawtooth"``, in evaluation mode.

    Weights that are not shipped are a ``FileNotFoundError``, and a file that was changed is a
    :class:`~danp_lib.storage.checkpoint.CheckpointError`.
    """
    path = pretrained_path(name)
    digest, expected = sha256(path), read_card(path).sha256
    if digest != expected:
        raise CheckpointError(f"{path} must have SHA-256 {expected} (its card), got {digest}.")
    return load_checkpoint(path, device=device)


def pretrained_path(name: str) -> Path:
    """The file of a pretrained model: in ``$DANP_DATA``, the installed package, or a clone."""
    check_choice("name", name, PRETRAINED)
    folders = pretrained_folders()
    if path := first_file(folders, f"{name}.safetensors"):
        return path
    shipped = [n for n in PRETRAINED if first_file(folders, f"{n}.safetensors")]
    raise FileNotFoundError(
        f"the weights of {name!r} are not shipped (shipped: {', '.join(shipped) or 'none'}). "
        f"To make them: danp train {PRETRAINED[name]} --out {name}.safetensors"
    )


def find_checkpoint(checkpoint: str) -> Path:
    """The file of a checkpoint that is given by its path or by a pretrained model's name."""
    if checkpoint in PRETRAINED:
        return pretrained_path(checkpoint)
    if not Path(checkpoint).is_file():
        raise FileNotFoundError(
            f"{checkpoint!r} is neither a file nor the name of a pretrained model; the names are "
            f"{', '.join(PRETRAINED)}."
        )
    return Path(checkpoint)


def pretrained_folders() -> tuple[Path, ...]:
    """Where pretrained models may lie, first choice first."""
    return data_folders("checkpoints")
