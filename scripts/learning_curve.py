"""Score the snapshots of a run on validation tasks, and add them to its curve.

    python scripts/learning_curve.py RUN

RUN is a folder that ``danp train --snapshots`` has left. Its ``step-*.safetensors`` are scored on
62 tasks drawn with a seed of their own, two of each context size from 0 to 30; none of them is a
benchmark task. What is scored already is left as it is. The scores go to ``RUN/curve.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from danp_lib._files import write_atomically
from danp_lib.data.generators import Prior
from danp_lib.data.points import Task
from danp_lib.evaluation.score import evaluate
from danp_lib.storage.checkpoint import load_checkpoint, read_header

SEED = 90_000
TASKS_PER_SIZE = 2
NUM_SAMPLES = 256


def validation_tasks(path: Path) -> list[Task]:
    """The tasks for the prior that a checkpoint was trained on, one batch a context size."""
    prior = read_header(path).task_generator
    if not isinstance(prior, Prior):
        raise ValueError(f"{path} must name the prior that it was trained on.")
    generator = torch.Generator().manual_seed(SEED)
    return [
        prior.sample_task(TASKS_PER_SIZE, context_size=size, pool_size=600, generator=generator)
        for size in range(31)
    ]


def score(path: Path) -> dict[str, float | int]:
    """The average likelihood of a checkpoint, by both halves of the samples, and its error."""
    model = load_checkpoint(path)
    records = [
        record
        for task in validation_tasks(path)
        for record in evaluate(
            model, task, num_samples=NUM_SAMPLES, generator=torch.Generator().manual_seed(SEED)
        ).tasks
    ]
    values = torch.tensor([record.log_likelihood for record in records], dtype=torch.float64)
    likelihood = values.exp()
    return {
        "step": int(read_header(path).provenance["steps"]),
        "average_likelihood": float(likelihood.mean()),
        "average_likelihood_ci95": 1.96 * float(likelihood.std()) / len(values) ** 0.5,
        "mean_log_likelihood": float(values.mean()),
        "num_tasks": len(values),
        "num_samples": NUM_SAMPLES,
        "seed": SEED,
    }


def main(folder: Path) -> None:
    """Score what is new in a folder."""
    target = folder / "curve.json"
    curve = json.loads(target.read_text(encoding="utf-8")) if target.exists() else []
    known = {entry["step"] for entry in curve}
    for path in folder.glob("step-*.safetensors"):
        if int(path.stem.removeprefix("step-")) not in known:
            entry = score(path)
            print(f"{entry['step']:>7,} steps: {entry['average_likelihood']:.2f}", flush=True)
            curve.append(entry)
    curve.sort(key=lambda entry: entry["step"])
    write_atomically(target, json.dumps(curve, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
