"""Models in files: the weights, with all that is needed to use them.

A checkpoint is one safetensors file. Its metadata hold ``format``, ``model`` (its name); as JSON
``config``, ``generator`` (name and configuration of what the model was trained on) and
``provenance`` (free fields); and ``sha256``, of the whole file with the 64 digits of this field set
to 0, so that a change of any byte shows.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from danp_lib._config import check_choice, check_kind, from_dict, naming, to_dict
from danp_lib._files import (
    NO_DIGEST,
    check_digest,
    data_folders,
    split_header,
    with_digest,
    write_atomically,
)
from danp_lib.data.generators import GENERATORS, TaskGenerator
from danp_lib.models.contexts import TrainingContexts
from danp_lib.models.registry import MODELS, check_config, config_class

FORMAT = "danp_lib/1"
CONTEXTS = "contexts.json"

# Of the free fields, those that a fitted model reads.
_OBJECTS = ("fit", "held_out", "layout", "scaling", "season")


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted or used; the message says why."""


@dataclass(frozen=True)
class CheckpointHeader:
    """What a checkpoint says about itself."""

    model: str
    config: Any
    generator: dict[str, Any] | None  #: ``name`` and ``config`` of what it was trained on, as JSON.
    task_generator: TaskGenerator | None  #: The same made anew, if a class of that name is known.
    provenance: dict[str, Any]


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    task_generator: TaskGenerator | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a model, and what its contexts in training were like, to one file, whole or not at all.

    A prior of one's own needs a name that is not the library's. Equal arguments give equal bytes.
    """
    name = getattr(model, "name", None)
    if MODELS.get(str(name)) is not type(model):
        raise ValueError(
            f"model must be of a registered class ({', '.join(MODELS)}), got "
            f"{type(model).__name__} with the name {name!r}."
        )
    check_config(str(name), model.config)
    generator = None
    if task_generator is not None:
        check_kind(TaskGenerator, task_generator=task_generator)
        kind = type(task_generator)
        if GENERATORS.get(task_generator.name, kind) is not kind:
            raise ValueError(
                f"task_generator must have a name of its own, got {task_generator.name!r}, which "
                f"is taken; set another as `name` of the class {kind.__name__}."
            )
        generator = {"name": task_generator.name, "config": to_dict(task_generator)}
    check_kind(Mapping, provenance=({} if provenance is None else provenance))
    fields = dict(provenance or {})
    for key in _OBJECTS:
        if fields.get(key) is not None:
            check_kind(Mapping, **{f"provenance.{key}": fields[key]})
    if "contexts" in fields:
        raise ValueError(
            "provenance must not hold contexts, since those of the model's training are saved "
            f"under that name, got {fields['contexts']!r}."
        )
    if (contexts := getattr(model, "training_contexts", None)) is not None:
        fields["contexts"] = to_dict(contexts)
    tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    for key, value in tensors.items():
        if value.dtype != torch.float32 or not value.isfinite().all():
            raise ValueError(
                f"the weight {key} must be finite float32, got {value.dtype} with "
                f"{(~value.isfinite()).sum().item()} values that are not finite."
            )
    parts = {"config": to_dict(model.config), "generator": generator, "provenance": fields}
    texts = {}
    for key, part in parts.items():
        try:
            texts[key] = json.dumps(part, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key} must hold what JSON can: {error}.") from error
    metadata = {"format": FORMAT, "model": str(name), **texts, **NO_DIGEST}
    write_atomically(path, with_digest(save(tensors, metadata)))


def read_header(
    path: str | os.PathLike[str], *, task_generators: Iterable[type[TaskGenerator]] = ()
) -> CheckpointHeader:
    """What a checkpoint says about itself; a :class:`CheckpointError` if it is none or was changed.

    ``task_generators`` are classes that it may have been trained on beside the library's; their
    fields must be all that they are constructed from.
    """
    return _read(Path(path), task_generators)[0]


def load_checkpoint(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Any:
    """Load a model onto a device, in evaluation mode.

    Raises:
        CheckpointError: If the file is no checkpoint, was changed, or does not fit.
        FileNotFoundError: If there is none.
        ValueError: If PyTorch has no such device here.
    """
    path = Path(path)
    header, tensors = _read(path)
    # The weights drawn by the constructor are thrown away; the global seed stays where it was.
    with torch.random.fork_rng(devices=[]):
        model = MODELS[header.model](header.config)
    own, found = (
        {key: f"{tuple(value.shape)} {value.dtype}" for key, value in weights.items()}
        for weights in (model.state_dict(), tensors)
    )
    if wrong := sorted(dict(own.items() ^ found.items())):
        shown = [f"{k} must be {own.get(k, 'absent')}, got {found.get(k)}" for k in wrong[:3]]
        raise CheckpointError(
            f"{path}: the tensors must be those of a {header.model} with the configuration in the "
            f"file: {'; '.join(shown)}{'; ...' if len(wrong) > 3 else ''}."
        )
    model.load_state_dict(tensors)
    shipped = path.parent.resolve() in [folder.resolve() for folder in data_folders("checkpoints")]
    if shipped and path.stem in (stored := read_contexts(path.parent)):
        model.training_contexts = stored[path.stem]
    elif (contexts := header.provenance.get("contexts")) is not None:
        with naming(path, CheckpointError):
            model.training_contexts = from_dict(TrainingContexts, contexts, name="contexts")
    try:
        return model.eval().to(device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device must be one of this machine, got {device!r}: {reason}") from error


def read_contexts(folder: Path) -> dict[str, TrainingContexts]:
    """Contexts in training of a folder's models by name, from ``scripts/contexts.py``.

    They come before those in the models' own headers, which may have been measured differently.
    """
    path = folder / CONTEXTS
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {k: from_dict(TrainingContexts, v, name=f"{path}: {k}") for k, v in stored.items()}


def _read(
    path: Path, task_generators: Iterable[type[TaskGenerator]] = ()
) -> tuple[CheckpointHeader, dict[str, Tensor]]:
    """The header and the tensors, once every byte is known to be as it was written."""
    data = path.read_bytes()
    try:
        content, _ = split_header(data)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is no checkpoint, or was changed or cut off: it is no safetensors file."
        ) from error
    metadata = content.get("__metadata__", {})
    named = metadata.get("format") if isinstance(metadata, dict) else metadata
    if named != FORMAT:
        raise CheckpointError(
            f"{path}: the format must be {FORMAT!r}, got {named!r}; it is no checkpoint, or one of "
            "another version of danp_lib."
        )
    try:
        check_digest(data)
    except ValueError as error:
        raise CheckpointError(f"{path} was changed, download or train it again: {error}") from error
    with naming(path, CheckpointError):
        if missing := {"model", "config", "generator", "provenance"} - metadata.keys():
            raise ValueError(f"the metadata lack {', '.join(sorted(missing))}.")
        check_choice("the model", name := metadata["model"], MODELS)
        config = from_dict(config_class(name), json.loads(metadata["config"]), name="config")
        generator, provenance = (json.loads(metadata[k]) for k in ("generator", "provenance"))
        known = _task_generator(generator, task_generators)
    return CheckpointHeader(name, config, generator, known, provenance), load(data)


def _task_generator(values: Any, own: Iterable[type[TaskGenerator]]) -> TaskGenerator | None:
    if values is None:
        return None
    if not isinstance(values, Mapping) or not isinstance(values.get("config"), Mapping):
        raise ValueError(f"generator must be null or hold name and config, got {values!r}.")
    known = {cls.name: cls for cls in (*own, *GENERATORS.values())}.get(str(values.get("name")))
    return None if known is None else from_dict(known, values["config"], name="generator.config")
