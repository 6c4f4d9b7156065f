"""What the commands share: their arguments, and what these stand for."""

import ctypes
import json
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from typer import Argument, Option

from danp_lib import _config
from danp_lib._files import check_writable
from danp_lib.fitting.fitted import Fitted, load_fitted
from danp_lib.models.danp import defend
from danp_lib.storage.card import card_paths
from danp_lib.storage.pretrained import PRETRAINED, find_checkpoint, load_pretrained
from danp_lib.training.resume import LOG, STATE


def _checked_seed(seed: int) -> int:
    # A range of typer's would fill the help with its numbers.
    return _config.checked(_config.Seed, seed, "--seed")


def _checked_device(name: str) -> str:
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    _config.check_choice("device", name, ["cpu", *(["cuda", *gpus] if gpus else [])])
    return name


DATES = "dates become years, and a day 1/365.2425"
DATASET_NAMES = "sawtooth, square, square-released or gp"
CHECKPOINT = Argument(help="A checkpoint's file, or the name of a pretrained model.")
Defended = Annotated[
    bool,
    Option(
        "--defended",
        help="Guard a DANP against samples of its own that are wrong; one that was trained on your "
        "own records always is.",
    ),
]
ESTIMATOR = Option(
    help="model (as published), noising, both, or a rollout: autoregressive (in one random order), "
    "outward (in one by the distance from a random target), orders (the mean density over eight "
    "random orders), orders-halved (likewise, with half the samples each time the number of known "
    "points, plus one, doubles) or orders-outward (as orders-halved, in orders that lead outward)."
)
Dataset = Annotated[
    str | None, Option(help=f"{DATASET_NAMES}; with noise, sawtooth-noisy or gp-noisy.")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON, for programs.")]
Seed = Annotated[int, Option(help="Seed of all randomness.", callback=_checked_seed)]
Device = Annotated[str, Option(help="cpu, cuda or cuda:N.", callback=_checked_device)]
Data = Annotated[Path | None, Option(help="A CSV file of your own, a row per measurement.")]
XColumn = Annotated[str | None, Option("--x", help=f"Name of the column of inputs; {DATES}.")]
YColumn = Annotated[str | None, Option("--y", help="Name of the column of outputs.")]
Group = Annotated[str | None, Option(help="Name of the column that tells functions apart.")]


def as_text(value: Any) -> str:
    """A value as JSON, to be printed."""
    return json.dumps(value, indent=2, allow_nan=False)


def with_error(value: float | None, error: float | None, form: str, *, width: int = 1) -> str:
    """A number and its 1.96 standard errors, the latter of some width; blank what is ``None``."""
    number = "" if value is None else format(value, form)
    return number if error is None else f"{number} ± {error:{width}{form}}"


def aligned(rows: Sequence[Sequence[str]], *, left: Collection[int] = ()) -> list[str]:
    """Rows as lines of columns; those in ``left`` are flush left, the others flush right."""
    columns = enumerate(zip(*rows, strict=True))
    forms = [f"{'<' if i in left else '>'}{max(map(len, column))}" for i, column in columns]
    return ["  ".join(map(format, row, forms)).rstrip() for row in rows]


def say(where: Path | str | None, message: object) -> None:
    """Print a line on the standard error."""
    print("danp:", message if where is None else f"{where}: {message}", file=sys.stderr)


@contextmanager
def saying_warnings(*kinds: type[Warning], where: Path | str | None = None) -> Iterator[None]:
    """Say warnings, every one of some kinds, in a line each and not as Python prints them."""
    with warnings.catch_warnings():  # which puts showwarning back
        for kind in kinds:
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda message, *_, **__: say(where, message)
        yield


def open_fitted(checkpoint: str, *, device: str = "cpu", defended: bool = False) -> Fitted:
    """A checkpoint, by its path or a pretrained model's name, in the units of its data."""
    if checkpoint in PRETRAINED:
        fitted = Fitted(load_pretrained(checkpoint, device=device))
    else:
        fitted = load_fitted(find_checkpoint(checkpoint), device=device)
    return replace(fitted, model=defend(fitted.model)) if defended else fitted


def keep_freed_memory() -> None:
    """Have glibc keep what is freed for the next step, for the rest of the process.

    To return the memory of large tensors and get it anew, page by page, takes a few per cent of a
    step.
    """
    # Another C library may not have it.
    if sys.platform == "linux" and hasattr(allocator := ctypes.CDLL(None), "mallopt"):
        allocator.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, as in malloc.h
        allocator.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def start_run(out: Path, name: str, threads: int | None) -> tuple[Path, Path]:
    """The checkpoint's file and the folder of its run; prepares memory, and threads if told.

    ``out`` is a file such as ``a/m.safetensors``, whose run is kept in ``a/m.run``; or a folder,
    which holds both. What another run has made is not replaced.
    """
    if threads is not None:
        count = _config.checked(_config.PositiveInt, threads, "--threads")
        with _config.naming("--threads"):
            torch.set_num_threads(count)
    path, folder = out / f"{name}.safetensors", out
    if out.suffix == ".safetensors":
        path, folder = out, out.with_suffix(".run")
    made = (path, *card_paths(path))
    for file in (*made, folder / LOG):
        check_writable(file)
    taken = [file for file in made if file.exists()]
    if taken and not (folder / STATE).exists():
        raise ValueError(f"out must be new, or made by the run in {folder}, got {taken[0]}.")
    keep_freed_memory()
    return path, folder
