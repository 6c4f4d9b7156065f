"""Short runs of tiny models."""

import textwrap
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from small_models import TINY
from torch import Tensor

from danp_lib.data.generators import Sawtooth
from danp_lib.data.noising import MaskedTask
from danp_lib.models.base import NeuralProcess
from danp_lib.models.danp import DANPConfig
from danp_lib.training.config import TrainingConfig
from danp_lib.training.objective import BatchConfig, draw_batch
from danp_lib.training.recipes import build_model

RUN = TrainingConfig(
    num_steps=9,
    batch=BatchConfig(batch_size=4, num_targets=20),
    warmup_steps=2,
    log_every=2,
    validate_every=4,
    num_validation_batches=1,
)
LONG_RUN = replace(RUN, num_steps=10_000_000, validate_every=5)


def tiny(name: str = "danp", **changes: Any) -> NeuralProcess:
    if name == "danp":
        config = DANPConfig(base=TINY, num_levels=2, num_auxiliary=20)
        return build_model(name, replace(config, **changes), seed=0)
    return build_model(name, replace(TINY, rank=4 if name == "convgnp" else 0), seed=0)


def weights(model: NeuralProcess) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_same_weights(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from danp_lib.data.generators import Sawtooth
    from danp_lib.training.loop import train
    from training_runs import LONG_RUN, tiny
    train(tiny(), Sawtooth(), LONG_RUN, folder=Path(sys.argv[1]), progress=False)
    """
)


def validation_batches(
    model: NeuralProcess, run: TrainingConfig, generator: torch.Generator
) -> list[list[MaskedTask]]:
    draw = partial(draw_batch, model, Sawtooth(), run.batch, generator=generator)
    return [
        [draw(levels=f) for _ in range(run.num_validation_batches)]
        for f in range(model.num_levels + 1)
    ]
