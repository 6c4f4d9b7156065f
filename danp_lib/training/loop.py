"""The training loop (paper, Section 2.2)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from danp_lib._random import spawn
from danp_lib.data.generators import TaskGenerator
from danp_lib.data.noising import MaskedTask
from danp_lib.models.convnp import NeuralProcess
from danp_lib.nn.unet import PaperUNet
from danp_lib.training.cuda_graph import GraphedStep
from danp_lib.training.objective import (
    batch_log_likelihood,
    cause_of_failure,
    draw_batch,
    draw_validation_batches,
    training_loss,
    validation_log_likelihood,
)
from danp_lib.training.optim import jitter_at, schedule_factor
from danp_lib.training.resume import (
    Record,
    RunState,
    TrainingConfig,
    load_state,
    save_snapshot,
    save_state,
)


class NonFiniteLossError(ValueError):
    """The loss or its gradient is NaN or infinite; the message says why."""


class Update(NamedTuple):
    """What one step returns, on the device: nothing here has waited for a GPU."""

    level: Tensor
    """Level of each task, ``(batch,)``."""
    log_likelihood: Tensor
    """Nats per target of each task, ``(batch,)``."""
    gradient_norm: Tensor
    """Before it was clipped, a scalar."""


def train(
    model: NeuralProcess,
    task_generator: TaskGenerator,
    config: TrainingConfig,
    *,
    folder: str | os.PathLike[str] | None = None,
    max_minutes: float | None = None,
    compile_model: bool = False,
    snapshots: bool = False,
    progress: bool = True,
    callback: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Train a model in place, on the device it is on.

    With a folder, the run leaves ``state.safetensors`` there, from which it goes on where it
    stopped, bit for bit on a CPU, and ``log.jsonl``, one record a line. It is saved at every
    validation, and when it ends: at the last step, after ``max_minutes``, by Ctrl-C or a
    termination signal.

    Args:
        model: The model; its weights are taken as they are.
        task_generator: The prior over functions, to draw tasks from.
        config: The run.
        folder: Where to keep the run; nothing is kept where left out.
        max_minutes: Stop, resumably, after this time.
        compile_model: Compile the likelihood and its gradient with :func:`torch.compile`.
        snapshots: Also keep checkpoints in the folder, ``step-1024.safetensors`` and so on, at
            every power of two from 1,024 steps, for a learning curve.
        progress: Show a progress bar on the standard error.
        callback: Called with every record.

    Returns:
        The records of the whole run; see :data:`~danp_lib.training.resume.Record`.

    Raises:
        NonFiniteLossError: If the loss or the gradient is not finite. The last good state stays.
        ValueError: If the prior or the batches are not the model's, the folder holds another run or
            a damaged one, or the run has a configuration that cannot be saved there.
    """
    _check_fit(model, task_generator, config)
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(config.seed)
    for_training, for_validation = spawn(generator, 2)
    state = RunState(model, config.build_optimizer(model), for_training, task_generator, config)
    place = None if folder is None else Path(folder)
    history = load_state(place, state) if place is not None else []
    step_function = TrainingStep(state, compile_model)
    count = config.num_validation_batches
    validation = draw_validation_batches(
        model, task_generator, config.batch, num_batches=count, generator=for_validation
    )
    meter = Meter(model.num_levels)
    start = time.monotonic() - 60.0 * state.minutes
    deadline = float("inf") if max_minutes is None else time.monotonic() + 60.0 * max_minutes
    bar = tqdm(total=config.num_steps, initial=state.step, disable=not progress, unit="step")
    with bar, stop_signals() as stopped:
        while state.step < config.num_steps:
            meter.add(step_function())
            state.step += 1
            bar.update()
            if snapshots and place is not None:
                save_snapshot(place, state)
            leaving = stopped() or time.monotonic() > deadline or state.step == config.num_steps
            validating = state.step % config.validate_every == 0 or state.step == config.num_steps
            if state.step % config.log_every == 0 or validating or leaving:
                state.minutes = (time.monotonic() - start) / 60.0
                record = _record(state, meter, validation if validating else None)
                history.append(record)
                bar.set_postfix(log_likelihood=f"{record['log_likelihood']:.3f}")
                if callback is not None:
                    callback(record)
                if place is not None and (validating or leaving):
                    save_state(place, state, history)
            if leaving:
                break
    model.eval()
    return history


def _record(state: RunState, meter: Meter, validation: list[list[MaskedTask]] | None) -> Record:
    record = {"step": state.step, "minutes": round(state.minutes, 3), **meter.read()}
    if validation is not None:
        record["validation"] = validation_log_likelihood(state.model, validation)
    return record


def _check_fit(model: NeuralProcess, task_generator: TaskGenerator, config: TrainingConfig) -> None:
    """Refuse a prior off the model's domain, and batches whose levels are not the model's size."""
    theirs = task_generator.box
    corners = torch.tensor([theirs.lower, theirs.upper], dtype=torch.float64)
    model.domain.check(f"the domain of task_generator, {theirs},", corners)
    if model.num_levels > 0 and model.config.num_auxiliary != config.batch.num_targets:
        raise ValueError(
            "num_auxiliary of the model must be num_targets of the batches, the points of every "
            f"level it is trained on, got {model.config.num_auxiliary} and "
            f"{config.batch.num_targets}."
        )


