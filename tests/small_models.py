"""Networks that run in milliseconds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from danp_lib.models.convnp import ARConvCNP, ConvCNP, ConvGNP, ConvNPConfig
from danp_lib.models.danp import DANP, DANPConfig

TINY = ConvNPConfig(points_per_unit=16, channels=8, num_layers=3, rank=4)
INDEPENDENT = replace(TINY, rank=0)

MODELS: dict[str, Callable[[], Any]] = {
    "danp": lambda: DANP(DANPConfig(base=TINY, num_levels=2, num_auxiliary=10)),
    "convgnp": lambda: ConvGNP(TINY),
    "convcnp": lambda: ConvCNP(INDEPENDENT),
    "ar-convcnp": lambda: ARConvCNP(INDEPENDENT),
}


def small_config(**changes: Any) -> ConvNPConfig:
    return replace(TINY, **{"head_channels": 16, **changes})


def scored_config(rank: int = 2) -> ConvNPConfig:
    """With variances near 1, so that a fresh network's likelihoods do not underflow."""
    return replace(TINY, num_layers=2, rank=rank, variance_gain=1.0, variance_offset=0.0)


def scored_danp(num_levels: int = 2) -> DANP:
    config = DANPConfig(scored_config(), num_levels, beta=0.2, num_auxiliary=4)
    made: DANP = seeded(DANP, config, dtype=torch.float32)
    return made


def seeded(build: Any, *args: Any, dtype: torch.dtype = torch.float64) -> Any:
    """A network with weights that are the same in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(*args).to(dtype)
