"""Convolutional neural processes: the ConvCNP and the ConvGNP (paper, Appendix B.2)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.models.config import ConvNPConfig as ConvNPConfig
from danp_lib.models.config import paper_config as paper_config
from danp_lib.models.core import ConvNPCore as ConvNPCore
from danp_lib.models.registry import register


class ConvNP(nn.Module):
    """A convolutional neural process with one context set and one output.

    Args:
        config: The architecture.
    """

    name: ClassVar[str]

    def __init__(self, config: ConvNPConfig) -> None:
        super().__init__()
        self.config = config
        self.core = ConvNPCore(config, num_sets=1)

    def forward(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        """The predictive at the targets.

        Args:
            context: Context sets.
            xt: Target inputs, ``(batch, targets, 1)``.

        Raises:
            ValueError: If shapes or dtypes are wrong, a value is not finite, or an input is off the
                model's domain.
        """
        self.core.check([("context", context)], xt)
        return self.forward_unchecked(context, xt)

    def forward_unchecked(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        """:meth:`forward` without its checks, for training, where the library made the data."""
        features = self.core.features(self.core.encode([context]))
        return self.core.predictive(features, [context], xt, 0)

    @torch.no_grad()
    def predict(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        """:meth:`forward` without gradients."""
        return self(context, xt)


@register
class ConvCNP(ConvNP):
    """A ConvNP whose outputs are independent given the context (Gordon et al., 2020).

    Args:
        config: The architecture, with ``rank=0``.

    Raises:
        ValueError: If the rank is not 0.
    """

    name = "convcnp"

    def __init__(self, config: ConvNPConfig = ConvNPConfig(rank=0)) -> None:
        if config.rank != 0:
            raise ValueError(
                f"a ConvCNP has independent outputs: rank must be 0, got {config.rank}; "
                "for correlated ones use ConvGNP."
            )
        super().__init__(config)


@register
class ConvGNP(ConvNP):
    """A ConvNP whose outputs are jointly Gaussian with a low-rank covariance (Markou et al., 2022).

    Args:
        config: The architecture, with ``rank >= 1``.

    Raises:
        ValueError: If the rank is 0.
    """

    name = "convgnp"

    def __init__(self, config: ConvNPConfig = ConvNPConfig()) -> None:
        if config.rank == 0:
            raise ValueError(
                "a ConvGNP has correlated outputs: rank must be >= 1, got 0; "
                "for independent ones use ConvCNP."
            )
        super().__init__(config)


def count_parameters(model: nn.Module) -> int:
    """Number of scalars that training changes."""
    return sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)
