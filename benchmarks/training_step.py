"""What a training step costs beside its convolutions, its U-Net, and another package's step.

A step draws a batch of 16 augmented sawtooth tasks (F = 3), runs the network on it, differentiates
the low-rank log-likelihood in float64, and moves the weights: the library's own step, as ``danp
train`` takes it. Three ratios are taken, turn by turn, in one process:

- on one thread, a step of the recipe ``fast`` to the convolutions of its U-Net alone, forward and
  backward, on the inputs that they have in a step;
- on one thread, a step of the recipe ``paper`` to its U-Net alone, forward and backward;
- on ``--threads``, a step of the package NeuralProcesses with the paper's network, on batches of
  the same distribution at the same random levels, to a step of the recipe ``paper``.

The first two are means over the levels, each with the probability that the recipe draws it with.
Our side starts from trained weights: at untrained ones the conditioning finds every context all but
impossible, and spends four factorisations on a batch, where it spends one at trained ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import argument_parser, build_reference, in_turns, save, spread, written
from torch import Tensor, nn

from danp_lib.cli.arguments import keep_freed_memory
from danp_lib.models.danp import DANP
from danp_lib.storage.pretrained import load_pretrained
from danp_lib.training.loop import TrainingStep
from danp_lib.training.objective import draw_batch
from danp_lib.training.optim import Optimizer
from danp_lib.training.recipes import Recipe, recipe
from danp_lib.training.resume import RunState

NUM_LEVELS = 3


class Side:
    """The training step of a recipe, which notes the level of each step.

    Args:
        name: ``"paper"`` or ``"fast"``.
        compiled: Whether the step is compiled.
        generator: Where its batches come from.
    """

    def __init__(self, name: str, *, compiled: bool = False, seed: int = 0) -> None:
        self.recipe: Recipe = recipe(name, model="danp", dataset="sawtooth", num_levels=NUM_LEVELS)
        model, config = self.recipe.build_model(), self.recipe.training
        assert isinstance(model, DANP)
        trained = load_pretrained("danp-sawtooth" + ("-paper" if name == "paper" else ""))
        model.load_state_dict(trained.state_dict())
        self.model = model
        generator = torch.Generator().manual_seed(seed)
        optimizer = Optimizer(model, config)
        state = RunState(model, optimizer, generator, self.recipe.task_generator, config)
        self.step = TrainingStep(state, compiled)
        self.levels: list[int] = []

    def __call__(self) -> None:
        self.levels.append(int(self.step().level[0]))

    def encoding(self) -> Tensor:
        """What the U-Net of a batch at level 0 is given."""
        generator = torch.Generator().manual_seed(0)
        batch = draw_batch(
            self.model,
            self.recipe.task_generator,
            self.recipe.training.batch,
            levels=0,
            generator=generator,
        )
        with torch.no_grad():
            return self.model.core.encode([batch.context, *batch.auxiliary])

    def mean_ratio(self, seconds: list[float], other: list[float]) -> dict[str, float]:
        """Median and quartiles of a ratio of timings, averaged over the levels."""
        clean = self.recipe.training.batch.clean_fraction or 1.0 / (NUM_LEVELS + 1)
        by_level: dict[int, list[float]] = {}
        taken = self.levels[-len(seconds) :]
        for level, a, b in zip(taken, seconds, other, strict=True):
            by_level.setdefault(level, []).append(a / b)
        if min(map(len, by_level.values())) < 2 or len(by_level) != NUM_LEVELS + 1:
            raise ValueError("--rounds must be so many that each level is drawn twice.")
        weight = {f: (1.0 - clean) / NUM_LEVELS for f in by_level} | {0: clean}
        spreads = {f: spread(ratios) for f, ratios in by_level.items()}
        return {
            key: sum(weight[f] * spreads[f][key] for f in spreads)
            for key in ("median", "lower_quartile", "upper_quartile")
        }


def forward_and_backward(
    parts: list[tuple[nn.Module, Tensor]],
) -> Callable[[], None]:
    """Run modules on inputs of their own, and differentiate by weights and inputs."""
    prepared = []
    for module, x in parts:
        x = x.detach().requires_grad_()
        y = module(x).detach()
        wanted = [x, *(p for n, p in module.named_parameters() if not n.startswith("out."))]
        prepared.append((module, x, torch.randn(y.shape).as_strided_(y.shape, y.stride()), wanted))

    def run() -> None:
        for module, x, gradient, wanted in prepared:
            torch.autograd.grad(module(x), wanted, gradient)

    return run


def convolutions(unet: nn.Module, encoding: Tensor) -> list[tuple[nn.Module, Tensor]]:
    """The convolutions of a U-Net with the inputs that they get."""
    found: list[tuple[nn.Module, Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda m, inputs: found.append((m, inputs[0].clone())))
        for module in unet.modules()
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)
    ]
    with torch.no_grad():
        unet(encoding)
    for hook in hooks:
        hook.remove()
    return found


def reference_step(paper: Recipe, model: DANP) -> Callable[[], None]:
    """A step of the package NeuralProcesses."""
    config, generator = paper.training, torch.Generator().manual_seed(0)
    nps, reference = build_reference(model.num_levels, model.config.base.rank)
    adam = torch.optim.Adam(reference.parameters(), lr=config.learning_rate)

    def step() -> None:
        batch = draw_batch(model, paper.task_generator, config.batch, generator=generator)
        level = batch.level
        assert isinstance(level, int)
        context = batch.context
        mask = context.mask.unsqueeze(1).float()
        sets = [(context.x.mT, nps.Masked(context.y.mT, mask))]
        for f, points in enumerate(batch.auxiliary, start=1):
            real = slice(None) if f > level else slice(0)
            sets.append((points.x[:, real].mT, points.y[:, real].mT))
        xt = nps.AggregateInput((batch.target.x.mT, level))
        yt = nps.Aggregate(batch.target.y.mT)
        loss = -nps.loglik(reference, sets, xt, yt, normalise=True).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


def beside_its_parts(rounds: int, *, compiled: bool) -> dict[str, Any]:
    """The two ratios of one thread, and the milliseconds that they are of."""
    fast, paper = (Side(name, compiled=compiled) for name in ("fast", "paper"))
    sides: dict[str, Callable[[], None]] = {
        "fast": fast,
        "fast_convolutions": forward_and_backward(
            convolutions(fast.model.core.unet, fast.encoding())
        ),
        "paper": paper,
        "paper_unet": forward_and_backward([(paper.model.core.unet, paper.encoding())]),
    }
    # In CPU time, since on a busy machine one side may lose the core more often than the other.
    warm_up = 20 if compiled else 3
    seconds = in_turns(sides, rounds, warm_up=warm_up, clock=time.process_time)
    return {
        "milliseconds": {name: spread([1e3 * s for s in seconds[name]]) for name in sides},
        "mean_milliseconds": {name: 1e3 * statistics.fmean(seconds[name]) for name in sides},
        "fast_to_convolutions": fast.mean_ratio(seconds["fast"], seconds["fast_convolutions"]),
        "paper_to_unet": paper.mean_ratio(seconds["paper"], seconds["paper_unet"]),
    }


def beside_neuralprocesses(rounds: int) -> dict[str, Any]:
    """The milliseconds of either side's step, and the ratio."""
    paper = Side("paper")
    sides: dict[str, Callable[[], None]] = {
        "ours": paper,
        "reference": reference_step(paper.recipe, paper.model),
    }
    seconds = in_turns(sides, rounds)
    ratio = spread([b / a for a, b in zip(seconds["ours"], seconds["reference"], strict=True)])
    times = {name: spread([1e3 * s for s in values]) for name, values in seconds.items()}
    return {"milliseconds": times, "ratio": ratio}


