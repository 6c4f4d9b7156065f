"""Runs that go on: bit for bit the same, and refused with a reason where they are not."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from small_models import TINY
from torch import Tensor
from training_runs import (
    LONG_RUN,
    RUN,
    SCRIPT,
    assert_same_weights,
    tiny,
    validation_batches,
    weights,
)

from danp_lib._files import NO_DIGEST, split_header, with_digest, write_atomically
from danp_lib._random import spawn
from danp_lib.data.generators import GaussianProcess, Sawtooth, TaskGenerator
from danp_lib.models.base import NeuralProcess
from danp_lib.models.convnp import ConvGNP
from danp_lib.storage.checkpoint import load_checkpoint, read_header
from danp_lib.training import resume
from danp_lib.training.config import TrainingConfig
from danp_lib.training.loop import train
from danp_lib.training.objective import BatchConfig, validation_log_likelihoods
from danp_lib.training.optim import Optimizer
from danp_lib.training.resume import Record, RunState


@pytest.mark.parametrize("name", ["danp", "convcnp", "convgnp"])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_stopping_and_resuming_changes_no_bit(name: str, optimizer: str, tmp_path: Path) -> None:
    run = replace(RUN, optimizer=optimizer)  # type: ignore[arg-type]
    whole = tiny(name)
    history = train(whole, Sawtooth(), run, folder=tmp_path / "whole", progress=False)
    assert history[-1]["step"] == run.num_steps
    parts = 0
    # Out of time at once, each call makes one step, from a model that knows nothing of the last.
    while True:
        piecewise = tiny(name)
        records = train(
            piecewise, Sawtooth(), run, folder=tmp_path / "parts", max_minutes=0.0, progress=False
        )
        parts += 1
        if records[-1]["step"] == run.num_steps:
            break
    assert parts == run.num_steps
    assert_same_weights(weights(whole), weights(piecewise))
    assert records[-1]["validation"] == history[-1]["validation"]


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    first = tiny()
    history = train(first, Sawtooth(), RUN, folder=tmp_path, progress=False)
    before = (tmp_path / "state.safetensors").read_bytes()
    again = tiny()
    assert train(again, Sawtooth(), RUN, folder=tmp_path, progress=False) == history
    assert_same_weights(weights(first), weights(again))
    assert (tmp_path / "state.safetensors").read_bytes() == before


def test_snapshots_are_checkpoints_at_powers_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danp_lib.training.resume.FIRST_SNAPSHOT", 2)
    model = tiny()
    run = replace(RUN, num_steps=8)
    train(model, Sawtooth(), run, folder=tmp_path, snapshots=True, progress=False)
    names = sorted(path.stem for path in tmp_path.glob("step-*.safetensors"))
    assert names == ["step-2", "step-4", "step-8"]
    last = load_checkpoint(tmp_path / "step-8.safetensors")
    assert_same_weights(weights(last), weights(model))
    header = read_header(tmp_path / "step-4.safetensors")
    assert header.provenance["steps"] == 4
    assert header.provenance["dataset"] == "sawtooth"
    assert header.task_generator == Sawtooth()


def test_snapshots_begin_at_1024(tmp_path: Path) -> None:
    model = tiny()
    state = RunState(model, Optimizer(model, RUN), torch.Generator(), Sawtooth(), RUN)
    for state.step in (512, 1024, 1025, 1536, 2048):
        resume.save_snapshot(tmp_path, state)
    assert {path.stem for path in tmp_path.iterdir()} == {"step-1024", "step-2048"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_that_can_go_on(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    history = train(
        tiny(),
        Sawtooth(),
        LONG_RUN,
        folder=tmp_path,
        progress=False,
        callback=lambda record: os.kill(os.getpid(), number) if record["step"] == 6 else None,
    )
    assert history[-1]["step"] == 7  # one more step is finished
    assert signal.getsignal(number) is before
    check_that_it_goes_on(tmp_path)


@pytest.mark.usefixtures("one_thread")  # as the run in the other process: others round differently
def test_a_run_that_is_killed_can_go_on(tmp_path: Path) -> None:
    code = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    deadline = time.monotonic() + 300.0  # a busy machine is no failure
    while not (tmp_path / "state.safetensors").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=300)
    check_that_it_goes_on(tmp_path)


def check_that_it_goes_on(folder: Path) -> None:
    """Two steps on from where a run stopped, the weights are those of one that never did."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    stopped_at = max(json.loads(line)["step"] for line in lines)
    end = stopped_at + 2
    # The length of the run stands in its description, so the reference is the same long run.
    resumed, whole = tiny(), tiny()
    _steps_until(resumed, LONG_RUN, end, folder)
    _steps_until(whole, LONG_RUN, end, folder / "whole")
    assert_same_weights(weights(resumed), weights(whole))


