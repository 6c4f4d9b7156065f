"""What the pairs of inputs and values that a DANP is trained on are worth, on Gaussian processes.

The paper's DANP is trained by the paper's recipe on three kinds of augmented tasks, and nothing
else differs:

- ``independent``: every level has inputs of its own, and the values of the function there, noised.
- ``mismatched``: as the released generator ``noised_gp.py`` (commit 84c6ec4) makes them by default.
  Values are drawn at the inputs of level 0 only. The noisy sets that the network reads lie there,
  too; but where a noisy level is the target, its values stand at inputs of its own.
- ``shared``: with that generator's option ``same_xt``. All levels lie at the inputs of level 0.

Each is scored at powers of two, on tasks drawn from the prior with a seed of their own, two of each
context size from 0 to 30, none of them a benchmark task, by ancestral samples as in the paper. The
inputs of a sample's sets are those of the targets, as in the released code, or uniform, as in the
paper's text.

A run that was stopped goes on when the same command is given again; what is scored stays. A run of
``independent`` is that of ``danp train --recipe paper --snapshots``, whose folder will do as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor

from danp_lib import log_likelihood
from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib._random import spawn
from danp_lib.data.generators import Prior
from danp_lib.data.noising import AugmentedTask, MaskedTask
from danp_lib.data.points import PointSet
from danp_lib.evaluation.score import mean_and_ci95
from danp_lib.models.danp import DANP
from danp_lib.storage.checkpoint import load_checkpoint
from danp_lib.storage.origin import commit, hardware, sha256, versions
from danp_lib.training import objective
from danp_lib.training.loop import train
from danp_lib.training.objective import BatchConfig
from danp_lib.training.recipes import recipe

SEED = 92_000
TASKS_PER_SIZE = 2
FIRST_SCORED = 8192
INPUTS: tuple[Literal["target", "uniform"], ...] = ("target", "uniform")


def draw_at_clean_inputs(
    model: DANP,
    prior: Prior,
    config: BatchConfig,
    *,
    mismatched: bool,
    levels: int | Tensor | None = None,
    generator: torch.Generator,
) -> MaskedTask:
    """A batch at one level, in place of :func:`danp_lib.training.objective.draw_batch`.

    All levels are values at the inputs of level 0, noised; with ``mismatched``, those of a noisy
    target stand at other inputs.
    """
    options: Any = {"context_size": config.context_size, "num_targets": config.num_targets}
    task = prior.sample_task(config.batch_size, **options, generator=generator)
    schedule = model.config.schedule
    noisy = tuple(
        PointSet(task.xt, schedule.noise(task.yt, f, generator=generator))
        for f in range(1, model.num_levels + 1)
    )
    if levels is None:
        levels = objective.draw_levels(model.num_levels, config, generator=generator)
    level = levels if isinstance(levels, int) else int(levels[0])
    batch = AugmentedTask(task.context, (task.target, *noisy)).masked(level)
    if level > 0 and mismatched:
        shape = (config.batch_size, config.num_targets)
        elsewhere = prior.sample_inputs(shape, generator=generator).to(task.xt.dtype)
        batch = replace(batch, target=PointSet(elsewhere, batch.target.y))
    return batch


PAIRS: dict[str, Callable[..., MaskedTask]] = {
    "independent": objective.draw_batch,
    "mismatched": partial(draw_at_clean_inputs, mismatched=True),
    "shared": partial(draw_at_clean_inputs, mismatched=False),
}


def train_until(num_steps: int, pairs: str, folder: Path) -> None:
    """Leave snapshots up to a number of steps in a folder, or go on with those there."""
    made_by = recipe("paper", model="danp", dataset="gp", num_steps=num_steps)
    with mock.patch.object(objective, "draw_batch", PAIRS[pairs]):
        history = train(
            made_by.build_model(),
            made_by.task_generator,
            made_by.training,
            folder=folder,
            snapshots=True,
        )
    if history[-1]["step"] < num_steps:
        raise SystemExit("stopped; the same command goes on from here.")


def score(
    model: DANP, prior: Prior, inputs: Literal["target", "uniform"], *, num_samples: int
) -> Tensor:
    """Nats per target of validation tasks by ancestral samples, ``(tasks,)``."""
    drawing, sampling = spawn(torch.Generator().manual_seed(SEED), 2)
    found = []
    for size in range(31):
        task = prior.sample_task(TASKS_PER_SIZE, context_size=size, generator=drawing)
        result = log_likelihood(
            model,
            task,
            estimator="model",
            num_samples=num_samples,
            auxiliary_inputs=inputs,
            generator=sampling,
        )
        found.append(result.values / task.target.num_points)
    return torch.cat(found)


def main() -> None:
    """Train and score what is not there yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", nargs="+", default=[*PAIRS], choices=PAIRS, metavar="PAIRS")
    parser.add_argument("--steps", type=int, default=32_768, help="updates, a power of two")
    parser.add_argument(
        "--first", type=int, default=FIRST_SCORED, help="updates of the first score"
    )
    parser.add_argument("--inputs", nargs="+", default=[*INPUTS], choices=INPUTS, metavar="INPUTS")
    parser.add_argument("--num-samples", type=int, default=256, help="samples to score with")
    parser.add_argument("--runs", type=Path, default=Path("runs/gp-pairs"), help="folder of runs")
    parser.add_argument("--out", type=Path, default=Path("results/gp-pairs.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records: list[dict[str, Any]] = []
    if arguments.out.exists():
        records = json.loads(arguments.out.read_text(encoding="utf-8"))["records"]
    prior = recipe("paper", model="danp", dataset="gp").task_generator
    assert isinstance(prior, Prior)
    for pairs in arguments.pairs:
        folder = arguments.runs / pairs
        if not (folder / f"step-{arguments.steps}.safetensors").exists():
            train_until(arguments.steps, pairs, folder)
        steps = arguments.first
        while steps <= arguments.steps:
            path = folder / f"step-{steps}.safetensors"
            for inputs in arguments.inputs:
                key = {"pairs": pairs, "steps": steps, "inputs": inputs}
                key["num_samples"] = arguments.num_samples
                if any(key.items() <= record.items() for record in records):
                    continue
                model = load_checkpoint(path)
                assert isinstance(model, DANP)
                logs = score(model, prior, inputs, num_samples=arguments.num_samples)
                mean, error = mean_and_ci95(logs.exp())
                records.append(
                    key
                    | {
                        "average_likelihood": mean,
                        "average_likelihood_ci95": error,
                        "log_likelihoods": logs.tolist(),
                        "weights": sha256(path),
                        "commit": commit(),
                        "hardware": to_dict(hardware()),
                        **versions(),
                    }
                )
                content = {"seed": SEED, "tasks_per_size": TASKS_PER_SIZE, "records": records}
                write_atomically(arguments.out, json.dumps(content, indent=1) + "\n")
                print(
                    f"{pairs}, {steps:,} steps, {inputs} inputs: {mean:.2f} ± {error:.2f}",
                    flush=True,
                )
            steps *= 2


if __name__ == "__main__":
    main()
