"""The one style of every figure: colors, markers and matplotlib settings.

A figure is an opaque white card, so that the same dark text and the same five colors do on a light
and on a dark page. The colors keep a contrast of 3 to 1 with the card and stay apart for readers
with any of the three kinds of color blindness; markers and dashes say the same a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from danp_lib._config import check_at_least

WIDTH = 7.0
"""Width of a figure in inches, which is that of the book's column."""

INK = "#1F1F1F"
GREY = "#6A6A6A"
PALE = "#D9D9D9"
BLUE = "#00509E"
ORANGE = "#DA7A00"
GREEN = "#16A085"
RED = "#960A2C"
PURPLE = "#B27CD8"
COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE)
SAMPLES = ("#D9687E", RED, "#4A0214")
"""The ends and the middle of a ramp from few samples to many; no model has any of its colors."""

_LEVEL_COLORS = (ORANGE, "#B0560F", "#833A1B", "#4F2320", "#6B5A57", "#8F7F7B")


def level_style(level: int) -> tuple[str, str]:
    """Color and marker of a level: orange where clean, then darker, from level 4 on paler."""
    check_at_least(0, level=level)
    index = level % len(_LEVEL_COLORS)
    # Beyond the last shade they repeat, with other markers.
    markers = "D^svPX" if level == index else "<>1234"
    return _LEVEL_COLORS[index], markers[index]


def blend(color: str, other: str, share: float) -> str:
    """A color with a share of another mixed in."""
    mixed: Any = (1 - share) * np.array(to_rgb(color)) + share * np.array(to_rgb(other))
    return to_hex(mixed)


MODELS = {
    "danp": ("DANP", ORANGE, "D", "-"),
    "convcnp": ("ConvCNP", GREEN, "^", ":"),
    "convgnp": ("ConvGNP", BLUE, "v", "-."),
    "ar-convcnp": ("AR ConvCNP", PURPLE, "o", "--"),
    "danp-paper": ("DANP (paper's recipe)", ORANGE, "d", ":"),
    "convcnp-paper": ("ConvCNP (paper's recipe)", GREEN, ">", ":"),
    "convgnp-paper": ("ConvGNP (paper's recipe)", BLUE, "<", ":"),
    "ar-convcnp-paper": ("AR ConvCNP (paper's recipe)", PURPLE, "h", ":"),
}
"""Label, color, marker and dashes of models, by name."""


def model_style(name: str, position: int) -> tuple[str, str, str, str]:
    """A model's entry of :data:`MODELS`, or one by its position where the name is not there."""
    return MODELS.get(name, (name, COLORS[position % len(COLORS)], "s", "-"))


RC: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 11,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "figure.dpi": 144,
    "figure.facecolor": "white",
    "figure.figsize": (WIDTH, 3.2),
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "legend.fontsize": 10,
    "legend.columnspacing": 1.2,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.handletextpad": 0.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "savefig.facecolor": "white",
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 10,
    "ytick.color": INK,
    "ytick.labelsize": 10,
}
"""matplotlib settings; nothing is smaller than 10 points at the book's width."""


def as_row(values: Tensor | ArrayLike, name: str) -> NDArray[Any]:
    """One row of numbers, from an array or from a tensor ``(..., points, 1)`` without a batch."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values, dtype=float)
    if sum(length != 1 for length in array.shape) > 1:
        raise ValueError(f"{name} must be one row of values, got shape {array.shape}.")
    return array.reshape(-1)


@contextmanager
def style() -> Iterator[None]:
    """The book's style, as a context or a decorator, for figures of one's own too."""
    before = {name: plt.rcParams[name] for name in RC}
    plt.rcParams.update(RC)
    try:
        yield
    finally:
        # A notebook's first figure switches the interactive mode on; plt.rc_context would switch it
        # off again, after which no figure appears.
        plt.rcParams.update(before)


def axes(ax: Axes | None, height: float = 3.2) -> Axes:
    """The axes given, or new ones of the book's width and a height in inches."""
    return plt.subplots(figsize=(WIDTH, height))[1] if ax is None else ax
