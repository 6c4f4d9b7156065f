"""What joint samples and a joint density cost: the AR ConvCNP against the DANP (paper, Section 3).

The AR ConvCNP needs one pass through the U-Net for every target, and a joint sample cannot be drawn
faster than one after the other. The DANP needs one pass for every level, however many the targets.
For a number of targets N_t and of samples S, both sides

- draw S joint samples: the AR ConvCNP rolls S of them out as one batch; the DANP draws S auxiliary
  sets, level by level as one batch, and one joint sample of each component;
- score the joint density at the targets: the AR ConvCNP by the chain rule, all terms as batches of
  growing contexts, which is exact and knows no S; the DANP by its mixture of S components.

Both are what the library does by default. They take turns in one process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import argument_parser, in_turns, save, spread, written
from torch import Tensor, nn

from danp_lib._config import to_dict
from danp_lib.data.generators import Sawtooth
from danp_lib.data.points import Task
from danp_lib.inference.autoregressive import ar_log_prob, ar_sample
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.models.convnp import ARConvCNP, count_parameters
from danp_lib.models.danp import DANP
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import load_pretrained, pretrained_path
from danp_lib.training.recipes import recipe

RESULTS = Path(__file__).parents[1] / "results"
NUM_TARGETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
NUM_SAMPLES = (1, 256)
CONTEXT_SIZE = 10
FEWEST_ROUNDS = 3


def load_model(kind: str) -> tuple[Any, dict[str, Any]]:
    """The trained sawtooth model, or the recipe's with fresh weights, and which of them it is."""
    name = f"{kind}-sawtooth"
    model: Any
    try:
        path = pretrained_path(name)
    except FileNotFoundError:
        fresh = recipe("fast", model=kind, dataset="sawtooth").build_model()
        model, weights = fresh.eval(), None
    else:
        model, weights = load_pretrained(name), sha256(path)
    about = {
        "name": name,
        "weights": weights,
        "parameters": count_parameters(model),
        "configuration": to_dict(model.config),
    }
    return model, about


def draw_task(num_targets: int) -> Task:
    """A sawtooth task with so many targets."""
    generator = torch.Generator().manual_seed(num_targets)
    return Sawtooth().sample_task(
        1, context_size=CONTEXT_SIZE, num_targets=num_targets, generator=generator
    )


def sides(
    ar: ARConvCNP, danp: DANP, task: Task, num_samples: int
) -> dict[str, dict[str, Callable[[], int]]]:
    """What is timed, by quantity and model; a call returns the passes that it says it took."""

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    def ar_samples() -> int:
        rolled_out = ar_sample(
            ar, task.context, task.xt, num_samples=num_samples, generator=seeded()
        )
        return rolled_out.forward_passes

    def danp_samples() -> int:
        mixture = danp.predict(task.context, task.xt, num_samples=num_samples, generator=seeded())
        mixture.components.sample(generator=seeded())
        # The noisiest level sees the context alone, so that one pass serves all samples.
        return 1 + danp.num_levels * num_samples

    def ar_density() -> int:
        return ar_log_prob(ar, task, generator=seeded()).forward_passes

    def danp_density() -> int:
        estimate = log_likelihood(
            danp, task, estimator="model", num_samples=num_samples, generator=seeded()
        )
        return estimate.forward_passes

    return {
        "samples": {"ar-convcnp": ar_samples, "danp": danp_samples},
        "density": {"ar-convcnp": ar_density, "danp": danp_density},
    }


def count_passes(model: nn.Module, run: Callable[[], object]) -> int:
    """Sets of points that go through the model's U-Net in a run."""
    passes = 0

    def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal passes
        passes += len(inputs[0])

    hook = model.core.unet.register_forward_pre_hook(count)
    try:
        run()
    finally:
        hook.remove()
    return passes


@unchecked_contexts()
def measure(
    models: Mapping[str, Any],
    *,
    num_targets: Sequence[int] = NUM_TARGETS,
    num_samples: Sequence[int] = NUM_SAMPLES,
    rounds: int,
    seconds: float,
    most_passes: int,
) -> list[dict[str, Any]]:
    """One row for each quantity, S and N_t.

    Args:
        models: The AR ConvCNP and the DANP by name.
        num_targets: Every N_t.
        num_samples: Every S.
        rounds: Timings of either side; 0 counts passes alone.
        seconds: Make fewer rounds, but no fewer than three, where both sides take longer than this.
        most_passes: Leave a side out where it would take more passes than that.

    Returns:
        ``passes`` of a call, and ``seconds`` with median and quartiles, of either side; ``None``
        for a side that was left out.
    """
    rows = []
    for count in num_targets:
        task = draw_task(count)
        for size in num_samples:
            for quantity, both in sides(models["ar-convcnp"], models["danp"], task, size).items():
                passes = {
                    "ar-convcnp": count * (size if quantity == "samples" else 1),
                    "danp": 1 + models["danp"].num_levels * size,
                }
                taken = {name: run for name, run in both.items() if passes[name] <= most_passes}
                # The count is also the round that warms up.
                warm_up = in_turns(
                    {n: _counted(models[n], run, passes[n]) for n, run in taken.items()},
                    1,
                    warm_up=0,
                )
                row: dict[str, Any] = {
                    "quantity": quantity,
                    "num_targets": count,
                    "num_samples": size,
                    "ar-convcnp": None,
                    "danp": None,
                }
                row |= {name: {"passes": passes[name]} for name in taken}
                if rounds and taken:
                    longest = sum(times[0] for times in warm_up.values())
                    repeats = max(FEWEST_ROUNDS, min(rounds, int(seconds / longest)))
                    for name, times in in_turns(taken, repeats, warm_up=0).items():
                        row[name] |= {"rounds": repeats, "seconds": spread(times)}
                rows.append(row)
                print(_line(row), flush=True)
    return rows


