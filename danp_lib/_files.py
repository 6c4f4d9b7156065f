"""Files that appear whole or not at all, and safetensors files whose bytes are determined."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

DATA_VARIABLE = "DANP_DATA"
"""The environment variable that names a folder of weights, tasks and results of one's own."""


def data_folders(name: str, *, packaged: str | None = None) -> tuple[Path, ...]:
    """Where files of a kind may lie, first choice first.

    The folder of that name in the one that :data:`DATA_VARIABLE` names, if it names one; then in
    the installed package, where its name may be another; then beside the package, in a clone.
    """
    package = Path(str(resources.files("danp_lib")))
    own = [Path(folder, name)] if (folder := os.environ.get(DATA_VARIABLE)) else []
    return *own, package / (packaged or name), package.parent / name


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file beside its place, then move it there in one step; text becomes UTF-8.

    The folder is made where it is missing. A write that fails leaves what was there before, and no
    part of a file.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place for a file before the work that would fill it.

    Raises:
        OSError: If the place is a folder, or the file or its folder could not be made there.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a file is to be written there.")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is not a folder.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{path} cannot be written: no permission in {folder}.")


def check_output(path: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> None:
    """The same of a result; one of the files that it is of is refused with a ``ValueError``."""
    check_writable(path)
    for source in map(Path, sources):
        if Path(path).exists() and source.exists() and source.samefile(path):
            raise ValueError(f"out must not be a file that is read, got {path}.")


def split_header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, or a ``ValueError``, and where its tensors' bytes start."""
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise ValueError(f"the header should end at byte {start} of {len(data)}.")
    header = json.loads(data[8:start])
    if not isinstance(header, dict):
        raise ValueError(f"the header must be an object, got {type(header).__name__}.")
    return header, start


def with_sorted_header(data: bytes) -> bytes:
    """A safetensors file with its header in order of keys, so that equal contents are equal bytes.

    The library safetensors writes the metadata in an order that differs from call to call.
    """
    content, start = split_header(data)
    header = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[start:]
