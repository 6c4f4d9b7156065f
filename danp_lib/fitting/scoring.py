"""Scores on functions that a model has not seen, in the units of the data."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from danp_lib._config import Seed, check_kind, checked
from danp_lib.data.observations import Observations
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.scores import crps, in_central_interval
from danp_lib.evaluation.score import mean_and_ci95
from danp_lib.fitting.fitted import Fitted, HeldOutScore, Season
from danp_lib.fitting.records import Records, read_records, warn, windows_of
from danp_lib.models.base import NeuralProcess, Predictive
from danp_lib.models.contexts import unchecked_contexts

Predict = Callable[[Task], Predictive]

MOST_SCORED = 300
TASKS_PER_FUNCTION = 2
SCORING_SAMPLES = 128


def score_records(
    fitted: Fitted,
    data: Any,
    *,
    x: str | None = None,
    y: str | None = None,
    group: str | None = None,
    seed: int = 0,
) -> HeldOutScore:
    """Score a fitted model on further records, by tasks such as it was trained on.

    The table is one that :func:`~danp_lib.fitting.fit.fit` takes, of functions that were not in the
    training; columns that are not named are those of the training. Series are cut into windows that
    do not overlap. Points off the model's domain are left out, and functions with few points have
    smaller contexts, if the others are fewer than 300; a
    :class:`~danp_lib.fitting.records.RecordsWarning` says so, and where functions have the names,
    written alike, of some that were trained on, as far as the model's file keeps them. Raises a
    ``ValueError`` if the model is not of records, a cell cannot be read, or no input is in the
    model's domain.
    """
    check_kind(Fitted, fitted=fitted)
    checked(Seed, seed, "seed")
    said, layout = fitted.provenance, fitted.layout
    if "fit" not in said:
        raise ValueError(
            f"the model must have been trained on records, got a {fitted.model.name} that was not."
        )
    columns: Any = {"x": x or layout.x, "y": y or layout.y, "group": group or layout.group}
    table = read_records(data, **columns, own_start=layout.own_start)
    if table.layout.dates != layout.dates:
        kind = "dates" if layout.dates else "numbers"
        raise ValueError(f"the column {columns['x']!r} must hold {kind}, as in training.")
    layout.warn_of_zone(bool(table.layout.zoned), "the records")
    again = set(table.names.tolist()) & set(said.get("functions", {}).get("trained_on_names", ()))
    if again:
        warn(
            f"functions with the name of one trained on: {len(again)} of {len(table)}, such as "
            f"{min(again)}; the score is too good if they are the same."
        )
    if layout.width is not None:
        longer = " The width is that of the training; give longer records."
        table = windows_of(table, layout.width, stride=layout.width, advice=longer)
    batch = said["training"]["batch"]
    sizes = {"max_context": batch["context_size"][1], "num_targets": batch["num_targets"]}
    points = table.functions
    inside = points.mask & fitted.takes(points.x, 0.0)
    if not inside.any():
        hint = ""
        if layout.dates and not layout.relative:
            hint = " A model for other dates must be trained by own_start (--own-start)."
        raise ValueError(f"{columns['x']} must {fitted.rule}, but none of the records does.{hint}")
    if off := int((points.mask & ~inside).sum()):
        warn(f"points off the model's domain were left out: {off} of {int(points.mask.sum())}.")
        table = replace(table, functions=PointSet(points.x, points.y, inside).blanked())
    functions = usable(table, fitted.season, sizes["num_targets"], fixed=True)
    needed = sum(sizes.values())
    if short := int((functions.sizes < needed).sum()):
        warn(
            f"functions with fewer than {needed} points have smaller contexts, and come last of "
            f"{MOST_SCORED} at most: {short} of {functions.batch_size}."
        )
    return score_models(
        {"own": partial(predict_as_used, fitted.model)},
        Observations(table=fitted.scaling.apply(functions).blanked(), order=said["fit"]["tasks"]),
        **sizes,
        y_unit=fitted.scaling.y_unit,
        generator=torch.Generator().manual_seed(seed),
    )["own"]


def usable(part: Records, season: Season | None, needed: int, *, fixed: bool = False) -> PointSet:
    """The functions with enough points, without the season; a ``ValueError`` if there is none.

    A number that is ``fixed``, that of a trained model's targets, is not advised to be smaller.
    """
    enough = part.functions.sizes >= needed
    if not enough.any():
        what = "a context and its targets; give a smaller max_context or num_targets, or a larger"
        what = "the targets, as in training; give longer records" if fixed else f"{what} width"
        raise ValueError(f"no function has the {needed} points of {what}.")
    if short := int((~enough).sum()):
        message = f"functions with fewer than {needed} points were left out: {short} of"
        many = 4 * short > len(enough) and not fixed
        hint = " A smaller max_context or num_targets keeps more of them." if many else ""
        warn(f"{message} {len(enough)}.{hint}")
    kept = part[enough]
    return kept.functions if season is None else season.remove(kept.functions, kept.absolute_inputs)


@unchecked_contexts()
def predict_as_used(model: NeuralProcess, task: Task) -> Predictive:
    """A model's prediction as a user gets it; the same one every time."""
    generator = torch.Generator().manual_seed(0)
    return model.predict(task.context, task.xt, num_samples=SCORING_SAMPLES, generator=generator)


def score_models(
    predictors: Mapping[str, Predict],
    functions: Observations,
    *,
    max_context: int,
    num_targets: int,
    y_unit: float,
    generator: torch.Generator,
) -> dict[str, HeldOutScore]:
    """Scores of all on the same tasks: some of every function, or of :data:`MOST_SCORED` of them.

    Functions with too few points for the largest context come last, with as large a one as they
    can have. The functions are in the models' units, and ``y_unit`` is the data's length of such a
    unit.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in predictors}
    table = functions.functions
    short = table.sizes < max_context + num_targets
    kinds = (kind.nonzero().flatten() for kind in (~short, short))
    # An order is drawn once the one before is used up, so that no task depends on what comes later.
    orders = (kind[torch.randperm(len(kind), generator=generator)].tolist() for kind in kinds)
    for row in islice(chain.from_iterable(orders), MOST_SCORED):
        task = Observations(table=table[row], order=functions.order).sample_task(
            TASKS_PER_FUNCTION,
            context_size=(0, min(max_context, int(table.sizes[row]) - num_targets)),
            num_targets=num_targets,
            generator=generator,
        )
        for name, predict in predictors.items():
            predictive, y = predict(task), task.yt.double()
            density = predictive.log_prob(y) / num_targets - math.log(y_unit)
            inside = [in_central_interval(predictive, y, level) for level in (0.5, 0.9)]
            values = [density, y_unit * crps(predictive, y), *inside]
            found[name].append(torch.stack([value.double().mean() for value in values]))
    stacked = {name: torch.stack(each) for name, each in found.items()}
    first = next(iter(stacked.values()))[:, 0]
    scores = {}
    for name, rows in stacked.items():
        likelihood, behind = mean_and_ci95(rows[:, 0]), mean_and_ci95(first - rows[:, 0])
        mean_crps, in_50, in_90 = rows[:, 1:].mean(dim=0).tolist()
        scores[name] = HeldOutScore(len(rows), *likelihood, mean_crps, in_50, in_90, *behind)
    return scores
