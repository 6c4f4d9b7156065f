r"""The likelihood of a task under any model, and the estimators of a DANP's (paper, Equation 2).

The likelihood :math:`p_\theta(y_0 \mid D_c)` of a DANP is an integral over the auxiliary sets. The
paper samples them from the model: ancestral samples. At small contexts hardly any of these is near
the truth, and 50,000 are not enough. Samples that noise the true function forward always are; each
gets the importance weight :math:`p_\theta(D_a \mid D_c) / q(D_a)`. Half of the samples come from
either proposal where the balance heuristic weights them (Veach and Guibas, 1995). This works at
every context size on sawtooth waves; on square waves few of the samples count, and the estimate can
be far too low. All three estimates are unbiased (where inputs come from a task's pool, on average
over pools), so that their logarithms are lower bounds in expectation. Where a model weights its
samples (:meth:`~danp_lib.models.danp.AuxiliarySamples.log_weight`), they are ratios of two
estimates, and forward-noised samples alone do not serve: all of them lie near the truth, so that
they cannot estimate the mean weight over the model's own samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from danp_lib._config import check_at_least, check_kind, checked
from danp_lib._random import spawn
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.mixture import Mixture
from danp_lib.exact.oracles import Oracle
from danp_lib.inference.autoregressive import ar_log_prob, check_model
from danp_lib.models.base import NeuralProcess, Predictive
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.models.danp import DANP, AuxiliaryInputs, Proposal, ancestral, chunks, log_mean

Estimator = Literal["model", "noising", "both"]
"""How a DANP's likelihood is estimated, by where the samples come from; see the module."""

Rollouts = Literal["autoregressive", "orders", "orders-halved", "outward", "orders-outward"]
"""How rollouts are scored, in one order or by the mean density over :data:`NUM_ORDERS`."""

NUM_ORDERS = 8
"""How many orders the estimators that are named for them average over."""


class RolloutRule(NamedTuple):
    """What a rollout's name stands for."""

    orders: int = 1  #: How many orders the density is averaged over.
    outward: bool = False  #: Whether they lead outward from a target; random ones otherwise.
    halved: bool = False  #: Whether a DANP has fewer samples the more points are known.


RULE_OF: dict[str, RolloutRule] = {
    "autoregressive": RolloutRule(),
    "orders": RolloutRule(NUM_ORDERS),
    "orders-halved": RolloutRule(NUM_ORDERS, halved=True),
    "outward": RolloutRule(outward=True),
    "orders-outward": RolloutRule(NUM_ORDERS, outward=True, halved=True),
}
"""The rule of each rollout."""


def num_orders(estimator: str) -> int:
    """How many orders an estimator averages over, 1 where it rolls nothing out."""
    return RULE_OF[estimator].orders if estimator in RULE_OF else 1


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """Log-likelihoods of a batch of tasks."""

    #: Joint log-densities of the targets in nats, not divided by their number, ``(batch,)``.
    values: Tensor
    #: :math:`(\sum w)^2 / \sum w^2` over a task's samples or orders, ``(batch,)``; 1 where nothing
    #: is sampled, NaN for the rollout of a DANP in one order, which samples every target.
    effective_sample_size: Tensor
    forward_passes: int  #: Passes of one set of points through the U-Net, summed over the tasks.
    estimator: str  #: ``"exact"`` (in closed form), a rollout's, or one of a DANP's.
    #: S, per task, in a rollout per target, or 1 where nothing is sampled; times the orders.
    num_samples: int


