"""``danp train``: a recipe, or records of one's own, run to a checkpoint with its card."""

import shlex
import sys
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Exit, Option

from danp_lib._config import PositiveFloat, checked, to_dict
from danp_lib.cli.arguments import Data, Dataset, Device, Group, Seed, XColumn, YColumn, start_run
from danp_lib.cli.records import run_records
from danp_lib.fitting.fit import FitConfig, Interrupted
from danp_lib.models.contexts import CONTEXTS_PER_RANGE, TrainingContexts
from danp_lib.models.convnp import count_parameters
from danp_lib.storage.card import make_card, write_card
from danp_lib.storage.checkpoint import save_checkpoint
from danp_lib.storage.origin import commit, hardware, versions
from danp_lib.training import loop, recipes

_OF_RECIPES = {"dataset", "recipe", "max_minutes", "device", "compile_model", "snapshots"}
_OF_BOTH = {"model", "num_steps", "seed", "num_levels"}  # beside out and threads
_OF_RECORDS = {"data", *(field.name for field in fields(FitConfig))} - _OF_BOTH
_OUT = Option(
    help="A folder for the run and its checkpoint; or the checkpoint itself, such as "
    "a/m.safetensors, with the run in a/m.run."
)
_STEPS = Option("--steps", help="Updates; if left out, the recipe's, or 6,000 with --data.")
_LEVELS = Option(
    "--levels", help="F of a DANP; if left out, that of the paper's Table 2, or 2 with --data."
)
_MAX_MINUTES = Option(help="Stop after this time, with a checkpoint.")
_COMPILE = Option(
    "--compile",
    help="Compile the step: minutes the first time, then PyTorch keeps the code, with temporary "
    "files or where TORCHINDUCTOR_CACHE_DIR says. One of recipe fast is about a tenth faster.",
)
_SNAPSHOTS = Option("--snapshots", help="Keep checkpoints at 1,024, 2,048, ... steps too.")
_OWN_START = Option("--own-start", help="Count a function's inputs from its own first one.")


def _length(text: str) -> float | str:
    """A number, or what may be a duration."""
    with suppress(ValueError):
        return float(text)
    return text


_WIDTH = Option(
    parser=_length,
    metavar="NUMBER|DURATION",
    help="Cut series into windows this wide: in units of x, or for dates in years or such as 48h.",
)
_PERIOD = Option(
    parser=_length,
    metavar="NUMBER|DURATION",
    help="Subtract a cycle this long (given as for --width), and add it back to predictions.",
)
_TASKS = Option(help="random, or forecast: targets after the context.")
_HOLD_OUT_BY = Option(help="group, time (the last part) or blocks.")


def train(
    ctx: Context,
    out: Annotated[Path, _OUT],
    model: Annotated[
        str, Option(help="danp, convcnp, convgnp or, without --data, ar-convcnp.")
    ] = "danp",
    dataset: Dataset = None,
    recipe: Annotated[str, Option(help="paper (as published) or fast (better).")] = "fast",
    num_steps: Annotated[int | None, _STEPS] = None,
    seed: Seed = 0,
    num_levels: Annotated[int | None, _LEVELS] = None,
    max_minutes: Annotated[float | None, _MAX_MINUTES] = None,
    threads: Annotated[int | None, Option(help="Threads of the CPU.")] = None,
    device: Device = "cpu",
    compile_model: Annotated[bool, _COMPILE] = False,
    snapshots: Annotated[bool, _SNAPSHOTS] = False,
    data: Data = None,
    x: XColumn = None,
    y: YColumn = None,
    group: Group = None,
    own_start: Annotated[bool, _OWN_START] = False,
    width: Annotated[Any, _WIDTH] = None,
    period: Annotated[Any, _PERIOD] = None,
    tasks: Annotated[str, _TASKS] = "random",
    max_context: Annotated[int | None, Option(help="Most points of a context.")] = None,
    num_targets: Annotated[int | None, Option(help="Targets of a task.")] = None,
    held_out: Annotated[float, Option(help="Fraction of the data to hold out.")] = 0.2,
    hold_out_by: Annotated[str | None, _HOLD_OUT_BY] = None,
) -> None:
    """Train a model by a recipe, or on your own data, and write its checkpoint and card.

    A run that was stopped goes on where it was when the same command is given again: after Ctrl-C,
    after a termination signal, or once --max-minutes are over. A run of the recipe paper,
    whose learning rate is constant, is lengthened by more --steps; the rate of fast falls to zero
    at the last step, so that its length is fixed.

    With --data, some functions are held out, and the model's score on them is printed beside those
    of a ConvGNP and of a Gaussian process. No --dataset, --recipe, --max-minutes, --device,
    --compile or --snapshots goes with it.
    """
    if (data is None) == (dataset is None):
        raise ValueError("train needs --dataset, or --data and its columns, and not both.")
    run: Any = run_recipe if data is None else run_records
    kind, foreign = ("dataset", _OF_RECORDS) if data is None else ("data", _OF_RECIPES)
    for option in ctx.command.params:
        if option.name in foreign and ctx.params.pop(option.name) != option.get_default(ctx):
            raise ValueError(f"{option.opts[0]} does not go with --{kind}.")
    try:
        run(**ctx.params)
    except Interrupted:
        print("danp: stopped; the same command goes on from here.", file=sys.stderr)
        raise Exit(130) from None


