r"""Three estimators of a DANP's likelihood :math:`p_\theta(y_0 \mid D_c)` (paper, Equation 2).

The likelihood is an integral over the auxiliary sets. The paper samples them from the model. At
small contexts hardly any such sample lands near the truth, and 50,000 of them are not enough.
Instead, one can noise the true function forward, which always lands near the truth, and weight each
sample by :math:`p_\theta(D_a \mid D_c) / q(D_a)`. Half of the samples from either source, weighted
by the balance heuristic (Veach and Guibas, 1995), serve at every context size. All three are
unbiased for the likelihood, so that their logarithms are lower bounds in expectation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from danp_lib._random import spawn
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.models.convnp import ConvNP
from danp_lib.models.danp import DANP, AuxiliaryInputs
from danp_lib.models.denoising import chunks

Estimator = Literal["model", "noising", "both"]


@dataclass(frozen=True)
class LogLikelihood:
    r"""Log-likelihoods of a batch of tasks.

    Attributes:
        values: Joint log-densities of the targets in nats, not divided by their number,
            ``(batch,)``.
        effective_sample_size: :math:`(\sum w)^2 / \sum w^2` over a task's samples, ``(batch,)``;
            1 where nothing is sampled.
        forward_passes: Passes of one task through the U-Net, summed over the tasks.
    """

    values: Tensor
    effective_sample_size: Tensor
    forward_passes: int


def log_likelihood(
    model: ConvNP | DANP,
    task: Task,
    *,
    estimator: Estimator = "both",
    num_samples: int = 256,
    auxiliary_inputs: AuxiliaryInputs | None = None,
    generator: torch.Generator,
    chunk_size: int = 256,
) -> LogLikelihood:
    """Log-likelihood of each task's targets given its context.

    A ConvCNP and a ConvGNP give it in one pass, whatever the estimator. A DANP is given
    ``num_samples`` auxiliary sets a task, half of them from either source for ``"both"``.

    Args:
        model: The model.
        task: The tasks; their pool is where ``"noising"`` and ``"both"`` read the true function.
        estimator: ``"model"`` (the paper's), ``"noising"`` or ``"both"``.
        num_samples: S, the number of samples a task.
        auxiliary_inputs: ``"uniform"`` or ``"target"``. Left out, they are uniform unless the
            estimator needs the true function and the tasks have no pool.
        generator: Source of randomness.
        chunk_size: Number of samples computed at a time; it bounds the memory and changes nothing.

    Raises:
        ValueError: If an argument is not one of its choices, a target or a point of the pool is
            masked or not finite, the pool is missing or too small, or the model cannot take the
            tasks.
    """
    _check(model, task, estimator, num_samples, auxiliary_inputs, chunk_size)
    if isinstance(model, ConvNP):
        exact = model.predict(task.context, task.xt).log_prob(task.yt)
        return LogLikelihood(exact, torch.ones_like(exact), task.batch_size)
    inputs = _resolve(model, task, estimator, auxiliary_inputs)
    model.core.check([("context", task.context), ("target", task.target)], task.xt)
    values: list[Tensor] = []
    sizes: list[Tensor] = []
    passes = 0
    for row in range(task.batch_size):
        terms = _log_weights(
            model, task[row], estimator, num_samples, inputs, generator, chunk_size
        )
        values.append(log_mean(terms))
        sizes.append(effective_sample_size(terms))
        passes += 1 + model.num_levels * len(terms)
    return LogLikelihood(torch.stack(values), torch.stack(sizes), passes)


def log_weights(
    model: DANP,
    task: Task,
    *,
    estimator: Estimator = "both",
    num_samples: int = 256,
    auxiliary_inputs: AuxiliaryInputs | None = None,
    generator: torch.Generator,
    chunk_size: int = 256,
) -> Tensor:
    """The logarithms of the terms whose mean estimates the likelihood of one task.

    With the same seed, fewer samples are the first ones of more, an even number of them for
    ``"both"``: one run gives the estimates of all smaller S.

    Args:
        model: The model.
        task: One task.
        estimator: As in :func:`log_likelihood`.
        num_samples: The number of samples S.
        auxiliary_inputs: As in :func:`log_likelihood`.
        generator: Source of randomness.
        chunk_size: Number of samples computed at a time; it bounds the memory and changes nothing.

    Returns:
        ``(samples,)``; one term where the model has no levels, since nothing is sampled.

    Raises:
        ValueError: As :func:`log_likelihood`, or if there is more than one task.
    """
    if task.batch_size != 1:
        raise ValueError(f"task must be a batch of one, got {task.batch_size}.")
    _check(model, task, estimator, num_samples, auxiliary_inputs, chunk_size)
    inputs = _resolve(model, task, estimator, auxiliary_inputs)
    model.core.check([("context", task.context), ("target", task.target)], task.xt)
    return _log_weights(model, task, estimator, num_samples, inputs, generator, chunk_size)


def log_mean(log_weights: Tensor) -> Tensor:
    """The logarithm of the mean of weights ``(samples,)``: the estimate of the log-likelihood."""
    return log_weights.logsumexp(0) - math.log(len(log_weights))


def effective_sample_size(log_weights: Tensor) -> Tensor:
    r"""The :math:`(\sum w)^2 / \sum w^2` of weights ``(samples,)``."""
    return (2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)).exp()


@torch.no_grad()
def _log_weights(
    model: DANP,
    task: Task,
    estimator: Estimator,
    num_samples: int,
    inputs: AuxiliaryInputs,
    generator: torch.Generator,
    chunk_size: int,
) -> Tensor:
    """The logarithms of the terms whose mean is the likelihood of one task, ``(samples,)``."""
    if model.num_levels == 0:
        return model.predict(task.context, task.xt, generator=generator).log_prob(task.yt)
    prepared = model.prepare(task.context)
    for_inputs, for_noise, for_noising = spawn(generator, 3)
    parts: list[Tensor] = []
    for count in chunks(num_samples, chunk_size):
        start = sum(map(len, parts))
        if inputs == "target":
            clean = (task.target.expand(count),) * model.num_levels
        elif estimator == "model":
            xs = model.draw_inputs(count, generator=for_inputs, dtype=task.xt.dtype)
            clean = tuple(PointSet(x, torch.full_like(x, math.nan)) for x in xs)
        else:
            clean = _draw_from_pool(model, task, count, for_inputs)
        num_points = clean[0].num_points
        own = model.draw_noise(count, num_points, generator=for_noise)
        forward = model.draw_noise(count, num_points, generator=for_noising)
        noised = _noise(model, clean, forward)
        # The sources alternate, so that the share of each does not depend on the chunk size.
        odd = torch.arange(start, start + count, device=task.xt.device)[:, None, None] % 2 == 1
        use_noised = {"model": odd & False, "noising": odd | True, "both": odd}[estimator]

        choose = partial(_choose, own=own, noised=noised, use_noised=use_noised)
        denoised = model.denoise(prepared, [c.x for c in clean], choose, task.xt)
        log_weight = denoised.target.log_prob(task.yt)
        if estimator != "model":
            log_p = denoised.auxiliary_log_prob()
            log_q = _noising_log_prob(model, clean, denoised.auxiliary)
            if estimator == "noising":
                log_proposal = log_q
            else:
                share = (num_samples // 2) / num_samples
                log_proposal = torch.logaddexp(math.log1p(-share) + log_p, math.log(share) + log_q)
            log_weight = log_weight + log_p - log_proposal
        parts.append(log_weight)
    return torch.cat(parts)


def _choose(
    level: int,
    predictive: LowRankNormal,
    *,
    own: Sequence[Tensor],
    noised: Sequence[Tensor],
    use_noised: Tensor,
) -> Tensor:
    """The values that each sample goes on with: noised ones, or a sample of the predictive."""
    return torch.where(use_noised, noised[level - 1], predictive.transform(own[level - 1]))


def _draw_from_pool(
    model: DANP, task: Task, count: int, generator: torch.Generator
) -> tuple[PointSet, ...]:
    """Clean points for the levels 1 to F, different ones of the pool within a sample."""
    assert task.pool is not None
    size = model.config.num_auxiliary
    order = torch.stack(
        [
            torch.randperm(task.pool.num_points, device=generator.device, generator=generator)
            for _ in range(count)
        ]
    )
    return tuple(
        PointSet(task.pool.x[0, index], task.pool.y[0, index])
        for index in order[:, : size * model.num_levels].split(size, dim=1)
    )


def _noise(model: DANP, clean: Sequence[PointSet], eps: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The closed-form noising of clean points with given normal numbers, in the points' dtype."""
    schedule = model.schedule
    return tuple(
        schedule.signal(f) * c.y + math.sqrt(schedule.variance(f)) * e[:, : c.num_points].to(c.y)
        for f, (c, e) in enumerate(zip(clean, eps, strict=True), start=1)
    )


def _noising_log_prob(
    model: DANP, clean: Sequence[PointSet], auxiliary: Sequence[PointSet]
) -> Tensor:
    """Log q(D_a): each level is noised from the clean values on its own, ``(samples,)``."""
    terms = [
        model.schedule.log_prob(a.y.double(), c.y.double(), f).sum(dim=(1, 2))
        for f, (c, a) in enumerate(zip(clean, auxiliary, strict=True), start=1)
    ]
    return torch.stack(terms).sum(dim=0)


def _check(
    model: ConvNP | DANP,
    task: Task,
    estimator: str,
    num_samples: int,
    auxiliary_inputs: str | None,
    chunk_size: int,
) -> None:
    """Refuse arguments that are none of the choices, and tasks that no result can be made of."""
    if estimator not in ("model", "noising", "both"):
        raise ValueError(f"estimator must be 'model', 'noising' or 'both', got {estimator!r}.")
    if auxiliary_inputs not in (None, "uniform", "target"):
        raise ValueError(
            f"auxiliary_inputs must be 'uniform' or 'target', got {auxiliary_inputs!r}."
        )
    least = 2 if estimator == "both" and isinstance(model, DANP) else 1
    if num_samples < least or chunk_size < 1:
        raise ValueError(
            f"num_samples must be >= {least} and chunk_size >= 1, got {num_samples} and "
            f"{chunk_size}."
        )
    task.check()


def _resolve(
    model: DANP, task: Task, estimator: str, auxiliary_inputs: str | None
) -> AuxiliaryInputs:
    """Settle where the auxiliary inputs lie, and refuse a pool that does not serve for it."""
    if estimator == "model":
        return "target" if auxiliary_inputs == "target" else "uniform"
    if auxiliary_inputs == "target" or (auxiliary_inputs is None and task.pool is None):
        return "target"
    needed = model.config.num_auxiliary * model.num_levels
    pool = PointSet.empty(dim_x=task.xt.shape[-1]) if task.pool is None else task.pool
    if pool.num_points < needed:
        raise ValueError(
            f"estimator {estimator!r} with uniform auxiliary inputs needs a pool of at least "
            f"{needed} points of the true function, got {pool.num_points}; "
            "pass auxiliary_inputs='target' where the function is unknown off the targets."
        )
    if needed > 0:  # without levels nothing is drawn from it
        model.core.check([("pool", pool)], task.xt)
    return "uniform"
