"""``danp info``, and how the commands find a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from danp_lib._config import to_dict
from danp_lib.data.scaling import Scaling
from danp_lib.models.convnp import count_parameters
from danp_lib.storage.card import card_paths, read_card
from danp_lib.storage.checkpoint import load_checkpoint, read_header
from danp_lib.storage.pretrained import PRETRAINED, load_pretrained, pretrained_path
from danp_lib.training.recipes import recipe


def checkpoint_path(checkpoint: str) -> Path:
    """The file that a path or a pretrained name stands for.

    Raises:
        FileNotFoundError: If there is none.
    """
    if checkpoint in PRETRAINED:
        return pretrained_path(checkpoint)
    if not Path(checkpoint).is_file():
        raise FileNotFoundError(
            f"{checkpoint!r} is neither a file nor the name of a pretrained model; the names are "
            f"{', '.join(PRETRAINED)}."
        )
    return Path(checkpoint)


def load_model(checkpoint: str, *, device: str = "cpu") -> Any:
    """Load the model that a path or a pretrained name stands for."""
    if checkpoint in PRETRAINED:
        return load_pretrained(checkpoint, device=device)
    return load_checkpoint(checkpoint_path(checkpoint), device=device)


def data_domain(model: Any, scaling: Scaling) -> tuple[float, float]:
    """The interval of inputs, in the units of the data, that a model takes."""
    low, high = (scaling.x_offset + scaling.x_unit * end for end in model.domain)
    return low, high


def off_domain(x: Tensor, domain: tuple[float, float]) -> Tensor:
    """Which inputs lie off a domain by more than a rounding, which a model lets pass too."""
    low, high = domain
    slack = 2.5e-7 * (high - low)
    return ~((x >= low - slack) & (x <= high + slack))


def domain_message(domain: tuple[float, float], found: object) -> str:
    """What must be said of an input off the domain."""
    low, high = (float(f"{end:.12g}") for end in domain)
    return f"must lie in the model's domain [{low}, {high}], got {found}."


def describe_checkpoint(checkpoint: str) -> dict[str, Any]:
    """What a checkpoint and its card, if it has one, say."""
    path = checkpoint_path(checkpoint)
    header = read_header(path)
    generator = header.task_generator
    found = {
        "model": header.model,
        "parameters": count_parameters(load_model(checkpoint)),
        "config": to_dict(header.config),
        "dataset": None if generator is None else generator.name,
        "generator": None if generator is None else to_dict(generator),
        "provenance": header.provenance,
    }
    if card_paths(path)[0].is_file():
        found["card"] = to_dict(read_card(path))
    return found


def describe_recipe(name: str, *, model: str, dataset: str) -> dict[str, Any]:
    """What a recipe makes, and how."""
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
    """Nested values as indented lines to read."""
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}", render(value, indent + "  ")] if value else []
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{indent}{key:{max(2, 24 - len(indent))}} {shown}")
    return "\n".join(lines)
