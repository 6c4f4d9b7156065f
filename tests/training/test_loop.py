"""The loop: it learns, resumes bit for bit, and says why where the loss is not finite."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from danp_lib._random import spawn
from danp_lib.data.generators import GaussianProcess, Sawtooth, TaskGenerator
from danp_lib.data.noising import MaskedTask
from danp_lib.inference.compiling import can_compile
from danp_lib.models.convnp import ConvGNP, ConvNPConfig, NeuralProcess
from danp_lib.models.danp import DANPConfig
from danp_lib.storage.checkpoint import load_checkpoint, read_header
from danp_lib.training.config import TrainingConfig
from danp_lib.training.loop import NonFiniteLossError, TrainingStep, Update, train
from danp_lib.training.objective import (
    BatchConfig,
    batch_log_likelihood,
    draw_batch,
    training_loss,
    validation_log_likelihoods,
)
from danp_lib.training.optim import Optimizer
from danp_lib.training.recipes import build_model
from danp_lib.training.resume import Record, RunState

TINY = ConvNPConfig(points_per_unit=16, channels=8, num_layers=3, rank=4)
RUN = TrainingConfig(
    num_steps=9,
    batch=BatchConfig(batch_size=4, num_targets=20),
    warmup_steps=2,
    log_every=2,
    validate_every=4,
    num_validation_batches=1,
)


def tiny(name: str = "danp", **changes: Any) -> NeuralProcess:
    if name == "danp":
        config = DANPConfig(base=TINY, num_levels=2, num_auxiliary=20)
        return build_model(name, replace(config, **changes), seed=0)
    return build_model(name, replace(TINY, rank=4 if name == "convgnp" else 0), seed=0)


def weights(model: NeuralProcess) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def validation_batches(
    model: NeuralProcess, run: TrainingConfig, generator: torch.Generator
) -> list[list[MaskedTask]]:
    draw = partial(draw_batch, model, Sawtooth(), run.batch, generator=generator)
    return [
        [draw(levels=f) for _ in range(run.num_validation_batches)]
        for f in range(model.num_levels + 1)
    ]


def assert_same_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


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


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("mine")
    model = tiny()
    before = weights(model)
    with pytest.raises(NotADirectoryError, match=r"state\.safetensors cannot be written"):
        train(model, Sawtooth(), RUN, folder=taken, progress=False)
    assert_same_weights(weights(model), before)
    (tmp_path / "run" / "log.jsonl").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"log\.jsonl is a folder"):
        train(model, Sawtooth(), RUN, folder=tmp_path / "run", progress=False)


def test_snapshots_need_a_folder() -> None:
    with pytest.raises(ValueError, match="snapshots must be false without a folder"):
        train(tiny(), Sawtooth(), RUN, snapshots=True, progress=False)


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
    assert read_header(tmp_path / "step-4.safetensors").provenance["steps"] == 4


SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from danp_lib.data.generators import Sawtooth
    from danp_lib.training.loop import train
    from test_loop import LONG_RUN, tiny
    train(tiny(), Sawtooth(), LONG_RUN, folder=Path(sys.argv[1]), progress=False)
    """
)


LONG_RUN = replace(RUN, num_steps=10_000_000, validate_every=5)


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


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of PyTorch
@pytest.mark.skipif(not can_compile("cpu"), reason="there is no C++ compiler")
def test_a_compiled_run_learns_the_same() -> None:
    run = replace(RUN, num_steps=3)
    plain, compiled = tiny("convgnp"), tiny("convgnp")  # one level, so one piece of code
    records = train(plain, Sawtooth(), run, progress=False)
    again = train(compiled, Sawtooth(), run, compile_model=True, progress=False)
    assert again[-1]["validation"] == pytest.approx(records[-1]["validation"], abs=1e-3)
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_second_signal_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)

    def twice(record: Record) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tiny(), Sawtooth(), LONG_RUN, progress=False, callback=twice)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("one_thread")  # as the run in the other process: others round differently
def test_a_run_that_is_killed_can_go_on(tmp_path: Path) -> None:
    code = SCRIPT.format(tests=str(Path(__file__).parent))
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


def rewrite(path: Path, metadata: dict[str, str] | None = None, **changes: Tensor | None) -> None:
    """Write a state anew, with other tensors, or without those given as ``None``."""
    with safe_open(path, framework="pt") as stored:
        kept = stored.metadata() if metadata is None else metadata
    tensors = {**load_file(path), **changes}
    save_file({key: value for key, value in tensors.items() if value is not None}, path, kept)


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


