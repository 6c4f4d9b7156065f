"""The extension that runs the chapters: what it runs again, and what it says of one that fails."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.append(str(Path(__file__).parents[2] / "book" / "_ext"))

from run_chapters import READ_BY_CHAPTERS, ROOT, Failure, drop_stale, fingerprint, run_all


def write(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


@pytest.mark.parametrize("pattern", READ_BY_CHAPTERS)
def test_there_are_files_of_every_kind(pattern: str) -> None:
    assert any(path.is_file() for path in ROOT.glob(pattern))


@pytest.mark.parametrize(
    "name",
    [
        *("danp_lib/nn/unet.py", "checkpoints/a.safetensors", "checkpoints/records/a.safetensors"),
        *("results/a.json", "results/ten-tasks/a.json", "book/a.yml"),
    ],
)
def test_a_change_in_what_chapters_read_changes_the_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("run_chapters.distributions", list)  # it takes long to find them all
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    keys = [fingerprint(tmp_path)]
    for content in ("one", "two"):
        path.write_text(content)
        keys.append(fingerprint(tmp_path))
    path.rename(path.with_stem("b"))
    keys.append(fingerprint(tmp_path))
    assert len(set(keys)) == 4
    (tmp_path / "README.md").write_text("no chapter reads it")
    assert fingerprint(tmp_path) == keys[-1]


def test_other_packages_and_another_folder_of_data_change_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [fingerprint(tmp_path)]
    monkeypatch.setattr("run_chapters.distributions", list)
    keys.append(fingerprint(tmp_path))
    monkeypatch.setenv("DANP_DATA", str(tmp_path))
    keys.append(fingerprint(tmp_path))
    assert len(set(keys)) == 3


def test_the_cache_is_kept_under_its_key_only(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    drop_stale(folder, "one")
    (folder / "outputs").touch()
    drop_stale(folder, "one")
    assert (folder / "outputs").exists()
    drop_stale(folder, "one", fresh=True)
    assert not (folder / "outputs").exists()
    (folder / "outputs").touch()
    drop_stale(folder, "two")
    assert not (folder / "outputs").exists()


# Jupyter leaves the event loops of its threads to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_chapters_run_once_and_the_cell_that_fails_is_named(tmp_path: Path) -> None:
    good = write(tmp_path / "good.ipynb", "x = 1", "", "print(x)")
    bad = write(tmp_path / "bad.ipynb", "x = 1", "", "raise ValueError('x must be 2')", "x")
    folder = tmp_path / "cache"
    first = list(run_all([good, bad], folder, timeout=60))
    assert sorted(map(str, first)) == [
        "None",
        "chapter bad, cell [2]: ValueError: x must be 2",
    ]
    # What has failed is tried again; what is known is not.
    assert list(run_all([good, bad], folder, timeout=60)) == [
        Failure("bad", 2, "ValueError: x must be 2")
    ]
    write(bad, "x = 1", "", "x")
    assert list(run_all([good, bad], folder, timeout=60)) == [None]
    assert list(run_all([good, bad], folder, timeout=60)) == []
    gc.collect()
