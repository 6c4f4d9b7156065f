"""Networks that run in milliseconds."""

from typing import Any

import torch
from contracts import seeded

from danp_lib.models.convnp import ConvNPConfig
from danp_lib.models.danp import DANP, DANPConfig

TINY = ConvNPConfig(points_per_unit=16, channels=8, num_layers=3, rank=4)


def scored_config(rank: int = 2) -> ConvNPConfig:
    """With variances near 1, so that a fresh network's likelihoods do not underflow."""
    scales: Any = {"variance_gain": 1.0, "variance_offset": 0.0}
    return ConvNPConfig(points_per_unit=16, channels=8, num_layers=2, rank=rank, **scales)


def scored_danp(num_levels: int = 2) -> DANP:
    config = DANPConfig(scored_config(), num_levels, beta=0.2, num_auxiliary=4)
    made: DANP = seeded(DANP, config, dtype=torch.float32)
    return made
