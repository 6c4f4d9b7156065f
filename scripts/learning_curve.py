"""Score the snapshots of a run on validation tasks, and store its learning curve.

    python scripts/learning_curve.py RUN CHECKPOINT

RUN is a folder that ``danp train --snapshots`` has left, and CHECKPOINT the model that came of it.
Both the ``step-*.safetensors`` in RUN and the model are scored on 62 tasks drawn with a seed of
their own, two of each context size from 0 to 30; none of them is a benchmark task. The scores, and
the validation log-likelihoods by level that RUN logged, go to ``results/NAME-curve.json`` in the
current folder, by the name of the checkpoint. What is scored there already is left as it is;
a file of other weights, also of this run before it was lengthened, is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.data.generators import Prior
from danp_lib.data.points import Task
from danp_lib.evaluation.score import Evaluation, evaluate
from danp_lib.storage.checkpoint import load_checkpoint, read_header
from danp_lib.storage.origin import commit, hardware, sha256, versions
from danp_lib.training.resume import LOG

SEED = 90_000
TASKS_PER_SIZE = 2
NUM_SAMPLES = 256


def validation_tasks(path: Path) -> list[Task]:
    """The tasks for the prior that a checkpoint was trained on, one batch a context size."""
    prior = read_header(path).task_generator
    if not isinstance(prior, Prior):
        raise ValueError(f"{path} must name the prior that it was trained on.")
    generator = torch.Generator().manual_seed(SEED)
    return [
        prior.sample_task(TASKS_PER_SIZE, context_size=size, pool_size=600, generator=generator)
        for size in range(31)
    ]


def score(path: Path) -> dict[str, float | int]:
    """The average likelihood of a checkpoint, by both halves of the samples, and its error."""
    model = load_checkpoint(path)
    records = [
        record
        for task in validation_tasks(path)
        for record in evaluate(
            model, task, num_samples=NUM_SAMPLES, generator=torch.Generator().manual_seed(SEED)
        ).tasks
    ]
    scores = to_dict(Evaluation.summarize(records))
    names = ("average_likelihood", "average_likelihood_ci95", "mean_log_likelihood")
    step = int(read_header(path).provenance["steps"])
    return {"step": step, **{name: scores[name] for name in names}}


def main(folder: Path, checkpoint: Path) -> None:
    """Score what is new of a run."""
    target = Path("results") / f"{checkpoint.stem}-curve.json"
    stored = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    if stored.get("weights", sha256(checkpoint)) != sha256(checkpoint):
        sys.exit(f"{target} is of other weights than {checkpoint}: remove it to start anew.")
    curve = stored.get("curve", [])
    known = {entry["step"] for entry in curve}
    for path in (*folder.glob("step-*.safetensors"), checkpoint):
        if int(read_header(path).provenance["steps"]) not in known:
            entry = score(path)
            print(f"{entry['step']:>7,} steps: {entry['average_likelihood']:.2f}", flush=True)
            curve.append(entry)
    log = (folder / LOG).read_text(encoding="utf-8").splitlines()
    content = {
        "command": f"python scripts/learning_curve.py RUN {checkpoint.name}",
        "commit": commit(),
        "hardware": to_dict(hardware()),
        "versions": versions(),
        "seed": SEED,
        "num_tasks": 31 * TASKS_PER_SIZE,
        "num_samples": NUM_SAMPLES,
        "weights": sha256(checkpoint),
        "curve": sorted(curve, key=lambda entry: entry["step"]),
        "validation": [
            {"step": r["step"], "minutes": r["minutes"], "by_level": r["validation"]}
            for r in map(json.loads, log)
            if "validation" in r
        ],
    }
    write_atomically(target, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(Path, sys.argv[1:]))
