"""The style of the figures: apart for every eye, large enough, and put back."""

import math
from itertools import combinations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from torch import Tensor

from danp_lib.plotting.figures import style
from danp_lib.plotting.style import COLORS, INK, RC, as_row, level_style

# Severe color blindness as matrices on linear RGB (Machado, Oliveira and Fernandes, 2009).
VISION = {
    "full": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear(color: str) -> NDArray[np.float64]:
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast_with_white(color: str) -> float:
    return float(1.05 / (TO_XYZ[1] @ linear(color) + 0.05))


def lab(color: str, vision: str) -> NDArray[np.float64]:
    seen = np.clip(np.array(VISION[vision]) @ linear(color), 0, 1)
    t = TO_XYZ @ seen / np.array([0.95047, 1.0, 1.08883])
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


class TestStyle:
    @pytest.mark.parametrize("vision", VISION)
    def test_colors_stay_apart_for_every_eye(self, vision: str) -> None:
        for one, other in combinations(COLORS, 2):
            assert np.linalg.norm(lab(one, vision) - lab(other, vision)) > 20

    def test_colors_and_ink_stand_out_from_the_card(self) -> None:
        assert min(contrast_with_white(color) for color in COLORS) >= 3.0
        assert contrast_with_white(INK) > 12

    def test_levels_differ_in_color_or_marker(self) -> None:
        assert len({level_style(level) for level in range(10)}) == 10
        with pytest.raises(ValueError, match=r"^level .*-1"):
            level_style(-1)

    def test_nothing_is_set_in_less_than_ten_points(self) -> None:
        sizes = [value for key, value in RC.items() if key.endswith("size") and "marker" not in key]
        assert len(sizes) >= 6
        assert min(size for size in sizes if not isinstance(size, tuple)) >= 10

    def test_the_card_is_opaque_and_settings_are_left_as_they_were(self) -> None:
        before = mpl.rcParams["font.size"]
        with style():
            figure = plt.figure()
            assert mpl.rcParams["font.size"] == RC["font.size"]
        assert mpl.rcParams["font.size"] == before
        assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)

    def test_what_a_notebook_switches_on_inside_stays_on(self) -> None:
        before = mpl.rcParams["interactive"]
        with style():
            mpl.rcParams["interactive"] = not before
        assert mpl.rcParams["interactive"] is not before
        mpl.rcParams["interactive"] = before

    @pytest.mark.parametrize("values", [torch.zeros(2, 3), np.zeros((2, 3))])
    def test_two_rows_are_refused(self, values: Tensor) -> None:
        with pytest.raises(ValueError, match=r"^thing .*\(2, 3\)"):
            as_row(values, "thing")

    def test_rows_come_from_tensors_with_gradients_and_lists(self) -> None:
        assert as_row(torch.ones(1, 3, 1, requires_grad=True), "x").tolist() == [1, 1, 1]
        assert as_row([1, math.inf], "x").tolist() == [1, math.inf]
        assert as_row([], "x").shape == (0,)