def main() -> None:
    parser = argument_parser(__doc__ or "", rounds=200)
    parser.add_argument("--threads", type=int, default=2, help="threads of either side")
    parser.add_argument("--compile", action="store_true", help="compile the steps of one thread")
    parser.add_argument("--out", type=Path, help="folder to write training_step.json to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    single = beside_its_parts(arguments.rounds, compiled=arguments.compile)
    print("| on one thread | a step | its part alone | ratio |\n|---|---|---|---|")
    for label, step, part, ratio in (
        ("fast, its convolutions", "fast", "fast_convolutions", "fast_to_convolutions"),
        ("paper, its U-Net", "paper", "paper_unet", "paper_to_unet"),
    ):
        times = [written(single["milliseconds"][name], " ms") for name in (step, part)]
        print(f"| {label} | {' | '.join(times)} | {written(single[ratio])} |")
    torch.set_num_threads(arguments.threads)
    both = beside_neuralprocesses(arguments.rounds)
    print("| training step | danp_lib | NeuralProcesses | ratio |\n|---|---|---|---|")
    times = [written(both["milliseconds"][name], " ms") for name in ("ours", "reference")]
    print(f"| batch 16, F = 3 | {' | '.join(times)} | {written(both['ratio'])} |")
    if arguments.out is not None:
        results = {"rounds": arguments.rounds, **both, "one_thread": single}
        save("training_step", results, arguments.out)


if __name__ == "__main__":
    main()