class _Enough(Exception):
    pass


def _steps_until(model: NeuralProcess, run: TrainingConfig, end: int, folder: Path) -> None:
    def stop(record: dict[str, int]) -> None:
        if record["step"] >= end:
            raise _Enough

    with pytest.raises(_Enough):
        train(
            model,
            Sawtooth(),
            replace(run, log_every=RUN.log_every),
            folder=folder,
            progress=False,
            callback=stop,
        )


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    others: list[tuple[NeuralProcess, TaskGenerator, TrainingConfig, str]] = [
        (tiny(), Sawtooth(), replace(RUN, seed=1), r"training\.seed: 0 "),
        (tiny("convgnp"), Sawtooth(), RUN, "model: 'danp' "),
        (tiny(), GaussianProcess(), RUN, "dataset: 'sawtooth' "),
        (tiny(), Sawtooth(noise=0.1), RUN, r"task_generator\.noise: 0.0 "),
    ]
    for model, task_generator, run, message in others:
        with pytest.raises(ValueError, match=f"another run .*{message}"):
            train(model, task_generator, run, folder=tmp_path, progress=False)


def test_a_damaged_state_is_refused_by_name(tmp_path: Path) -> None:
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    path = tmp_path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"state\.safetensors "):
        train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)


@pytest.mark.parametrize("tensor", ["model.core.head.weight", "generator"])
def test_a_changed_bit_of_a_state_is_refused(tensor: str, tmp_path: Path) -> None:
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    path = tmp_path / "state.safetensors"
    header, start = split_header(path.read_bytes())
    data = bytearray(path.read_bytes())
    data[start + header[tensor]["data_offsets"][0] + 3] ^= 1 << 5
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"state\.safetensors .*its SHA-256 must be [0-9a-f]{64}"):
        train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)


def test_a_state_of_an_older_version_has_no_digest(tmp_path: Path) -> None:
    whole = train(tiny(), Sawtooth(), RUN, folder=tmp_path / "whole", progress=False)
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    path = tmp_path / "state.safetensors"
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
    del metadata["sha256"]
    save_file(load_file(path), path, metadata)
    again = train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)
    assert again[-1]["log_likelihood"] == whole[-1]["log_likelihood"]


def rewrite(path: Path, metadata: dict[str, str] | None = None, **changes: Tensor | None) -> None:
    """Write a state anew, with other tensors, or without those given as ``None``."""
    with safe_open(path, framework="pt") as stored:
        kept = stored.metadata() if metadata is None else metadata
    tensors = {k: v for k, v in {**load_file(path), **changes}.items() if v is not None}
    path.write_bytes(with_digest(save(tensors, kept | NO_DIGEST)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state, log: rewrite(state, {}), "KeyError('description')"),
        (lambda state, log: rewrite(state, generator=None), "KeyError('generator')"),
        (lambda state, log: rewrite(state, None, **{"model.more": torch.ones(1)}), "more"),
        (lambda state, log: log.unlink(), "FileNotFoundError"),
        (lambda state, log: log.write_text(log.read_text()[:-3]), "JSONDecodeError"),
        (lambda state, log: log.write_bytes(b"\xff"), "UnicodeDecodeError"),
        (lambda state, log: log.write_text("[]\n"), "TypeError"),
        (lambda state, log: log.write_text(""), "IndexError"),
        (lambda state, log: log.write_text('{"step": 0}\n'), "no record of step 1"),
    ],
)
def test_what_is_no_run_is_refused_with_its_path(
    damage: Callable[[Path, Path], None], message: str, tmp_path: Path
) -> None:
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    state = tmp_path / "state.safetensors"
    damage(state, tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match=f"{re.escape(str(state))} .*{re.escape(message)}"):
        train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)


