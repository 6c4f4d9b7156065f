"""One training step against the package NeuralProcesses doing the same work.

Both sides draw the same batches of 16 augmented sawtooth tasks (F = 3) at the same random levels,
run the paper's network on them, differentiate the low-rank log-likelihood in float64, and take a
step of Adam. Ours is the library's own step, as ``danp train --recipe paper`` takes it.
"""

from __future__ import annotations

import torch
from measure import build_reference, in_turns, parse_arguments, save, spread, written

from danp_lib.training.loop import TrainingStep
from danp_lib.training.objective import draw_batch
from danp_lib.training.recipes import recipe
from danp_lib.training.resume import RunState


def main() -> None:
    arguments = parse_arguments(__doc__ or "", rounds=200)
    torch.set_num_threads(arguments.threads)
    paper = recipe("paper", model="danp", dataset="sawtooth")
    config = paper.training
    model = paper.build_model()
    optimizer = config.build_optimizer(model)
    ours, theirs = (torch.Generator().manual_seed(0) for _ in range(2))
    step = TrainingStep(RunState(model, optimizer, ours, paper.task_generator, config), False)

    nps, reference = build_reference(model.num_levels, paper.model_config.base.rank)
    adam = torch.optim.Adam(reference.parameters(), lr=config.learning_rate)

    def reference_step() -> None:
        batch = draw_batch(model, paper.task_generator, config.batch, generator=theirs)
        level = int(batch.level[0])
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

    def our_step() -> None:
        step()

    seconds = in_turns({"ours": our_step, "reference": reference_step}, arguments.rounds)
    ratio = spread([b / a for a, b in zip(seconds["ours"], seconds["reference"], strict=True)])
    times = {name: spread([1e3 * s for s in values]) for name, values in seconds.items()}
    save("training_step", {"rounds": arguments.rounds, "milliseconds": times, "ratio": ratio})
    print("| training step | danp_lib | NeuralProcesses | ratio |\n|---|---|---|---|")
    cells = (written(times["ours"], " ms"), written(times["reference"], " ms"), written(ratio))
    print(f"| batch 16, F = 3 | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