def _compiled(model: NeuralProcess) -> Callable[..., Tensor]:
    """The likelihood as compiled code, on a CPU one piece for each level, made when it is drawn.

    PyTorch keeps the code for the next run, in the temporary files or where the environment
    variable ``TORCHINDUCTOR_CACHE_DIR`` says.
    """
    # Here, since it takes as long to import as all the rest.
    from torch._dynamo import config as dynamo

    dynamo.recompile_limit = max(dynamo.recompile_limit, model.num_levels + 1)
    core = model.core
    if isinstance(core.unet, PaperUNet):  # which is faster as it is, and so are its neighbours
        for part in (core.encoder, core.unet, core.decoder):
            part.forward = torch.compiler.disable(part.forward)  # type: ignore[method-assign]
    return torch.compile(batch_log_likelihood, dynamic=False)


def keep_freed_memory() -> None:
    """Have Linux's allocator keep what is freed for the next step, for the rest of the process.

    Otherwise it returns the memory of large tensors, and gets it anew page by page: that takes up
    to a tenth of a step.
    """
    if sys.platform == "linux":
        allocator = ctypes.CDLL(None)
        if hasattr(allocator, "mallopt"):
            for option, size in ((_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**31 - 1)):
                allocator.mallopt(option, size)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as in malloc.h


class TrainingStep:
    """One update: draw a batch, differentiate its likelihood, and move the weights.

    Args:
        state: The run.
        compile_model: Compile the likelihood and its gradient.
    """

    def __init__(self, state: RunState, compile_model: bool) -> None:
        self.state = state
        self.device = state.generator.device
        self.jitter = torch.zeros((), dtype=torch.float64, device=self.device)
        self.likelihood = _compiled(state.model) if compile_model else batch_log_likelihood
        self.run: Callable[[], Update] = self.update
        if self.device.type == "cuda":
            self.run = GraphedStep(self.update, state.generator)
        else:
            keep_freed_memory()

    def __call__(self) -> Update:
        """Update the model once.

        Raises:
            NonFiniteLossError: On a CPU, before the weights move; a GPU is not waited for.
        """
        config = self.state.config
        self.state.optimizer.set_factor(
            schedule_factor(
                self.state.step,
                num_steps=config.num_steps,
                warmup_steps=config.warmup_steps,
                schedule=config.schedule,
            )
        )
        self.jitter.fill_(
            jitter_at(
                self.state.step,
                jitter=config.jitter,
                num_steps=config.jitter_steps,
                schedule=config.jitter_schedule,
            )
        )
        return self.run()

    def update(self) -> Update:
        """The step itself, which a GPU captures."""
        model, config = self.state.model, self.state.config
        batch = draw_batch(
            model, self.state.task_generator, config.batch, generator=self.state.generator
        )
        log_likelihood = self.likelihood(model, batch, jitter=self.jitter)
        loss = training_loss(log_likelihood, robust_threshold=config.robust_threshold)
        loss.backward()
        norm = self.state.optimizer.clip_gradient()
        if self.device.type == "cpu" and not (loss.isfinite() and norm.isfinite()):
            raise NonFiniteLossError(
                f"the loss or its gradient is not finite at step {self.state.step}: "
                f"{cause_of_failure(model, batch, loss)}."
            )
        self.state.optimizer.step()
        # A fill, since a copy from the host could not be captured.
        level = torch.zeros_like(log_likelihood, dtype=torch.long) + batch.level
        return Update(level, log_likelihood.detach(), norm)


class Meter:
    """Means of what the steps return, kept on the device until they are read.

    Args:
        num_levels: The number of noisy levels F.
    """

    def __init__(self, num_levels: int) -> None:
        self.num_levels = num_levels
        self.updates: list[Update] = []

    def add(self, update: Update) -> None:
        """Take in one step."""
        # A captured step overwrites its results at the next replay.
        self.updates.append(Update(*(part.clone() for part in update)))

    def read(self) -> Record:
        """The means since the last reading.

        Raises:
            NonFiniteLossError: If a likelihood or a gradient since then was not finite.
        """
        level, values = (
            torch.cat([getattr(u, name) for u in self.updates]).cpu()
            for name in ("level", "log_likelihood")
        )
        norms = torch.stack([u.gradient_norm for u in self.updates]).cpu()
        self.updates = []
        if not (values.isfinite().all() and norms.isfinite().all()):
            raise NonFiniteLossError("the loss or its gradient is not finite.")
        means = [values[level == f].mean().item() for f in range(self.num_levels + 1)]
        return {
            "log_likelihood": values.mean().item(),
            "log_likelihood_by_level": [None if m != m else m for m in means],
            "gradient_norm": norms.mean().item(),
        }


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and a termination signal into a flag, so that the step at hand is finished."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
