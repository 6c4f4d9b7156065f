"""What the noisiest level loses if the network learns that level alone.

The DANP of the recipe ``fast`` on sawtooth waves is trained as usual, but with every batch at level
F. It is scored beside ``danp-sawtooth``, which learns all levels, on noised tasks drawn from the
prior with a seed of their own: by what the Gaussian with the true mean and covariance loses to the
exact mixture of waves, and what each network loses to that Gaussian, in nats per point.

A run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from danp_lib import PointSet, Sawtooth, load_pretrained
from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.data.points import Task
from danp_lib.evaluation.results import results_folder
from danp_lib.exact.oracles import SawtoothOracle
from danp_lib.models.danp import DANP
from danp_lib.storage.origin import commit, hardware, sha256, versions
from danp_lib.storage.pretrained import pretrained_path
from danp_lib.training import objective
from danp_lib.training.loop import train
from danp_lib.training.objective import BatchConfig
from danp_lib.training.recipes import recipe

SEED = 93_000
SIZES = (1, 2, 3, 5, 8, 12, 20, 30)
TASKS_PER_SIZE = 40
SHARED = "danp-sawtooth"


def noisiest_only(num_levels: int, config: BatchConfig, *, generator: torch.Generator) -> Tensor:
    """Level F for each task, in place of :func:`danp_lib.training.objective.draw_levels`."""
    return torch.full((config.batch_size,), num_levels)


def trained_alone(folder: Path) -> DANP:
    """The model, trained or taken from a folder."""
    made_by = recipe("fast", model="danp", dataset="sawtooth")
    model = made_by.build_model()
    assert isinstance(model, DANP)
    with mock.patch.object(objective, "draw_levels", noisiest_only):
        history = train(model, made_by.task_generator, made_by.training, folder=folder)
    if history[-1]["step"] < made_by.training.num_steps:
        raise SystemExit("stopped; the same command goes on from here.")
    return model


def of_the_truth(task: Task, y: Tensor, signal: float, variance: float) -> tuple[float, float]:
    """Log-density of noised targets under the exact mixture and under the best Gaussian."""
    posterior = SawtoothOracle().predict(task.context, task.xt)
    waves = signal * posterior.components.mean[0, :, :, 0].double()
    log_chance = posterior.logits[0].log_softmax(0).double()
    each = Normal(waves, math.sqrt(variance)).log_prob(y).sum(dim=1)
    chance = log_chance.exp()
    mean = chance @ waves
    covariance = (chance * (waves - mean).T) @ (waves - mean) + variance * torch.eye(len(y))
    best = MultivariateNormal(mean, covariance).log_prob(y)
    return float((log_chance + each).logsumexp(0)), float(best)


@torch.no_grad()
def losses(models: dict[str, DANP]) -> dict[str, list[list[float]]]:
    """Of the best Gaussian to the truth, and of each model to it; one list a context size."""
    generator = torch.Generator().manual_seed(SEED)
    found: dict[str, list[list[float]]] = {"best Gaussian": [], **{name: [] for name in models}}
    for size in SIZES:
        task = Sawtooth().sample_task(TASKS_PER_SIZE, context_size=size, generator=generator)
        schedule = models[SHARED].schedule
        level, points = schedule.num_levels, task.target.num_points
        y = schedule.noise(task.yt, level, generator=generator)
        of_level = schedule.signal(level), schedule.variance(level)
        exact, best = torch.tensor(
            [
                of_the_truth(task[row], y[row, :, 0].double(), *of_level)
                for row in range(TASKS_PER_SIZE)
            ]
        ).T
        found["best Gaussian"].append(((exact - best) / points).tolist())
        nothing = (PointSet.empty(TASKS_PER_SIZE),) * level
        for name, model in models.items():
            own = model(task.context, nothing, task.xt, level).log_prob(y)
            found[name].append(((best - own) / points).tolist())
    return found


def main() -> None:
    """Train, score, and write what was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/noisiest-level"), help="folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    origin = {"commit": commit(), "hardware": to_dict(hardware()), **versions()}
    alone = trained_alone(arguments.runs)
    alone.eval()
    found = losses({SHARED: load_pretrained(SHARED), "alone": alone})
    content = {
        "seed": SEED,
        "context_sizes": SIZES,
        "steps": recipe("fast", model="danp", dataset="sawtooth").training.num_steps,
        "weights": {SHARED: sha256(pretrained_path(SHARED))},
        "losses": found,
        "origin": origin,
    }
    text = json.dumps(content, indent=1)
    write_atomically(results_folder() / "noisiest-level.json", text + "\n")
    print("context       " + "".join(f"{size:6d}" for size in SIZES))
    for name, by_size in found.items():
        medians = torch.tensor(by_size).median(dim=1).values.tolist()
        print(f"{name:14}" + "".join(f"{value:6.2f}" for value in medians))


if __name__ == "__main__":
    main()