def test_a_run_of_another_device_is_refused(tmp_path: Path) -> None:
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    # A GPU's generator has a state of 16 bytes.
    rewrite(tmp_path / "state.safetensors", generator=torch.zeros(16, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"another run .*device: .*'cpu'"):
        train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)


CONSTANT = replace(RUN, schedule="constant")


@pytest.mark.parametrize("stored", [5, 9])
def test_a_run_with_a_constant_schedule_can_be_lengthened(stored: int, tmp_path: Path) -> None:
    whole, parts = tiny(), tiny()
    long = replace(CONSTANT, num_steps=12)
    train(whole, Sawtooth(), long, folder=tmp_path / "whole", progress=False)
    first = replace(CONSTANT, num_steps=stored)
    train(tiny(), Sawtooth(), first, folder=tmp_path / "parts", progress=False)
    history = train(parts, Sawtooth(), long, folder=tmp_path / "parts", progress=False)
    assert history[-1]["step"] == 12
    assert stored in [record["step"] for record in history]
    assert_same_weights(weights(whole), weights(parts))


KEEPING = replace(CONSTANT, num_steps=12, learning_rate=0.03, validate_every=2, keep_best=True)


@pytest.mark.parametrize("name", ["danp", "convcnp"])
def test_a_run_can_end_with_the_weights_of_its_best_validation(name: str) -> None:
    model, seen = tiny(name), {}

    def note(record: Record) -> None:
        seen[record["step"]] = weights(model)

    history = train(model, Sawtooth(), KEEPING, progress=False, callback=note)
    _, generator = spawn(torch.Generator().manual_seed(KEEPING.seed), 2)
    batches = validation_batches(model, KEEPING, generator)
    best, kept = torch.full((model.num_levels + 1,), -math.inf), 0
    for step, values in seen.items():
        other = tiny(name)
        other.load_state_dict(values)
        scores = torch.stack(validation_log_likelihoods(other, batches)).float()
        lower = scores.mean(dim=1) - 1.96 * scores.std(dim=1) / math.sqrt(4)
        if (lower > best).all():
            best, kept = lower, step
    assert history[-1]["kept"] == kept
    assert 0 < kept < KEEPING.num_steps
    assert_same_weights(weights(model), seen[kept])


def test_the_best_weights_survive_a_stop_and_training_goes_on_from_the_last(tmp_path: Path) -> None:
    whole, longer, parts = tiny(), tiny(), tiny()
    once = train(whole, Sawtooth(), KEEPING, progress=False)
    step: Record = {"step": 0}
    while step["step"] < KEEPING.num_steps:
        parts = tiny()
        *_, step = train(
            parts, Sawtooth(), KEEPING, folder=tmp_path, max_minutes=0.0, progress=False
        )
    assert step["kept"] == once[-1]["kept"]
    assert_same_weights(weights(whole), weights(parts))
    reopened = tiny()
    train(reopened, Sawtooth(), KEEPING, folder=tmp_path, progress=False)
    assert_same_weights(weights(whole), weights(reopened))
    more = replace(KEEPING, num_steps=14, keep_best=False)
    train(longer, Sawtooth(), more, progress=False)
    train(parts, Sawtooth(), more, folder=tmp_path, progress=False)
    assert_same_weights(weights(longer), weights(parts))
    again = replace(KEEPING, num_steps=16)
    with pytest.raises(ValueError, match="keep_best: False there, True here"):
        train(tiny(), Sawtooth(), again, folder=tmp_path, progress=False)