def crossover(
    rows: Sequence[Mapping[str, Any]], quantity: str, num_samples: int
) -> dict[str, Any] | None:
    """The N_t from which on the DANP is faster, between two measured; before it, it is slower.

    The ratio of the medians is interpolated linearly, both it and N_t on a logarithmic scale.

    Returns:
        ``seconds``, that N_t, ``None`` where there is none; ``faster``, the model that
        is faster at every N_t where both were measured, else ``None``; ``passes``, the N_t at which
        both take the same number of passes. ``None`` where no row has timings of both.
    """
    found = [
        (row["num_targets"], row["ar-convcnp"], row["danp"])
        for row in rows
        if (row["quantity"], row["num_samples"]) == (quantity, num_samples)
        and all("seconds" in (row[name] or {}) for name in ("ar-convcnp", "danp"))
    ]
    if not found:
        return None
    points = [
        (math.log(n), math.log(ar["seconds"]["median"] / danp["seconds"]["median"]))
        for n, ar, danp in found
    ]
    at = None
    for (x, low), (x_next, high) in itertools.pairwise(points):
        if low < 0.0 <= high:
            at = math.exp(x + (x_next - x) * -low / (high - low))
    faster = None
    if len({ratio >= 0.0 for _, ratio in points}) == 1:
        faster = "danp" if points[0][1] >= 0.0 else "ar-convcnp"
    n, ar, danp = found[0]
    return {
        "quantity": quantity,
        "num_samples": num_samples,
        "seconds": at,
        "faster": faster,
        "passes": danp["passes"] / (ar["passes"] / n),
    }


def _counted(model: nn.Module, run: Callable[[], int], expected: int) -> Callable[[], None]:
    """A run that refuses a number of passes other than the hook's, the run's own or the formula."""

    def checked() -> None:
        said: list[int] = []
        counted = count_passes(model, lambda: said.append(run()))
        if not counted == said[0] == expected:
            raise AssertionError(f"passes: counted {counted}, said {said[0]}, formula {expected}.")

    return checked


def _line(row: Mapping[str, Any]) -> str:
    cells = [row["quantity"], f"{row['num_samples']}", f"{row['num_targets']}"]
    for name in ("ar-convcnp", "danp"):
        side = row[name]
        cells.append("left out" if side is None else f"{side['passes']}")
        cells.append(written(side["seconds"], " s") if side and "seconds" in side else "")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argument_parser((__doc__ or "").partition("\n")[0], rounds=11)
    parser.add_argument("--threads", type=int, default=2, help="threads of either side")
    parser.add_argument("--seconds", type=float, default=20.0, help="aim for this much a row")
    parser.add_argument(
        "--most-passes", type=int, default=60_000, help="leave out what takes more passes"
    )
    for option, default in ("--num-targets", NUM_TARGETS), ("--num-samples", NUM_SAMPLES):
        parser.add_argument(option, type=int, nargs="+", default=default, metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models, about = {}, {}
    for kind in ("ar-convcnp", "danp"):
        models[kind], about[kind] = load_model(kind)
    print("| quantity | S | N_t | AR ConvCNP, passes | time | DANP, passes | time |")
    print("|---|---|---|---|---|---|---|")
    rows = measure(
        models,
        num_targets=arguments.num_targets,
        num_samples=arguments.num_samples,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        most_passes=arguments.most_passes,
    )
    sizes = arguments.num_samples
    places = [crossover(rows, q, s) for q in ("samples", "density") for s in sizes]
    crossovers = [found for found in places if found is not None]
    for found in crossovers:
        print(found)
    results = {
        "rounds": arguments.rounds,
        "most_passes": arguments.most_passes,
        "context_size": CONTEXT_SIZE,
        "num_levels": models["danp"].num_levels,
        "models": about,
        "crossovers": crossovers,
        "rows": rows,
    }
    save("cost", results, arguments.out)


if __name__ == "__main__":
    main()
