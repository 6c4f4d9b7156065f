"""A model that was trained on one's own records, in the units of the data, season and all."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from danp_lib._config import (
    Configuration,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    check_kind,
    from_dict,
    naming,
    to_dict,
)
from danp_lib.data.observations import stack
from danp_lib.data.points import PointSet
from danp_lib.data.scaling import IDENTITY, Scaling, affine
from danp_lib.fitting.records import Layout, warn
from danp_lib.models.base import NeuralProcess, Predictive
from danp_lib.models.contexts import ContextWarning
from danp_lib.storage import checkpoint

NUM_HARMONICS = 4
LEAST_OF_A_CYCLE = 0.75  # that inputs must span; the harmonics run wild where there are none


@dataclass(frozen=True)
class Season(Configuration):
    r"""A mean that repeats, :math:`c_0 + \sum_k a_k \cos 2\pi k x / T + b_k \sin 2\pi k x / T`."""

    period: PositiveFloat  #: T, in units of x.
    coefficients: tuple[float, ...]  #: :math:`c_0, a_1, \dots, a_K, b_1, \dots, b_K`.

    @classmethod
    def fit(cls, x: Tensor, y: Tensor, period: float) -> Season:
        """The least-squares fit to points ``(points,)``, those to train on and no others."""
        blank = cls(period, (0.0,) * (1 + 2 * NUM_HARMONICS))
        if (span := float(x.max() - x.min())) < LEAST_OF_A_CYCLE * period:
            raise ValueError(
                "period must be one of which the inputs to train on span most, since nothing is "
                f"known of the rest, got {period} for inputs that span {span:g}."
            )
        waves = blank._waves(x)
        if int(torch.linalg.matrix_rank(waves)) < waves.shape[1]:
            raise ValueError(
                f"period must be one in which the inputs lie at {waves.shape[1]} different places "
                f"or more, got {period}; take the mean out yourself."
            )
        # The last digits of the solution differ from call to call, and a run goes on with the same
        # data alone. So ten digits of the largest coefficient are kept, once a constant is out.
        center = math.fsum(y.tolist()) / len(y)
        rest = (y.double() - center).unsqueeze(-1)
        solution = torch.linalg.lstsq(waves, rest).solution.flatten().tolist()
        step = 2.0 ** (math.frexp(max(map(abs, solution)))[1] - 34)
        constant, *others = (round(value / step) * step for value in solution)
        return cls(period, (center + constant, *others))

    def mean(self, x: Tensor) -> Tensor:
        """The mean at inputs of any shape."""
        waves = self._waves(x)
        return waves @ waves.new_tensor(self.coefficients)

    def remove(self, points: PointSet, x: Tensor) -> PointSet:
        """Points without their season, given the inputs in the table, ``(*batch, points, 1)``."""
        return PointSet(points.x.double(), points.y.double() - self.mean(x), points.mask)

    def _waves(self, x: Tensor) -> Tensor:
        """``(*shape, 1 + 2 K)``."""
        orders = torch.arange(1, (len(self.coefficients) + 1) // 2, device=x.device).double()
        angle = 2.0 * math.pi * x.double().unsqueeze(-1) / self.period * orders
        return torch.cat([torch.ones_like(angle[..., :1]), angle.cos(), angle.sin()], dim=-1)


@dataclass(frozen=True)
class HeldOutScore(Configuration):
    """How well a model, as it is used, predicts functions held out, in the data's units."""

    num_functions: PositiveInt
    log_likelihood: float  #: Mean log-density per target in nats.
    #: 1.96 standard errors of it over the functions; ``None`` for one.
    log_likelihood_ci95: NonNegativeFloat | None
    crps: NonNegativeFloat
    coverage_50: NonNegativeFloat  #: Share of the targets in the central 50 % interval.
    coverage_90: NonNegativeFloat  #: Likewise in the central 90 % interval.
    #: How much lower the log-likelihood is than the fitted model's on these functions.
    behind: float = 0.0
    behind_ci95: NonNegativeFloat | None = 0.0