def test_a_finished_run_that_is_asked_for_its_last_weights_kept_none(tmp_path: Path) -> None:
    assert "kept" in train(tiny(), Sawtooth(), KEEPING, folder=tmp_path, progress=False)[-1]
    last, plain = tiny(), replace(KEEPING, keep_best=False)
    history = train(last, Sawtooth(), plain, folder=tmp_path, progress=False)
    assert "kept" not in history[-1]
    other = tiny()
    train(other, Sawtooth(), plain, progress=False)
    assert_same_weights(weights(last), weights(other))


def test_only_the_last_record_says_which_weights_were_kept(tmp_path: Path) -> None:
    def one_step() -> list[Record]:
        return train(tiny(), Sawtooth(), KEEPING, folder=tmp_path, max_minutes=0.0, progress=False)

    def log() -> list[Record]:
        return [json.loads(line) for line in (tmp_path / resume.LOG).read_text().splitlines()]

    for step in range(1, 5):
        history = one_step()
        assert log() == history
        # Step 2 is the first validation, so that there is nothing to keep before.
        assert [r["step"] for r in history if "kept" in r] == ([step] if step >= 2 else [])
    # Until now, every stop left it in the log.
    stale = "".join(json.dumps({**record, "kept": 2}) + "\n" for record in log())
    (tmp_path / resume.LOG).write_text(stale)
    assert [r["step"] for r in one_step() if "kept" in r] == [5]


def test_how_often_a_run_is_logged_and_validated_may_change(tmp_path: Path) -> None:
    whole, parts = tiny(), tiny()
    train(whole, Sawtooth(), RUN, progress=False)
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    finer = replace(RUN, log_every=1, validate_every=3, num_validation_batches=2)
    history = train(parts, Sawtooth(), finer, folder=tmp_path, progress=False)
    assert [record["step"] for record in history] == list(range(1, 10))
    assert [record["step"] for record in history if "validation" in record] == [3, 6, 9]
    assert_same_weights(weights(whole), weights(parts))


def test_a_length_that_the_run_cannot_have_is_refused(tmp_path: Path) -> None:
    for name, run, length, reason in (
        ("cosine", RUN, 12, "9 there, 12 here; a cosine schedule depends on it"),
        ("constant", CONSTANT, 5, "9 there, 5 here; the run has made 9"),
    ):
        folder = tmp_path / name
        train(tiny(), Sawtooth(), run, folder=folder, progress=False)
        before = (folder / "state.safetensors").read_bytes()
        with pytest.raises(ValueError, match=rf"another run \(training\.num_steps: {reason}\)"):
            train(tiny(), Sawtooth(), replace(run, num_steps=length), folder=folder)
        assert (folder / "state.safetensors").read_bytes() == before


def test_a_run_that_was_saved_under_an_older_name_goes_on(tmp_path: Path) -> None:
    run = replace(RUN, robust_threshold=-2.0)
    train(tiny(), Sawtooth(), run, folder=tmp_path, max_minutes=0.0, progress=False)
    path = tmp_path / "state.safetensors"
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
    metadata["description"] = metadata["description"].replace("robust_threshold", "loss_knee")
    rewrite(path, metadata)
    history = train(tiny(), Sawtooth(), run, folder=tmp_path, progress=False)
    assert [record["step"] for record in history] == [1, 2, 4, 6, 8, 9]


