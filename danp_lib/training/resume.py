"""What a training run is, and how it is kept on disk so that it can go on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.data.generators import GENERATORS, TaskGenerator
from danp_lib.distributions.gaussian import VARIANCE_FLOOR
from danp_lib.models.convnp import NeuralProcess
from danp_lib.storage.checkpoint import save_checkpoint
from danp_lib.training.objective import BatchConfig
from danp_lib.training.optim import Optimizer

Record = dict[str, Any]
"""``step``, ``minutes``, ``log_likelihood`` and ``log_likelihood_by_level`` (nats per target, mean
since the last record, ``None`` for a level not drawn), ``gradient_norm``; and at validations
``validation``, nats per target of every level."""

FIRST_SNAPSHOT = 1024
"""Steps of the first snapshot of a run; the next ones follow at twice as many."""

# What reading a run raises where its files are damaged, as long as they can be read at all.
_DAMAGE = (SafetensorError, FileNotFoundError, LookupError, TypeError, ValueError, RuntimeError)


@dataclass(frozen=True)
class TrainingConfig:
    """A run.

    Attributes:
        num_steps: Number of updates.
        batch: The batches.
        optimizer: ``"adam"``, or ``"muon"`` for kernels and hidden layers and Adam for the rest.
        learning_rate: Adam's peak rate.
        muon_learning_rate: Muon's peak rate.
        muon_weight_decay: Fraction of its weights that a step of Muon at rate 1 takes away.
        schedule: ``"constant"``, or down to zero at the last step: ``"cosine"``, or
            ``"quadratic"``, as the square of the time left.
        warmup_steps: Steps over which the rates rise to their peaks.
        gradient_clip: Largest norm of the gradient, or ``None``.
        jitter: Added to the diagonal of the predictive covariance at first, in squared units of y.
        jitter_steps: Number of steps with jitter.
        jitter_schedule: ``"constant"``, or ``"geometric"`` for a fall down to the variance floor at
            the last of them.
        loss_knee: Log-likelihood below which a task's loss grows with its logarithm only, in nats
            per target, or ``None``; see :func:`~danp_lib.training.objective.training_loss`.
        log_every: Steps between records.
        validate_every: Steps between validations, at which the run is saved too.
        num_validation_batches: Batches a level to validate on.
        seed: Of the initial weights, the training tasks and the validation tasks.
    """

    num_steps: int
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: Literal["adam", "muon"] = "muon"
    learning_rate: float = 1e-3
    muon_learning_rate: float = 1e-2
    muon_weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "quadratic"] = "cosine"
    warmup_steps: int = 200
    gradient_clip: float | None = 1.0
    jitter: float = 0.0
    jitter_steps: int = 0
    jitter_schedule: Literal["constant", "geometric"] = "constant"
    loss_knee: float | None = None
    log_every: int = 100
    validate_every: int = 1000
    num_validation_batches: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("num_steps", 1),
            ("warmup_steps", 0),
            ("jitter_steps", 0),
            ("log_every", 1),
            ("validate_every", 1),
            ("num_validation_batches", 1),
            ("seed", -(2**63)),
        ):
            if not isinstance(getattr(self, name), Integral):
                raise ValueError(f"{name} must be an integer, got {getattr(self, name)!r}.")
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}.")
        for name in ("learning_rate", "muon_learning_rate"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}.")
        if not 0.0 <= self.muon_weight_decay < math.inf:
            raise ValueError(
                f"muon_weight_decay must be >= 0 and finite, got {self.muon_weight_decay}."
            )
        if self.optimizer not in ("adam", "muon"):
            raise ValueError(f"optimizer must be 'adam' or 'muon', got {self.optimizer!r}.")
        if self.schedule not in ("constant", "cosine", "quadratic"):
            raise ValueError(
                f"schedule must be 'constant', 'cosine' or 'quadratic', got {self.schedule!r}."
            )
        if self.jitter_schedule not in ("constant", "geometric"):
            raise ValueError(
                f"jitter_schedule must be 'constant' or 'geometric', got {self.jitter_schedule!r}."
            )
        lowest = VARIANCE_FLOOR if self.jitter_schedule == "geometric" else 0.0
        if not lowest <= self.jitter < math.inf:
            raise ValueError(
                f"jitter must be a finite variance >= {lowest:g} for a {self.jitter_schedule} "
                f"schedule, got {self.jitter}."
            )
        if self.loss_knee is not None and not math.isfinite(self.loss_knee):
            raise ValueError(f"loss_knee must be finite or None, got {self.loss_knee}.")
        if self.gradient_clip is not None and not self.gradient_clip > 0.0:
            raise ValueError(f"gradient_clip must be positive or None, got {self.gradient_clip}.")

    def build_optimizer(self, model: NeuralProcess) -> Optimizer:
        """The optimizer of the run, at its first step."""
        return Optimizer(
            model,
            kind=self.optimizer,
            learning_rate=self.learning_rate,
            muon_learning_rate=self.muon_learning_rate,
            muon_weight_decay=self.muon_weight_decay,
            gradient_clip=self.gradient_clip,
        )


@dataclass
class RunState:
    """All that a run changes.

    Attributes:
        model: Its weights.
        optimizer: Its momenta.
        generator: Where the randomness of its next batch comes from.
        task_generator: The prior over functions; fixed.
        config: The run; fixed.
        step: Number of updates made.
        minutes: Time spent, over all parts of the run.
    """

    model: NeuralProcess
    optimizer: Optimizer
    generator: torch.Generator
    task_generator: TaskGenerator
    config: TrainingConfig
    step: int = 0
    minutes: float = 0.0

    def description(self) -> dict[str, Any]:
        """What must be the same when a run goes on: the model, the tasks and the run."""
        return {
            "model": self.model.name,
            "config": to_dict(self.model.config),
            "dataset": self.task_generator.name,
            "task_generator": to_dict(self.task_generator),
            "training": to_dict(self.config),
        }

    def description_text(self) -> str:
        """The same as JSON, by which a folder knows its run.

        Raises:
            ValueError: If a value is none of JSON's, such as a NumPy float32, with its name.
        """
        for name, value in _leaves(self.description()):
            try:
                json.dumps(value)
            except TypeError as error:
                raise ValueError(
                    f"{name} must hold plain numbers and text, which can be saved, got {value!r}; "
                    "convert it, as in float(x) or int(x)."
                ) from error
        return json.dumps(self.description(), sort_keys=True)


def save_state(folder: Path, state: RunState, history: list[Record]) -> None:
    """Write ``state.safetensors`` and ``log.jsonl`` to a folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{k}": v for k, v in state.model.state_dict().items()}
    tensors |= {f"optimizer.{k}": v for k, v in state.optimizer.state_tensors().items()}
    tensors["generator"] = state.generator.get_state()
    metadata = {
        "description": state.description_text(),
        "step": str(state.step),
        "minutes": str(state.minutes),
    }
    log = "".join(json.dumps(record) + "\n" for record in history)
    write_atomically(folder / "log.jsonl", log.encode())
    data = save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, metadata)
    write_atomically(folder / "state.safetensors", data)


