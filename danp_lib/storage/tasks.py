"""The benchmark tasks: 310 fixed ones a dataset, made once and stored (Appendix B.1)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from danp_lib._config import to_dict
from danp_lib._files import data_folders
from danp_lib.data.generators import DATASETS
from danp_lib.data.points import PointSet, Task, load_tasks, save_tasks
from danp_lib.storage.origin import sha256, versions

CONTEXT_SIZES = tuple(range(31))
TASKS_PER_SIZE = 10
NUM_TARGETS = 50
POOL_SIZE = 512

SEEDS = {"sawtooth": 310_001, "square": 310_002, "gp": 310_003}
"""The seed of each set, far from the small ones that training and validation are likely to use."""

HASHES = "hashes.json"
"""The file beside the sets that holds the SHA-256 of each."""


def make_benchmark(dataset: str) -> Task:
    """Draw the benchmark tasks of a dataset anew, sorted by context size.

    The same version of PyTorch gives the same tasks. Another need not, which is why the sets are
    stored: to evaluate a model, read them with :func:`benchmark_tasks`.

    Args:
        dataset: ``"sawtooth"``, ``"square"`` or ``"gp"``.

    Returns:
        310 tasks in float32, ten for each context size from 0 to 30, with 50 targets and a pool of
        512 further points each; contexts are padded to 30.

    Raises:
        ValueError: If there is no such dataset.
    """
    _check(dataset)
    generator = torch.Generator().manual_seed(SEEDS[dataset])
    prior = DATASETS[dataset]
    parts = [
        prior.sample_task(
            TASKS_PER_SIZE,
            context_size=size,
            num_targets=NUM_TARGETS,
            pool_size=POOL_SIZE,
            generator=generator,
        )
        for size in CONTEXT_SIZES
    ]
    contexts = [_padded(part.context, max(CONTEXT_SIZES)) for part in parts]
    pools = [part.pool for part in parts if part.pool is not None]
    return Task(_stacked(contexts), _stacked([part.target for part in parts]), _stacked(pools))


def write_benchmarks(folder: str | os.PathLike[str]) -> None:
    """Make every benchmark set and write it to a folder, with the hashes beside.

    Raises:
        FileExistsError: If the folder holds a set or its hash already. A benchmark that changes is
            no benchmark: delete the files by hand if you mean to.
    """
    folder = Path(folder)
    paths = {dataset: folder / f"{dataset}.safetensors" for dataset in DATASETS}
    for path in (*paths.values(), folder / HASHES):
        if path.exists():
            raise FileExistsError(f"{path} exists; benchmark sets are written once.")
    folder.mkdir(parents=True, exist_ok=True)
    for dataset, path in paths.items():
        metadata = {
            "dataset": dataset,
            "seed": str(SEEDS[dataset]),
            "generator": json.dumps(to_dict(DATASETS[dataset])),
            **versions(),
        }
        save_tasks(path, make_benchmark(dataset), metadata=metadata)
    hashes = {dataset: sha256(path) for dataset, path in paths.items()}
    (folder / HASHES).write_text(json.dumps(hashes, indent=2) + "\n")


def benchmark_path(dataset: str) -> Path:
    """The file of a benchmark set: in the installed package, or beside it in a clone.

    Raises:
        ValueError: If there is no such dataset.
        FileNotFoundError: If the file is in neither place.
    """
    _check(dataset)
    folders = data_folders("benchmark_tasks", packaged="benchmarks")
    candidates = [folder / f"{dataset}.safetensors" for folder in folders]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no benchmark set {dataset!r} at {' or '.join(map(str, candidates))}; "
        "reinstall danp_lib, or restore the file in the clone."
    )


def benchmark_tasks(dataset: str) -> Task:
    """The 310 benchmark tasks of a dataset, sorted by context size.

    Args:
        dataset: ``"sawtooth"``, ``"square"`` or ``"gp"``.

    Raises:
        ValueError: If there is no such dataset, or its file is not the one that was published.
        FileNotFoundError: If its file is missing.
    """
    path = benchmark_path(dataset)
    expected = json.loads((path.parent / HASHES).read_text())[dataset]
    if (found := sha256(path)) != expected:
        raise ValueError(f"{path} must have SHA-256 {expected}, got {found}: it was changed.")
    return load_tasks(path)


def _check(dataset: str) -> None:
    if dataset not in DATASETS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}.")


def _padded(points: PointSet, num_points: int) -> PointSet:
    missing = num_points - points.num_points

    def pad(values: Tensor) -> Tensor:
        return F.pad(values, (0, 0, 0, missing))

    return PointSet(pad(points.x), pad(points.y), F.pad(points.mask, (0, missing)))


def _stacked(sets: Sequence[PointSet]) -> PointSet:
    x, y, mask = (torch.cat([getattr(points, k) for points in sets]) for k in ("x", "y", "mask"))
    return PointSet(x, y, mask)
