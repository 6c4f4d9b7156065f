"""Draw the sets of benchmark tasks that a folder lacks; those it has are checked and stay.

python scripts/benchmark_tasks.py benchmark_tasks
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from danp_lib._config import check_choice, to_dict
from danp_lib._files import write_atomically
from danp_lib.data.generators import DATASETS
from danp_lib.data.observations import stack
from danp_lib.data.points import Task
from danp_lib.storage.origin import sha256, versions
from danp_lib.storage.tasks import HASHES, check_hash, save_tasks

CONTEXT_SIZES = tuple(range(31))
TASKS_PER_SIZE = 10
NUM_TARGETS = 50
POOL_SIZE = 512

SEEDS = {"sawtooth": 310_001, "square": 310_002, "gp": 310_003, "square-released": 310_004}
"""The seed of each set, far from the small ones that training and validation are likely to use."""


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


def write_benchmarks(folder: Path) -> None:
    """Make the benchmark sets that a folder lacks, and write them there, with the hashes beside.

    A folder that lacks none is refused, and so is a set that is not the one that its hash is of. A
    set that has no hash, of a call that was stopped, is made again.
    """
    hashes = json.loads((folder / HASHES).read_text()) if (folder / HASHES).exists() else {}
    paths = {dataset: folder / f"{dataset}.safetensors" for dataset in DATASETS}
    missing = [name for name, path in paths.items() if not path.exists() or name not in hashes]
    if not missing:
        raise FileExistsError(f"{folder} holds all sets already; they are written once.")
    for dataset in paths.keys() - missing:
        check_hash(paths[dataset], hashes[dataset])
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


if __name__ == "__main__":
    write_benchmarks(Path(sys.argv[1]))
