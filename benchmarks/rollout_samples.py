"""Where a DANP that is rolled out needs its samples.

``danp-long-sawtooth``, defended, is rolled out in one order on sawtooth tasks drawn with a seed of
their own, with 256 samples for each target. What a target's log-density loses with fewer samples is
its mean over the groups of that size that the samples are cut into, beside that of all of them.
"""

import json
import math

import torch
from torch import Tensor

from danp_lib import Sawtooth, load_pretrained
from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.data.points import Task
from danp_lib.evaluation.results import results_folder
from danp_lib.inference.autoregressive import draw_order, growing_contexts
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.models.danp import DANP, defend, log_mean
from danp_lib.storage.origin import commit, hardware, sha256, versions
from danp_lib.storage.pretrained import pretrained_path

NAME = "danp-long-sawtooth"
SEED = 97_000
SIZES = (0, 1, 2, 3, 5, 8, 12, 20)
TASKS_PER_SIZE = 2
MOST = 256
FEWER = (8, 32, 128)


def group_means(samples: Tensor, guard: Tensor, weight: float, size: int) -> Tensor:
    """Log-density of a defended mixture, averaged over groups of its samples, ``(targets,)``.

    Args:
        samples: Log-densities of the targets under each sample, ``(targets, samples)``.
        guard: Log-density of each under the defensive component, ``(targets,)``.
        weight: That component's.
        size: Samples in a group.
    """
    groups = log_mean(samples.unflatten(1, (-1, size)), dim=2)
    defended = torch.logaddexp(math.log1p(-weight) + groups, (math.log(weight) + guard)[:, None])
    return defended.mean(dim=1)


@torch.no_grad()
@unchecked_contexts()
def losses(model: DANP, task: Task, generator: torch.Generator) -> tuple[list[int], list[Tensor]]:
    """Points known at each step of one task's rollout, and what each number of samples loses."""
    order = draw_order(task.xt[0], outward=False, generator=generator)
    contexts, targets = growing_contexts(task, order)
    predictive = model.predict(contexts, targets.x, num_samples=MOST, generator=generator)
    terms = predictive.components.log_prob(targets.y.unsqueeze(-3))
    weight = model.config.defensive_weight / task.target.num_points
    parts = terms[:, :-1], terms[:, -1], weight
    best = group_means(*parts, MOST)
    return contexts.sizes.tolist(), [best - group_means(*parts, count) for count in FEWER]


def main() -> None:
    """Roll out, and write what was lost."""
    torch.set_num_threads(1)
    origin = {"commit": commit(), "hardware": to_dict(hardware()), **versions()}
    model, generator = defend(load_pretrained(NAME)), torch.Generator().manual_seed(SEED)
    known: list[int] = []
    lost: dict[int, list[float]] = {count: [] for count in FEWER}
    for size in SIZES:
        for _ in range(TASKS_PER_SIZE):
            task = Sawtooth().sample_task(1, context_size=size, generator=generator)
            sizes, found = losses(model, task, generator)
            known += sizes
            for count, values in zip(FEWER, found, strict=True):
                lost[count] += values.tolist()
        print(f"{size} context points: done", flush=True)
    content = {
        "model": NAME,
        "weights": sha256(pretrained_path(NAME)),
        "seed": SEED,
        "samples": MOST,
        "context_sizes": SIZES,
        "tasks_per_size": TASKS_PER_SIZE,
        "known": known,
        "losses": lost,
        "origin": origin,
    }
    text = json.dumps(content, indent=1)
    write_atomically(results_folder() / "first-targets.json", text + "\n")


if __name__ == "__main__":
    main()
