"""What details of the released code change in the scores: its phases, and its auxiliary inputs.

    python scripts/released_details.py

Writes ``results/released-details.json`` in the current folder. The phases: models trained on the
waves of the paper's text are scored on these, and on waves with the phases of the released code, a
task of either kind with the same inputs and frequency. The inputs: two DANPs by the paper's recipe
are scored by ancestral samples at uniform inputs, as in the paper's text, and at the targets'.
Records that are there already stay, so that a run that was stopped goes on.
"""

import json
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.data.generators import ReleasedSquareWave, Sawtooth, SquareWave, Wave
from danp_lib.evaluation.score import mean_and_ci95
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.storage.origin import commit, hardware, sha256, versions
from danp_lib.storage.pretrained import load_pretrained, pretrained_path

OUT = Path("results/released-details.json")
SEED = 310_005
CONTEXT_SIZES = range(31)
MODELS = ("danp", "convcnp", "convgnp", "ar-convcnp")


class ReleasedSawtooth(Sawtooth):
    r"""Sawtooth waves with the phases of the released code, :math:`\phi \sim U(0, 1/\omega)`."""

    name: ClassVar[str] = "sawtooth, released phases"

    @staticmethod
    def phase_range(omega: Tensor) -> tuple[Tensor, Tensor]:
        r"""See the base class; here :math:`(0, 1/\omega)`."""
        return torch.zeros_like(omega), 1 / omega


PRIORS: dict[str, Wave] = {
    "sawtooth": Sawtooth(),
    ReleasedSawtooth.name: ReleasedSawtooth(),
    "square": SquareWave(),
    "square-released": ReleasedSquareWave(),
}


def scores(
    name: str, prior: str, *, tasks_per_size: int, **options: Any
) -> tuple[list[int], list[float]]:
    """Context size and log-likelihood per target of each task, the same ones in every call."""
    model = load_pretrained(name)
    drawing = torch.Generator().manual_seed(SEED)
    sampling = torch.Generator().manual_seed(SEED)
    sizes, logs = [], []
    for size in CONTEXT_SIZES:
        task = PRIORS[prior].sample_task(
            tasks_per_size, context_size=size, pool_size=512, generator=drawing
        )
        found = log_likelihood(model, task, generator=sampling, **options).values
        logs += (found / task.target.num_points).tolist()
        sizes += [size] * tasks_per_size
    return sizes, logs


def plan() -> list[dict[str, Any]]:
    """What is scored: models, tasks and options."""
    sawtooth, square = list(PRIORS)[:2], list(PRIORS)[2:]
    runs: list[dict[str, Any]] = [
        {"model": f"{model}-{trained}", "prior": prior, "tasks_per_size": 10, "num_samples": 128}
        for trained, priors in (
            ("sawtooth-paper", sawtooth),
            ("sawtooth", sawtooth),
            ("square", square),
        )
        for model in MODELS
        for prior in priors
    ]
    for dataset in ("sawtooth", "square-released"):
        options = {"tasks_per_size": 4, "num_samples": 1024, "estimator": "model"}
        runs += [
            {"model": f"danp-{dataset}-paper", "prior": dataset, "auxiliary_inputs": at} | options
            for at in ("uniform", "target")
        ]
    return runs


def main() -> None:
    """Score what the file lacks."""
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    if OUT.is_file():
        found = json.loads(OUT.read_text(encoding="utf-8"))["records"]
    done = [record["run"] for record in found]
    for run in plan():
        if run in done:
            continue
        options = dict(run)
        name, prior = options.pop("model"), options.pop("prior")
        sizes, logs = scores(name, prior, **options)
        found.append(
            {
                "run": run,
                "weights": sha256(pretrained_path(name)),
                "context_sizes": sizes,
                "log_likelihoods": logs,
            }
        )
        content = {
            "seed": SEED,
            "records": found,
            "origin": {"commit": commit(), "hardware": to_dict(hardware()), **versions()},
        }
        write_atomically(OUT, json.dumps(content, indent=1) + "\n")
        mean, width = mean_and_ci95(torch.tensor(logs, dtype=torch.float64).exp())
        print(f"{name:24} on {prior:28} {mean:7.2f} ± {width:.2f}", flush=True)


if __name__ == "__main__":
    main()
