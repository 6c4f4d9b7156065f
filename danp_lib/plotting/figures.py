"""The paper's figures, drawn from arrays, point sets and distributions.

Functions of several panels return the figure. Those of one draw on ``ax``; where it may be left
out, they return it. Point sets and distributions are batches of one, or have no batch. A predictive
is of the outputs at ``x``, inputs in any order; ``truth`` is inputs and outputs of the true
function; ``y_range`` is the lowest and the highest output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from danp_lib._config import check_at_least
from danp_lib.data.noising import AugmentedTask
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.plotting import style as look
from danp_lib.plotting.style import as_row, axes, level_style, model_style
from danp_lib.plotting.style import style as style

Curve = tuple[ArrayLike, ArrayLike, ArrayLike]
"""Context sizes, average likelihoods and the half-widths of their 95 % intervals."""


def plot_points(
    ax: Axes, points: PointSet, label: str, *, level: int | None = None, size: float = 5.0
) -> None:
    """Draw one set's real points, as context or as points of a level."""
    color, marker = (look.INK, "o") if level is None else level_style(level)
    if points.batch_size != 1:
        raise ValueError(f"a plot takes one set, got a batch of {points.batch_size}; index it.")
    real = points.compact()
    x, y = as_row(real.x, "x"), as_row(real.y, "y")
    order = 4 if level is None else 3
    ax.plot(x, y, marker, color=color, label=label, ms=size, mec="white", mew=0.4, zorder=order)


def _line(ax: Axes, x: Tensor | ArrayLike, y: Tensor | ArrayLike, **style: Any) -> None:
    xs, order = _sorted(x)
    ax.plot(xs, _as_ordered(y, "y", order), **style)


