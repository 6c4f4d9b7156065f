"""What every exact predictive can do."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from danp_lib._config import Configuration, check_kind
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture


class Oracle(Configuration, ABC):
    """An exact predictive, in float64; a frozen dataclass of what its prior is."""

    num_levels: ClassVar[int] = 0  #: 0, since there are no noise levels.
    is_sampled: ClassVar[bool] = False  #: False, since nothing is sampled.
    autoregressive: ClassVar[bool] = False  #: False, since :meth:`log_prob` is the joint density.

    @abstractmethod
    def predict(self, context: PointSet, xt: Tensor) -> LowRankNormal | Mixture:
        """The predictive at target inputs ``(batch, targets, dim_x)``, batch shape ``(batch,)``.

        A context that the prior rules out is refused with a ``ValueError``.
        """

    def log_prob(self, context: PointSet, target: PointSet) -> Tensor:
        """Log-density of the real targets given the context in nats, ``(batch,)``."""
        check_kind(PointSet, target=target)
        target.check("target")
        self.check_inputs(context, target.blanked().x, "target.x")
        rows = range(target.batch_size)
        return torch.stack([self._log_density(context[i], target[i].compact()) for i in rows])

    def _log_density(self, context: PointSet, target: PointSet) -> Tensor:
        """Log-density of the targets of one task, all of them real; a scalar."""
        return self.predict(context, target.x).log_prob(target.y)[0]

    def check_inputs(self, context: PointSet, xt: Tensor, name: str = "xt") -> None:
        """Refuse what no exact predictive can be made of."""
        check_kind(PointSet, context=context)
        check_kind(Tensor, **{name: xt})
        context.check("context")
        batch, _, dim_x = context.x.shape
        if batch == 0:
            raise ValueError("context must hold at least one set, got a batch of 0.")
        if xt.ndim != 3 or (xt.shape[0], xt.shape[2]) != (batch, dim_x):
            raise ValueError(
                f"{name} must have shape ({batch}, targets, {dim_x}) to go with the context, "
                f"got {tuple(xt.shape)}."
            )
        if not xt.isfinite().all():
            raise ValueError(f"{name} must be finite, got NaN or an infinite input.")
