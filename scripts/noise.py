"""Score models on tasks of known observation noise, beside the exact posterior.

    python scripts/noise.py [NAME ...]

Writes ``results/noise.json`` in the current folder: for each model and each standard deviation of
the noise, the average likelihood, CRPS and coverage on 62 tasks, two of each context size from 0 to
30; and what a point that is repeated does to the prediction there.
The exact posterior of Gaussian processes comes in
two kinds, told the standard deviation (``exact-gp-told``) and told its range (``exact-gp``). Rows
that are there already stay, so that names can be done one by one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.data.generators import DATASETS, NOISY, Prior, split_name
from danp_lib.data.points import PointSet, Task
from danp_lib.evaluation.marginals import MarginalRecord, Marginals, score_marginals
from danp_lib.evaluation.score import Evaluation, TaskRecord, evaluate
from danp_lib.exact.gp import NoisyGaussianProcessOracle
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.storage.origin import commit, hardware, sha256, versions
from danp_lib.storage.pretrained import load_pretrained, pretrained_path

OUT = Path("results/noise.json")
LEVELS = (0.01, 0.023, 0.055, 0.13, 0.3)
NAMES = (
    *("danp-gp-noisy", "convgnp-gp-noisy", "danp-sawtooth-noisy"),
    *("exact-gp", "exact-gp-told", "danp-gp", "convgnp-gp", "danp-sawtooth"),
)
SEED = 90_002
TASKS_PER_SIZE = 2
NUM_SAMPLES = 64
REPEATED = {"once": (0.0,), "twice": (0.0, 0.0), "contradictory": (-0.3, 0.3)}


def model_of(name: str, noise: float) -> Any:
    """A pretrained model, or an exact posterior."""
    if name == "exact-gp":
        return NoisyGaussianProcessOracle(NOISY["gp-noisy"].noise)
    return NoisyGaussianProcessOracle(noise) if name == "exact-gp-told" else load_pretrained(name)


def prior_of(name: str, noise: float) -> Prior:
    """The functions that a model was trained on, observed with one noise."""
    dataset = name.removesuffix("-told") if name.startswith("exact") else name
    return replace(DATASETS[split_name(dataset.removesuffix("-noisy"))[1]], noise=noise)


def tasks_of(prior: Prior) -> list[Task]:
    """The same functions and inputs at every noise, one batch a context size."""
    generator = seeded()
    return [
        prior.sample_task(TASKS_PER_SIZE, context_size=size, pool_size=150, generator=generator)
        for size in range(31)
    ]


def seeded() -> torch.Generator:
    """A new generator, always the same."""
    return torch.Generator().manual_seed(SEED)


def score(name: str, noise: float) -> dict[str, float]:
    """One row of the results."""
    model = model_of(name, noise)
    likelihoods: list[TaskRecord] = []
    marginals: list[MarginalRecord] = []
    for task in tasks_of(prior_of(name, noise)):
        scored = evaluate(model, task, num_samples=NUM_SAMPLES, generator=seeded())
        likelihoods += scored.tasks
        likely = score_marginals(model, task, num_samples=NUM_SAMPLES, generator=seeded())
        marginals += likely.tasks
    joint = to_dict(Evaluation.summarize(likelihoods))
    single = to_dict(Marginals.summarize(marginals, num_samples=NUM_SAMPLES))
    row = {"noise": noise}
    for key in ("average_likelihood", "average_likelihood_ci95", "mean_log_likelihood"):
        row[key] = joint[key]
    for key in ("crps", "coverage_50", "coverage_90"):
        row[key] = single[key]
    return {key: float(f"{value:.4g}") for key, value in row.items()}


@unchecked_contexts()
def repeats(name: str, *, noise: float = 0.1, tasks: int = 30) -> dict[str, float]:
    """Means of the predictive standard deviation and error at a point that is there repeatedly.

    Contexts have 12 noisy points of a Gaussian process and, at x = 0.05, the exact posterior's mean
    once, twice, or as two values that are 0.6 apart around it. The error is the distance from the
    exact posterior's mean given all of them.
    """
    prior, model = prior_of(name, noise), model_of(name, noise)
    task = prior.sample_task(tasks, context_size=12, num_targets=0, generator=seeded())
    exact = NoisyGaussianProcessOracle(NOISY["gp-noisy"].noise)
    x = torch.full((tasks, 1, 1), 0.05)
    y = exact.predict(task.context, x).mean.float()
    row: dict[str, float] = {}
    for kind, offsets in REPEATED.items():
        context = task.context
        for offset in offsets:
            context = context.concat(PointSet(x, y + offset))
        options = {"num_samples": NUM_SAMPLES, "generator": seeded()}
        predictive = model.predict(context, x, **(options if model.num_levels else {}))
        row[f"{kind}_sd"] = float(predictive.stddev.mean())
        error = predictive.mean - exact.predict(context, x).mean
        row[f"{kind}_error"] = float(error.abs().mean())
    return {key: float(f"{value:.4g}") for key, value in row.items()}


def main(names: list[str]) -> None:
    """Score the models of these names, or all."""
    stored = json.loads(OUT.read_text(encoding="utf-8")) if OUT.is_file() else {}
    models, repeated = stored.get("models", {}), stored.get("repeats", {})
    weights = stored.get("weights", {})
    for name in names or NAMES:
        models[name] = [score(name, noise) for noise in LEVELS]
        if "gp" in name:
            repeated[name] = repeats(name)
        if not name.startswith("exact"):
            weights[name] = sha256(pretrained_path(name))
        content = {
            "command": "python scripts/noise.py",
            "commit": commit(),
            "hardware": vars(hardware()),
            "versions": versions(),
            "seed": SEED,
            "num_tasks": 31 * TASKS_PER_SIZE,
            "num_samples": NUM_SAMPLES,
            "weights": weights,
            "models": models,
            "repeats": repeated,
        }
        write_atomically(OUT, json.dumps(content, indent=1) + "\n")
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