@pytest.mark.parametrize("name", ["danp", "convcnp"])
def test_a_prior_off_the_domain_is_refused_before_the_first_step(name: str) -> None:
    message = r"domain of task_generator, \[-40.0, 40.0\], .*\[-2.0, 2.0\]"
    model = tiny(name)
    before = weights(model)
    with pytest.raises(ValueError, match=message):
        train(model, Sawtooth(domain=(-40.0, 40.0)), RUN, progress=False)
    assert_same_weights(weights(model), before)
    train(model, Sawtooth(domain=(-2.0, 1.0)), RUN, max_minutes=0.0, progress=False)


def test_levels_of_another_size_than_the_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_auxiliary .* num_targets .* 7 and 20"):
        train(tiny(num_auxiliary=7), Sawtooth(), RUN, progress=False)
    train(tiny(num_auxiliary=7, num_levels=0), Sawtooth(), replace(RUN, num_steps=1))


@dataclass(frozen=True)
class Faulty(Sawtooth):
    """A generator that goes wrong at its seventh batch."""

    name = Sawtooth.name  # whose runs go on from its own

    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        y = super().sample_outputs(x, generator=generator)
        calls.append(1)
        # Three validation batches are drawn first.
        return y * torch.nan if len(calls) == 3 + 7 else y


calls: list[int] = []


def test_a_loss_that_is_not_finite_stops_with_its_cause_and_keeps_the_last_good_state(
    tmp_path: Path,
) -> None:
    calls.clear()
    with pytest.raises(NonFiniteLossError, match=r"step 6: .*context\.y "):
        train(tiny(), Faulty(), RUN, folder=tmp_path, progress=False)
    model = tiny()
    history = train(model, Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    assert history[-1]["step"] == 5  # one more than the last saved step
    assert all(v.isfinite().all() for v in model.state_dict().values())


@pytest.mark.parametrize("loss", [torch.nan, -torch.inf])
def test_a_loss_that_is_not_finite_moves_nothing_though_its_gradient_is_finite(
    loss: float,
) -> None:
    model = tiny()
    before = weights(model)
    run = replace(RUN, optimizer="adam", learning_rate=1.0, gradient_clip=None)
    generator = torch.Generator().manual_seed(0)
    step = TrainingStep(RunState(model, Optimizer(model, run), generator, Sawtooth(), run), False)
    step.likelihood = lambda *args, **kwargs: batch_log_likelihood(*args, **kwargs) - loss
    with pytest.raises(NonFiniteLossError, match=f"step 0: .*{loss}"):
        step()
    assert_same_weights(weights(model), before)


def test_records_are_written_as_json_lines_and_hold_every_level(tmp_path: Path) -> None:
    seen: list[dict[str, object]] = []
    history = train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False, callback=seen.append)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == history == seen
    assert [r["step"] for r in history] == [2, 4, 6, 8, 9]
    assert [r["step"] for r in history if "validation" in r] == [4, 8, 9]
    for record in history:
        assert len(record["log_likelihood_by_level"]) == 3


def test_training_is_its_steps_written_out() -> None:
    run = replace(
        RUN,
        num_steps=4,
        batch=replace(RUN.batch, clean_fraction=0.5),
        warmup_steps=1,
        schedule="quadratic",
        jitter=0.1,
        jitter_steps=2,
        jitter_schedule="geometric",
        robust_threshold=0.0,
        gradient_clip=0.5,
        muon_weight_decay=0.1,
        log_every=4,
        validate_every=4,
    )
    model, theirs = tiny(), tiny()
    generator, other = spawn(torch.Generator().manual_seed(run.seed), 2)
    optimizer = Optimizer(model, run)
    rows, norms = [], []
    for step in range(4):
        optimizer.set_factor(run.rate_factor_at(step))
        batch = draw_batch(model, Sawtooth(), run.batch, generator=generator)
        values = batch_log_likelihood(model, batch, jitter=run.jitter_at(step))
        training_loss(values, robust_threshold=run.robust_threshold).backward()
        norms.append(float(optimizer.clip_gradient()))
        optimizer.step()
        rows.append((batch.level, values.detach()))
    (record,) = train(theirs, Sawtooth(), run, progress=False)
    assert_same_weights(weights(model), weights(theirs))
    assert record["gradient_norm"] == pytest.approx(sum(norms) / 4)
    for level, found in enumerate(record["log_likelihood_by_level"]):
        own = [values for f, values in rows if f == level]
        assert found == (pytest.approx(float(torch.cat(own).mean())) if own else None)
    batches = validation_batches(model, run, other)
    scores = validation_log_likelihoods(model, batches)
    assert record["validation"] == pytest.approx([float(level.mean()) for level in scores])


