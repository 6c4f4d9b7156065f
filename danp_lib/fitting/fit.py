"""Train a model on one's own records and score it on those held out, in one call."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from danp_lib._config import Limit, PositiveInt, Seed, naming, to_dict
from danp_lib._random import spawn
from danp_lib.data.noising import Beta, NoiseSchedule
from danp_lib.data.observations import Observations
from danp_lib.data.scaling import Scaling
from danp_lib.fitting import records
from danp_lib.fitting.fitted import Fitted, Season
from danp_lib.fitting.gaussian_process import FittedGaussianProcess
from danp_lib.fitting.scoring import Predict, predict_as_used, score_models, usable
from danp_lib.models.base import NeuralProcess
from danp_lib.models.contexts import TrainingContexts
from danp_lib.models.convnp import ConvNPConfig
from danp_lib.models.danp import DEFENSIVE_WEIGHT, DANPConfig
from danp_lib.storage.origin import versions
from danp_lib.training.config import TrainingConfig
from danp_lib.training.loop import train
from danp_lib.training.objective import BatchConfig
from danp_lib.training.recipes import build_model

FEW_FUNCTIONS = 50
_MOST_TARGETS, _MOST_CONTEXT = 50, 30  # those of the paper's tasks
_FINEST = 64  # grid points per unit, as in the paper
_FEWEST_CELLS = 8  # of the grid, that a function should span
_SHARE_KEPT = 0.9  # of the functions, for which sizes are chosen
_SHORT = 0.25  # of the dates of all, below which those of one are no window on all
_DRIFT = 1.5  # standard deviations
_YEARS = " A plain number counts in years; durations such as '48h' are understood, too."
_MOST_ENTRIES = 5_000_000  # of all windows, which overlap; about half a gigabyte
_ROUNDING = 1e-9  # of outputs without a season, as a share of their range
_MOST_LETTERS = 10_000  # of the names that a model's file keeps

Model = Literal["danp", "convgnp", "convcnp"]
Rival = Literal["convgnp", "gp"]
Tasks = Literal["random", "forecast"]


@dataclass(frozen=True)
class FitConfig(records.Columns):
    """What :func:`fit` is told beside the columns; one series needs a ``width``."""

    #: Take out a cycle of this period, and put it back when predicting.
    period: records.Length | None = None
    model: Model = "danp"
    num_levels: PositiveInt | None = None  #: F of a DANP; 2 if left out.
    #: Noise variance of its last level, where the outputs have variance 1; 0.3 if left out.
    final_variance: Beta | None = None
    #: Targets lie among the context (``"random"``), or come after it (``"forecast"``).
    tasks: Tasks = "random"
    #: Most points of a context, in training and in use; chosen where left out, as ``num_targets``.
    max_context: PositiveInt | None = None
    num_targets: PositiveInt | None = None
    #: Fraction of the functions, or of the points of each series, to hold out.
    held_out: Annotated[float, Limit("> 0 and < 1", lambda value: 0 < value < 1)] = 0.2
    #: How it is chosen; see :func:`~danp_lib.fitting.records.divide`. If left out, by group where
    #: there are groups, else by time. What is drawn at random depends on the seed, and on the order
    #: in which the functions first appear in the table.
    hold_out_by: records.HoldOutBy | None = None
    #: Models to score on the same tasks, ``"convgnp"``, trained alike, and ``"gp"``, a Gaussian
    #: process fitted to the same functions.
    compare: tuple[Rival, ...] = ("convgnp", "gp")
    num_steps: PositiveInt = 6000
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual in (("num_levels", 2), ("final_variance", 0.3)):
            if self.model == "danp":
                object.__setattr__(self, name, getattr(self, name) or usual)
            elif given := getattr(self, name):
                option = " (--levels)" if name == "num_levels" else ""
                raise ValueError(
                    f"{name}{option} is for a danp: a {self.model} has no levels, got {given}."
                )
        if self.width is None and self.division != "group":
            why = f"hold_out_by {self.division!r} divides series that are cut into windows"
            way = "leave hold_out_by out"
            if self.group is None:
                why = "without a group all rows are one series"
                way = "name the column that tells functions apart as group"
            raise ValueError(f"{why}: give the width of a window, such as 2.5 or '48h', or {way}.")

    @property
    def division(self) -> records.HoldOutBy:
        """By what functions are held out."""
        return self.hold_out_by or ("time" if self.group is None else "group")


def fit(
    data: Any,
    *,
    x: str = "x",
    y: str = "y",
    group: str | None = None,
    own_start: bool = False,
    width: float | str | None = None,
    period: float | str | None = None,
    model: Model = "danp",
    num_levels: int | None = None,
    final_variance: float | None = None,
    tasks: Tasks = "random",
    max_context: int | None = None,
    num_targets: int | None = None,
    held_out: float = 0.2,
    hold_out_by: records.HoldOutBy | None = None,
    compare: Sequence[Rival] = ("convgnp", "gp"),
    num_steps: int = 6000,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Fitted:
    """Train a model on functions in a long table, and score it on functions that it has not seen.

    The table, a CSV file with a header or a pandas DataFrame, has a row for each measurement. A
    :class:`~danp_lib.fitting.records.RecordsWarning` says where rows were left out, sorted or
    averaged. The options are explained at :class:`~danp_lib.fitting.records.Columns` and
    :class:`FitConfig`, but for two: with a ``folder`` to keep the run in, the same call resumes it
    after an :class:`Interrupted`, and ``progress`` is shown in training.
    """
    given = locals()
    config = FitConfig(**{field.name: given[field.name] for field in fields(FitConfig)})
    place = None if folder is None else Path(folder)
    for_division, for_scores, for_process = spawn(torch.Generator().manual_seed(config.seed), 3)
    data = _read(data, config, for_division)
    built = _trained(config.model, data, place, progress)
    built.training_contexts = TrainingContexts.measure(
        built, data.seen, (0, data.max_context), num_targets=data.num_targets
    )
    rivals = _rivals(data, place, progress, for_process)
    provenance = {
        "fit": to_dict(config),
        "training": to_dict(data.run),
        "functions": {
            "trained_on": data.seen.functions.batch_size,
            "held_out": data.unseen.functions.batch_size,
            "by": config.division,
            **data.names,
        },
        **versions(),
    }
    scores = score_models(
        {config.model: partial(predict_as_used, built), **rivals},
        data.unseen,
        max_context=data.max_context,
        num_targets=data.num_targets,
        y_unit=data.scaling.y_unit,
        generator=for_scores,
    )
    return Fitted(built, data.scaling, data.layout, data.season, scores, provenance)


@dataclass(frozen=True)
class _Data:
    """Records, ready to train on: tasks in the model's units, of those seen and those held out."""

    config: FitConfig
    layout: records.Layout
    season: Season | None
    scaling: Scaling
    max_context: int
    num_targets: int
    names: dict[str, list[str]]
    seen: Observations
    unseen: Observations

    def architecture(self, model: str) -> ConvNPConfig | DANPConfig:
        """A model for these data, of two grid points per spacing of the inputs or 64 per unit."""
        halvings = math.ceil(math.log2(2.0 / self.seen.spacing()))
        base = ConvNPConfig(
            points_per_unit=min(max(2**halvings, 8), _FINEST),
            channels=32,
            num_layers=4,
            rank=0 if model == "convcnp" else min(64, self.num_targets),
            head_channels=64,
        )
        if model != "danp":
            return base
        levels, variance = self.config.num_levels, self.config.final_variance
        assert levels is not None
        assert variance is not None
        return DANPConfig(
            base=base,
            num_levels=levels,
            beta=NoiseSchedule.from_final_variance(variance, num_levels=levels).beta,
            num_auxiliary=self.num_targets,
            defensive_weight=DEFENSIVE_WEIGHT,
        )

    @property
    def run(self) -> TrainingConfig:
        """How a model is trained on them."""
        steps = self.config.num_steps
        return TrainingConfig(
            num_steps=steps,
            batch=BatchConfig(
                batch_size=32,
                context_size=(0, self.max_context),
                num_targets=self.num_targets,
                clean_fraction=0.5,
            ),
            schedule="quadratic",
            warmup_steps=min(200, steps // 10),
            jitter=1e-2,
            jitter_steps=steps // 4,
            jitter_schedule="geometric",
            muon_weight_decay=0.1,
            seed=self.config.seed,
        )


def _read(data: Any, config: FitConfig, generator: torch.Generator) -> _Data:
    columns = {name: getattr(config, name) for name in ("x", "y", "group", "own_start")}
    table = records.read_records(data, **columns)
    seen, unseen = records.divide(table, config.held_out, config.division, generator=generator)
    period = table.layout.in_units_of_x(config.period, "period")
    width = table.layout.in_units_of_x(config.width, "width")
    apart = seen.functions
    if width is not None:
        advice = _YEARS if seen.layout.dates and not isinstance(config.width, str) else ""
        with naming("in what is trained on"):
            apart = records.windows_of(seen, width, stride=width, advice=advice).functions
        points = apart.x.shape[1]
        if (every := math.ceil(int(seen.functions.mask.sum()) * points / _MOST_ENTRIES)) > 1:
            records.warn(
                f"windows start about {every} points apart, since all would take too much memory."
            )
        stride = every * width / points if every > 1 else None
        seen = records.windows_of(seen, width, stride=stride, quiet=True)  # said above
    season = None
    if period is not None:
        real = seen.functions.mask
        x, y = seen.absolute_inputs[real].flatten(), seen.functions.y[real].flatten()
        season = Season.fit(x, y, period)
    context, targets = _sizes(apart.sizes, config)
    tables = [usable(seen, season, context + targets)]
    if (count := int((apart.sizes >= context + targets).sum())) < FEW_FUNCTIONS:
        once = "" if width is None else ", windows that overlap counted once"
        records.warn(
            f"only {count} functions to train on{once}: a network may memorize them, so compare "
            "with the Gaussian process."
        )
    with naming(f"in what is held out, a fraction {config.held_out}"):
        if width is not None:
            unseen = records.windows_of(unseen, width, stride=width)
        tables.append(usable(unseen, season, context + targets))
    rest, later = (table.y[table.mask] for table in tables)
    if config.division != "group" and abs(later.mean() - rest.mean()) > _DRIFT * rest.std():
        records.warn(
            f"outputs drift: their mean is {later.mean():.4g} in what is held out, and "
            f"{rest.mean():.4g} in what is trained on; take the trend out before."
        )
    if season is not None and not rest.std() > _ROUNDING * (y.max() - y.min()):
        raise ValueError(
            f"y must differ from a cycle of period {season.period}, for there to be something to "
            "model, but nothing is left without it; leave period out."
        )
    if width is not None:
        x_range = (0.0, width)
    else:  # from the least to the largest of all, for what is held out to be in the domain
        x = torch.cat([table.x[table.mask].flatten() for table in tables])
        x_range = (float(x.min()), float(x.max()))
    scaling = Scaling.fit(tables[0], x_range=x_range)
    tasks = [Observations(table=scaling.apply(t).blanked(), order=config.tasks) for t in tables]
    if not config.relative:
        _warn_of_short_functions(tasks[0], dates=seen.layout.dates)
    used = [part[part.functions.sizes >= context + targets] for part in (seen, unseen)]
    names = _names(*used) if config.division == "group" else {}
    return _Data(config, seen.layout, season, scaling, context, targets, names, *tasks)


def _names(seen: records.Records, unseen: records.Records) -> dict[str, list[str]]:
    """The names of the records in each part, but for those too many to be kept in a file."""
    parts = {"trained_on_names": seen.names, "held_out_names": unseen.names}
    once = {key: list(dict.fromkeys(names.tolist())) for key, names in parts.items()}
    return {key: names for key, names in once.items() if sum(map(len, names)) <= _MOST_LETTERS}


def _warn_of_short_functions(tasks: Observations, *, dates: bool) -> None:
    """Warn where a function spans so little of all inputs that these should not be absolute."""
    span, whole = tasks.span(), tasks.box.width[0]
    spanned = f"the inputs of a function span {100.0 * span / whole:.2g} % of those of all"
    counted = "count them from each function's own first one, by own_start (--own-start)"
    if span * _FINEST < _FEWEST_CELLS:
        records.warn(f"{spanned}, too little for a model's grid; {counted}.")
    elif dates and span < _SHORT * whole:
        records.warn(
            f"{spanned}, so those of other dates will be off the model's domain; {counted}, or "
            "give a column such as the day of the year."
        )


class Interrupted(Exception):
    """Training was stopped by Ctrl-C or a termination signal."""


def _trained(name: str, data: _Data, folder: Path | None, progress: bool) -> NeuralProcess:
    model = build_model(name, data.architecture(name), seed=data.config.seed)
    history = train(model, data.seen, data.run, folder=folder, progress=progress)
    if history[-1]["step"] < data.run.num_steps:
        kept = (
            "the same call goes on" if folder else "nothing was kept; give a folder to go on later"
        )
        raise Interrupted(f"training was stopped; {kept}.")
    return model


def _rivals(
    data: _Data, folder: Path | None, progress: bool, generator: torch.Generator
) -> dict[str, Predict]:
    """What the model is compared with, trained on or fitted to the same functions."""
    predictors: dict[str, Predict] = {}
    if "convgnp" in data.config.compare and data.config.model != "convgnp":
        network = _trained("convgnp", data, folder and folder / "convgnp", progress)
        predictors["convgnp"] = partial(predict_as_used, network)
    if "gp" in data.config.compare:
        process = FittedGaussianProcess.fit(
            data.seen.functions,
            own_mean=data.config.width is None,
            scaled=True,
            generator=generator,
        )
        predictors["gp"] = lambda task: process.predict(task.context, task.xt)
    return predictors


def _sizes(sizes: Tensor, config: FitConfig) -> tuple[int, int]:
    """The largest context and the number of targets, for which most functions have the points."""
    context, targets = config.max_context, config.num_targets
    sizes = sizes[sizes > 1] if (sizes > 1).any() else sizes  # one point is no task
    points = int(sizes.sort().values[len(sizes) - math.ceil(_SHARE_KEPT * len(sizes))])
    if targets is None:
        targets = min(_MOST_TARGETS, points // 2 if context is None else points - context)
    if context is None:
        context = min(_MOST_CONTEXT, points - targets)
    if min(context, targets) < 1:
        raise ValueError(
            f"functions must hold enough points for context and targets, {max(context, 1)} + "
            f"{max(targets, 1)}, but most hold {points}; give fewer, or a larger width."
        )
    of_both = ((context, config.max_context), (targets, config.num_targets))
    if any(given is None and number < 2 for number, given in of_both):
        more = "functions with more points" if config.width is None else "a larger width"
        for name in ("max_context", "num_targets"):
            if (getattr(config, name) or 0) > 1:
                more = f"a smaller {name}"
        records.warn(
            f"most functions hold {points} points, so little is learned with a max_context of "
            f"{context} and a num_targets of {targets}; give {more}, or both numbers."
        )
    return context, targets
