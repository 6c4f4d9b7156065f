"""What a training run is, and how it is kept on disk so that it can go on."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from danp_lib._config import from_dict, to_dict
from danp_lib._files import (
    NO_DIGEST,
    check_digest,
    check_writable,
    split_header,
    with_digest,
    write_atomically,
)
from danp_lib.data.generators import TaskGenerator
from danp_lib.models.base import NeuralProcess
from danp_lib.models.registry import config_class
from danp_lib.storage.checkpoint import save_checkpoint
from danp_lib.training.config import TrainingConfig
from danp_lib.training.optim import Optimizer

Record = dict[str, Any]
"""``step``, ``minutes``, ``log_likelihood`` and ``log_likelihood_by_level`` (nats per target, mean
since the last record, ``None`` for a level not drawn), ``gradient_norm``; at validations also
``validation``, nats per target of every level. The last record of a run that keeps its best weights
has their step as ``kept``."""

FIRST_SNAPSHOT = 1024
"""Steps of the first snapshot of a run; the next ones follow at twice as many."""

STATE = "state.safetensors"
LOG = "log.jsonl"

# What reading a run raises where its files are damaged, as long as they can be read at all.
_DAMAGE = (
    *(SafetensorError, FileNotFoundError, AttributeError),
    *(LookupError, TypeError, ValueError, RuntimeError),
)


class Best(NamedTuple):
    """The best validation of a run."""

    step: int
    lower: list[float]  #: Of each level, in nats per target.
    weights: dict[str, Tensor]


@dataclass
class RunState:
    """All that a run changes, and the prior and the configuration, which are fixed."""

    model: NeuralProcess
    optimizer: Optimizer
    generator: torch.Generator
    task_generator: TaskGenerator
    config: TrainingConfig
    step: int = 0  #: Number of updates made.
    minutes: float = 0.0  #: Time spent, over all parts of the run.
    best: Best | None = None  #: Of a run that keeps the best weights.

    def keep_if_best(self, values: list[Tensor]) -> None:
        """Keep the weights if their log-likelihoods, ``(tasks,)`` per level, are the best yet."""
        lower = [float(v.mean() - 1.96 * v.std() / len(v) ** 0.5) for v in values]
        before = [math.nan] * len(lower) if self.best is None else self.best.lower
        if all(a > b or math.isnan(b) for a, b in zip(lower, before, strict=True)):
            weights = {k: v.clone() for k, v in self.model.state_dict().items()}
            self.best = Best(self.step, lower, weights)

    def description(self) -> dict[str, Any]:
        """What must be the same when a run goes on: the model, the tasks and the run."""
        return {
            "model": self.model.name,
            "config": to_dict(self.model.config),
            "dataset": self.task_generator.name,
            "task_generator": to_dict(self.task_generator),
            "training": to_dict(self.config),
        }


def save_state(folder: Path, state: RunState, history: list[Record]) -> None:
    """Write ``state.safetensors`` and ``log.jsonl`` to a folder, each whole or not at all."""
    tensors = {f"model.{k}": v for k, v in state.model.state_dict().items()}
    tensors |= {f"optimizer.{k}": v for k, v in state.optimizer.state_tensors().items()}
    tensors["generator"] = state.generator.get_state()
    metadata = {
        "description": json.dumps(state.description(), sort_keys=True),
        "step": str(state.step),
        "minutes": str(state.minutes),
    }
    if state.best is not None:
        tensors |= {f"best.{k}": v for k, v in state.best.weights.items()}
        metadata["best"] = json.dumps({"step": state.best.step, "lower": state.best.lower})
    write_atomically(folder / LOG, "".join(json.dumps(record) + "\n" for record in history))
    on_host = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    write_atomically(folder / STATE, with_digest(save(on_host, metadata | NO_DIGEST)))


def save_snapshot(folder: Path, state: RunState) -> None:
    """Write a checkpoint, ``step-1024.safetensors`` and so on, if the step is a power of two."""
    if state.step < FIRST_SNAPSHOT or state.step & (state.step - 1):
        return
    save_checkpoint(
        folder / f"step-{state.step}.safetensors",
        state.model,
        task_generator=state.task_generator,
        provenance=state.description() | {"steps": state.step},
    )


def load_state(folder: Path, state: RunState) -> list[Record]:
    """Take over a run from a folder, if there is one: its records up to where it goes on.

    A folder that cannot be written is an ``OSError``; another run is a ``ValueError``, and so is a
    damaged one. What training does not depend on may differ: how often the run is logged and
    validated, on how many batches (unless it keeps its best weights), and, where the schedule is
    constant, how long it is.
    """
    path = folder / STATE
    for file in (path, folder / LOG):
        check_writable(file)
    if not path.exists():
        return []
    here = state.description() | {"device": state.generator.device.type}
    try:
        data = path.read_bytes()
        metadata = split_header(data)[0].get("__metadata__", {})
        if "sha256" in metadata:  # which that of an older run lacks
            check_digest(data)
        tensors = load(data)
        there, step = json.loads(metadata["description"]), int(metadata["step"])
        with suppress(LookupError, ValueError):  # of a model or settings unknown here
            there["training"] = to_dict(TrainingConfig.from_provenance(there["training"]))
            kind = config_class(there["model"])  # what an older version left out has its default
            there["config"] = to_dict(from_dict(kind, there["config"]))
        # The description holds no device, but each kind's random numbers have a state of one size.
        same = tensors["generator"].shape == state.generator.get_state().shape
        there["device"] = here["device"] if same else "another kind"
        differing = _differences(there, here, step)
        if not differing:
            log = (folder / LOG).read_text("utf-8")
            history = [r for r in map(json.loads, log.splitlines()) if r["step"] <= step]
            if history[-1]["step"] != step:
                raise ValueError(f"the log has no record of step {step}")
            model, optimizer, best = (
                {key.removeprefix(part): v for key, v in tensors.items() if key.startswith(part)}
                for part in ("model.", "optimizer.", "best.")
            )
            state.model.load_state_dict(model)
            state.optimizer.load_state_tensors(optimizer)
            state.generator.set_state(tensors["generator"])
            state.step, state.minutes = step, float(metadata["minutes"])
            if state.config.keep_best and best:
                state.best = Best(**json.loads(metadata["best"]), weights=best)
            else:  # a run that ended with its best weights may have been asked for its last
                history[-1].pop("kept", None)
            return history
    except _DAMAGE as error:
        raise ValueError(
            f"{path} is not a whole safetensors file with its run's {LOG}: {error!r}; "
            "remove it to start anew."
        ) from error
    shown = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
    raise ValueError(f"{folder} holds another run ({shown}); choose another folder, or remove it.")


def _differences(there: Mapping[str, Any], here: Mapping[str, Any], step: int) -> list[str]:
    """What makes a stored run, which is at a step, another one."""
    stored, asked = dict(_leaves(there)), dict(_leaves(here))
    length, schedule = "training.num_steps", asked["training.schedule"]
    constant = schedule == "constant"
    reason = f"; the run has made {step}" if constant else f"; a {schedule} schedule depends on it"
    # What the weights of a step do not depend on.
    free = ["log_every", "validate_every"]
    # The best step cannot be known afterwards, nor lower ends from other numbers of tasks compared.
    free += [] if asked["training.keep_best"] else ["keep_best", "num_validation_batches"]
    free += ["num_steps"] if constant and asked[length] >= step else []
    return [
        "the observations changed"
        if key == "task_generator.digest"
        else f"{key}: {stored.get(key)!r} there, {asked.get(key)!r} here{reason * (key == length)}"
        for key in {**asked, **stored}
        if key.removeprefix("training.") not in free and stored.get(key) != asked.get(key)
    ]


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield path + key, value
