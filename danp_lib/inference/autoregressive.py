"""Autoregressive rollout: predict one target, add it to the context, predict the next.

By the chain rule, a model with Gaussian predictives gets a richer joint distribution (Bruinsma et
al., 2023), but one that depends on the order of the targets, and costs a forward pass for every
target (paper, Sections 1 and 3).
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from danp_lib._config import check_at_least, check_kind
from danp_lib._random import draw_rows, spawn
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.mixture import Mixture
from danp_lib.exact.base import Oracle
from danp_lib.exact.waves import WaveOracle
from danp_lib.models.base import NeuralProcess
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.models.danp import DANP, ancestral, chunks


@dataclass(frozen=True, eq=False)
class Rollout:
    """The result of a rollout."""

    #: Joint log-densities of the targets in nats, not divided by their number, ``(batch,)``, or
    #: joint samples, ``(samples, batch, targets, 1)``.
    values: Tensor
    forward_passes: int  #: Passes of one set of points through the U-Net, in all.


@torch.no_grad()
@unchecked_contexts()
def ar_log_prob(
    model: NeuralProcess | Oracle,
    task: Task,
    *,
    generator: torch.Generator,
    num_samples: int = 256,
    outward: bool = False,
    halved: bool = False,
    chunk_size: int = 256,
) -> Rollout:
    r"""Log-likelihood of each task's targets by the chain rule.

    With :math:`\pi` an order of the targets, one per task, this is

    .. math::
        \sum_k \log p(y_{\pi_k} \mid x_{\pi_k}, D_c \cup \{(x_{\pi_j}, y_{\pi_j})\}_{j<k}) .

    The order is random; or it leads ``outward``, by the distance from a random target, so that the
    targets known already lie on one stretch of the inputs and each is predicted beside it. Neither
    depends on a value, so both give densities.

    With a DANP each term is the log-density of its mixture over S samples, ``num_samples``. If S is
    ``halved``, that is where no point is known, and half as many each time the number n of known
    points, plus one, doubles: :math:`S / 2^{\lfloor \log_2(1 + n) \rfloor}`, but one at least. The
    fewer points are known, the more the samples differ. Where a DANP is defended, the steps share
    the weight of the defensive component: :math:`\delta / N_t` each, so that a task costs no more
    than :math:`-\log(1 - \delta)` nats, as in one prediction. The contexts, or the samples, are
    computed ``chunk_size`` at a time. An exact predictive takes no passes.
    """
    check_model(model)
    check_kind(Task, task=task)
    task.check()
    check_at_least(1, num_samples=num_samples, chunk_size=chunk_size)
    defended = False
    if isinstance(model, DANP) and model.config.defensive_weight > 0.0:
        defended = True
        weight = model.config.defensive_weight / max(1, task.target.num_points)
        model = copy.copy(model)
        model.config = replace(model.config, defensive_weight=weight)
    values = torch.zeros(task.batch_size, dtype=torch.float64, device=task.xt.device)
    # Two streams, so that one seed means the same orders for every model.
    for_orders, for_samples = spawn(generator, 2)
    passes = 0
    for row in range(task.batch_size):
        order = draw_order(task.xt[row], outward=outward, generator=for_orders)
        contexts, targets = growing_contexts(task[row], order)
        for count, part in _parts(contexts, num_samples, halved, chunk_size):
            context, target = contexts[part], targets[part]
            if isinstance(model, Oracle):
                terms = model.log_prob(context, target)
            else:
                sizes = {"num_samples": count, "chunk_size": chunk_size}
                predictive = model.predict(context, target.x, generator=for_samples, **sizes)
                terms = predictive.log_prob(target.y)
                # The defensive component is one more pass.
                passes += context.batch_size * (1 + model.num_levels * count + defended)
            values[row] += terms.sum()
    return Rollout(values, passes)


@torch.no_grad()
@unchecked_contexts()
def ar_sample(
    model: NeuralProcess | Oracle,
    context: PointSet,
    xt: Tensor,
    *,
    num_samples: int,
    generator: torch.Generator,
    outward: bool = False,
    chunk_size: int = 256,
) -> Rollout:
    """Joint samples of the targets: every value is added to the context before the next is drawn.

    ``num_samples`` are drawn of each set, ``chunk_size`` at a time, each with the targets
    ``(batch, targets, 1)`` in an order of its own, random or ``outward``; see :func:`ar_log_prob`.
    A DANP draws one auxiliary sample for each value, as if its mixture had infinitely many
    components, all of one weight; the defensive component is left out. An exact predictive takes a
    context for each set of inputs, and no passes; that of waves is refused, since its samples lie
    off every wave. Contexts are not checked; see
    :meth:`~danp_lib.models.base.NeuralProcess.check_context`.
    """
    check_model(model)
    check_at_least(1, num_samples=num_samples, chunk_size=chunk_size)
    if isinstance(model, WaveOracle):
        raise ValueError(
            "model must take noisy values into its context, as samples are, got a "
            f"{type(model).__name__}; draw joint samples from its predict(context, xt) instead."
        )
    if isinstance(model, Oracle):
        model.check_inputs(context, xt)
    else:
        model.check({"context": context}, xt=xt)
    batch = max(context.batch_size, len(xt))
    context, xt = context.expand(batch), xt.expand(batch, -1, -1)
    rows = []
    for row in range(batch):
        known, x = context[row], xt[row]
        # All chunks read on in the same streams, so that the chunk size changes nothing.
        streams = spawn(generator, 2 + 2 * xt.shape[1])
        parts = [
            _sample(model, known.expand(count), x.expand(count, -1, -1), outward, streams)
            for count in chunks(num_samples, chunk_size)
        ]
        rows.append(torch.cat(parts))
    passes = 0 if isinstance(model, Oracle) else 1 + model.num_levels
    return Rollout(torch.stack(rows, dim=1), num_samples * batch * xt.shape[1] * passes)


def check_model(model: object) -> None:
    """Refuse what is neither a model nor an exact predictive."""
    if not isinstance(model, Oracle):
        check_kind(NeuralProcess, model=model)


def draw_order(xt: Tensor, *, outward: bool, generator: torch.Generator) -> Tensor:
    """An order ``(targets,)`` of targets ``(targets, dim)``; see :func:`ar_log_prob`."""
    order = torch.randperm(len(xt), device=generator.device, generator=generator)
    return _by_distance(xt[None], order[None])[0] if outward else order


def growing_contexts(task: Task, order: Tensor) -> tuple[PointSet, PointSet]:
    """One task as a batch, the k-th with k targets in its context and the next as its target.

    The task is a batch of one; the ``order`` says which target comes first, second, and so on,
    ``(targets,)``.
    """
    count = len(order)
    x, y = task.xt[0, order], task.yt[0, order]
    known = torch.ones(count, count, dtype=torch.bool, device=x.device).tril(-1)
    earlier = PointSet(x.expand(count, -1, -1), y.expand(count, -1, -1), known)
    contexts = task.context.compact().expand(count).concat(earlier)
    return contexts, PointSet(x.unsqueeze(1), y.unsqueeze(1))


def _by_distance(xt: Tensor, order: Tensor) -> Tensor:
    """Orders ``(rows, targets)`` by the distance from their first target; ties as they were."""
    order = order.to(xt.device)
    x = xt[torch.arange(len(xt), device=xt.device)[:, None], order]
    distance = (x - x[:, :1]).square().sum(dim=-1)
    return order.gather(1, distance.argsort(dim=1, stable=True))


def _parts(
    contexts: PointSet, num_samples: int, halved: bool, chunk_size: int
) -> Iterator[tuple[int, slice]]:
    """Rows of growing contexts, at most ``chunk_size``, with the number of samples of each."""
    known = contexts.sizes.tolist()
    counts = [max(1, num_samples >> int(1 + n).bit_length() - 1) for n in known]
    start = 0
    for count, same in groupby(counts if halved else [num_samples] * len(known)):
        for size in chunks(len(list(same)), chunk_size):
            yield count, slice(start, start + size)
            start += size


def _sample(
    model: NeuralProcess | Oracle,
    context: PointSet,
    xt: Tensor,
    outward: bool,
    streams: Sequence[torch.Generator],
) -> Tensor:
    """One sample per row, ``(rows, targets, 1)``."""
    count, num_targets = xt.shape[:2]
    for_order, for_values, *for_levels = streams
    f64 = torch.float64
    order = draw_rows(torch.rand, count, (num_targets,), generator=for_order, dtype=f64).argsort(1)
    if outward:
        order = _by_distance(xt, order)
    eps = draw_rows(torch.randn, count, (num_targets, 1), generator=for_values, dtype=f64)
    rows = torch.arange(count, device=xt.device)
    values = xt.new_zeros(count, num_targets, 1)
    for step in range(num_targets):
        chosen = order[:, step]
        x = xt[rows, chosen].unsqueeze(1)
        if isinstance(model, Oracle):
            predictive = model.predict(context, x)
        elif isinstance(model, DANP):
            for_inputs, for_noise = for_levels[2 * step : 2 * step + 2]
            inputs = model.draw_inputs(count, generator=for_inputs, dtype=xt.dtype)
            noise = model.draw_noise(count, model.config.num_auxiliary, generator=for_noise)
            predictive = model.denoise(model.encode(context), inputs, ancestral(noise)).at(x)
        else:
            predictive = model.predict(context, x, num_samples=1, generator=for_levels[2 * step])
        normal = eps[:, step : step + 1]
        if isinstance(predictive, Mixture):
            y = predictive.icdf(torch.special.ndtr(normal)).to(xt.dtype)
        else:
            y = (predictive.mean + predictive.stddev * normal).to(xt.dtype)
        values[rows, chosen] = y.squeeze(1)
        context = context.concat(PointSet(x, y))
    return values
