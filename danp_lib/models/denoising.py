"""What a walk from the noisiest level to the clean one starts from and leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal


@dataclass(frozen=True)
class Prepared:
    """What the samples of one task share: computed once, whatever their number.

    Attributes:
        context: The context, one set.
        encoding: The context's channel and the empty channels, ``(1, 2 * (F + 1), grid)``.
        features: The U-Net's features at the noisiest level, ``(1, channels, grid)``.
    """

    context: PointSet
    encoding: Tensor
    features: Tensor


@dataclass(frozen=True)
class Denoised:
    """Auxiliary sets and the predictives they were scored or drawn with, sample by sample.

    Attributes:
        auxiliary: The levels 1 to F, each with the samples as its batch.
        predictives: The predictives of the levels 1 to F at those points.
        target: The predictive of level 0 at the targets, ``(samples,)``; Equation 2's components.
    """

    auxiliary: tuple[PointSet, ...]
    predictives: tuple[LowRankNormal, ...]
    target: LowRankNormal

    def auxiliary_log_prob(self) -> Tensor:
        """log p(D_a | D_c) of every sample in nats, ``(samples,)``; Equation 3."""
        terms = [p.log_prob(a.y) for p, a in zip(self.predictives, self.auxiliary, strict=True)]
        zero = self.target.mean.new_zeros(self.target.batch_shape)
        return torch.stack([zero, *terms]).sum(dim=0)


def chunks(total: int, size: int) -> Iterator[int]:
    """Sizes of the chunks that a total falls into."""
    for start in range(0, total, size):
        yield min(size, total - start)
