"""How long the recipe ``fast`` takes to the paper's average likelihood: minutes of one core.

For each length, a schedule of its own is run to its end, since a schedule cut short ends worse. The
model is scored on tasks drawn from the prior with a seed of their own, two of each context size
from 0 to 30, none of them a benchmark task, by ancestral and forward-noised samples together.

A run that was stopped goes on when the same command is given again; what is scored stays. The
minutes are the wall-clock time of training, validation and compiling included.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from measure import save

from danp_lib.cli.arguments import keep_freed_memory
from danp_lib.data.generators import Prior
from danp_lib.evaluation.score import Evaluation, evaluate
from danp_lib.evaluation.table import PAPER
from danp_lib.models.danp import DANP
from danp_lib.training.loop import train
from danp_lib.training.recipes import Recipe, recipe

SEED = 90_000
TASKS_PER_SIZE = 2
CONTEXT_SIZES = tuple(range(31))


def score(model: DANP, made_by: Recipe, *, num_samples: int) -> Evaluation:
    """Score a model on validation tasks of its prior."""
    prior, generator = made_by.task_generator, torch.Generator().manual_seed(SEED)
    assert isinstance(prior, Prior)
    parts = [
        prior.sample_task(TASKS_PER_SIZE, context_size=size, pool_size=600, generator=generator)
        for size in CONTEXT_SIZES
    ]
    scored = [evaluate(model, t, num_samples=num_samples, generator=generator) for t in parts]
    return Evaluation.summarize([record for part in scored for record in part.tasks])


def measure(
    made_by: Recipe, folder: Path, *, num_samples: int, compile_model: bool
) -> dict[str, Any]:
    """Train to the end of the schedule, or go on from the folder, and score."""
    model = made_by.build_model()
    assert isinstance(model, DANP)
    prior, config = made_by.task_generator, made_by.training
    history = train(model, prior, config, folder=folder, compile_model=compile_model)
    if history[-1]["step"] < config.num_steps:
        raise SystemExit("stopped; the same command goes on from here.")
    result = score(model, made_by, num_samples=num_samples)
    return {
        "steps": config.num_steps,
        "minutes": history[-1]["minutes"],
        "average_likelihood": result.average_likelihood,
        "average_likelihood_ci95": result.average_likelihood_ci95,
        "mean_log_likelihood": result.mean_log_likelihood,
        "num_tasks": result.num_tasks,
        "num_samples": num_samples,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and the result")
    datasets = ["sawtooth", "square-released"]
    parser.add_argument("--datasets", nargs="+", default=datasets, metavar="NAME")
    lengths = [500, 1000, 2000, 4000]
    parser.add_argument("--steps", type=int, nargs="+", default=lengths, metavar="N")
    parser.add_argument("--num-samples", type=int, default=256, help="samples to score with")
    parser.add_argument("--compile", action="store_true", help="compile the steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    path = arguments.out / "time_to_paper.json"
    known = json.loads(path.read_text(encoding="utf-8"))["points"] if path.exists() else {}
    print("| dataset | steps | minutes | average likelihood | paper |\n|---|---|---|---|---|")
    for dataset in arguments.datasets:
        points = known.setdefault(dataset, [])
        for steps in sorted(arguments.steps):
            found = [point for point in points if point["steps"] == steps]
            if not found:
                made_by = recipe("fast", model="danp", dataset=dataset, num_steps=steps)
                folder = arguments.out / f"{dataset}-{steps}"
                options = {
                    "num_samples": arguments.num_samples,
                    "compile_model": arguments.compile,
                }
                found = [measure(made_by, folder, **options)]
                points.append(found[0])
                points.sort(key=lambda point: point["steps"])
                save("time_to_paper", {"seed": SEED, "points": known}, arguments.out)
            point, paper = found[0], PAPER[dataset]["danp"]
            cells = f"{point['minutes']:.1f} | {point['average_likelihood']:.2f}"
            error = point["average_likelihood_ci95"]
            print(f"| {dataset} | {steps} | {cells} ± {error:.2f} | {paper[0]} |", flush=True)


if __name__ == "__main__":
    main()
