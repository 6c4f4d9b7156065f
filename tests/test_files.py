"""Files appear whole or not at all, and equal contents are equal bytes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save

import danp_lib
from danp_lib._files import (
    DATA_VARIABLE,
    check_writable,
    data_file,
    data_folders,
    split_header,
    with_sorted_header,
    write_atomically,
)
from danp_lib.evaluation.results import results_folder
from danp_lib.storage.pretrained import pretrained_folders
from danp_lib.storage.tasks import benchmark_path


def test_data_lies_in_the_package_or_beside_it_in_a_clone() -> None:
    package = Path(danp_lib.__file__).parent
    assert data_folders("results") == (package / "results", package.parent / "results")
    found = data_folders("benchmark_tasks", packaged="benchmarks")
    assert found == (package / "benchmarks", package.parent / "benchmark_tasks")


def test_a_folder_of_ones_own_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {"tasks": benchmark_path("gp"), "results": results_folder()}
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert data_folders("results")[0] == tmp_path / "results"
    assert pretrained_folders()[0] == tmp_path / "checkpoints"
    # What it does not hold is taken from where it was.
    assert {"tasks": benchmark_path("gp"), "results": results_folder()} == shipped
    for folder in ("results", "benchmark_tasks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "benchmark_tasks" / "gp.safetensors").touch()
    assert benchmark_path("gp") == tmp_path / "benchmark_tasks" / "gp.safetensors"
    assert results_folder() == tmp_path / "results"


def test_a_file_that_no_folder_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "a.js").touch()
    assert data_file("live", "a.js") == tmp_path / "live" / "a.js"
    with pytest.raises(FileNotFoundError, match=rf"^b\.js is in none of {tmp_path}.*; reinstall"):
        data_file("live", "b.js")


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None, failing: str
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(failing, full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ([] if old is None else ["file"])
    assert old is None or path.read_bytes() == old
    write_atomically(path, "näu\n")
    assert path.read_bytes() == "näu\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_header_is_sorted_and_the_tensors_stay(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, dtype=torch.bool)}
    metadata = {str(i): str(i) for i in range(20)}
    data = with_sorted_header(save(tensors, metadata))
    assert all(with_sorted_header(save(tensors, metadata)) == data for _ in range(5))
    assert with_sorted_header(data) == data
    loaded = load(data)
    assert all(torch.equal(loaded[k], v) for k, v in tensors.items())
    (tmp_path / "t").write_bytes(data)
    with safe_open(tmp_path / "t", framework="pt") as stored:
        assert stored.metadata() == metadata
    header, start = split_header(data)
    assert list(header) == sorted(header)
    assert start % 8 == 0


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x00" * 8, b"\xff" * 16, b"\x02" + b"\x00" * 7 + b"[]", b"\x01" + b"\x00" * 9),
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ],
)
def test_bytes_without_a_header_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"header|Expecting"):
        split_header(data)


def test_threads_that_write_one_file_leave_it_whole(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([i]) * 200_000 for i in range(4)]
    write_atomically(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(20):
            write_atomically(path, content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(len(contents)) as threads:
        list(threads.map(write, contents))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "store" / "real")
    for text in ("one", "two"):
        write_atomically(link, text)
        assert link.is_symlink()
        assert (tmp_path / "store" / "real").read_text() == text


def test_a_place_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "new" / "file")
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with pytest.raises(OSError, match=r"back to itself|symbolic links"):
        check_writable(tmp_path / "one" / "file")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PermissionError, match=f"no permission in {tmp_path}"):
        check_writable(tmp_path / "new" / "file")


def test_a_pipe_is_no_place_for_a_file() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="is no regular file"):
            check_writable(f"/dev/fd/{writing}")
    finally:
        os.close(reading)
        os.close(writing)
