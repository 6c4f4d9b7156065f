"""What the files of results share: the model and its tasks, where they come from, the JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from danp_lib._config import from_dict, to_dict
from danp_lib._files import data_folders, write_atomically
from danp_lib.data.generators import GENERATORS
from danp_lib.data.points import Task
from danp_lib.evaluation.score import CHUNK_SIZE
from danp_lib.exact.oracles import ORACLES
from danp_lib.inference.compiling import can_compile, compile_unet
from danp_lib.storage.card import Hardware
from danp_lib.storage.origin import commit, hardware
from danp_lib.storage.pretrained import PRETRAINED, load_pretrained, pretrained_path
from danp_lib.storage.tasks import benchmark_path, benchmark_tasks, sha256

CEILING = "ceiling"
"""The name of the exact predictives among the results.

They have the models' variance floor. On the GP they are a yardstick and no limit, see
:class:`~danp_lib.exact.gp.GaussianProcessOracle`.
"""

NAMES = (*PRETRAINED, *(f"{CEILING}-{dataset}" for dataset in GENERATORS))
"""The names of what can be evaluated, a pretrained model's, or ``"ceiling-gp"`` and so on."""


@dataclass(frozen=True)
class Origin:
    """Where a result comes from.

    Attributes:
        name: One of :data:`NAMES`.
        dataset: Name of the benchmark set.
        weights: SHA-256 of the checkpoint, or ``None`` for an oracle.
        tasks: SHA-256 of the benchmark set.
        seed: Of the samples.
        commit: The library's commit in git, or ``None`` where that is not known.
        hardware: The machine.
        danp_lib: Version of this library.
        torch: Version of PyTorch.
        compiled: Whether the network was compiled for passes of many samples; to be known where
            seconds are compared.
    """

    name: str
    dataset: str
    weights: str | None
    tasks: str
    seed: int
    commit: str | None
    hardware: Hardware
    danp_lib: str
    torch: str
    compiled: bool = False


@dataclass(frozen=True)
class Provenance:
    """What every result holds beside its content.

    Attributes:
        origin: Where it comes from.
        configuration: The model's, as JSON.
    """

    origin: Origin
    configuration: dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """What is evaluated.

    Attributes:
        model: The model, or an oracle.
        configuration: Its configuration, as JSON.
        tasks: The benchmark set of its dataset, on the model's device.
        origin: Where both come from.
        generator: Of the samples, on the model's device.
    """

    model: Any
    configuration: dict[str, Any]
    tasks: Task
    origin: Origin
    generator: torch.Generator


def load_subject(
    name: str, *, seed: int, device: torch.device | str = "cpu", compiled: bool = False
) -> Subject:
    """A pretrained model, or the ceiling, and the benchmark set of its dataset.

    Args:
        name: One of :data:`NAMES`.
        seed: Of the samples.
        device: What to compute on; an oracle computes on the CPU.
        compiled: Compile a DANP's network for passes of
            :data:`~danp_lib.evaluation.score.CHUNK_SIZE` samples, if
            :func:`~danp_lib.inference.compiling.can_compile` says so.

    Raises:
        ValueError: If there is no such name.
        FileNotFoundError: If the weights or the benchmark set are missing.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}.")
    kind, dataset = name.rsplit("-", 1)
    compiled = compiled and kind.startswith("danp") and can_compile(device)
    if kind == CEILING:
        model: Any = ORACLES[dataset]()
        device, configuration, weights = "cpu", to_dict(model), None
    else:
        model = load_pretrained(name, device=device)
        configuration, weights = to_dict(model.config), sha256(pretrained_path(name))
        if compiled:
            compile_unet(model, batch_size=CHUNK_SIZE)
    origin = Origin(
        name=name,
        dataset=dataset,
        weights=weights,
        tasks=sha256(benchmark_path(dataset)),
        seed=seed,
        commit=commit(),
        hardware=hardware(device),
        danp_lib=version("danp_lib"),
        torch=torch.__version__,
        compiled=compiled,
    )
    tasks = benchmark_tasks(dataset).to(device)
    generator = torch.Generator(device=device).manual_seed(seed)
    return Subject(model, configuration, tasks, origin, generator)


def write_result(
    path: str | os.PathLike[str],
    origin: Origin,
    configuration: Mapping[str, Any],
    **content: Any,
) -> Path:
    """Write a result, whole or not at all: its origin, the model's configuration, its content.

    Args:
        path: Where to.
        origin: Where it comes from.
        configuration: The model's, as JSON.
        **content: Frozen dataclasses, each under its name.
    """
    path = Path(path)
    document = to_dict(origin) | {"configuration": dict(configuration)}
    document |= {key: to_dict(value) for key, value in content.items()}
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return path


def read_result(
    path: str | os.PathLike[str], **content: type[Any]
) -> tuple[Origin, dict[str, Any], list[Any]]:
    """Read what :func:`write_result` wrote, strictly.

    Args:
        path: Where it lies.
        **content: The dataclass of each name.

    Returns:
        The origin, the configuration, and the content in the order of its names.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is something else; with the path and the key that is wrong.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no result at {path}.")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError(f"a result must be an object, got {document!r}.")
        configuration = document.pop("configuration", {})
        parts = [from_dict(c, document.pop(k, None), name=k) for k, c in content.items()]
        return from_dict(Origin, document, name="result"), configuration, parts
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_scores(
    path: str | os.PathLike[str], found: Any, expected: Any, keys: Sequence[str]
) -> None:
    """Refuse scores that are not those of the records beside them.

    Args:
        path: The file, for the message.
        found: The summary in the file.
        expected: The summary of its records, computed anew.
        keys: The attributes to compare.

    Raises:
        ValueError: If one of them differs by more than rounding.
    """
    for key in keys:
        read, right = getattr(found, key), getattr(expected, key)
        if read != right and (
            read is None or right is None or not math.isclose(read, right, rel_tol=1e-9)
        ):
            raise ValueError(f"{path}: {key} must be {right}, as its tasks say, got {read}.")


def results_folder() -> Path:
    """Where the results lie: the first of :func:`~danp_lib._files.data_folders` that exists."""
    folders = data_folders("results")
    return next((folder for folder in folders if folder.is_dir()), folders[-1])


def command_line(
    module: str, description: str, *, compilable: bool = False
) -> argparse.ArgumentParser:
    """The options that every command which makes a result takes; the last is ``--compiled``."""
    parser = argparse.ArgumentParser(prog=f"python -m danp_lib.{module}", description=description)
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", default="results", help="folder (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="(default: %(default)s)")
    if compilable:
        parser.add_argument(
            "--compiled",
            action="store_true",
            help=f"on a CPU with a C++ compiler, compile a DANP's network for {CHUNK_SIZE} samples "
            "and more",
        )
    return parser
