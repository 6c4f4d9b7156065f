"""A ladder from the paper's model and training to this book's, one change a rung.

Every rung is the one before with some of its settings replaced by those of the recipe ``fast``; all
are trained for as many steps. From the last, the changes of the network are taken back: what are
they worth, once the training can use them? The rung of Muon is taken apart: is its gain that of the
optimizer or that of the falling rate? One seed a rung, and a second at the paper's end and at the
book's, say how much of a difference is chance. A model is scored on tasks drawn from the prior with
a seed of their own, two of each context size from 0 to 30, none of them a benchmark task.

A run that was stopped goes on when the same command is given again; what is scored stays.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.data.generators import DATASETS
from danp_lib.evaluation.score import Evaluation, evaluate
from danp_lib.models.base import NeuralProcess
from danp_lib.models.convnp import ConvNPConfig, count_parameters
from danp_lib.models.danp import DANPConfig
from danp_lib.storage.card import read_card
from danp_lib.storage.checkpoint import load_checkpoint, read_header
from danp_lib.storage.origin import commit, hardware, versions
from danp_lib.storage.pretrained import PRETRAINED, pretrained_path
from danp_lib.training.config import TrainingConfig
from danp_lib.training.loop import train
from danp_lib.training.recipes import Recipe, build_model, recipe

NUM_STEPS = 14_000
SEED = 91_000
TASKS_PER_SIZE = 2
CONTEXT_SIZES = tuple(range(31))

RUNGS: dict[str, tuple[str, ...]] = {
    "paper": (),
    "full-resolution path": ("base.unet",),
    "scales of the head": ("base.variance_gain", "base.variance_offset", "base.factor_divisor"),
    "hidden layers of the head": ("base.head_layers",),
    "Muon and its schedule": (
        "training.optimizer",
        "training.learning_rate",
        "training.muon_weight_decay",
        "training.schedule",
        "training.warmup_steps",
        "training.gradient_clip",
    ),
    "clean level, jitter, robust loss": (
        "training.batch",
        "training.jitter_steps",
        "training.jitter_schedule",
        "training.robust_threshold",
    ),
    "conditioning": ("base.conditioned",),
}
"""What each rung takes over from the recipe ``fast``, beside all that the rungs before it did."""

PAPER, *_, FAST = RUNGS
NETWORK = ("full-resolution path", "scales of the head", "hidden layers of the head")

TAKEN_BACK: dict[str, tuple[str, ...]] = {
    "the paper's network again": tuple(path for rung in NETWORK for path in RUNGS[rung]),
    **{f"without {rung}": RUNGS[rung] for rung in NETWORK},
}
"""What else is tried at the end: the last rung with these settings of the recipe ``paper``."""

MUON = "Muon and its schedule"
ADAM = ("training.optimizer", "training.muon_weight_decay")
TAKEN_APART: dict[str, tuple[str, ...]] = {
    "Muon, rate constant": ("training.schedule",),
    "Adam, rate falling": ADAM,
    "Adam, rate falling from the paper's": (*ADAM, "training.learning_rate"),
}
"""What is tried of the rung of Muon: it, with these settings of the recipe ``paper``."""

BRANCHES = TAKEN_BACK | TAKEN_APART


@dataclass(frozen=True)
class Run:
    """One model of the ladder.

    Attributes:
        model: ``"danp"`` or ``"convgnp"``.
        dataset: Name of its dataset.
        rung: A key of :data:`RUNGS`, :data:`TAKEN_BACK` or :data:`TAKEN_APART`.
        seed: Of weights and tasks.
        num_steps: Length of the run.
    """

    model: str
    dataset: str
    rung: str
    seed: int
    num_steps: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        rung = [*RUNGS, *BRANCHES].index(self.rung)
        return f"{self.model}-{self.dataset}-{rung}-seed{self.seed}-{self.num_steps}"

    def configs(self) -> tuple[ConvNPConfig | DANPConfig, TrainingConfig]:
        """The model's configuration and the run's."""
        options: dict[str, Any] = {"model": self.model, "dataset": self.dataset}
        options |= {"num_steps": self.num_steps, "seed": self.seed}
        first, last = (recipe(name, **options) for name in ("paper", "fast"))
        base, training = _base(first), first.training
        # How often a run is looked at is no rung.
        observing = ("log_every", "validate_every", "num_validation_batches", "keep_best")
        training = replace(training, **{key: getattr(last.training, key) for key in observing})
        for source, path in self._changes():
            made_by = {"paper": first, "fast": last}[source]
            part, key = path.split(".")
            if part == "base":
                base = replace(base, **{key: getattr(_base(made_by), key)})
            else:
                training = replace(training, **{key: getattr(made_by.training, key)})
        if isinstance(first.model_config, DANPConfig):
            return replace(first.model_config, base=base), training
        return base, training

    def _changes(self) -> Iterator[tuple[str, str]]:
        """Recipe and setting, from the paper's end on."""
        last = MUON if self.rung in TAKEN_APART else self.rung
        for rung, paths in RUNGS.items():
            yield from (("fast", path) for path in paths)
            if rung == last:
                break
        yield from (("paper", path) for path in BRANCHES.get(self.rung, ()))


def _base(made_by: Recipe) -> ConvNPConfig:
    config = made_by.model_config
    return config.base if isinstance(config, DANPConfig) else config


