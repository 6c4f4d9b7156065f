"""The loop: it learns, and says why where the loss is not finite."""

import inspect
import json
import math
import signal
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import TINY
from torch import Tensor
from torch.overrides import TorchFunctionMode
from training_runs import (
    LONG_RUN,
    RUN,
    assert_same_weights,
    tiny,
    validation_batches,
    weights,
)

from danp_lib._random import spawn
from danp_lib.data.generators import GaussianProcess, Prior, Sawtooth, TaskGenerator
from danp_lib.inference.compiling import can_compile
from danp_lib.models.convnp import ConvNPConfig
from danp_lib.models.danp import DANPConfig
from danp_lib.storage.checkpoint import read_header, save_checkpoint
from danp_lib.storage.tasks import load_tasks, save_tasks
from danp_lib.training.config import TrainingConfig
from danp_lib.training.loop import NonFiniteLossError, TrainingStep, Update, train
from danp_lib.training.objective import (
    batch_log_likelihood,
    draw_batch,
    training_loss,
    validation_log_likelihoods,
)
from danp_lib.training.optim import Optimizer
from danp_lib.training.recipes import build_model
from danp_lib.training.resume import Record, RunState


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


@pytest.mark.parametrize("minutes", [-1.0, math.nan])
def test_a_time_that_is_none_is_refused(minutes: float) -> None:
    with pytest.raises(ValueError, match="max_minutes must be a finite number >= 0"):
        train(tiny(), Sawtooth(), RUN, max_minutes=minutes)


def test_the_example_of_a_prior_of_ones_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, code = inspect.cleandoc(Prior.__doc__ or "").split(".. code-block:: python\n")
    code = textwrap.dedent(code)
    assert code.count("num_steps=2000") == code.count("sample_task(100") == 1
    code = code.replace("num_steps=2000", "num_steps=2, num_validation_batches=1")
    functions: list[Any] = [dataclass, torch, train, build_model, save_checkpoint, save_tasks]
    classes = [Prior, ConvNPConfig, DANPConfig, TrainingConfig]
    known: dict[str, Any] = {one.__name__: one for one in (*functions, *classes)}
    exec(code, known)
    prior = known["prior"]
    header = read_header(tmp_path / "triangle.safetensors", task_generators=[known["Triangle"]])
    assert header.task_generator == prior
    tasks = load_tasks(tmp_path / "tasks.safetensors")
    assert tasks.batch_size == 100
    assert ((tasks.yt >= 0.0) & (tasks.yt <= 0.5)).all()
    assert tasks.xt.max() > 9.0


def test_what_is_no_model_no_prior_and_no_run_is_refused() -> None:
    for arguments, message in (
        (("danp", Sawtooth(), RUN), "^model must be a NeuralProcess, got str"),
        (
            (tiny(), Sawtooth, RUN),
            "^task_generator must be a TaskGenerator, got the class Sawtooth",
        ),
        ((tiny(), Sawtooth(), {"num_steps": 2}), "^config must be a TrainingConfig, got dict"),
    ):
        with pytest.raises(ValueError, match=message):
            train(*arguments)


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
