"""Files that appear whole or not at all, and safetensors files whose bytes are determined."""

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

DATA_VARIABLE = "DANP_DATA"
"""The environment variable that names a folder of weights, tasks and results of one's own."""


def data_folders(name: str, *, packaged: str | None = None) -> tuple[Path, ...]:
    """Where files of a kind may lie, first choice first: one's own, installed, and in a clone."""
    package = Path(str(resources.files("danp_lib")))
    own = [Path(folder, name)] if (folder := os.environ.get(DATA_VARIABLE)) else []
    return *own, package / (packaged or name), package.parent / name


def first_file(folders: Iterable[Path], name: str) -> Path | None:
    """The file of that name in the first of the folders that has one."""
    return next((path for folder in folders if (path := folder / name).is_file()), None)


def data_file(kind: str, name: str, *, packaged: str | None = None) -> Path:
    """The first file of that name in :func:`data_folders`; else a ``FileNotFoundError``."""
    folders = data_folders(kind, packaged=packaged)
    if path := first_file(folders, name):
        return path
    raise FileNotFoundError(
        f"{name} is in none of {', '.join(map(str, folders))}; reinstall danp_lib, or restore the "
        "file in the clone."
    )


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file, whole or not at all, text as UTF-8; a missing folder is made."""
    path = Path(path).resolve()  # a link stays one
    # Another process or thread may write the same file at the same time.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    partial = path.with_name(f"{path.name}.{writer}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse, with an ``OSError``, a place where a file could not be made."""
    try:
        place = Path(path).resolve()
    except RuntimeError as error:  # until Python 3.12
        raise OSError(f"{path} is a link that leads back to itself.") from error
    if place.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a file is to be written there.")
    # A pipe has a resolved name that does not exist.
    if Path(path).exists() and not Path(path).is_file():
        raise OSError(f"{path} is no regular file; name one to be written or replaced.")
    folder = next(folder for folder in place.parents if folder.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is not a folder.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{path} cannot be written: no permission in {folder}.")


def split_header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, or a ``ValueError``, and where its tensors' bytes start."""
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise ValueError(f"the header should end at byte {start} of {len(data)}.")
    try:
        header = json.loads(data[8:start])
    except RecursionError as error:
        raise ValueError("the header has too many levels.") from error
    if not isinstance(header, dict):
        raise ValueError(f"the header must be an object, got {type(header).__name__}.")
    return header, start


def with_sorted_header(data: bytes) -> bytes:
    """A safetensors file with its header, which safetensors writes in any order, sorted by key."""
    content, start = split_header(data)
    header = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[start:]


NO_DIGEST = {"sha256": "0" * 64}
"""What the metadata of a file have before :func:`with_digest`."""


def with_digest(data: bytes) -> bytes:
    """A safetensors file with :data:`NO_DIGEST` in its metadata, with its SHA-256 in this place.

    Its header is sorted too, and the SHA-256 is of what that gives: any changed byte shows.
    """
    data = with_sorted_header(data)
    digest = hashlib.sha256(data).hexdigest()
    return data.replace(_quoted(NO_DIGEST["sha256"]), _quoted(digest), 1)


def check_digest(data: bytes) -> None:
    """Refuse a file of :func:`with_digest` that was changed, with a ``ValueError``."""
    header, start = split_header(data)
    digest = str(header["__metadata__"].get("sha256"))
    without = data[:start].replace(_quoted(digest), _quoted(NO_DIGEST["sha256"]), 1) + data[start:]
    if (found := hashlib.sha256(without).hexdigest()) != digest:
        raise ValueError(f"its SHA-256 must be {digest}, got {found}.")


def _quoted(digest: str) -> bytes:
    return f'"sha256":"{digest}"'.encode()
