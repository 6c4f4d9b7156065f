"""Measure what the contexts of the shipped models were like in training, and store it beside them.

    python scripts/contexts.py [NAME ...]

Without names, all models of ``checkpoints``. The numbers go to ``checkpoints/contexts.json``, from
which ``danp_lib.load_pretrained`` takes them, before those in a checkpoint's own header. The same
seed gives the same numbers, to the rounding of the processor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.models.contexts import TrainingContexts
from danp_lib.storage.checkpoint import CONTEXTS, load_checkpoint, read_contexts, read_header
from danp_lib.storage.pretrained import PRETRAINED
from danp_lib.training.config import TrainingConfig

FOLDER = Path(__file__).parents[1] / "checkpoints"


def measure(path: Path) -> TrainingContexts:
    """Measure the contexts of one checkpoint, with its prior and its sizes."""
    model, header = load_checkpoint(path), read_header(path)
    if header.task_generator is None:
        raise ValueError(f"{path} must name the prior that it was trained on.")
    training = TrainingConfig.from_provenance(header.provenance["training"])
    return TrainingContexts.measure(model, header.task_generator, training.batch.context_size)


def main(names: list[str]) -> None:
    """Measure the models of these names, or all."""
    paths = {name: FOLDER / f"{name}.safetensors" for name in names or PRETRAINED}
    stored = {name: to_dict(contexts) for name, contexts in read_contexts(FOLDER).items()}
    for name, path in paths.items():
        if path.is_file():
            stored[name] = to_dict(measure(path))
            lines = (f"{json.dumps(key)}: {json.dumps(stored[key])}" for key in sorted(stored))
            write_atomically(FOLDER / CONTEXTS, "{\n" + ",\n".join(lines) + "\n}\n")
            print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
