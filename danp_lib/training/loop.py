"""The training loop (paper, Section 2.2)."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from danp_lib._config import NonNegativeFloat, check_kind, checked
from danp_lib._random import spawn
from danp_lib.data.generators import TaskGenerator
from danp_lib.data.noising import MaskedTask
from danp_lib.models.base import NeuralProcess
from danp_lib.training import objective, resume
from danp_lib.training.config import TrainingConfig
from danp_lib.training.optim import Optimizer
from danp_lib.training.resume import Record, RunState


class NonFiniteLossError(ValueError):
    """The loss or its gradient is NaN or infinite; on a CPU the message says why."""


class Update(NamedTuple):
    """What one step returns, on the device."""

    level: Tensor  #: Level of each task, ``(batch,)``.
    log_likelihood: Tensor  #: Nats per target of each task, ``(batch,)``.
    gradient_norm: Tensor  #: Before it was clipped, a scalar.


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
    """Train a model in place, on the device it is on, and return the records of the whole run.

    A run with a folder is saved there at every validation, and when it ends: at the last step,
    after ``max_minutes``, by Ctrl-C or a termination signal. From ``state.safetensors`` it goes on
    where it stopped, bit for bit on a CPU; ``log.jsonl`` has a record per line. With ``snapshots``,
    there are checkpoints too, ``step-1024.safetensors`` and so on, at every power of two from
    there. ``compile_model`` compiles the likelihood; ``callback`` is called with every record.

    Raises:
        NonFiniteLossError: If the loss or the gradient is not finite. The last good state stays.
        OSError: If the folder cannot be written, before anything is done.
        ValueError: If the prior or the batches are not the model's, or the folder holds another run
            or a damaged one.
    """
    checked(NonNegativeFloat | None, max_minutes, "max_minutes")
    if snapshots and folder is None:
        raise ValueError("snapshots must be false without a folder to keep them in.")
    _check_fit(model, task_generator, config)
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(config.seed)
    for_training, for_validation = spawn(generator, 2)
    state = RunState(model, Optimizer(model, config), for_training, task_generator, config)
    place = None if folder is None else Path(folder)
    history = [] if place is None else resume.load_state(place, state)
    make_step = TrainingStep(state, compile_model)
    draw = partial(objective.draw_batch, model, task_generator, config.batch)
    validation = [
        [draw(levels=f, generator=for_validation) for _ in range(config.num_validation_batches)]
        for f in range(model.num_levels + 1)
    ]
    updates: list[Update] = []
    start = time.monotonic() - 60.0 * state.minutes
    deadline = float("inf") if max_minutes is None else time.monotonic() + 60.0 * max_minutes
    leaving = state.step >= config.num_steps
    bar = tqdm(total=config.num_steps, initial=state.step, disable=not progress, unit="step")
    with bar, stop_signals() as stopped:
        while not leaving:
            # A captured step overwrites its results at the next replay.
            updates.append(Update(*(part.clone() for part in make_step())))
            state.step += 1
            bar.update()
            if snapshots and place is not None:
                resume.save_snapshot(place, state)
            done = state.step == config.num_steps
            leaving = done or bool(stopped) or time.monotonic() > deadline
            validating = done or state.step % config.validate_every == 0
            if not (validating or leaving or state.step % config.log_every == 0):
                continue
            state.minutes = (time.monotonic() - start) / 60.0
            for earlier in history:  # at which the run stopped
                earlier.pop("kept", None)
            history.append(record := _record(state, updates, validation if validating else []))
            updates.clear()
            if state.best is not None and leaving:
                record["kept"] = state.best.step
            bar.set_postfix(log_likelihood=f"{record['log_likelihood']:.3f}")
            if callback is not None:
                callback(record)
            if place is not None and (validating or leaving):
                resume.save_state(place, state, history)
    if state.best is not None:
        model.load_state_dict(state.best.weights)
    model.eval()
    return history


def _record(state: RunState, updates: list[Update], validation: list[list[MaskedTask]]) -> Record:
    """Means of what steps returned, or a :class:`NonFiniteLossError`; and of a validation."""
    levels, values, norms = (
        torch.cat([part.reshape(-1) for part in parts]).cpu()
        for parts in zip(*updates, strict=True)
    )
    if not (values.isfinite().all() and norms.isfinite().all()):
        raise NonFiniteLossError(
            f"the loss or its gradient is not finite in the last steps up to {state.step}."
        )
    by_level = [values[levels == f] for f in range(state.model.num_levels + 1)]
    record: Record = {
        "step": state.step,
        "minutes": round(state.minutes, 3),
        "log_likelihood": values.mean().item(),
        "log_likelihood_by_level": [v.mean().item() if len(v) else None for v in by_level],
        "gradient_norm": norms.mean().item(),
    }
    if validation:
        scores = objective.validation_log_likelihoods(state.model, validation)
        record["validation"] = [level.mean().item() for level in scores]
        if state.config.keep_best:
            state.keep_if_best(scores)
    return record


def _check_fit(model: NeuralProcess, task_generator: TaskGenerator, config: TrainingConfig) -> None:
    """Refuse a prior off the model's domain, and batches whose levels are not the model's size."""
    check_kind(NeuralProcess, model=model)
    check_kind(TaskGenerator, task_generator=task_generator)
    check_kind(TrainingConfig, config=config)
    if (dtype := next(model.parameters()).dtype) != torch.float32:
        raise ValueError(f"model must be in float32 to be trained, got {dtype}.")
    theirs = task_generator.box
    corners = torch.tensor([theirs.lower, theirs.upper], dtype=torch.float64)
    model.domain.check(f"the domain of task_generator, {theirs}, for this model", corners)
    if model.num_levels > 0 and model.config.num_auxiliary != config.batch.num_targets:
        raise ValueError(
            "num_auxiliary of the model must be num_targets of the batches, the points of every "
            f"level it is trained on, got {model.config.num_auxiliary} and "
            f"{config.batch.num_targets}."
        )


class TrainingStep:
    """One update: draw a batch, differentiate its likelihood, and move the weights."""

    def __init__(self, state: RunState, compile_model: bool) -> None:
        self.state = state
        self.device = state.generator.device
        self.jitter = torch.zeros((), dtype=torch.float64, device=self.device)
        self.likelihood: Callable[..., Tensor] = objective.batch_log_likelihood
        if compile_model:
            # Here, since it takes as long to import as all the rest.
            from torch._dynamo import config as dynamo

            # On a CPU there is one piece of code for each level, made when it is drawn.
            dynamo.recompile_limit = max(dynamo.recompile_limit, state.model.num_levels + 1)
            self.likelihood = torch.compile(objective.batch_log_likelihood, dynamic=False)
        self.graphed = graphed(self.update, state.generator) if self.device.type == "cuda" else None

    def __call__(self) -> Update:
        """Update the model; on a CPU, a loss that is not finite is refused before it moves."""
        step, config = self.state.step, self.state.config
        self.state.optimizer.set_factor(config.rate_factor_at(step))
        self.jitter.fill_(config.jitter_at(step))
        if self.graphed is None:
            return self.update()
        with torch.cuda.device(self.device):  # streams and graphs are the current device's
            return next(self.graphed)

    def update(self) -> Update:
        """The step itself, which a GPU captures."""
        state, prior, config = self.state, self.state.task_generator, self.state.config
        batch = objective.draw_batch(state.model, prior, config.batch, generator=state.generator)
        log_likelihood = self.likelihood(state.model, batch, jitter=self.jitter)
        loss = objective.training_loss(log_likelihood, robust_threshold=config.robust_threshold)
        loss.backward()
        norm = state.optimizer.clip_gradient()
        if self.device.type == "cpu" and not (loss.isfinite() and norm.isfinite()):
            raise NonFiniteLossError(
                f"the loss or its gradient is not finite at step {state.step}: "
                f"{objective.cause_of_failure(state.model, batch, loss)}."
            )
        state.optimizer.step()
        # A fill, since a copy from the host could not be captured.
        level = torch.zeros_like(log_likelihood, dtype=torch.long) + batch.level
        return Update(level, log_likelihood.detach(), norm)


def graphed(function: Callable[[], Update], generator: torch.Generator) -> Iterator[Update]:
    """Call a function a few times, then record it as one CUDA graph and replay that.

    A replay costs one launch where the step has thousands. The function must be of static shapes,
    read nothing on the host, take its randomness from ``generator``, and change only tensors that
    stay where they are. Every replay overwrites the same results.
    """
    stream = torch.cuda.Stream()
    for _ in range(5):  # in which the libraries settle their workspaces
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = function()
        torch.cuda.current_stream().wait_stream(stream)
        yield result
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = function()
    while True:
        graph.replay()
        yield result


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Note Ctrl-C and a termination signal in a list, so that the step at hand is finished."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    # Other threads can set no handlers.
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