@unchecked_contexts()
def log_likelihood(
    model: NeuralProcess | Oracle,
    task: Task,
    *,
    estimator: Estimator | Rollouts = "both",
    num_samples: int = 256,
    auxiliary_inputs: AuxiliaryInputs | None = None,
    generator: torch.Generator | None = None,
    chunk_size: int = 256,
) -> LogLikelihood:
    """Log-likelihood of each task's targets given its context.

    Args:
        model: A model, or an exact predictive (:mod:`danp_lib.exact`).
        task: The tasks; ``"noising"`` and ``"both"`` read the function from their pool.
        estimator: Of a DANP, ``"model"`` (the paper's), ``"noising"`` or ``"both"``. A ConvCNP, a
            ConvGNP and an exact predictive need none, and an AR ConvCNP is rolled out, whatever
            is asked for; ``"autoregressive"`` rolls out the others too, in one random order.
            ``"outward"`` does so in one that leads outward from a target. ``"orders"`` takes the
            mean density over :data:`NUM_ORDERS`: an unbiased estimate of the density of a rollout's
            samples, each of which has an order of its own (of a DANP without a defensive component
            that does not weight its samples). ``"orders-halved"`` has fewer samples the more points
            are known, and ``"orders-outward"`` leads outward too.
        num_samples: S, the number of a DANP's samples: per task, or in a rollout per target, and
            where they are halved per target when no point is known; see :func:`.ar_log_prob`.
        auxiliary_inputs: ``"uniform"`` or ``"target"``. Left out, they are uniform unless the
            estimator needs the function and the tasks have no pool. In a rollout they are
            uniform whatever is asked for.
        generator: Source of randomness, which samples and a rollout need.
        chunk_size: Number of samples computed at a time; it bounds the memory and changes nothing.
    """
    check_model(model)
    checked(Estimator | Rollouts, estimator, "estimator")
    checked(AuxiliaryInputs | None, auxiliary_inputs, "auxiliary_inputs")
    check_at_least(1, num_samples=num_samples, chunk_size=chunk_size)
    check_kind(Task, task=task)
    task.check()
    if task.batch_size == 0:
        raise ValueError("task must hold at least one task, got a batch of 0.")
    sampled = model.is_sampled
    drawn = num_samples if sampled else 1
    rolled_out = estimator in RULE_OF or model.autoregressive
    if generator is None and (sampled or rolled_out):
        raise ValueError(
            "generator must be a torch.Generator, which samples and a rollout need, got None."
        )
    options: Any = {"num_samples": num_samples, "generator": generator, "chunk_size": chunk_size}
    used: str = estimator
    if rolled_out:
        # The first of several orders is that of one order alone with the same seed.
        used = estimator if estimator in RULE_OF else "autoregressive"
        orders, outward, halved = RULE_OF[used]
        options |= {"outward": outward, "halved": halved}
        rollouts = [ar_log_prob(model, task, **options) for _ in range(orders)]
        terms = torch.stack([rollout.values for rollout in rollouts], dim=1)
        passes, drawn = sum(rollout.forward_passes for rollout in rollouts), orders * drawn
    elif isinstance(model, Oracle):
        terms = model.log_prob(task.context, task.target).unsqueeze(1)
        passes, used = 0, "exact"
    elif not isinstance(model, DANP) or model.num_levels == 0:
        predictive = model.predict(task.context, task.xt, **options)
        terms = _terms(predictive, task.yt) if sampled else predictive.log_prob(task.yt)[:, None]
        passes, used = task.batch_size * drawn, "model" if sampled else "exact"
    else:
        options |= {"estimator": estimator, "auxiliary_inputs": auxiliary_inputs}
        rows = range(task.batch_size)
        terms = torch.stack([log_weights(model, task[row], **options) for row in rows])
        passes = task.batch_size * (1 + model.num_levels * num_samples)
    values = torch.stack([log_mean(row) for row in terms])
    if rolled_out and sampled and terms.shape[1] == 1:
        sizes = torch.full_like(values, math.nan)
    else:
        sizes = torch.stack([effective_sample_size(row) for row in terms])
    return LogLikelihood(values, sizes, passes, used, drawn)


def _terms(predictive: Predictive, y: Tensor) -> Tensor:
    """Log-densities whose mean density is that of the predictive, ``(batch, components)``."""
    if not isinstance(predictive, Mixture):
        return predictive.log_prob(y).unsqueeze(1)
    each = predictive.components.log_prob(y.unsqueeze(1))
    return each + predictive.logits + math.log(predictive.num_components)


