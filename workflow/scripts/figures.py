"""Draw the paper's figures of results, as PNG and SVG, from the files that the library wrote.

``python workflow/scripts/figures.py --results results --out reproduced`` draws every figure whose
results are there.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from danp_lib.evaluation.curves import Samples
from danp_lib.evaluation.results import CEILING, load_result, result_name
from danp_lib.evaluation.score import Evaluation, mean_and_ci95
from danp_lib.evaluation.table import ESTIMATOR_OF, FIGURE_OF
from danp_lib.plotting import figures as plotting
from danp_lib.plotting.style import WIDTH

TITLES = {"samples": "{} joint samples", "density": "density, $S$ = {}"}
"""What a row of panels of the costs shows, with a number of samples."""


def curve(scores: Iterable[tuple[int, float]]) -> plotting.Curve:
    """Context sizes, average likelihoods and the half-widths of their 95 % intervals.

    The scores are a task's context size and log-likelihood.
    """
    logs = defaultdict(list)
    for size, value in scores:
        logs[size].append(value)
    sizes = sorted(logs)
    points = [mean_and_ci95(torch.tensor(logs[size], dtype=torch.float64).exp()) for size in sizes]
    return sizes, [mean for mean, _ in points], [error or 0.0 for _, error in points]


def draw_likelihoods(results: Path, dataset: str) -> Figure | None:
    """Figures 4, 7 and 9: every model that there is a result of, and the ceiling."""
    curves = {}
    for model, estimator in ESTIMATOR_OF.items():
        path = results / result_name(f"{model}-{dataset}", estimator)
        if path.is_file():
            tasks = load_result(path, Evaluation).content.tasks
            curves[model] = curve((task.context_size, task.log_likelihood) for task in tasks)
    ceiling = curves.pop(CEILING, None)
    if not curves:
        return None
    oracle = None if ceiling is None else ceiling[:2]
    return figure_of(plotting.plot_likelihood_against_context_size(curves, oracle=oracle))


def draw_samples(results: Path) -> Figure | None:
    """Figure 5: the paper's estimator with more and more samples."""
    path = results / result_name("danp-sawtooth", "samples")
    if not path.is_file():
        return None
    curves: dict[int, plotting.Curve] = {}
    found = load_result(path, Samples).content.curves
    own = [curve for curve in found if curve.estimator == "model"]
    for place, number in enumerate(own[0].num_samples):
        curves[number] = curve((c.context_size, c.log_likelihood[place]) for c in own)
    return figure_of(plotting.plot_num_samples(curves))


@plotting.style()
def draw_cost(results: Path) -> Figure | None:
    """Passes and seconds of the AR ConvCNP and the DANP, of joint samples and of a density."""
    path = results / "cost.json"
    if not path.is_file():
        return None
    cost = json.loads(path.read_text(encoding="utf-8"))
    most = max(row["num_samples"] for row in cost["rows"])
    crossovers = [found for found in cost["crossovers"] if found["num_samples"] == most]
    figure, grid = plt.subplots(2, 2, figsize=(WIDTH, 6.0), sharex=True)
    for panels, found in zip(grid, crossovers, strict=True):
        which = (found["quantity"], most)
        rows = [row for row in cost["rows"] if (row["quantity"], row["num_samples"]) == which]
        for ax, unit in zip(panels, ("passes", "seconds"), strict=True):
            sides = {name: [of_side(row[name], unit) for row in rows] for name in cost["models"]}
            numbers = [row["num_targets"] for row in rows]
            plotting.plot_cost(numbers, sides, unit=unit, crossover=found[unit], ax=ax)
            ax.get_legend().remove()
            at = "" if found[unit] is None else f"; equal at $N_t$ = {found[unit]:,.0f}"
            ax.set_title(f"{TITLES[found['quantity']].format(most)}{at}", size=10)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    # The first line is where the costs are equal, elsewhere in each panel, as its title says.
    figure.legend(handles[-2:], labels[-2:], loc="outside upper left", ncols=2)
    return figure


def of_side(side: dict[str, Any] | None, unit: str) -> float:
    """The passes of a model in a row of the costs, or its median seconds; NaN if it has none."""
    if side is None:
        return math.nan
    return float(side["passes"] if unit == "passes" else side["seconds"]["median"])


def figure_of(ax: Axes) -> Figure:
    """The figure of a drawing that is alone in it."""
    figure = ax.figure
    assert isinstance(figure, Figure)
    return figure


def save(figure: Figure | None, path: Path) -> None:
    """Write a figure as PNG and SVG, if there is one."""
    if figure is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with plotting.style():
        for ending in ("png", "svg"):
            figure.savefig(path.with_suffix(f".{ending}"))
    plt.close(figure)
    print(path)


def main() -> None:
    """Draw what can be drawn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("reproduced"), metavar="FOLDER")
    options = parser.parse_args()
    for dataset, name in FIGURE_OF.items():
        save(draw_likelihoods(options.results, dataset), options.out / name)
    save(draw_samples(options.results), options.out / "figure-5")
    save(draw_cost(options.results), options.out / "cost")


if __name__ == "__main__":
    main()