def ladder(models: list[str], datasets: list[str], num_steps: int) -> Iterator[Run]:
    """All runs, a whole ladder of one model on one dataset after another."""
    for dataset in datasets:
        for model in models:
            for rung in (*RUNGS, *BRANCHES):
                yield Run(model, dataset, rung, 0, num_steps)
            yield from (Run(model, dataset, rung, 1, num_steps) for rung in (PAPER, FAST))


def score(model: NeuralProcess, run: Run, *, num_samples: int, device: str) -> Evaluation:
    """Score a model on validation tasks, a DANP by the balance heuristic."""
    prior, generator = DATASETS[run.dataset], torch.Generator().manual_seed(SEED)
    sampling = torch.Generator(device).manual_seed(SEED)
    records = []
    for size in CONTEXT_SIZES:
        task = prior.sample_task(
            TASKS_PER_SIZE, context_size=size, pool_size=600, generator=generator
        )
        records += evaluate(
            model,
            task.to(torch.device(device)),
            estimator="both",
            num_samples=num_samples,
            generator=sampling,
        ).tasks
    return Evaluation.summarize(records)


def measure(
    run: Run, folder: Path, *, num_samples: int, device: str, compile_model: bool
) -> dict[str, Any] | None:
    """Train to the end, or go on from the folder, and score; ``None`` where it was stopped.

    What is shipped is not trained again.
    """
    torch.set_num_threads(1)
    config, training = run.configs()
    origin = {"commit": commit(), "hardware": to_dict(hardware(device)), **versions()}
    if (path := shipped(run)) is not None:
        card = read_card(path)
        model = load_checkpoint(path, device=device)
        minutes, validation = card.minutes, card.validation
        origin["checkpoint"] = {"name": card.name, "sha256": card.sha256, "commit": card.commit}
    else:
        model = build_model(run.model, config, seed=run.seed).to(device)
        history = train(
            model,
            DATASETS[run.dataset],
            training,
            folder=folder / run.name,
            compile_model=compile_model,
            progress=False,
        )
        if history[-1]["step"] < training.num_steps:
            return None
        minutes, validation = history[-1]["minutes"], history[-1]["validation"]
    result = score(model, run, num_samples=num_samples, device=device)
    return asdict(run) | {
        "changes": list((RUNGS | BRANCHES)[run.rung]),
        "parameters": count_parameters(model),
        "minutes": minutes,
        "validation": validation,
        "average_likelihood": result.average_likelihood,
        "average_likelihood_ci95": result.average_likelihood_ci95,
        "mean_log_likelihood": result.mean_log_likelihood,
        "log_likelihoods": [task.log_likelihood for task in result.tasks],  # to be paired
        "num_tasks": result.num_tasks,
        "estimator": result.estimator,
        "num_samples": result.num_samples,
        "config": to_dict(config),
        "training": to_dict(training),
        "origin": origin,
    }


def shipped(run: Run) -> Path | None:
    """The checkpoint that came of a run with the same settings, if one is shipped."""
    seeded = "" if run.seed == 0 else f"seed{run.seed}-"
    name = f"{run.model}-{seeded}{run.dataset}"
    if name not in PRETRAINED:
        return None
    header, (config, training) = read_header(pretrained_path(name)), run.configs()
    made = TrainingConfig.from_provenance(header.provenance["training"])
    return pretrained_path(name) if (header.config, made) == (config, training) else None


def known(records: list[dict[str, Any]], run: Run) -> bool:
    """Whether a run is scored already."""
    return any({key: record[key] for key in asdict(run)} == asdict(run) for record in records)


def main() -> None:
    """Train and score what is not there yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["danp", "convgnp"], metavar="NAME")
    datasets = ["sawtooth", "square-released"]
    parser.add_argument("--datasets", nargs="+", default=datasets, metavar="NAME")
    rungs = [*RUNGS, *BRANCHES]
    parser.add_argument("--rungs", nargs="+", default=rungs, choices=rungs, metavar="RUNG")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="updates of every run")
    parser.add_argument("--num-samples", type=int, default=128, help="samples to score a DANP with")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--compile", action="store_true", help="compile the steps")
    parser.add_argument("--runs", type=Path, default=Path("runs/ladder"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/ladder.json"))
    arguments = parser.parse_args()
    records: list[dict[str, Any]] = []
    if arguments.out.exists():
        records = json.loads(arguments.out.read_text(encoding="utf-8"))["runs"]
    runs = [
        run
        for run in ladder(arguments.models, arguments.datasets, arguments.steps)
        if run.rung in arguments.rungs and not known(records, run)
    ]
    options = {
        "num_samples": arguments.num_samples,
        "device": arguments.device,
        "compile_model": arguments.compile,
    }
    # Spawned, since CUDA cannot be forked.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        jobs = [pool.submit(measure, run, arguments.runs, **options) for run in runs]
        for job in as_completed(jobs):
            record = job.result()
            if record is None:
                continue
            records.append(record)
            content = {
                "seed": SEED,
                "rungs": RUNGS,
                "taken_back": TAKEN_BACK,
                "taken_apart": TAKEN_APART,
                "runs": records,
            }
            write_atomically(arguments.out, json.dumps(content, indent=1) + "\n")
            interval = (
                f"{record['average_likelihood']:.2f} ± {record['average_likelihood_ci95']:.2f}"
            )
            name = f"{record['model']} {record['dataset']} seed {record['seed']}"
            print(f"{name}, {record['rung']}: {interval}", flush=True)


if __name__ == "__main__":
    main()