def _sorted(x: Tensor | ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """One row of inputs in ascending order, and what sorts the outputs like them."""
    xs = as_row(x, "x")
    order = np.argsort(xs, kind="stable")
    return xs[order], order


def _as_ordered(values: Tensor | ArrayLike, name: str, order: NDArray[Any]) -> NDArray[Any]:
    row = as_row(values, name)
    if len(row) != len(order):
        raise ValueError(
            f"{name} must have a value for each of {len(order)} inputs, got {len(row)}."
        )
    return row[order]


def _legend_above(ax: Axes, columns: int = 4) -> None:
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


@style()
def plot_augmented_task(
    task: AugmentedTask, *, truth: tuple[Tensor, Tensor] | None = None, ax: Axes | None = None
) -> Axes:
    """An augmented task, its context and all its levels (paper, Figure 1)."""
    ax = axes(ax, 3.6)
    if truth is not None:
        _line(ax, *truth, color=look.GREY, lw=1.0, ls="--", label="true function", zorder=1)
    for level in reversed(range(len(task.levels))):
        label = f"level {level}" if level else "level 0 (targets)"
        plot_points(ax, task.levels[level], label, level=level)
    plot_points(ax, task.context, "context")
    ax.set(xlabel="input $x$", ylabel="output $y$")
    _legend_above(ax, 5)
    return ax


@style()
def plot_prediction(
    context: PointSet,
    x: Tensor,
    predictive: LowRankNormal | Mixture,
    *,
    color: str = level_style(0)[0],
    ax: Axes | None = None,
) -> Axes:
    """A predictive: its median, and its central 50 % and 90 % bands.

    There is no mean, since a few stray components can pull that away from all else.
    """
    ax = axes(ax)
    xs, order = _sorted(x)
    for share in (0.9, 0.5):
        low, high = (
            _as_ordered(predictive.quantile(0.5 + side * share), "predictive", order)
            for side in (-0.5, 0.5)
        )
        label = f"central {100 * share:.0f} %"
        ax.fill_between(xs, low, high, color=color, alpha=0.7 - 0.5 * share, label=label, lw=0)
    _line(ax, x, predictive.quantile(0.5), color=color, label="median")
    plot_points(ax, context, "context")
    ax.set(xlabel="input $x$", ylabel="output $y$")
    _legend_above(ax, 3)
    return ax


def plot_density(
    ax: Axes,
    x: Tensor,
    predictive: LowRankNormal | Mixture,
    *,
    y_range: tuple[float, float],
    color: str = level_style(0)[0],
    num_bins: int = 60,
) -> None:
    """Shade how probable each output is at each input, by the square root to show faint parts.

    A bin that holds half of the probability, or more, has the full color.
    """
    xs, order = _sorted(x)
    edges = np.linspace(*y_range, num_bins + 1)
    below = np.stack([_as_ordered(predictive.cdf(edge), "predictive", order) for edge in edges])
    ax.pcolormesh(
        xs,
        (edges[1:] + edges[:-1]) / 2,
        np.sqrt(np.diff(below, axis=0).clip(0.0)),
        cmap=LinearSegmentedColormap.from_list("density", ["white", color], 24),
        vmin=0.0,
        vmax=math.sqrt(0.5),
        shading="nearest",
        rasterized=True,
    )
    ax.grid(visible=False)
    ax.set(ylim=y_range)


@style()
def plot_level_predictives(
    context: PointSet,
    x: Tensor,
    predictives: Sequence[Mixture],
    *,
    exact: LowRankNormal | Mixture,
    exact_x: Tensor | None = None,
    y_range: tuple[float, float],
    truth: tuple[Tensor, Tensor] | None = None,
    samples: tuple[int, int] = (0, 1),
) -> Figure:
    """The predictives of the levels 0 to F and the exact one (paper, Figures 3, 6 and 8).

    Panels go from the noisiest level to the exact posterior, all on one scale of the square root of
    a bin's probability, from white at 0 to full gray at 1. A component of a mixture belongs to a
    sample of the noisier levels; the means of two, by their places ``samples``, are drawn as lines.
    The exact one may be given at inputs of its own, ``exact_x``: steep and narrow, it needs closer
    ones.
    """
    shown: list[tuple[LowRankNormal | Mixture, Tensor]]
    shown = [(level, x) for level in reversed(predictives)]
    shown.append((exact, x if exact_x is None else exact_x))
    rows = -(-len(shown) // 2)
    figure, grid = plt.subplots(
        rows, 2, figsize=(look.WIDTH, 2.7 * rows), sharex=True, sharey=True, squeeze=False
    )
    looks = (
        {"color": look.ORANGE, "lw": 2.0, "label": "a sample"},
        {"color": look.blend(look.ORANGE, "black", 0.6), "ls": "--", "lw": 1.4, "label": "another"},
    )
    for number, (ax, (predictive, inputs)) in enumerate(zip(grid.flat, shown, strict=False)):
        plot_density(ax, inputs, predictive, y_range=y_range, color=look.GREY, num_bins=40)
        ax.collections[0].set_clim(0.0, 1.0)
        level = len(predictives) - 1 - number
        if level >= 0:
            means = predictives[level].components.mean.flatten(end_dim=-3)
            for place, drawn in zip(samples, looks, strict=True):
                if place < len(means):
                    _line(ax, x, means[place], **drawn)
        elif truth is not None:
            _line(ax, *truth, color=look.INK, lw=1.2, ls=":", label="true function")
        ax.set(title=f"level {level}" if level >= 0 else "exact")
        plot_points(ax, context, "context")
        if number + 2 >= len(shown):  # nothing is below
            ax.set(xlabel="input $x$")
            ax.tick_params(labelbottom=True)
    for ax in grid.flat[len(shown) :]:
        ax.remove()
    for ax in grid[:, 0]:
        ax.set(ylabel="output $y$")
    entries: dict[str, Any] = {}
    for ax in (figure.axes[0], figure.axes[-1]):
        handles, labels = ax.get_legend_handles_labels()
        entries |= zip(labels, handles, strict=True)
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=4)
    return figure


def _curve(ax: Axes, curve: Curve, label: str, color: str, marker: str, dashes: str) -> None:
    x, y, error = (as_row(part, label) for part in curve)
    bars = None if np.isnan(error).all() else error  # so that the legend has none either
    looks: Any = {"color": color, "marker": marker, "ls": dashes, "ms": 4, "lw": 1.2}
    ax.errorbar(x, y, bars, label=label, capsize=2, **looks)
    ax.set(xlabel="context size $|\\mathcal{D}_c|$", ylabel="average likelihood (1/$y$)")


@style()
def plot_likelihood_against_context_size(
    curves: Mapping[str, Curve],
    *,
    oracle: tuple[ArrayLike, ArrayLike] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Average likelihoods of models and an oracle by context size (paper, Figures 4, 7 and 9)."""
    ax = axes(ax, 3.8)
    if oracle is not None:
        _line(ax, *oracle, color=look.GREY, lw=1.6, label="exact posterior")
    for number, (name, curve) in enumerate(curves.items()):
        _curve(ax, curve, *model_style(name, number))
    ax.set_ylim(bottom=0)
    _legend_above(ax, 5 if len(curves) < 5 else 3)
    return ax


@style()
def plot_num_samples(curves: Mapping[int, Curve], *, ax: Axes | None = None) -> Axes:
    """Average likelihoods by context size, darker for more samples S (paper, Figure 5)."""
    ax = axes(ax, 3.8)
    ramp = LinearSegmentedColormap.from_list("samples", look.SAMPLES)
    shades = ramp(np.linspace(0.0, 1.0, max(len(curves), 2)))
    for shade, marker, number in zip(shades, "o^sDvPX<>" * 9, sorted(curves), strict=False):
        _curve(ax, curves[number], f"$S$ = {number:,}", shade, marker, "-")
    _legend_above(ax, 3)
    return ax


@style()
def plot_cost(
    num_targets: ArrayLike,
    costs: Mapping[str, ArrayLike],
    *,
    unit: str,
    crossover: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Cost of a prediction against the number of targets, by name of the model.

    Lines of one model, as ``"danp, $S$ = 1"`` and ``"danp, $S$ = 256"``, share its color; all but
    the first have hollow markers. At the ``crossover`` two models cost the same.
    """
    ax = axes(ax)
    if crossover is not None:
        label = f"crossover at {crossover:,.0f}"
        ax.axvline(crossover, color=look.INK, lw=1.0, ls=":", label=label)
    positions: dict[str, int] = {}
    for name, cost in costs.items():
        model, comma, what = name.partition(",")
        fill = "white" if model in positions else None
        position = positions.setdefault(model, len(positions))
        label, color, marker, dashes = model_style(model, position)
        shape: dict[str, Any] = {"marker": marker, "ms": 5, "mfc": fill, "ls": dashes}
        _line(ax, num_targets, cost, color=color, label=label + comma + what, **shape)
    ax.set(xscale="log", yscale="log", xlabel="number of targets $N_t$", ylabel=unit)
    _legend_above(ax)
    return ax


@style()
def plot_architecture(num_levels: int, *, ax: Axes | None = None) -> Axes:
    """How a DANP denoises, one row per level from the noisiest to the clean one (paper, Figure 2).

    A row shows the F + 1 context channels that the one network gets, those of the levels that do
    not exist yet empty, and what it predicts; a sample of it fills a channel of the rows below.
    """
    check_at_least(0, num_levels=num_levels)
    ax = axes(ax, 0.6 + 0.85 * (num_levels + 1))
    column = [1.15 * (num_levels + 1 - f) for f in range(num_levels + 1)]
    network, output = column[0] + 0.45, column[0] + 2.6

    def box(x: float, y: float, text: str, *, width: float = 0.95, **kind: Any) -> None:
        corner, rounding = (x - width / 2, y - 0.26), "round,pad=0,rounding_size=0.1"
        ax.add_patch(FancyBboxPatch(corner, width, 0.52, boxstyle=rounding, **kind))
        ink = look.INK if sum(to_rgb(kind["fc"])) > 1.3 else "white"
        ax.text(x, y, text, color=ink, ha="center", va="center", fontsize=10.5)

    def arrow(*path: tuple[float, float], color: str = look.GREY) -> None:
        xs, ys = zip(*path[:-1], strict=True)
        ax.plot(xs, ys, color=color, lw=1.3, solid_joinstyle="round")
        head = {"arrowstyle": "-|>", "color": color, "lw": 1.3}
        ax.annotate("", path[-1], path[-2], arrowprops=head)

    for level in range(num_levels, -1, -1):
        y, color = -1.15 * (num_levels - level), level_style(level)[0]
        ax.text(-0.75, y, f"level {level}", ha="right", va="center", fontsize=10.5)
        box(0.0, y, "$\\mathcal{D}_c$", fc=look.INK, ec=look.INK)
        for f in range(num_levels, 0, -1):
            fill = level_style(f)[0]
            if f > level:
                box(column[f], y, f"$\\mathcal{{D}}_a^{f}$", fc=fill, ec=fill)
            else:
                box(column[f], y, "empty", fc="white", ec=look.GREY, ls="--")
        arrow((network - 0.92, y), (network - 0.5, y))
        box(network, y, "$p_\\theta$", fc=look.PALE, ec=look.INK)
        arrow((network + 0.5, y), (output - 0.95, y))
        made = f"$\\mathbf{{y}}_{level} \\mid \\mathbf{{x}}_{level}$"
        box(output, y, made, width=1.85, fc="white", ec=color, lw=1.8)
        if level:
            turn = y - 0.575
            corners = [(output, y - 0.26), (output, turn), (column[level], turn)]
            arrow(*corners, (column[level], y - 1.15 + 0.26), color=color)
    ax.set(xlim=(-1.9, output + 1.1), ylim=(-1.15 * num_levels - 0.5, 0.5), aspect="equal")
    ax.axis("off")
    return ax
