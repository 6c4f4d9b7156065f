"""Boxes that inputs lie in, and the grids that cover them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from randomness import rng

from danp_lib._config import from_dict, to_dict
from danp_lib.data.domain import Bounds, Domain, Grid
from danp_lib.data.generators import GaussianProcess
from danp_lib.data.points import PointSet
from danp_lib.data.scaling import Scaling
from danp_lib.models.convnp import ConvGNP, ConvNPConfig

LINE = Domain.of((-2.0, 2.0))
PLANE = Domain.of(((-2.0, 2.0), (10.0, 11.0)))


class TestDomain:
    def test_a_width_that_is_no_number_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^domain must .* of a finite width, .*1e\+308"):
            Domain.of((-1e308, 1e308))

    def test_of_plain_values(self) -> None:
        assert LINE == Domain((-2.0,), (2.0,)) == Domain.of(((-2.0, 2.0),))
        assert Domain((-2.0, 10.0), (2.0, 11.0)) == PLANE
        assert (LINE.dim_x, PLANE.dim_x) == (1, 2)
        assert (LINE.width, PLANE.width) == ((4.0,), (4.0, 1.0))
        assert f"{LINE}; {PLANE}" == "[-2.0, 2.0]; [-2.0, 2.0] x [10.0, 11.0]"

    @pytest.mark.parametrize(
        "box", [(1.0, 1.0), (2.0, -2.0), (math.nan, 1.0), (0.0, math.inf), ((0.0, 1.0), (3.0, 2.0))]
    )
    def test_ends_that_make_no_box_are_refused(self, box: Bounds) -> None:
        with pytest.raises(ValueError, match=r"^domain must be .*lower < upper.* got \("):
            Domain.of(box)

    @pytest.mark.parametrize(
        ("lower", "upper"), [((0.0,), (1.0, 2.0)), (("a",), ("b",)), (0.0, 1.0), ((None,), (1.0,))]
    )
    def test_ends_that_are_no_numbers_or_too_few_are_refused(self, lower: Any, upper: Any) -> None:
        with pytest.raises(
            ValueError, match=r"^lower and upper must be tuples of numbers, one per"
        ):
            Domain(lower, upper)

    def test_ends_of_the_domain_are_inside_in_either_precision(self) -> None:
        domain = Domain.of((-1 / 3, 1 / 3))
        for dtype in (torch.float32, torch.float64):
            domain.check("x", torch.tensor([[[-1 / 3], [1 / 3]]], dtype=dtype))

    def test_the_slack_is_a_rounding(self) -> None:
        far = Domain.of((1e4, 2e4))
        x = torch.tensor([2e4 + 0.01, 2e4 + 0.03]).double().unsqueeze(-1)
        assert far.contains(x).tolist() == [True, False]

    @pytest.mark.parametrize("value", [-2.01, 2.01, math.nan, math.inf])
    def test_inputs_off_the_domain_are_refused(self, value: float) -> None:
        x = torch.tensor([[[0.0], [value]]])
        with pytest.raises(ValueError, match=r"^xt .*\[-2.0, 2.0\], got \["):
            LINE.check("xt", x)
        LINE.check("xt", x, torch.tensor([[True, False]]))

    def test_every_dimension_counts(self) -> None:
        x = torch.tensor([[0.0, 10.5], [10.5, 10.5], [0.0, 0.0]])
        assert PLANE.contains(x).tolist() == [True, False, False]
        with pytest.raises(ValueError, match=r"^xt .* x \[10.0, 11.0\], got \[10.5, 10.5\]"):
            PLANE.check("xt", x)
        with pytest.raises(ValueError, match=r"^xt .*dimension.* 2, got 1"):
            PLANE.check("xt", x[:, :1])

    @given(st.floats(-100.0, 100.0), st.floats(0.01, 100.0), st.integers(0, 2**32))
    def test_samples_are_uniform_numbers_moved_and_stretched(
        self, lower: float, width: float, seed: int
    ) -> None:
        """Bit for bit, since what a seed draws must not change."""
        domain = Domain.of((lower, lower + width))
        unit = torch.rand((3, 5, 1), dtype=torch.float64, generator=rng(seed))
        expected = lower + (lower + width - lower) * unit
        assert torch.equal(domain.from_unit(unit), expected)
        # Inputs of a DANP are drawn in float32.
        single = unit.float()
        assert torch.equal(domain.from_unit(single), lower + (lower + width - lower) * single)

    def test_samples_fill_a_box(self) -> None:
        x = PLANE.from_unit(torch.rand((10_000, 2), generator=rng()))
        assert x.shape == (10_000, 2)
        assert PLANE.contains(x).all()
        center, spread = torch.tensor([0.0, 10.5]), torch.tensor([4.0, 1.0]) / 12**0.5
        assert ((x.mean(dim=0) - center).abs() < 5 * spread / 100).all()
        torch.testing.assert_close(x.std(dim=0).float(), spread, rtol=0.02, atol=0.0)
        assert x.T.corrcoef()[0, 1].abs() < 5 / 100


class TestConfigurations:
    """Plain values stand for a domain in configurations: those of older files stay valid."""

    @pytest.mark.parametrize("box", [(-2.0, 2.0), ((-2.0, 2.0), (0.0, 1.0))])
    @pytest.mark.parametrize("make", [GaussianProcess, ConvNPConfig])
    def test_a_domain_travels_as_json(self, make: Any, box: Bounds) -> None:
        values = json.loads(json.dumps(to_dict(make(domain=box))))
        assert values["domain"] == json.loads(json.dumps(box))
        assert from_dict(make, values) == make(domain=box)

    @pytest.mark.parametrize("make", [GaussianProcess, ConvNPConfig])
    @pytest.mark.parametrize("box", [(2.0, -2.0), (0.0, 1.0, 2.0), "ab", (), ((0.0, 1.0), 2.0)])
    def test_what_is_no_domain_is_refused(self, make: Any, box: Any) -> None:
        with pytest.raises(ValueError, match=r"^domain must be "):
            make(domain=box)

    @pytest.mark.parametrize("box", [5, None, "ab", ["ab"], (0.0, 1.0, 2.0), (0.0, "a"), (None,)])
    def test_what_is_no_pair_of_numbers_is_refused(self, box: Any) -> None:
        with pytest.raises(ValueError, match=r"^domain must be .*, got "):
            Domain.of(box)
        table = PointSet(torch.rand(1, 3, 1), torch.rand(1, 3, 1))
        with pytest.raises(ValueError, match=r"^x_range or domain: domain must be .*, got "):
            Scaling.fit(table, domain=box)

    def test_a_model_of_two_dimensions_is_refused_until_there_is_one(self) -> None:
        config = replace(ConvNPConfig(), domain=((-2.0, 2.0), (0.0, 1.0)))
        with pytest.raises(ValueError, match=r"^domain .*one dimension.* x \[0.0, 1.0\]"):
            ConvGNP(config)


class TestGrid:
    @given(
        st.floats(-10.0, 10.0),
        st.floats(0.1, 10.0),
        st.integers(1, 64),
        st.floats(0.0, 1.0),
        st.sampled_from([1, 2, 8, 64]),
    )
    def test_covers_the_domain_evenly(
        self, lower: float, width: float, density: int, margin: float, multiple: int
    ) -> None:
        grid = Grid(Domain.of((lower, lower + width)), density, margin, multiple)
        assert grid.points().dtype == torch.float64
        points = grid.points().flatten()
        assert len(points) % multiple == 0
        steps = points.diff()
        torch.testing.assert_close(steps, torch.full_like(steps, 1 / density))
        # The number of points is counted to a millionth of a step.
        assert points[0] <= lower - margin + 1e-6
        assert points[-1] >= lower + width + margin - 1e-6
        assert points[0] > lower - margin - (multiple + 1) / density
        torch.testing.assert_close((points[0] + points[-1]).item() / 2, lower + width / 2)

    def test_of_the_paper(self) -> None:
        grid = Grid(LINE, 64, 0.1, 64)
        assert grid.shape == (320,)
        assert grid.points()[0] == -319 / 128

    @given(st.integers(-640, 640).map(lambda n: n / 64))
    def test_moves_with_its_domain(self, shift: float) -> None:
        moved = Grid(Domain.of((shift - 2.0, shift + 2.0)), 8, 0.25, 4).points()
        assert torch.equal(moved, Grid(LINE, 8, 0.25, 4).points() + shift)

    def test_of_two_dimensions_is_the_product_of_its_axes(self) -> None:
        grid = Grid(PLANE, 8, 0.25, 4)
        assert grid.shape == (40, 16)
        points = grid.points().reshape(40, 16, 2)
        for axis, box in ((0, (-2.0, 2.0)), (1, (10.0, 11.0))):
            along = Grid(Domain.of(box), 8, 0.25, 4).points().flatten()
            assert torch.equal(points.select(1 - axis, 3)[:, axis], along)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0, 0.1, 1), "^points_per_unit .*>= 1, got 0"),
            ((8, -0.1, 1), "^margin .*>= 0, got -0.1"),
            ((8, 0.1, 0), "^multiple .*>= 1, got 0"),
        ],
    )
    def test_wrong_arguments_are_refused(
        self, arguments: tuple[int, float, int], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            Grid(LINE, *arguments)