@dataclass(frozen=True, repr=False)
class Fitted:
    """What :func:`~danp_lib.fitting.fit.fit` returns, and how it was made.

    The model has its own units, which ``scaling`` and ``season`` take those of the data to. Scores
    are by model: this one first, then those compared with it. Where whole functions were held out,
    ``provenance["functions"]`` has ``held_out_names`` and ``trained_on_names``, as far as they are
    not too many to be kept.
    """

    model: NeuralProcess
    scaling: Scaling = IDENTITY
    layout: Layout = field(default_factory=Layout)
    season: Season | None = None
    scores: dict[str, HeldOutScore] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        columns = ", ".join(filter(None, (self.layout.x, self.layout.y, self.layout.group)))
        nats = (f"{name} {score.log_likelihood:.3f}" for name, score in self.scores.items())
        held_out = f", nats per target held out: {', '.join(nats)}" if self.scores else ""
        return f"Fitted({self.model.name}, columns {columns}, inputs {self.rule}{held_out})"

    def predict(
        self,
        context: PointSet,
        x: Tensor,
        *,
        start: float | None = None,
        num_samples: int = 256,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """The joint predictive of the outputs of each function, in the units of the data.

        Inputs are ``(points,)`` or ``(functions, points, 1)``, and the context, which may be empty,
        is ``(functions, points, 1)``. Where the inputs were dates, they are in years, 1970 plus the
        days since then / 365.2425. A model whose inputs count from the start of a function, as
        by ``own_start`` or ``width``, takes ``start`` for it; where that is left out, the earliest
        input given or asked for, so that the prediction depends on what else is asked for. Where
        left out, the generator is a new one of seed 0. As by ``predict_table``, outputs at equal
        inputs of a function's context are averaged if the model was trained on one's own records,
        as they were in its training, and otherwise kept; see :meth:`known`.
        """
        check_kind(Tensor, x=x)
        check_kind(PointSet, context=context)
        x = x.reshape(1, -1, 1) if x.ndim == 1 else x
        sizes = {context.batch_size, *x.shape[:1]}
        if x.ndim != 3 or len(sizes - {1}) > 1 or 0 in sizes:
            raise ValueError(
                "x must have shape (points,) or (functions, points, 1), for as many functions as "
                f"the context or for 1, got {tuple(x.shape)} with {context.batch_size} contexts."
            )
        self._check_precision(x=x, **{"context.x": context.x[context.mask]})
        batch = max(context.batch_size, len(x))
        context = self.known(context.to(torch.float64)).expand(batch)
        x = x.double().expand(batch, -1, -1)
        origin = self.start(context, x, start)
        self.check_domain("context.x", context.x, origin, context.mask)
        self.check_domain("x", x, origin)
        self.warn_of_order(context, x)
        scaled, xt = self.to_model(context, origin), self.scaling.inputs(x - origin)
        generator = torch.Generator(x.device).manual_seed(0) if generator is None else generator
        predictive = self.model.predict(scaled, xt, num_samples=num_samples, generator=generator)
        return self.to_data(predictive, x)

    def known(self, context: PointSet, source: str = "context") -> PointSet:
        """A context ``(functions, points, 1)``, with each input once if it was so in training.

        That is where the model was trained on one's own records: outputs at equal inputs of a
        function become their mean, where the first stood. A
        :class:`~danp_lib.fitting.records.RecordsWarning` that names the source says that they were
        averaged, or kept.
        """
        merged = _averaged(context)
        if not (repeated := int((context.sizes - merged.sizes).sum())):
            return context
        done = "averaged, as in training" if self.scores else "kept"
        warn(f"{source}: points at the input of another were {done}: {repeated}.")
        return merged if self.scores else context

    def start(self, context: PointSet, x: Tensor, start: float | None = None) -> Tensor | float:
        """The input that a model's inputs count from, of each function, ``(functions, 1, 1)``."""
        if not self.layout.relative:
            if start is not None:
                raise ValueError(
                    "start is for a model whose inputs count from the start of a function; this "
                    f"one's do not, got {start}."
                )
            return 0.0
        if start is not None:
            return start
        known = context.x.masked_fill(~context.mask.unsqueeze(-1), float("inf"))
        inputs = torch.cat([known, x], dim=1)
        return inputs.amin(dim=1, keepdim=True) if inputs.shape[1] else 0.0

    def _check_precision(self, **inputs: Tensor) -> None:
        """Refuse inputs whose rounding moves them by a tenth of a cell of the model's grid."""
        finest = float(torch.tensor(self.scaling.x_unit).min())
        cell = finest * (self.model.grid_spacing or 1e-3 * min(self.model.domain.width))
        for name, x in inputs.items():
            if x.is_complex() or x.dtype == torch.bool:
                raise ValueError(f"{name} must hold real numbers, got {x.dtype}.")
            # What is off the domain, or infinite, is refused for that.
            if not x.is_floating_point() or x.dtype == torch.float64 or not x.numel():
                continue
            largest = float(x.abs().max())
            step = torch.finfo(x.dtype).eps * largest
            if 0.1 * cell < step < math.inf:
                raise ValueError(
                    f"{name} must be in float64: {x.dtype} tells inputs near {largest:g} apart "
                    f"by {step:.2g} only, and the model by {cell:.2g}."
                )

    def takes(self, x: Tensor, start: Tensor | float) -> Tensor:
        """Which inputs ``(functions, points, 1)``, in the units of the data, the domain holds."""
        return self.model.domain.contains(self.scaling.inputs(x - start))

    def check_domain(
        self, name: str, x: Tensor, start: Tensor | float, mask: Tensor | bool = True
    ) -> None:
        """Refuse inputs that :meth:`takes` says are off the domain, where the mask is true."""
        if len(off := x[~self.takes(x, start) & mask]):
            raise ValueError(f"{name} must {self.rule}, got {off[0].tolist()}.")

    @property
    def rule(self) -> str:
        """What inputs must do, in words and in the units of the data."""
        since = " from the start of their function on" if self.layout.relative else ""
        domain = self.scaling.data_domain(self.model.domain)
        shown = self.layout.in_words(domain.ends[0]) if self.layout.dates else str(domain)
        return f"lie in the model's domain {shown}{since}"

    def warn_of_order(self, context: PointSet, x: Tensor) -> None:
        """Warn where a model that was trained to forecast is asked for what lies before."""
        if self.provenance.get("fit", {}).get("tasks") != "forecast" or not context.mask.any():
            return
        latest = context.x.masked_fill(~context.mask.unsqueeze(-1), -float("inf")).amax(dim=1)
        if count := int((x < latest.unsqueeze(1)).sum()):
            warn(
                f"the model was trained to predict what follows the context, but {count} of the "
                "inputs asked for lie before its last point.",
                ContextWarning,
            )

    def to_model(self, points: PointSet, start: Tensor | float = 0.0) -> PointSet:
        """Points in the model's units, without their season."""
        if self.season is not None:
            points = self.season.remove(points, points.x)
        return self.scaling.apply(PointSet(points.x - start, points.y, points.mask)).blanked()

    def to_data(self, predictive: Predictive, x: Tensor) -> Predictive:
        """A model's predictive in the units of the data, with the season at the inputs ``x``."""
        scaled = self.scaling.predictive(predictive)
        return scaled if self.season is None else affine(scaled, self.season.mean(x))

    def outputs(self, y: Tensor, x: Tensor) -> Tensor:
        """A model's outputs in the units of the data, with the season at the inputs ``x``."""
        scaled = self.scaling.outputs(y)
        return scaled if self.season is None else scaled + self.season.mean(x)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint that :func:`load_fitted` and ``danp predict`` read."""
        fields = {
            **self.provenance,
            "scaling": to_dict(self.scaling),
            "layout": to_dict(self.layout),
            "season": None if self.season is None else to_dict(self.season),
            "held_out": {name: to_dict(score) for name, score in self.scores.items()},
        }
        checkpoint.save_checkpoint(path, self.model, provenance=fields)


def _averaged(points: PointSet) -> PointSet:
    """Sets with each input once, where it first was, and the mean of the outputs there."""
    parts = []
    for own in (points[row].compact() for row in range(points.batch_size)):
        x, y = own.x[0], own.y[0]
        _, place, counts = x.unique(dim=0, return_inverse=True, return_counts=True)
        means = y.new_zeros(len(counts), 1).index_add(0, place, y) / counts.unsqueeze(1)
        first = place.argsort(stable=True)[counts.cumsum(0) - counts].sort().values
        parts.append(PointSet(x[first].unsqueeze(0), means[place[first]].unsqueeze(0)))
    return stack(parts) if parts else points


def load_fitted(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Fitted:
    """A fitted model from its checkpoint; any other checkpoint is one of the default layout."""
    model = checkpoint.load_checkpoint(path, device=device)
    said = dict(checkpoint.read_header(path).provenance)
    kinds: dict[str, type[Any]] = {"scaling": Scaling, "layout": Layout, "season": Season}
    stored = {key: value for key in kinds if (value := said.pop(key, None))}
    said.pop("contexts", None)  # which the model has
    # JSON has sorted the names; the model itself comes first.
    with naming(path, checkpoint.CheckpointError):
        check_kind(dict, held_out=(scored := said.pop("held_out", None) or {}))
        check_kind(dict, fit=said.get("fit") or {})
        scores = sorted(scored.items(), key=lambda s: s[0] != model.name)
        own = {key: from_dict(kinds[key], value, name=key) for key, value in stored.items()}
        held_out = {k: from_dict(HeldOutScore, v, name=f"held_out.{k}") for k, v in scores}
    return Fitted(model, scores=held_out, provenance=said, **own)
