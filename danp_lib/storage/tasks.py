"""The benchmark tasks: 310 fixed ones a dataset, made once and stored (Appendix B.1)."""

import json
from pathlib import Path

from danp_lib._config import check_choice
from danp_lib._files import data_folders, first_file
from danp_lib.data.generators import DATASETS
from danp_lib.data.points import Task, load_tasks
from danp_lib.storage.origin import sha256

HASHES = "hashes.json"
"""The file beside the sets that holds the SHA-256 of each."""


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
    """The 310 stored tasks of a dataset; refused if they are not those published.

    They are sorted by context size: ten for each from 0 to 30, padded to 30, with 50 targets and a
    pool of 512 further points each.
    """
    path = benchmark_path(dataset)
    check_hash(path, json.loads((path.parent / HASHES).read_text()).get(dataset))
    return load_tasks(path)


def check_hash(path: Path, expected: str | None) -> None:
    """Refuse a file that does not have this SHA-256."""
    if (found := sha256(path)) != expected:
        raise ValueError(f"{path} must have SHA-256 {expected}, got {found}: it was changed.")
