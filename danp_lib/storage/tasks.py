"""The benchmark tasks: 310 fixed ones a dataset, made once and stored (Appendix B.1)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from danp_lib._config import check_choice, to_dict
from danp_lib._files import data_folders, first_file, write_atomically
from danp_lib.data.generators import DATASETS
from danp_lib.data.observations import stack
from danp_lib.data.points import Task, load_tasks, save_tasks
from danp_lib.storage.origin import sha256, versions

CONTEXT_SIZES = tuple(range(31))
TASKS_PER_SIZE = 10
NUM_TARGETS = 50
POOL_SIZE = 512

SEEDS = {"sawtooth": 310_001, "square": 310_002, "gp": 310_003, "square-released": 310_004}
"""The seed of each set, far from the small ones that training and validation are likely to use."""

HASHES = "hashes.json"
"""The file beside the sets that holds the SHA-256 of each."""


def make_benchmark(dataset: str) -> Task:
    """Draw the benchmark tasks of a dataset anew, as this version of PyTorch does.

    They are 310 in float32, sorted by context size: ten for each from 0 to 30, with 50 targets and
    a pool of 512 further points each; contexts are padded to 30.
    """
    check_choice("dataset", dataset, DATASETS)
    generator = torch.Generator().manual_seed(SEEDS[dataset])
    parts = [
        DATASETS[dataset].sample_task(
            TASKS_PER_SIZE,
            context_size=size,
            num_targets=NUM_TARGETS,
            pool_size=POOL_SIZE,
            generator=generator,
        )
        for size in CONTEXT_SIZES
    ]
    return Task(
        stack([part.context for part in parts]),
        stack([part.target for part in parts]),
        stack([part.pool for part in parts if part.pool is not None]),
    )


def write_benchmarks(folder: str | os.PathLike[str]) -> None:
    """Make the benchmark sets that a folder lacks, and write them there, with the hashes beside.

    A folder that lacks none is refused, and so is a set that is not the one that its hash is of. A
    set that has no hash, of a call that was stopped, is made again.
    """
    folder = Path(folder)
    hashes = json.loads((folder / HASHES).read_text()) if (folder / HASHES).exists() else {}
    paths = {dataset: folder / f"{dataset}.safetensors" for dataset in DATASETS}
    missing = [name for name, path in paths.items() if not path.exists() or name not in hashes]
    if not missing:
        raise FileExistsError(f"{folder} holds all sets already; they are written once.")
    for dataset in paths.keys() - missing:
        _check_hash(paths[dataset], hashes[dataset])
    for dataset in missing:
        metadata = {
            "dataset": dataset,
            "seed": str(SEEDS[dataset]),
            "generator": json.dumps(to_dict(DATASETS[dataset])),
            **versions(),
        }
        save_tasks(paths[dataset], make_benchmark(dataset), metadata=metadata)
        found = sha256(paths[dataset])
        if hashes.setdefault(dataset, found) != found:
            paths[dataset].unlink()
            raise ValueError(
                f"{dataset} must have SHA-256 {hashes[dataset]}, got {found}: this machine or "
                "version of PyTorch draws another set."
            )
        write_atomically(folder / HASHES, json.dumps(hashes, indent=2) + "\n")


def benchmark_path(dataset: str) -> Path:
    """The file of a benchmark set: in ``$DANP_DATA``, the installed package, or a clone."""
    check_choice("dataset", dataset, DATASETS)
    folders, name = data_folders("benchmark_tasks", packaged="benchmarks"), f"{dataset}.safetensors"
    if path := first_file(folders, name):
        return path
    raise FileNotFoundError(
        f"no benchmark set {dataset!r} at {' or '.join(str(f / name) for f in folders)}; "
        "reinstall danp_lib, or restore the file in the clone."
    )


def benchmark_tasks(dataset: str) -> Task:
    """The stored tasks of :func:`make_benchmark`; refused if they are not those published."""
    path = benchmark_path(dataset)
    _check_hash(path, json.loads((path.parent / HASHES).read_text()).get(dataset))
    return load_tasks(path)


def _check_hash(path: Path, expected: str | None) -> None:
    if (found := sha256(path)) != expected:
        raise ValueError(f"{path} must have SHA-256 {expected}, got {found}: it was changed.")
