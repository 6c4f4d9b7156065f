"""The paper's Figure 2 for any number of levels."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch

from danp_lib.plotting import style as look
from danp_lib.plotting.style import axes, level_style, style


@style()
def plot_architecture(num_levels: int, *, ax: Axes | None = None) -> Axes:
    """How a DANP denoises, one row a level from the noisiest to the clean one (paper, Figure 2).

    A row shows the F + 1 context channels that the one network gets, those of the levels that do
    not exist yet empty, and what it predicts; a sample of it fills a channel of the rows below.

    Args:
        num_levels: The number of noisy levels F.
        ax: Where to draw.

    Raises:
        ValueError: If there are fewer levels than none.
    """
    if num_levels < 0:
        raise ValueError(f"num_levels must be >= 0, got {num_levels}.")
    ax = axes(ax, 0.6 + 0.85 * (num_levels + 1))
    column = {0: 0.0} | {f: 1.15 * (num_levels - f + 1) for f in range(1, num_levels + 1)}
    network, output = 1.15 * (num_levels + 1) + 0.45, 1.15 * (num_levels + 1) + 2.6

    def box(x: float, y: float, text: str, *, width: float = 0.95, **kind: Any) -> None:
        shape = FancyBboxPatch(
            (x - width / 2, y - 0.26), width, 0.52, boxstyle="round,pad=0,rounding_size=0.1", **kind
        )
        ax.add_patch(shape)
        ink = look.INK if sum(to_rgb(kind["fc"])) > 1.3 else "white"
        ax.text(x, y, text, color=ink, ha="center", va="center", fontsize=10.5)

    def arrow(*path: tuple[float, float], color: str = look.GREY) -> None:
        xs, ys = zip(*path[:-1], strict=True)
        ax.plot(xs, ys, color=color, lw=1.3, solid_joinstyle="round")
        ax.annotate(
            "", path[-1], path[-2], arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.3}
        )

    for row, level in enumerate(range(num_levels, -1, -1)):
        y, color = -1.15 * row, level_style(level)[0]
        ax.text(-0.75, y, f"level {level}", ha="right", va="center", fontsize=10.5)
        box(0.0, y, "$\\mathcal{D}_c$", fc=look.CONTEXT_COLOR, ec=look.CONTEXT_COLOR)
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
