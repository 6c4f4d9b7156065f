"""What the benchmarks share: timing in turns, the reference, and where results go."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from danp_lib._files import write_atomically
from danp_lib.storage.origin import commit, hardware

RESULTS = Path(__file__).parent / "results"


def argument_parser(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """The option that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="timings of either side")
    return parser


def in_turns(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each side in each round; the sides alternate, so that both see the same machine.

    The first rounds, ``warm_up`` of them, are dropped. On one thread, ``time.process_time`` leaves
    out the time in which other processes had the core.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + warm_up):
        for name, run in sides.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: times[warm_up:] for name, times in seconds.items()}


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "lower_quartile": low, "upper_quartile": high}


def written(values: Mapping[str, float], unit: str = "") -> str:
    """A spread as text."""
    middle, low, high = (f"{values[k]:.3g}" for k in ("median", "lower_quartile", "upper_quartile"))
    return f"{middle}{unit} ({low} to {high})"


def save(name: str, results: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write a benchmark's numbers with what they were measured on."""
    packages = ("danp_lib", "torch", "numpy", "NeuralProcesses")
    record = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "processor": hardware().cpu,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
        **results,
    }
    write_atomically(folder / f"{name}.json", json.dumps(record, indent=2) + "\n")


def build_reference(num_levels: int, rank: int) -> tuple[Any, Any]:
    """The package NeuralProcesses and its model of a DANP, the same network as the paper's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import neuralprocesses.torch as nps
    warnings.filterwarnings("ignore", "Using a non-tuple sequence")
    model = nps.construct_convgnp(
        dim_yc=(1,) * (num_levels + 1),
        dim_yt=num_levels + 1,
        likelihood="lowrank",
        num_basis_functions=rank,
    )
    return nps, model
