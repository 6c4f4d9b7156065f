"""The estimator of Equation 2 against the package NeuralProcesses, and its peak memory.

Ours draws 1024 auxiliary sets of a task (F = 3, 50 points a level) and scores its 50 targets. The
reference goes level by level, too, but one sample at a time, as its interface suggests.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import torch
from measure import argument_parser, build_reference, in_turns, save, spread, written

from danp_lib.data.points import Task
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.danp import DANP
from danp_lib.training.recipes import recipe

NUM_SAMPLES = 1024
REFERENCE_SAMPLES = 16
MEMORY_SAMPLES = (1000, 50_000)


def setting() -> tuple[DANP, Task]:
    """The paper's network, and a task with ten context points."""
    paper = recipe("paper", model="danp", dataset="sawtooth")
    model = paper.build_model().eval()
    assert isinstance(model, DANP)
    generator = torch.Generator().manual_seed(0)
    return model, paper.task_generator.sample_task(1, context_size=10, generator=generator)


def estimate(model: DANP, task: Task, num_samples: int) -> None:
    """Ours."""
    generator = torch.Generator().manual_seed(0)
    log_likelihood(model, task, estimator="model", num_samples=num_samples, generator=generator)


def measure_speed(threads: int, rounds: int) -> dict[str, dict[str, float]]:
    """Samples a second of both sides, and their ratio."""
    torch.set_num_threads(threads)
    model, task = setting()
    nps, reference = build_reference(model.num_levels, model.config.base.rank)
    generator = torch.Generator().manual_seed(0)
    xt, yt = task.xt.mT, task.yt.mT.double()

    @torch.no_grad()
    def reference_estimate() -> None:
        for _ in range(REFERENCE_SAMPLES):
            empty = torch.zeros(1, 1, 0)
            sets = [(task.xc.mT, task.yc.mT)] + [(empty, empty)] * model.num_levels
            inputs = model.draw_inputs(1, generator=generator, dtype=torch.float32)
            for level in range(model.num_levels, 0, -1):
                x = inputs[level - 1].mT
                predictive = reference(
                    sets,
                    nps.AggregateInput((x, level)),
                    dtype_enc_sample=torch.float32,
                    dtype_lik=torch.double,
                )
                sets[level] = (x, predictive.sample()[0].float())
            predictive = reference(
                sets,
                nps.AggregateInput((xt, 0)),
                dtype_enc_sample=torch.float32,
                dtype_lik=torch.double,
            )
            predictive.logpdf(nps.Aggregate(yt))

    seconds = in_turns(
        {
            "ours": lambda: estimate(model, task, NUM_SAMPLES),
            "reference": reference_estimate,
        },
        rounds,
    )
    ours = [NUM_SAMPLES / s for s in seconds["ours"]]
    theirs = [REFERENCE_SAMPLES / s for s in seconds["reference"]]
    return {
        "ours": spread(ours),
        "reference": spread(theirs),
        "ratio": spread([a / b for a, b in zip(ours, theirs, strict=True)]),
    }


def peak_memory(num_samples: int, threads: int) -> float:
    """Largest resident size in GiB of a process of its own that does one estimate."""
    command = [sys.executable, __file__, "--peak-memory-of", str(num_samples), str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    if sys.argv[1:2] == ["--peak-memory-of"]:
        torch.set_num_threads(int(sys.argv[3]))
        estimate(*setting(), int(sys.argv[2]))
        # In KiB on Linux, in bytes on macOS.
        unit = 2**30 if sys.platform == "darwin" else 2**20
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
        return
    parser = argument_parser(__doc__ or "", rounds=11)
    parser.add_argument("--threads", type=int, default=2, help="threads of either side")
    arguments = parser.parse_args()
    speed = measure_speed(arguments.threads, arguments.rounds)
    print("| estimator, samples a second | danp_lib | NeuralProcesses | ratio |\n|---|---|---|---|")
    cells = [written(speed[side]) for side in ("ours", "reference", "ratio")]
    print(f"| S = {NUM_SAMPLES}, F = 3, 50 targets | {' | '.join(cells)} |\n", flush=True)
    print("| estimator, peak memory | GiB |\n|---|---|")
    memory = {}
    for num_samples in MEMORY_SAMPLES:
        memory[num_samples] = peak_memory(num_samples, arguments.threads)
        print(f"| S = {num_samples} | {memory[num_samples]:.2f} |", flush=True)
    results = {"rounds": arguments.rounds, "samples_per_second": speed, "peak_memory_gib": memory}
    save("estimator", results)


if __name__ == "__main__":
    main()
