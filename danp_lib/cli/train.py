"""``danp train``: a recipe, run to a checkpoint with its card."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import torch

from danp_lib._config import to_dict
from danp_lib._files import check_writable
from danp_lib.inference.compiling import can_compile
from danp_lib.models.convnp import NeuralProcess, count_parameters
from danp_lib.models.danp import DANPConfig
from danp_lib.storage.card import Card, card_paths, make_card, write_card
from danp_lib.storage.checkpoint import save_checkpoint
from danp_lib.storage.origin import commit, hardware, versions
from danp_lib.training.loop import train
from danp_lib.training.recipes import Recipe
from danp_lib.training.recipes import recipe as get_recipe
from danp_lib.training.resume import Record

COMPILING_PAYS_FROM = 5000
"""Steps from which compiling for a CPU, about a minute, is won back."""


def places(out: Path, name: str) -> tuple[Path, Path]:
    """The checkpoint's file and the folder of the run.

    Args:
        out: A file that ends in ``.safetensors``, whose run goes to the folder ``runs``; or a
            folder, which holds both.
        name: Name of the checkpoint in a folder.

    Raises:
        ValueError: If the folder is a file, or there is a checkpoint or a card already that no run
            in the folder has made.
        OSError: If the file cannot be written.
    """
    if out.exists() and not out.is_dir() and out.suffix != ".safetensors":
        raise ValueError(f"out must be a folder or end in .safetensors, got the file {out}.")
    single = out.suffix == ".safetensors"
    path, folder = (out, Path("runs") / out.stem) if single else (out / f"{name}.safetensors", out)
    made = (path, *card_paths(path))
    for file in (*made, folder / "log.jsonl"):
        check_writable(file)
    taken = [file for file in made if file.exists()]
    if taken and not (folder / "state.safetensors").exists():
        raise ValueError(
            f"out must be new, or of the run in {folder}, got {taken[0]}, which that run has not "
            "made; move it, or choose another name."
        )
    return path, folder


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    max_minutes: float | None,
    threads: int | None,
    device: str,
    compile_model: bool | None,
    snapshots: bool = False,
    progress: bool = True,
) -> tuple[Path, Card] | None:
    """Train, or go on training, and write the checkpoint and its card.

    Args:
        recipe: What to train.
        out: See :func:`places`.
        max_minutes: Stop after this time, with a checkpoint.
        threads: Threads of the CPU; PyTorch's choice where left out.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` and so on.
        compile_model: Compile the step; ``None`` does where it pays.
        snapshots: See :func:`~danp_lib.training.loop.train`.
        progress: Show a progress bar on the standard error.

    Returns:
        The file and its card, or ``None`` if the run was interrupted: then no checkpoint is
        written, and the same call goes on where it stopped.

    Raises:
        ValueError: If an argument does not fit, the folder holds another run, or the loss stops
            being finite.
    """
    name = checkpoint_name(recipe)
    path, folder = places(out, name)
    _check_limits(max_minutes, threads)
    if threads is not None:
        torch.set_num_threads(threads)
    target = checked_device(device)
    model = recipe.build_model().to(target)
    num_steps = recipe.training.num_steps
    if compile_model is None:
        compile_model = num_steps >= COMPILING_PAYS_FROM and can_compile(target)
    # Asked for first, since a checkpoint in the repository makes it differ from its commit.
    made_at = commit()
    start = time.monotonic()
    history = train(
        model,
        recipe.task_generator,
        recipe.training,
        folder=folder,
        max_minutes=max_minutes,
        compile_model=compile_model,
        snapshots=snapshots,
        progress=progress,
    )
    steps = history[-1]["step"]
    out_of_time = max_minutes is not None and time.monotonic() - start >= 60.0 * max_minutes
    if steps < num_steps and not out_of_time:
        return None
    command = command_line(recipe, path, max_minutes=max_minutes, threads=threads, device=device)
    card = _save(path, model, recipe, history, command=command, made_at=made_at, device=target)
    return path, card


def _check_limits(max_minutes: float | None, threads: int | None) -> None:
    if max_minutes is not None and not max_minutes > 0.0:
        raise ValueError(f"max-minutes must be positive, got {max_minutes}.")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be >= 1, got {threads}.")


def _save(
    path: Path,
    model: NeuralProcess,
    recipe: Recipe,
    history: list[Record],
    *,
    command: str,
    made_at: str | None,
    device: torch.device,
) -> Card:
    """Write the checkpoint, and its card, which holds the checkpoint's hash."""
    save_checkpoint(
        path,
        model,
        task_generator=recipe.task_generator,
        provenance={
            "recipe": recipe.name,
            "training": to_dict(recipe.training),
            "steps": history[-1]["step"],
            "command": command,
            **versions(),
        },
    )
    card = make_card(
        path,
        parameters=count_parameters(model),
        minutes=round(history[-1]["minutes"], 2),
        hardware=hardware(device),
        validation=next((tuple(r["validation"]) for r in history[::-1] if "validation" in r), None),
        commit=made_at,
    )
    write_card(path, card)
    return card


def checkpoint_name(recipe: Recipe) -> str:
    """The name that a recipe's model has among the pretrained ones, as in ``danp-f2-sawtooth``."""
    levels = _own_levels(recipe)
    part = "" if levels is None else f"f{levels}-"
    return f"{recipe.model}-{part}{recipe.task_generator.name}"


def command_line(
    recipe: Recipe, path: Path, *, max_minutes: float | None, threads: int | None, device: str
) -> str:
    """The command that trains this, with the options that are not the defaults."""
    default = _default(recipe)
    parts = ["danp", "train", "--model", recipe.model, "--dataset", recipe.task_generator.name]
    parts += ["--recipe", recipe.name, "--seed", str(recipe.training.seed)]
    if (levels := _own_levels(recipe)) is not None:
        parts += ["--levels", str(levels)]
    if recipe.training.num_steps != default.training.num_steps:
        parts += ["--steps", str(recipe.training.num_steps)]
    if max_minutes is not None:
        parts += ["--max-minutes", f"{max_minutes:g}"]
    if threads is not None:
        parts += ["--threads", str(threads)]
    if device != "cpu":
        parts += ["--device", device]
    return shlex.join([*parts, "--out", path.name])


def _default(recipe: Recipe) -> Recipe:
    return get_recipe(recipe.name, model=recipe.model, dataset=recipe.task_generator.name)


def _own_levels(recipe: Recipe) -> int | None:
    """F, where it is not Table 2's."""
    config, default = recipe.model_config, _default(recipe).model_config
    if isinstance(config, DANPConfig) and config != default:
        return config.num_levels
    return None


def checked_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ValueError: If there is no such device here.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {name!r}.") from None
    count = torch.cuda.device_count()
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {name!r}.")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"device must be cpu, or one of the {count} CUDA devices, got {name!r}.")
    return device
