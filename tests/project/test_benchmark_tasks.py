"""The script that draws the benchmark sets."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from danp_lib.data.generators import DATASETS
from danp_lib.data.points import Task
from danp_lib.storage.origin import sha256
from danp_lib.storage.tasks import HASHES, benchmark_path, benchmark_tasks

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import benchmark_tasks as script
from benchmark_tasks import make_benchmark, write_benchmarks

datasets = pytest.mark.parametrize("dataset", DATASETS)


@datasets
def test_the_file_says_how_it_was_made(dataset: str) -> None:
    with safe_open(benchmark_path(dataset), framework="pt") as stored:
        metadata = stored.metadata()
    assert metadata["dataset"] == dataset
    assert int(metadata["seed"]) == script.SEEDS[dataset]
    prior = DATASETS[dataset]
    fields = json.loads(metadata["generator"])
    assert fields.pop("domain") == list(prior.domain)
    assert fields == {key: _as_json(getattr(prior, key)) for key in fields}
    assert {"danp_lib", "torch"} < set(metadata)


def _as_json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@datasets
def test_made_anew_the_tasks_are_alike(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "CONTEXT_SIZES", (0, 3))
    monkeypatch.setattr(script, "TASKS_PER_SIZE", 2)
    monkeypatch.setattr(script, "POOL_SIZE", 40)
    one, other = make_benchmark(dataset), make_benchmark(dataset)
    assert one.context.sizes.tolist() == [0, 0, 3, 3]
    assert torch.equal(one.yt, other.yt)
    assert one.pool is not None
    assert other.pool is not None
    assert torch.equal(one.pool.x, other.pool.x)
    monkeypatch.undo()
    with safe_open(benchmark_path(dataset), framework="pt") as stored:
        made_with = stored.metadata()["torch"].split("+")[0]
    if torch.__version__.split("+")[0] == made_with:
        monkeypatch.setattr(script, "CONTEXT_SIZES", (0, 1))
        again = make_benchmark(dataset)
        # To rounding: the matrix products of another processor differ in the last place.
        stored_tasks = benchmark_tasks(dataset)
        torch.testing.assert_close(again.yt, stored_tasks.yt[:20], rtol=0, atol=1e-5)
        assert again.pool is not None
        assert stored_tasks.pool is not None
        assert torch.equal(again.pool.x, stored_tasks.pool.x[:20])


def test_sets_are_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "CONTEXT_SIZES", (0, 1))
    monkeypatch.setattr(script, "TASKS_PER_SIZE", 1)
    monkeypatch.setattr(script, "POOL_SIZE", 8)
    folder = tmp_path / "sets"
    write_benchmarks(folder)
    hashes = json.loads((folder / HASHES).read_text())
    assert hashes == {name: sha256(folder / f"{name}.safetensors") for name in DATASETS}
    with pytest.raises(FileExistsError, match="written once"):
        write_benchmarks(folder)
    write_benchmarks(tmp_path / "again")
    assert json.loads((tmp_path / "again" / HASHES).read_text()) == hashes


def test_only_missing_sets_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "CONTEXT_SIZES", (0, 1))
    monkeypatch.setattr(script, "TASKS_PER_SIZE", 1)
    monkeypatch.setattr(script, "POOL_SIZE", 8)
    write_benchmarks(tmp_path)
    hashes = json.loads((tmp_path / HASHES).read_text())
    path, kept = tmp_path / "square.safetensors", tmp_path / "gp.safetensors"
    date = kept.stat().st_mtime_ns
    path.unlink()
    fewer = {name: digest for name, digest in hashes.items() if name != "square"}
    (tmp_path / HASHES).write_text(json.dumps(fewer))
    write_benchmarks(tmp_path)
    assert json.loads((tmp_path / HASHES).read_text()) == hashes
    assert kept.stat().st_mtime_ns == date
    # Nothing is written beside a set that is not the published one.
    path.unlink()
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match=r"gp\.safetensors .*it was changed"):
        write_benchmarks(tmp_path)
    assert not path.exists()


def test_sets_that_were_begun_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "CONTEXT_SIZES", (0, 1))
    monkeypatch.setattr(script, "TASKS_PER_SIZE", 1)
    monkeypatch.setattr(script, "POOL_SIZE", 8)
    real = script.make_benchmark

    def stopped(dataset: str) -> Task:
        if dataset == "gp":
            raise KeyboardInterrupt
        return real(dataset)

    def stopped_later(*_: object) -> str:  # a set is there, and no hash of it
        raise KeyboardInterrupt

    for name, interrupted in (("make_benchmark", stopped), ("sha256", stopped_later)):
        with monkeypatch.context() as patch:
            patch.setattr(script, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                write_benchmarks(tmp_path)
    write_benchmarks(tmp_path)
    hashes = json.loads((tmp_path / HASHES).read_text())
    assert hashes == {name: sha256(tmp_path / f"{name}.safetensors") for name in DATASETS}


def test_a_set_that_comes_out_otherwise_is_not_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "CONTEXT_SIZES", (0, 1))
    monkeypatch.setattr(script, "TASKS_PER_SIZE", 1)
    monkeypatch.setattr(script, "POOL_SIZE", 8)
    (tmp_path / HASHES).write_text(json.dumps({"sawtooth": "published"}))
    with pytest.raises(ValueError, match=r"sawtooth must have SHA-256 published, got .* draws"):
        write_benchmarks(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [HASHES]