def save_snapshot(folder: Path, state: RunState) -> None:
    """Write a checkpoint, ``step-1024.safetensors`` and so on, if the step is a power of two."""
    if state.step < FIRST_SNAPSHOT or state.step & (state.step - 1):
        return
    known = state.task_generator.name in GENERATORS
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(
        folder / f"step-{state.step}.safetensors",
        state.model,
        task_generator=state.task_generator if known else None,
        provenance=state.description() | {"steps": state.step},
    )


def load_state(folder: Path, state: RunState) -> list[Record]:
    """Take over a run from a folder, if there is one.

    Returns:
        Its records up to the step that it goes on from.

    Raises:
        ValueError: If the folder holds another run or a damaged one, or the run has a configuration
            that cannot be saved.
    """
    state.description_text()  # Before the work that could not be saved.
    path = folder / "state.safetensors"
    if not path.exists():
        return []
    here = state.description() | {"device": state.generator.device.type}
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        there = json.loads(metadata["description"])
        # The description holds no device, but each kind's random numbers have a state of one size.
        same = tensors["generator"].shape == state.generator.get_state().shape
        there["device"] = here["device"] if same else "another kind"
        differing = _differences(there, here)
        if not differing:
            return _take_over(state, metadata, tensors, folder / "log.jsonl")
    except _DAMAGE as error:
        raise ValueError(
            f"{path} is not a whole safetensors file with its run's log.jsonl: {error!r}; "
            "remove it to start anew."
        ) from error
    shown = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
    raise ValueError(f"{folder} holds another run ({shown}); choose another folder, or remove it.")


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    there, here = dict(_leaves(there)), dict(_leaves(here))
    return [
        f"{key}: {there.get(key)!r} there, {here.get(key)!r} here"
        for key in {**here, **there}
        if there.get(key) != here.get(key)
    ]


def _take_over(
    state: RunState, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], log: Path
) -> list[Record]:
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    for key, value in tensors.items():
        part, _, name = key.partition(".")
        if name:
            parts[part][name] = value
    step, minutes = int(metadata["step"]), float(metadata["minutes"])
    records: list[Record] = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    history = [record for record in records if record["step"] <= step]
    if history[-1]["step"] != step:
        raise ValueError(f"the log has no record of step {step}")
    state.model.load_state_dict(parts["model"])
    state.optimizer.load_state_tensors(parts["optimizer"])
    state.generator.set_state(tensors["generator"])
    state.step, state.minutes = step, minutes
    return history


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield path + key, value
