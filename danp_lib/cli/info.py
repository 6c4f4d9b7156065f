"""``danp info``, and how the commands open a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from danp_lib._config import to_dict
from danp_lib.data.generators import dataset_name
from danp_lib.fitting.fitted import Fitted, load_fitted
from danp_lib.models.convnp import count_parameters
from danp_lib.storage.card import card_paths, read_card
from danp_lib.storage.checkpoint import load_checkpoint, read_header
from danp_lib.storage.pretrained import PRETRAINED, find_checkpoint, load_pretrained
from danp_lib.training.recipes import recipe


def open_fitted(checkpoint: str, *, device: str = "cpu") -> Fitted:
    """A checkpoint, by its path or a pretrained model's name, in the units of its data."""
    fitted = load_fitted(find_checkpoint(checkpoint))
    load = load_pretrained if checkpoint in PRETRAINED else load_checkpoint
    return replace(fitted, model=load(checkpoint, device=device))


def describe_checkpoint(checkpoint: str) -> dict[str, Any]:
    """The configuration of a checkpoint, how it was made, and its card, if it has one."""
    path = find_checkpoint(checkpoint)
    header = read_header(path)
    generator = header.generator or {"name": None, "config": None}
    known = header.task_generator
    found = {
        "model": header.model,
        "parameters": count_parameters(open_fitted(checkpoint).model),
        "config": to_dict(header.config),
        "dataset": generator["name"] if known is None else dataset_name(known),
        "generator": generator["config"],
        "provenance": header.provenance,
    }
    if card_paths(path)[0].is_file():
        said = found.keys() | header.provenance.keys()
        card = to_dict(read_card(path))
        found["card"] = {key: value for key, value in card.items() if key not in said}
    return found


def describe_recipe(name: str, *, model: str, dataset: str) -> dict[str, Any]:
    """The configuration of a recipe's model, its prior and its training."""
    chosen = recipe(name, model=model, dataset=dataset)
    return {
        "model": model,
        "parameters": count_parameters(chosen.build_model()),
        "config": to_dict(chosen.model_config),
        "dataset": dataset,
        "generator": to_dict(chosen.task_generator),
        "recipe": name,
        "training": to_dict(chosen.training),
    }


def render(values: Mapping[str, Any], indent: str = "") -> str:
    """Nested values as indented lines."""
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}", render(value, indent + "  ")] if value else []
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{indent}{key:{max(2, 24 - len(indent))}} {shown}")
    return "\n".join(lines)
