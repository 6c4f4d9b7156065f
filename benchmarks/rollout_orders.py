"""In which order a rollout scores best.

Models that predict every target in one pass are rolled out on sawtooth tasks drawn with a seed of
their own, two of each context size from 0 to 30, in eight orders of each kind. Every order depends
on the inputs alone. The models are those of ``NAMES``, the kinds those of ``KINDS``. The one of the
longest training is rolled out in many outward orders, too.
"""

import json
import math
from collections.abc import Callable

import torch
from torch import Tensor

from danp_lib import Sawtooth, load_pretrained
from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.data.points import Task
from danp_lib.evaluation.results import results_folder
from danp_lib.inference.autoregressive import draw_order, growing_contexts
from danp_lib.inference.likelihood import NUM_ORDERS
from danp_lib.models.base import NeuralProcess
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.storage.origin import commit, hardware, sha256, versions
from danp_lib.storage.pretrained import pretrained_path

LONGEST = "convgnp-longest-sawtooth"
NAMES = ("ar-convcnp-sawtooth", "convgnp-sawtooth", LONGEST)
SEED = 96_000
SIZES = range(31)
TASKS_PER_SIZE = 2
MANY = 128

Order = Callable[[Tensor, Tensor, torch.Generator], Tensor]


def left_to_right(xt: Tensor, xc: Tensor, generator: torch.Generator) -> Tensor:
    """By the inputs ``(targets, 1)``: the same order every time."""
    return xt[:, 0].argsort()


def nearest_known(xt: Tensor, xc: Tensor, generator: torch.Generator) -> Tensor:
    """Always the target nearest to a known point; the first is random without a context."""
    return _by_known(xt, xc, generator, farthest=False)


def farthest_known(xt: Tensor, xc: Tensor, generator: torch.Generator) -> Tensor:
    """After a random target, always the one farthest from all known points."""
    return _by_known(xt, xc, generator, farthest=True)


def _by_known(xt: Tensor, xc: Tensor, generator: torch.Generator, farthest: bool) -> Tensor:
    order: list[int] = []
    distance = torch.full((len(xt),), math.inf, dtype=xt.dtype)
    if farthest or len(xc) == 0:
        order.append(int(torch.randint(len(xt), (), generator=generator)))
    for x in (*xc, *xt[order]):
        distance = torch.minimum(distance, (xt - x).abs()[:, 0])
    while len(order) < len(xt):
        taken = torch.zeros(len(xt), dtype=torch.bool)
        taken[order] = True
        sign = -1.0 if farthest else 1.0
        order.append(int((sign * distance).masked_fill(taken, math.inf).argmin()))
        distance = torch.minimum(distance, (xt - xt[order[-1]]).abs()[:, 0])
    return torch.tensor(order)


KINDS: dict[str, Order] = {
    "random": lambda xt, xc, generator: draw_order(xt, outward=False, generator=generator),
    "left to right": left_to_right,
    "nearest known": nearest_known,
    "farthest known": farthest_known,
    "outward": lambda xt, xc, generator: draw_order(xt, outward=True, generator=generator),
}


@torch.no_grad()
@unchecked_contexts()
def log_densities(
    model: NeuralProcess, task: Task, kind: str, *, num_orders: int, seed: int
) -> list[float]:
    """Log-density of one task's targets in each of some orders, in nats per target."""
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(num_orders):
        drawn = KINDS[kind](task.xt[0], task.context.x[0], generator)
        contexts, targets = growing_contexts(task, drawn)
        terms = model.predict(contexts, targets.x).log_prob(targets.y)
        found.append(round(float(terms.mean()), 5))
    return found


def tasks() -> list[Task]:
    """The tasks, by context size."""
    generator = torch.Generator().manual_seed(SEED)
    sizes = [size for size in SIZES for _ in range(TASKS_PER_SIZE)]
    return [Sawtooth().sample_task(1, context_size=n, generator=generator) for n in sizes]


def main() -> None:
    """Roll out, and write the log-densities."""
    torch.set_num_threads(1)
    origin = {"commit": commit(), "hardware": to_dict(hardware()), **versions()}
    content: dict[str, object] = {
        "weights": {name: sha256(pretrained_path(name)) for name in NAMES},
        "seed": SEED,
        "context_sizes": list(SIZES),
        "tasks_per_size": TASKS_PER_SIZE,
    }
    numbered = list(enumerate(tasks(), start=SEED))
    logs: dict[str, dict[str, list[list[float]]]] = {}
    for name in NAMES:
        model = load_pretrained(name)
        logs[name] = {
            kind: [
                log_densities(model, task, kind, num_orders=NUM_ORDERS, seed=seed)
                for seed, task in numbered
            ]
            for kind in KINDS
        }
        print(f"{name}: done", flush=True)
    model = load_pretrained(LONGEST)
    many = [
        log_densities(model, task, "outward", num_orders=MANY, seed=seed) for seed, task in numbered
    ]
    content["log_densities"] = logs
    content["in_many_outward_orders"] = many
    content["origin"] = origin
    text = json.dumps(content) + "\n"
    write_atomically(results_folder() / "orders-compared.json", text)


if __name__ == "__main__":
    main()
