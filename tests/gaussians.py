"""Gaussians and mixtures that tests are about."""

import torch
from hypothesis import settings
from randomness import rng
from torch import Tensor
from torch.distributions import MultivariateNormal

from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture

RANKS = [0, 1, 3, 5, 8]  # of five points: below, equal and above

property_test = settings(deadline=None, max_examples=30, derandomize=True)


def normal(
    batch: tuple[int, ...] = (2,), points: int = 5, rank: int = 3, seed: int = 0
) -> LowRankNormal:
    generator = rng(seed)
    shape = (*batch, points, 1)
    return LowRankNormal(
        torch.randn(shape, generator=generator, dtype=torch.float64),
        torch.randn((*shape[:-1], rank), generator=generator, dtype=torch.float64),
        0.05 + torch.rand(shape, generator=generator, dtype=torch.float64),
    )


def mixture(batch: tuple[int, ...] = (2,), rank: int = 3, seed: int = 0) -> Mixture:
    logits = torch.randn((*batch, 4), generator=rng(seed + 1), dtype=torch.float64)
    return Mixture(logits, normal((*batch, 4), rank=rank, seed=seed))


def dense(distribution: LowRankNormal) -> MultivariateNormal:
    return MultivariateNormal(
        distribution.mean.squeeze(-1), distribution.covariance_matrix, validate_args=False
    )


def values(*shape: int) -> Tensor:
    return torch.randn((*shape, 5, 1), generator=rng(9), dtype=torch.float64)