def run_recipe(
    *,
    out: Path,
    recipe: str,
    max_minutes: float | None,
    threads: int | None,
    device: str,
    compile_model: bool,
    snapshots: bool,
    **named: Any,
) -> None:
    """Train by a recipe; an :class:`Interrupted` run writes no checkpoint.

    The other options are those of :func:`~danp_lib.training.recipes.recipe`.
    """
    chosen = recipes.recipe(recipe, **named)
    if max_minutes is not None:
        checked(PositiveFloat, max_minutes, "--max-minutes")
    path, folder = start_run(out, chosen.checkpoint_name, threads)
    model, prior, run = chosen.build_model().to(device), chosen.task_generator, chosen.training
    # Asked for first, since a checkpoint in the repository makes it differ from its commit.
    made_at = commit()
    start = time.monotonic()
    history = loop.train(
        model,
        prior,
        run,
        folder=folder,
        max_minutes=max_minutes,
        compile_model=compile_model,
        snapshots=snapshots,
    )
    last = history[-1]
    out_of_time = max_minutes is not None and time.monotonic() - start >= 60.0 * max_minutes
    if last["step"] < run.num_steps and not out_of_time:
        raise Interrupted
    model.training_contexts = TrainingContexts.measure(
        model, prior, run.batch.context_size, per_range=min(CONTEXTS_PER_RANGE, run.num_steps)
    )
    kept = last.get("kept")
    # The options of the command that trains this which are not the defaults.
    options = {
        "model": chosen.model,
        "dataset": chosen.dataset,
        "recipe": recipe,
        "seed": run.seed,
        "levels": chosen.num_levels,
        "steps": chosen.num_steps,
        "max-minutes": None if max_minutes is None else f"{max_minutes:g}",
        "threads": threads,
        "device": None if device == "cpu" else device,
        "out": path.name,
    }
    given = [f"--{k} {shlex.quote(str(v))}" for k, v in options.items() if v is not None]
    flags = ["--compile"] * compile_model
    provenance = {
        "recipe": recipe,
        "training": to_dict(run),
        "steps": last["step"],
        "kept_step": kept,
        "command": " ".join(["danp train", *given, *flags]),
        **versions(),
    }
    save_checkpoint(path, model, task_generator=prior, provenance=provenance)
    validations = {r["step"]: tuple(r["validation"]) for r in history if "validation" in r}
    card = make_card(
        path,
        parameters=count_parameters(model),
        minutes=round(last["minutes"], 2),
        hardware=hardware(device),
        validation=validations.get(kept or last["step"]),
        commit=made_at,
    )
    write_card(path, card)
    print(f"{path}: {card.steps} steps, {card.minutes} minutes", file=sys.stderr)