def test_the_best_validation_is_kept_also_where_the_first_is_not_a_number() -> None:
    model = tiny("convgnp")
    run = replace(RUN, keep_best=True)
    state = RunState(model, Optimizer(model, run), torch.Generator(), Sawtooth(), run)
    for state.step, value in ((1, math.nan), (2, 0.5), (3, 0.2)):
        state.keep_if_best([torch.tensor([value, value])])
    assert state.best is not None
    assert state.best.step == 2
    with pytest.raises(ValueError, match="must be >= 2 for keep_best"):
        replace(run, batch=BatchConfig(batch_size=1))


class Mine(ConvGNP):
    """A model of one's own, which the library has no name for."""

    name = "mine"


def test_a_model_of_ones_own_resumes_and_an_unknown_setting_is_another_run(tmp_path: Path) -> None:
    def mine() -> NeuralProcess:
        model = Mine(TINY)
        model.load_state_dict(tiny("convgnp").state_dict())
        return model

    whole, parts = mine(), mine()
    train(whole, Sawtooth(), RUN, progress=False)
    train(mine(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    train(parts, Sawtooth(), RUN, folder=tmp_path, progress=False)
    assert_same_weights(weights(whole), weights(parts))
    path = tmp_path / "state.safetensors"
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
    description = json.loads(metadata["description"])
    description["training"]["newer"] = 1
    rewrite(path, metadata | {"description": json.dumps(description)})
    with pytest.raises(ValueError, match=r"another run \(training\.newer: 1 there, None here"):
        train(mine(), Sawtooth(), RUN, folder=tmp_path, progress=False)


def test_a_run_that_keeps_its_best_goes_on_with_as_many_validation_batches(tmp_path: Path) -> None:
    train(tiny(), Sawtooth(), KEEPING, folder=tmp_path, max_minutes=0.0, progress=False)
    more = replace(KEEPING, num_validation_batches=2)
    with pytest.raises(ValueError, match="num_validation_batches: 1 there, 2 here"):
        train(tiny(), Sawtooth(), more, folder=tmp_path, progress=False)


def test_the_minutes_of_all_parts_add_up(tmp_path: Path) -> None:
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    path = tmp_path / "state.safetensors"
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
    rewrite(path, metadata | {"minutes": "90.0"})
    _, *later = train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)
    assert min(record["minutes"] for record in later) >= 90.0


@pytest.mark.parametrize("name", [resume.STATE, resume.LOG])
def test_a_run_that_dies_at_either_of_its_files_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_step() -> None:
        train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)

    def full(path: Path, data: bytes) -> None:
        if path.name == name:
            raise OSError("full")
        write_atomically(path, data)

    one_step()
    with monkeypatch.context() as patch:
        patch.setattr(resume, "write_atomically", full)
        with pytest.raises(OSError, match="full"):
            one_step()
    whole, parts = tiny(), tiny()
    train(whole, Sawtooth(), RUN, progress=False)
    train(parts, Sawtooth(), RUN, folder=tmp_path, progress=False)
    assert_same_weights(weights(whole), weights(parts))


def test_a_run_of_an_older_version_of_a_model_goes_on(tmp_path: Path) -> None:
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    path = tmp_path / resume.STATE
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
    there = json.loads(metadata["description"])
    del there["config"]["samples_known"], there["config"]["base"]["largest_noise"]
    rewrite(path, metadata | {"description": json.dumps(there)})
    history = train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)
    assert history[-1]["step"] == RUN.num_steps


def test_the_best_is_by_the_lower_end_of_every_level() -> None:
    model, run = tiny("convgnp"), replace(RUN, keep_best=True)
    state = RunState(model, Optimizer(model, run), torch.Generator(), Sawtooth(), run)
    rounds = ([[1.0, 1.0]] * 2, [[0.0, 2.4], [2.0, 2.0]], [[1.1, 1.1], [0.9, 0.9]])
    for state.step, levels in enumerate(rounds):
        state.keep_if_best([torch.tensor(values) for values in levels])
    assert state.best is not None
    assert state.best.step == 0
