"""Files of tasks, and the benchmark tasks: 310 fixed ones per dataset (Appendix B.1)."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file, save

from danp_lib._config import check_choice, check_kind, checked, naming
from danp_lib._files import data_file, with_sorted_header, write_atomically
from danp_lib.data.generators import DATASETS
from danp_lib.data.points import PointSet, Task
from danp_lib.storage.origin import sha256

HASHES = "hashes.json"
"""The file beside the sets that holds the SHA-256 of each."""


def save_tasks(
    path: str | os.PathLike[str], task: Task, *, metadata: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write a batch of tasks to one safetensors file, whole or not at all.

    The keys are ``xc, yc, xt, yt``, ``mask_c`` and, where there is a pool, ``x_pool, y_pool``.
    Padding is written as zeros: equal tasks give equal bytes. What :meth:`Task.check` refuses is
    not written. ``metadata`` is text worth keeping, by names, which nothing reads.
    """
    check_kind(Task, task=task)
    check_kind(Mapping, metadata=metadata)
    task.check()
    for key, text in metadata.items():
        checked(str, key, "a key of metadata")
        checked(str, text, f"metadata[{key!r}]")
    context = task.context.blanked()
    tensors = {"xc": context.x, "yc": context.y, "xt": task.xt, "yt": task.yt}
    tensors["mask_c"] = context.mask
    if task.pool is not None:
        tensors |= {"x_pool": task.pool.x, "y_pool": task.pool.y}
    # Copies, since a file holds no tensor twice and the pool may be the targets.
    copies = {k: v.clone(memory_format=torch.contiguous_format).cpu() for k, v in tensors.items()}
    data = save(copies, dict(metadata))
    write_atomically(path, with_sorted_header(data))


def load_tasks(path: str | os.PathLike[str]) -> Task:
    """Read a task file as :func:`save_tasks` writes it; another is a ``ValueError``."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no task file at {path}.")
    try:
        tensors = load_file(path)
    except Exception as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    keys, pool_keys = {"xc", "yc", "xt", "yt", "mask_c"}, {"x_pool", "y_pool"}
    if tensors.keys() not in (keys, keys | pool_keys):
        raise ValueError(
            f"{path} must hold xc, yc, xt, yt, mask_c and either both of x_pool, y_pool or none, "
            f"got {', '.join(sorted(tensors)[:9])}."
        )
    with naming(path):
        context = PointSet(tensors["xc"], tensors["yc"], tensors["mask_c"])
        pool = PointSet(tensors["x_pool"], tensors["y_pool"]) if "x_pool" in tensors else None
        task = Task(context, PointSet(tensors["xt"], tensors["yt"]), pool)
        task.check()
    return task


def benchmark_path(dataset: str) -> Path:
    """The file of a benchmark set: in ``$DANP_DATA``, the installed package, or a clone."""
    check_choice("dataset", dataset, DATASETS)
    return data_file("benchmark_tasks", f"{dataset}.safetensors", packaged="benchmarks")


def benchmark_tasks(dataset: str) -> Task:
    """The 310 stored tasks of a dataset; refused if they are not those published.

    They are sorted by context size: ten for each from 0 to 30, padded to 30, with 50 targets and a
    pool of 512 further points each.
    """
    path = benchmark_path(dataset)
    check_hash(path, json.loads((path.parent / HASHES).read_text(encoding="utf-8")).get(dataset))
    return load_tasks(path)


def check_hash(path: Path, expected: str | None) -> None:
    """Refuse a file that does not have this SHA-256."""
    if (found := sha256(path)) != expected:
        raise ValueError(f"{path} must have SHA-256 {expected}, got {found}: it was changed.")
