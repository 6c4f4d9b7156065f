"""Autoregressive rollout: predict one target, take it as context, predict the next.

A model with Gaussian predictives is turned into one with a richer joint distribution by the chain
rule (Bruinsma et al., 2023). The result depends on the order of the targets, so it is no consistent
process, and costs a forward pass for every target (paper, Section 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from danp_lib._random import one_by_one, spawn
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.models.convnp import ConvCNP, ConvNP
from danp_lib.models.danp import DANP
from danp_lib.models.denoising import chunks
from danp_lib.models.registry import register


@register
class ARConvCNP(ConvCNP):
    """A ConvCNP that is meant to be rolled out.

    It is trained on contexts of up to 80 points: the 30 of the largest context and the 50 targets
    that the rollout adds (paper, Appendix B.1). Called as it is, it is a ConvCNP.

    Args:
        config: The architecture, with ``rank=0``.
    """

    name = "ar-convcnp"


@dataclass(frozen=True)
class RolloutLogProb:
    """Log-likelihoods of a batch of tasks by the chain rule.

    Attributes:
        values: Joint log-densities of the targets in nats, not divided by their number,
            ``(batch,)``.
        forward_passes: Passes of one set of points through the U-Net, summed over the tasks.
    """

    values: Tensor
    forward_passes: int


@dataclass(frozen=True)
class RolloutSamples:
    """Joint samples of the targets.

    Attributes:
        values: ``(samples, batch, targets, 1)``.
        forward_passes: Passes of one set of points through the U-Net, summed over the samples.
    """

    values: Tensor
    forward_passes: int


@torch.no_grad()
def ar_log_prob(
    model: ConvNP | DANP,
    task: Task,
    *,
    generator: torch.Generator,
    num_samples: int = 256,
    chunk_size: int = 256,
) -> RolloutLogProb:
    r"""Log-likelihood of each task's targets by the chain rule.

    With :math:`\pi` a random order of the targets, one a task, this is

    .. math::
        \sum_k \log p(y_{\pi_k} \mid x_{\pi_k}, D_c \cup \{(x_{\pi_j}, y_{\pi_j})\}_{j<k}) .

    All values are known, so that the terms of a task are one batch of growing contexts.

    Args:
        model: The model; with a DANP each term is the log-density of its mixture.
        task: The tasks.
        generator: Source of randomness: the orders, and the samples of a DANP.
        num_samples: S, the number of a DANP's samples a term; the other models draw none.
        chunk_size: Number of contexts, or of a DANP's samples, computed at a time; it bounds the
            memory only.

    Raises:
        ValueError: If a target is masked or not finite, a number is below 1, or the model cannot
            take the tasks.
    """
    task.check()
    _check_positive(num_samples=num_samples, chunk_size=chunk_size)
    values = torch.zeros(task.batch_size, dtype=torch.float64, device=task.xt.device)
    passes = 0
    # Two streams, so that one seed means the same orders for every model.
    for_orders, for_samples = spawn(generator, 2)
    for row in range(task.batch_size):
        contexts, targets = _growing(task[row], for_orders)
        for start in range(0, contexts.batch_size, chunk_size):
            part = slice(start, start + chunk_size)
            context, target = contexts[part], targets[part]
            if isinstance(model, DANP):
                predictive: LowRankNormal | Mixture = model.predict(
                    context,
                    target.x,
                    num_samples=num_samples,
                    generator=for_samples,
                    chunk_size=chunk_size,
                )
                passes += target.batch_size * (1 + model.num_levels * num_samples)
            else:
                predictive = model.predict(context, target.x)
                passes += target.batch_size
            values[row] += predictive.log_prob(target.y).sum()
    return RolloutLogProb(values, passes)


@torch.no_grad()
def ar_sample(
    model: ConvNP | DANP,
    context: PointSet,
    xt: Tensor,
    *,
    num_samples: int,
    generator: torch.Generator,
    chunk_size: int = 256,
) -> RolloutSamples:
    """Joint samples of the targets, each value fed back before the next is drawn.

    Every sample visits the targets in a random order of its own. A DANP draws one auxiliary set for
    each value, which makes the value a sample of its mixture with infinitely many components.

    Args:
        model: The model.
        context: Context sets.
        xt: Target inputs, ``(batch, targets, 1)``.
        num_samples: Number of samples of each set.
        generator: Source of randomness.
        chunk_size: Number of samples computed at a time; it bounds the memory only.

    Raises:
        ValueError: If a number is below 1 or the model cannot take the context or the inputs.
    """
    _check_positive(num_samples=num_samples, chunk_size=chunk_size)
    model.core.check([("context", context)], xt)
    batch = max(context.batch_size, len(xt))
    context, xt = context.expand(batch), xt.expand(batch, -1, -1)
    rows = []
    for row in range(batch):
        # Streams that every chunk reads on in, so that the chunk size changes nothing.
        streams = spawn(generator, 2 + 2 * xt.shape[1])
        parts = [
            _sample(model, context[row].expand(count), xt[row].expand(count, -1, -1), streams)
            for count in chunks(num_samples, chunk_size)
        ]
        rows.append(torch.cat(parts))
    levels = model.num_levels if isinstance(model, DANP) else 0
    passes = num_samples * batch * xt.shape[1] * (1 + levels)
    return RolloutSamples(torch.stack(rows, dim=1), passes)


def _growing(task: Task, generator: torch.Generator) -> tuple[PointSet, PointSet]:
    """One task as a batch, the k-th with k targets in its context and the next as its target."""
    target = task.target
    count = target.num_points
    order = torch.randperm(count, device=generator.device, generator=generator)
    x, y = target.x[0, order], target.y[0, order]
    known = torch.ones(count, count, dtype=torch.bool, device=x.device).tril(-1)
    fed_back = PointSet(x.expand(count, -1, -1), y.expand(count, -1, -1), known)
    contexts = task.context.compact().expand(count).concat(fed_back)
    return contexts, PointSet(x.unsqueeze(1), y.unsqueeze(1))


def _sample(
    model: ConvNP | DANP, context: PointSet, xt: Tensor, streams: Sequence[torch.Generator]
) -> Tensor:
    """One sample a row, ``(rows, targets, 1)``."""
    count, num_targets = xt.shape[:2]
    for_order, for_values, *for_levels = streams
    f64 = torch.float64
    order = one_by_one(torch.rand, count, (num_targets,), generator=for_order, dtype=f64).argsort(1)
    eps = one_by_one(torch.randn, count, (num_targets, 1), generator=for_values, dtype=f64)
    rows = torch.arange(count, device=xt.device)
    values = torch.zeros_like(xt)
    for step in range(num_targets):
        chosen = order[:, step]
        x = xt[rows, chosen].unsqueeze(1)
        if isinstance(model, DANP):
            predictive = _denoise(model, context, x, *for_levels[2 * step : 2 * step + 2])
        else:
            predictive = model.forward_unchecked(context, x)
        y = (predictive.mean + predictive.stddev * eps[:, step : step + 1]).to(xt.dtype)
        values[rows, chosen] = y.squeeze(1)
        context = context.concat(PointSet(x, y))
    return values


def _denoise(
    model: DANP,
    context: PointSet,
    xt: Tensor,
    for_inputs: torch.Generator,
    for_noise: torch.Generator,
) -> LowRankNormal:
    """The predictive at the targets given one auxiliary sample for each context of a batch."""
    count = context.batch_size
    inputs = model.draw_inputs(count, generator=for_inputs, dtype=xt.dtype)
    noise = model.draw_noise(count, model.config.num_auxiliary, generator=for_noise)
    empty = PointSet.empty(count, dim_x=xt.shape[-1], dtype=xt.dtype, device=xt.device)
    sets = [empty for _ in inputs]
    for level in range(model.num_levels, 0, -1):
        x = inputs[level - 1]
        predictive = model.forward_unchecked(context, sets, x, level)
        sets[level - 1] = PointSet(x, predictive.transform(noise[level - 1]).to(x.dtype))
    return model.forward_unchecked(context, sets, xt, 0)


def _check_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}.")
