"""``danp train``: a recipe, run to a checkpoint with its card."""

from __future__ import annotations

import itertools
import shlex
import sys
import time
from pathlib import Path

import torch

from danp_lib._config import PositiveFloat, PositiveInt, checked, to_dict
from danp_lib._files import check_writable
from danp_lib.inference.compiling import can_compile
from danp_lib.models.contexts import CONTEXTS_PER_RANGE, TrainingContexts
from danp_lib.models.convnp import NeuralProcess, count_parameters
from danp_lib.storage.card import Card, card_paths, make_card, write_card
from danp_lib.storage.checkpoint import save_checkpoint
from danp_lib.storage.origin import commit, hardware, versions
from danp_lib.training import recipes
from danp_lib.training.loop import train
from danp_lib.training.recipes import Recipe
from danp_lib.training.resume import LOG, STATE, Record

COMPILING_PAYS_FROM = 5000
"""Steps from which compiling for a CPU, about a minute, is won back."""


def start_run(out: Path, name: str, threads: int | None) -> tuple[Path, Path]:
    """The checkpoint's file and the folder of its run; sets the threads of the CPU, if told.

    ``out`` is a file that ends in ``.safetensors``, such as ``a/m.safetensors``, whose run is kept
    beside it in ``a/m.run``; or a folder, which holds both, the checkpoint by its name. What that
    run has not made itself is refused where it would be replaced.
    """
    checked(PositiveInt | None, threads, "threads")
    if out.suffix == ".safetensors":
        path, folder = out, out.with_suffix(".run")
    elif out.is_file():
        raise ValueError(f"out must be a folder or end in .safetensors, got the file {out}.")
    else:
        path, folder = out / f"{name}.safetensors", out
    made = (path, *card_paths(path))
    for file in (*made, folder / LOG):
        check_writable(file)
    taken = [file for file in made if file.exists()]
    if taken and not (folder / STATE).exists():
        raise ValueError(
            f"out must be new, or of the run in {folder}, got {taken[0]}, which that run has not "
            "made; move it, or choose another name."
        )
    if threads is not None:
        torch.set_num_threads(threads)
    return path, folder


def run_recipe(
    *,
    model: str,
    dataset: str,
    recipe: str,
    steps: int | None,
    levels: int | None,
    seed: int,
    out: Path,
    max_minutes: float | None,
    threads: int | None,
    device: str,
    compile_model: bool | None,
    snapshots: bool,
) -> bool:
    """Train by a recipe, or go on, and write the checkpoint and its card, as ``danp train`` says.

    Returns whether the run is done: one that was interrupted writes no checkpoint, and the same
    call goes on.
    """
    chosen = recipes.recipe(
        recipe, model=model, dataset=dataset, num_steps=steps, num_levels=levels, seed=seed
    )
    checked(PositiveFloat | None, max_minutes, "max-minutes")
    path, folder = start_run(out, chosen.checkpoint_name, threads)
    target = checked_device(device)
    network = chosen.build_model().to(target)
    num_steps = chosen.training.num_steps
    if compile_model is None:
        compile_model = num_steps >= COMPILING_PAYS_FROM and can_compile(target)
    # Asked for first, since a checkpoint in the repository makes it differ from its commit.
    made_at = commit()
    start = time.monotonic()
    history = train(
        network,
        chosen.task_generator,
        chosen.training,
        folder=folder,
        max_minutes=max_minutes,
        compile_model=compile_model,
        snapshots=snapshots,
    )
    out_of_time = max_minutes is not None and time.monotonic() - start >= 60.0 * max_minutes
    if history[-1]["step"] < num_steps and not out_of_time:
        return False
    command = _command_line(chosen, path, max_minutes=max_minutes, threads=threads, device=device)
    card = _save(chosen, network, path, history, command, made_at)
    print(f"{path}: {card.steps} steps, {card.minutes} minutes", file=sys.stderr)
    return True


def _save(
    recipe: Recipe,
    model: NeuralProcess,
    path: Path,
    history: list[Record],
    command: str,
    made_at: str | None,
) -> Card:
    """Write the checkpoint and its card."""
    model.training_contexts = TrainingContexts.measure(
        model,
        recipe.task_generator,
        recipe.training.batch.context_size,
        per_range=min(CONTEXTS_PER_RANGE, recipe.training.num_steps),
    )
    provenance = {
        "recipe": recipe.name,
        "training": to_dict(recipe.training),
        "steps": history[-1]["step"],
        "command": command,
        **versions(),
    }
    save_checkpoint(path, model, task_generator=recipe.task_generator, provenance=provenance)
    validations = [tuple(r["validation"]) for r in history if "validation" in r]
    card = make_card(
        path,
        parameters=count_parameters(model),
        minutes=round(history[-1]["minutes"], 2),
        hardware=hardware(next(model.parameters()).device),
        validation=validations[-1] if validations else None,
        commit=made_at,
    )
    write_card(path, card)
    return card


def _command_line(
    recipe: Recipe, path: Path, *, max_minutes: float | None, threads: int | None, device: str
) -> str:
    """The command that trains this, with the options that are not the defaults."""
    options = {
        "model": recipe.model,
        "dataset": recipe.dataset,
        "recipe": recipe.name,
        "seed": recipe.training.seed,
        "levels": recipe.num_levels,
        "steps": recipe.num_steps,
        "max-minutes": None if max_minutes is None else f"{max_minutes:g}",
        "threads": threads,
        "device": None if device == "cpu" else device,
        "out": path.name,
    }
    given = [(f"--{key}", str(value)) for key, value in options.items() if value is not None]
    return shlex.join(["danp", "train", *itertools.chain(*given)])


def checked_device(name: str) -> torch.device:
    """The device of a name; a ``ValueError`` if there is none such here."""
    count = torch.cuda.device_count()
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if name not in known:
        raise ValueError(f"device must be one of {', '.join(known)} here, got {name!r}.")
    return torch.device(name)