def test_the_minutes_of_all_parts_add_up(tmp_path: Path) -> None:
    train(tiny(), Sawtooth(), RUN, folder=tmp_path, max_minutes=0.0, progress=False)
    path = tmp_path / "state.safetensors"
    with safe_open(path, framework="pt") as stored:
        metadata = stored.metadata()
    rewrite(path, metadata | {"minutes": "90.0"})
    _, *later = train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)
    assert min(record["minutes"] for record in later) >= 90.0


@pytest.mark.parametrize("part", ["log_likelihood", "gradient_norm"])
def test_what_a_gpu_does_not_check_in_a_step_the_record_does(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Update(torch.zeros(4, dtype=torch.long), torch.zeros(4), torch.ones(()))
    bad = good._replace(**{part: getattr(good, part) * torch.nan})
    monkeypatch.setattr(TrainingStep, "__call__", lambda self: bad)
    with pytest.raises(NonFiniteLossError):
        train(tiny(), Sawtooth(), RUN, folder=tmp_path, progress=False)
    assert not (tmp_path / "state.safetensors").exists()


def test_training_learns_a_gaussian_process() -> None:
    model = tiny("convgnp")
    run = replace(RUN, num_steps=150, validate_every=150, log_every=25, learning_rate=3e-3)
    history = train(model, GaussianProcess(), run, progress=False)
    # A standard normal guess scores -1.42 nats a target.
    assert history[0]["log_likelihood"] < -1.2
    assert history[-1]["validation"][0] > -0.95


def test_training_touches_no_global_generator() -> None:
    before = torch.get_rng_state()
    train(tiny(), Sawtooth(), replace(RUN, num_steps=2), progress=False)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_steps": 0},
        {"num_steps": 2.5},
        {"warmup_steps": -1},
        {"jitter_steps": -1},
        {"seed": 1.5},
        {"learning_rate": -1.0},
        {"learning_rate": math.inf},
        {"muon_weight_decay": -3},
        {"muon_weight_decay": math.nan},
        {"robust_threshold": math.nan},
        {"optimizer": "sgd"},
        {"schedule": "linear"},
        *({"jitter": jitter} for jitter in (-1.0, math.nan, math.inf)),
        *({"jitter": jitter, "jitter_schedule": "geometric"} for jitter in (0.0, 9e-7, math.nan)),
        {"jitter_schedule": "linear"},
        {"gradient_clip": 0.0},
    ],
)
def test_bad_runs_are_refused(arguments: dict[str, object]) -> None:
    name, value = next(iter(arguments.items()))
    with pytest.raises(ValueError, match=f"^{name} .*got {value!r}"):
        replace(RUN, **arguments)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("minutes", [-1.0, math.nan])
def test_a_time_that_is_none_is_refused(minutes: float) -> None:
    with pytest.raises(ValueError, match="max_minutes must be a finite number >= 0"):
        train(tiny(), Sawtooth(), RUN, max_minutes=minutes)


def test_a_model_in_float64_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model must be in float32 .* got torch.float64"):
        train(tiny().double(), Sawtooth(), RUN)


@pytest.mark.parametrize("prior", [Sawtooth(noise=(0.01, 0.1)), GaussianProcess()])
def test_a_step_makes_no_tensor_of_numbers_on_the_host(prior: TaskGenerator) -> None:
    # A CUDA graph cannot capture one.
    class Refusing(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            assert getattr(function, "__name__", "") not in ("new_tensor", "tensor", "as_tensor")
            return function(*args, **(kwargs or {}))

    model = tiny(base=replace(TINY, conditioned=True))
    run = replace(RUN, batch=replace(RUN.batch, clean_fraction=0.5))
    optimizer = Optimizer(model, run)
    state = RunState(model, optimizer, torch.Generator().manual_seed(0), prior, run)
    step = TrainingStep(state, False)
    with Refusing():
        for _ in range(3):
            step.update()


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