@torch.no_grad()
@unchecked_contexts()
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
    """The logarithms of the terms whose mean estimates the likelihood of one task, ``(samples,)``.

    With the same seed, fewer samples are the first ones of more, an even number of them for
    ``"both"``: one run gives the estimates of all smaller S, but not of a model that weights its
    samples by the context, whose terms are relative to the mean weight. The arguments are those of
    :func:`log_likelihood`. A model without levels has one for each component of its prediction.
    """
    check_kind(NeuralProcess, model=model)
    check_kind(Task, task=task)
    if task.batch_size != 1:
        raise ValueError(f"task must be a batch of one, got {task.batch_size}.")
    checked(Estimator, estimator, "estimator")
    checked(AuxiliaryInputs | None, auxiliary_inputs, "auxiliary_inputs")
    check_at_least(1, num_samples=num_samples, chunk_size=chunk_size)
    task.check()
    if model.num_levels == 0:
        options: Any = {"num_samples": num_samples, "generator": generator}
        return _terms(model.predict(task.context, task.xt, **options), task.yt)[0]
    weighted = model.config.base.largest_noise > 0.0
    if weighted and estimator == "noising":
        raise ValueError(
            "estimator must be 'model' or 'both' for a model that infers the noise, whose "
            "samples are weighted by the context, got 'noising'."
        )
    if estimator == "both" and num_samples < 2:
        raise ValueError(f"num_samples must be >= 2 for estimator 'both', got {num_samples}.")
    inputs = _resolve(model, task, estimator, auxiliary_inputs)
    model.check({"context": task.context, "target": task.target}, xt=task.xt)
    encoded = model.encode(task.context)
    for_inputs, for_noise, for_noising = spawn(generator, 3)
    parts: list[Tensor] = []
    ratios: list[Tensor] = []
    for count in chunks(num_samples, chunk_size):
        clean = _clean_points(model, task, estimator, inputs, count, for_inputs)
        size = clean[0].num_points
        own, noise = (model.draw_noise(count, size, generator=g) for g in (for_noise, for_noising))
        # The proposals alternate, so that the share of each does not depend on the chunk size.
        first = sum(map(len, parts))
        odd = torch.arange(first, first + count, device=task.xt.device)[:, None, None] % 2 == 1
        forward = odd if estimator == "both" else torch.full_like(odd, estimator == "noising")
        proposal = _either(forward, _noised(model, clean, noise), ancestral(own))
        samples = model.denoise(encoded, [c.x for c in clean], proposal)
        log_ratio = samples.log_weight()
        if estimator != "model":
            log_p, log_q = samples.log_prob(), _log_noising(model, clean, samples.auxiliary)
            if estimator == "both":
                share = (num_samples // 2) / num_samples
                log_q = torch.logaddexp(math.log1p(-share) + log_p, math.log(share) + log_q)
            log_ratio = log_ratio + log_p - log_q
        ratios.append(log_ratio)
        parts.append(samples.at(task.xt).log_prob(task.yt) + log_ratio)
    weight, terms = model.config.defensive_weight, torch.cat(parts)
    if weighted:  # up to a constant only
        terms = terms - log_mean(torch.cat(ratios))
    if weight == 0.0:
        return terms
    # The defensive component's own likelihood is exact: every term has the same share of it.
    exact = model.defensive(encoded, task.xt).log_prob(task.yt)
    return torch.logaddexp(math.log1p(-weight) + terms, math.log(weight) + exact)


def effective_sample_size(log_weights: Tensor) -> Tensor:
    r"""The :math:`(\sum w)^2 / \sum w^2` of weights ``(samples,)``."""
    return (2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)).exp()


def _either(forward: Tensor, noised: Sequence[Tensor], own: Proposal) -> Proposal:
    """Forward-noised samples in some rows, those of another proposal in the others."""
    return lambda level, p: torch.where(forward, noised[level - 1], own(level, p))


def _clean_points(
    model: DANP, task: Task, estimator: str, inputs: str, count: int, generator: torch.Generator
) -> list[PointSet]:
    """The points of the levels 1 to F before their noise, NaN where no estimate needs them."""
    if inputs == "target":
        return [task.target.expand(count)] * model.num_levels
    if estimator == "model":
        xs = model.draw_inputs(count, generator=generator, dtype=task.xt.dtype)
        return [PointSet(x, x.new_full((*x.shape[:-1], 1), math.nan)) for x in xs]
    # Different points of the pool within a sample.
    assert task.pool is not None
    x, y, size = task.pool.x[0], task.pool.y[0], model.config.num_auxiliary
    draws: dict[str, Any] = {"device": generator.device, "generator": generator}
    order = torch.stack([torch.randperm(len(x), **draws) for _ in range(count)])
    chosen = order[:, : size * model.num_levels].split(size, dim=1)
    return [PointSet(x[index], y[index]) for index in chosen]


def _noised(model: DANP, clean: Sequence[PointSet], eps: Tensor) -> list[Tensor]:
    """The closed-form noising of clean points with given normal numbers, in the points' dtype."""
    schedule = model.schedule
    return [
        schedule.signal(f) * c.y + math.sqrt(schedule.variance(f)) * e[:, : c.num_points].to(c.y)
        for f, (c, e) in enumerate(zip(clean, eps, strict=True), start=1)
    ]


def _log_noising(model: DANP, clean: Sequence[PointSet], auxiliary: Sequence[PointSet]) -> Tensor:
    """Log q(D_a): each level is noised from the clean values on its own, ``(samples,)``."""
    terms = [
        model.schedule.log_prob(a.y.double(), c.y.double(), f).sum(dim=(1, 2))
        for f, (c, a) in enumerate(zip(clean, auxiliary, strict=True), start=1)
    ]
    return torch.stack(terms).sum(dim=0)


def _resolve(
    model: DANP, task: Task, estimator: str, auxiliary_inputs: AuxiliaryInputs | None
) -> AuxiliaryInputs:
    """Settle where the auxiliary inputs are, and refuse a pool that does not serve for it."""
    if estimator == "model":
        return auxiliary_inputs or "uniform"
    if auxiliary_inputs == "target" or (auxiliary_inputs is None and task.pool is None):
        return "target"
    needed = model.config.num_auxiliary * model.num_levels
    pool = PointSet.empty() if task.pool is None else task.pool
    if pool.num_points < needed:
        raise ValueError(
            f"estimator {estimator!r} with uniform auxiliary inputs needs a pool of at least "
            f"{needed} points of the function, got {pool.num_points}; where the function is "
            "unknown off the targets, leave the pool out, or pass auxiliary_inputs='target'."
        )
    model.check({"pool": pool})
    return "uniform"
