"""What the figures plot, not how they look."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from randomness import rng

from danp_lib.data.generators import Sawtooth
from danp_lib.data.noising import AugmentedTask, NoiseSchedule, sample_augmented_task
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import DiagonalNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.plotting.figures import (
    plot_architecture,
    plot_augmented_task,
    plot_cost,
    plot_level_predictives,
    plot_likelihood_against_context_size,
    plot_num_samples,
    plot_prediction,
)
from danp_lib.plotting.style import GREY, INK, ORANGE, as_row

X = torch.linspace(-2, 2, 21).flip(0).reshape(1, 21, 1)  # inputs come in any order


def augmented(num_levels: int = 2) -> AugmentedTask:
    return sample_augmented_task(
        Sawtooth(), NoiseSchedule(0.1, num_levels), 1, num_targets=8, generator=rng()
    )


def mixture(components: int = 3) -> Mixture:
    means = torch.sin(X.unsqueeze(1)) + torch.arange(components).reshape(1, -1, 1, 1)
    return Mixture(torch.zeros(1, components), DiagonalNormal(means, torch.full_like(means, 0.04)))


def line(ax: Axes, label: str) -> Line2D:
    (found,) = [entry for entry in ax.lines if entry.get_label() == label]
    return found


def xy(entry: Line2D) -> NDArray[np.float64]:
    return np.column_stack([np.asarray(entry.get_xdata()), np.asarray(entry.get_ydata())])


def labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def points(made: PointSet) -> NDArray[np.float64]:
    real = made.compact()
    return np.column_stack([as_row(real.x, "x"), as_row(real.y, "y")])


class TestAugmentedTask:
    @pytest.mark.parametrize("num_levels", [0, 2, 9])
    def test_every_set_is_drawn_without_its_padding(self, num_levels: int) -> None:
        task = augmented(num_levels)
        ax = plot_augmented_task(task)
        np.testing.assert_array_equal(xy(line(ax, "context")), points(task.context))
        names = ["level 0 (targets)"] + [f"level {f}" for f in range(1, num_levels + 1)]
        for name, made in zip(names, task.levels, strict=True):
            np.testing.assert_array_equal(xy(line(ax, name)), points(made))
        assert set(labels(ax)) == {"context", *names}

    def test_levels_darken_from_the_clean_one_on_and_the_context_is_black(self) -> None:
        ax = plot_augmented_task(augmented())
        names = ["context", "level 0 (targets)", "level 1", "level 2"]
        drawn = [to_hex(str(line(ax, name).get_color())).upper() for name in names]
        assert drawn[:2] == [INK, ORANGE]
        brightness = [sum(to_rgb(color)) for color in drawn[1:]]
        assert brightness == sorted(brightness, reverse=True)

    def test_the_truth_is_a_line_in_the_order_of_its_inputs(self) -> None:
        ax = plot_augmented_task(augmented(), truth=(X, X.square()))
        drawn = xy(line(ax, "true function"))
        np.testing.assert_allclose(drawn[:, 0], np.linspace(-2, 2, 21), atol=1e-6)
        np.testing.assert_allclose(drawn[:, 1], drawn[:, 0] ** 2, atol=1e-6)

    def test_a_batch_is_refused(self) -> None:
        task = sample_augmented_task(Sawtooth(), NoiseSchedule(0.1, 1), 2, generator=rng())
        with pytest.raises(ValueError, match="a batch of 2"):
            plot_augmented_task(task)

    def test_it_draws_on_the_axes_it_is_given(self) -> None:
        ax = plt.subplots()[1]
        assert plot_augmented_task(augmented(), ax=ax) is ax


class TestPrediction:
    def test_median_bands_and_context(self) -> None:
        predictive, task = mixture(), augmented()
        ax = plot_prediction(task.context, X, predictive)
        order = np.argsort(as_row(X, "x"))
        np.testing.assert_allclose(
            xy(line(ax, "median"))[:, 1], as_row(predictive.quantile(0.5), "median")[order]
        )
        np.testing.assert_array_equal(xy(line(ax, "context")), points(task.context))
        assert set(labels(ax)) == {"central 90 %", "central 50 %", "median", "context"}

    @pytest.mark.parametrize(("share", "label"), [(0.9, "central 90 %"), (0.5, "central 50 %")])
    def test_a_band_reaches_from_quantile_to_quantile(self, share: float, label: str) -> None:
        predictive = mixture()
        ax = plot_prediction(augmented().context, X, predictive)
        (band,) = [made for made in ax.collections if made.get_label() == label]
        assert isinstance(band, PolyCollection)
        corners = np.asarray(band.get_paths()[0].vertices)
        for level in (0.5 - share / 2, 0.5 + share / 2):
            edge = zip(as_row(X, "x"), as_row(predictive.quantile(level), "quantile"), strict=True)
            for corner in edge:
                assert np.abs(corners - corner).max(axis=1).min() < 1e-6

    def test_a_gaussian_without_a_batch_will_do(self) -> None:
        gaussian = DiagonalNormal(X[0], torch.ones_like(X[0]))
        ax = plot_prediction(PointSet.empty(), X, gaussian)
        drawn = xy(line(ax, "median"))
        np.testing.assert_allclose(drawn[:, 1], drawn[:, 0], atol=1e-12)

    @pytest.mark.parametrize("count", [3, 30])
    def test_another_number_of_inputs_than_outputs_is_refused(self, count: int) -> None:
        gaussian = DiagonalNormal(X[0], torch.ones_like(X[0]))
        x = torch.linspace(-2.0, 2.0, count)
        message = rf"^predictive must have a value for each of {count} inputs, got 21\.$"
        with pytest.raises(ValueError, match=message):
            plot_prediction(PointSet.empty(), x, gaussian)
        plt.close("all")

    def test_more_than_one_row_is_refused(self) -> None:
        two = DiagonalNormal(torch.zeros(2, 21, 1), torch.ones(2, 21, 1))
        with pytest.raises(ValueError, match=r"\(2, 21, 1\)"):
            plot_prediction(PointSet.empty(), X, two)


class TestLevelPredictives:
    @pytest.mark.parametrize("num_levels", [0, 2, 4])
    def test_a_panel_a_level_from_the_noisiest_one_on_and_the_exact_one(
        self, num_levels: int
    ) -> None:
        task = augmented(num_levels)
        predictives = [mixture(f + 1) for f in range(num_levels + 1)]
        exact = mixture(1)
        figure = plot_level_predictives(
            task.context, X, predictives, exact=exact, y_range=(-3.0, 7.0)
        )
        titles = [f"level {f}" for f in reversed(range(num_levels + 1))]
        assert [ax.get_title("left") for ax in figure.axes] == [*titles, "exact"]
        for ax, predictive in zip(figure.axes, [*reversed(predictives), exact], strict=True):
            (mesh,) = (c for c in ax.collections if isinstance(c, QuadMesh))
            # Its shades are the square roots of probabilities, in bins that hold nearly all.
            shades = np.asarray(mesh.get_array())
            np.testing.assert_allclose((shades**2).sum(axis=0), 1.0, atol=0.03)
            drawn = [e for e in ax.lines if e.get_label() in ("a sample", "another")]
            components = predictive.components.mean.shape[1]
            assert len(drawn) == (0 if ax is figure.axes[-1] else min(2, components))
            for entry, mean in zip(drawn, predictive.components.mean[0], strict=False):
                expected = as_row(mean, "mean")[np.argsort(as_row(X, "x"))]
                np.testing.assert_allclose(xy(entry)[:, 1], expected)
            assert mesh.get_clim() == (0.0, 1.0)  # one scale in all panels
            assert mesh.get_cmap()(1.0) == to_rgba(GREY)
        (legend,) = figure.legends
        assert {"a sample", "context"} <= {text.get_text() for text in legend.get_texts()}

    def test_the_exact_panel_can_have_closer_inputs(self) -> None:
        close = torch.linspace(-1.0, 1.0, 301)[None, :, None]
        exact = DiagonalNormal(torch.zeros(1, 301, 1), torch.ones(1, 301, 1))[0]
        figure = plot_level_predictives(
            PointSet.empty(), X, [mixture(1)], exact=exact, exact_x=close, y_range=(-3.0, 3.0)
        )
        widths = []
        for ax in figure.axes:
            (mesh,) = (c for c in ax.collections if isinstance(c, QuadMesh))
            widths.append(np.asarray(mesh.get_array()).shape[1])
        assert widths == [X.shape[1], 301]

    def test_samples_are_chosen_and_differ_in_shade_and_dashes(self) -> None:
        levels, exact = [mixture(3), mixture(3)], mixture(1)
        figure = plot_level_predictives(
            PointSet.empty(),
            X,
            levels,
            exact=exact,
            y_range=(-3.0, 7.0),
            truth=(X, X),
            samples=(2, 1),
        )
        lines = [e for ax in figure.axes[1:] for e in ax.lines if e.get_linestyle() != "None"]
        assert len({(e.get_color(), e.get_linestyle()) for e in lines}) == 3
        for ax in figure.axes[:2]:
            for label, place in {"a sample": 2, "another": 1}.items():
                mean = as_row(levels[0].components.mean[0, place], "mean")
                np.testing.assert_allclose(
                    xy(line(ax, label))[:, 1], mean[np.argsort(as_row(X, "x"))]
                )


def errorbars(ax: Axes) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    found = {}
    for made in ax.containers:
        assert isinstance(made, ErrorbarContainer)
        segments = np.asarray(made[2][0].get_segments())
        found[str(made.get_label())] = (xy(made[0]), segments[:, :, 1])
    return found


class TestCurves:
    sizes = np.arange(4)
    curve = (sizes, 10.0 * sizes, 0.5 + sizes)

    def test_likelihoods_with_their_intervals_and_the_oracle(self) -> None:
        ax = plot_likelihood_against_context_size(
            {"danp": self.curve, "mine": self.curve}, oracle=(self.sizes, self.sizes + 100)
        )
        for data, bars in errorbars(ax).values():
            np.testing.assert_allclose(data, np.column_stack(self.curve[:2]))
            np.testing.assert_allclose(bars[:, 0], self.curve[1] - self.curve[2])
            np.testing.assert_allclose(bars[:, 1], self.curve[1] + self.curve[2])
        assert set(labels(ax)) == {"DANP", "mine", "exact posterior"}
        assert xy(line(ax, "exact posterior"))[-1].tolist() == [3, 103]
        assert ax.get_ylim()[0] == 0
        assert "context size" in ax.get_xlabel()

    def test_numbers_of_samples_in_their_order(self) -> None:
        ax = plot_num_samples({5000: self.curve, 16: self.curve, 100: self.curve})
        assert labels(ax) == ["$S$ = 16", "$S$ = 100", "$S$ = 5,000"]
        np.testing.assert_allclose(errorbars(ax)["$S$ = 16"][0], np.column_stack(self.curve[:2]))
        shades = [sum(to_rgb(made[0].get_color())) for made in ax.containers]
        assert shades == sorted(shades, reverse=True)

    def test_cost_on_logarithmic_axes_with_the_crossover(self) -> None:
        targets = np.array([1, 10, 1000])
        ax = plot_cost(
            targets,
            {"danp": np.full(3, 1024), "ar-convcnp": targets},
            unit="forward passes",
            crossover=1024,
        )
        assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylabel()) == (
            "log",
            "log",
            "forward passes",
        )
        np.testing.assert_array_equal(xy(line(ax, "AR ConvCNP")), np.column_stack([targets] * 2))
        assert xy(line(ax, "crossover at 1,024"))[:, 0].tolist() == [1024, 1024]
        assert set(labels(ax)) == {"DANP", "AR ConvCNP", "crossover at 1,024"}

    def test_cost_of_one_model_in_one_color(self) -> None:
        names = ("danp, $S$ = 1", "mine, small", "danp, $S$ = 256", "mine, large", "yours")
        ax = plot_cost([1, 10], {name: [1, 2] for name in names}, unit="seconds")
        assert labels(ax) == [name.replace("danp", "DANP") for name in names]
        lines = [line(ax, label) for label in labels(ax)]
        one, small, many, large, other = lines
        assert one.get_color() == many.get_color() == ORANGE
        assert small.get_color() == large.get_color()
        assert small.get_color() != other.get_color()
        hollow = [made.get_markerfacecolor() == "white" for made in lines]
        assert hollow == [False, False, True, True, False]


class TestArchitecture:
    @pytest.mark.parametrize("num_levels", [0, 1, 2, 3, 6])
    def test_levels_fill_their_channels_one_by_one(self, num_levels: int) -> None:
        ax = plot_architecture(num_levels)
        texts = [text.get_text() for text in ax.texts]
        rows = num_levels + 1
        assert texts.count("$\\mathcal{D}_c$") == rows
        assert texts.count("$p_\\theta$") == rows
        assert texts.count("empty") == num_levels * rows // 2
        for f in range(1, rows):
            assert texts.count(f"$\\mathcal{{D}}_a^{f}$") == f  # in the rows of the levels below f
        assert [text for text in texts if text.startswith("level")] == [
            f"level {f}" for f in range(num_levels, -1, -1)
        ]

    def test_a_negative_number_of_levels_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^num_levels .*-1"):
            plot_architecture(-1)
