"""Grids and set convolutions."""

from __future__ import annotations

import math

import pytest
import torch
from contracts import draw_set, pad
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from danp_lib.data.domain import Grid
from danp_lib.data.points import PointSet
from danp_lib.nn.setconv import DENSITY_EPSILON, SetConvDecoder, SetConvEncoder

GRID = Grid((-2.0, 2.0), 8, 0.25, 4).points()
seeds = st.integers(0, 2**32)


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
        grid = Grid((lower, lower + width), density, margin, multiple)
        points = grid.points()
        assert points.dtype == torch.float64
        assert len(points) == grid.num_points
        assert len(points) % multiple == 0
        steps = points.diff()
        torch.testing.assert_close(steps, torch.full_like(steps, 1 / density))
        # The number of points is counted to a millionth of a step.
        assert points[0] <= lower - margin + 1e-6
        assert points[-1] >= lower + width + margin - 1e-6
        assert points[0] > lower - margin - (multiple + 1) / density
        torch.testing.assert_close((points[0] + points[-1]).item() / 2, lower + width / 2)

    def test_of_the_paper(self) -> None:
        grid = Grid((-2.0, 2.0), 64, 0.1, 64)
        assert grid.num_points == 320
        assert grid.points()[0] == -319 / 128

    @given(st.integers(-640, 640).map(lambda n: n / 64))
    def test_moves_with_its_domain(self, shift: float) -> None:
        moved = Grid((shift - 2.0, shift + 2.0), 8, 0.25, 4).points()
        assert torch.equal(moved, GRID + shift)

    def test_ends_of_the_domain_are_inside_in_either_precision(self) -> None:
        grid = Grid((-1 / 3, 1 / 3), 8, 0.0, 1)
        for dtype in (torch.float32, torch.float64):
            grid.check("x", torch.tensor([[[-1 / 3], [1 / 3]]], dtype=dtype))

    @pytest.mark.parametrize("value", [-2.01, 2.01, math.nan, math.inf])
    def test_inputs_off_the_domain_are_refused(self, value: float) -> None:
        grid = Grid((-2.0, 2.0), 8, 0.25, 4)
        x = torch.tensor([[[0.0], [value]]])
        with pytest.raises(ValueError, match=r"^xt .*\[-2.0, 2.0\], got \["):
            grid.check("xt", x)
        grid.check("xt", x, torch.tensor([[True, False]]))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (((1.0, 1.0), 8, 0.1, 1), r"^domain .*\(1.0, 1.0\)"),
            (((math.nan, 1.0), 8, 0.1, 1), "^domain .*nan, 1.0"),
            (((0.0, 1.0), 0, 0.1, 1), "points_per_unit .*0, 1 and 0.1"),
            (((0.0, 1.0), 8, -0.1, 1), "margin .*8, 1 and -0.1"),
            (((0.0, 1.0), 8, 0.1, 0), "multiple .*8, 0 and 0.1"),
        ],
    )
    def test_wrong_arguments_are_refused(
        self, arguments: tuple[tuple[float, float], int, float, int], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            Grid(*arguments)


def encoder(num_sets: int = 1) -> SetConvEncoder:
    module = SetConvEncoder(num_sets, 0.125).double()
    with torch.no_grad():
        module.log_scale.add_(0.3 * torch.arange(num_sets))
    return module


def gaussian(x1: Tensor, x2: Tensor, scale: Tensor) -> Tensor:
    """Weights ``(batch, n1, n2)``, written the obvious way."""
    return torch.exp(-0.5 * ((x1 - x2.mT) / scale).square())


def plain_encoding(points: PointSet, log_scale: Tensor) -> Tensor:
    weights = gaussian(GRID[None, :, None], points.x, log_scale.exp())
    density = weights.sum(dim=-1)
    return torch.stack([density, (weights @ points.y)[..., 0] / (density + DENSITY_EPSILON)], 1)


class TestEncoder:
    @given(seeds, st.integers(0, 6), st.integers(0, 2))
    def test_is_the_formula_and_so_is_its_gradient(self, seed: int, size: int, index: int) -> None:
        module, points = encoder(3), draw_set(2, size, seed)
        actual = module(points, GRID, index)
        log_scale = module.log_scale.detach().clone().requires_grad_()
        expected = plain_encoding(points, log_scale[index])
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
        direction = torch.randn(actual.shape, generator=torch.Generator().manual_seed(seed))
        (gradient,) = torch.autograd.grad((actual * direction).sum(), module.log_scale)
        (expected,) = torch.autograd.grad((expected * direction).sum(), log_scale)
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)

    def test_is_the_same_without_gradients(self) -> None:
        module, points = encoder(), draw_set(2, 5, 0)
        with torch.no_grad():
            assert torch.equal(module(points, GRID, 0), module(points, GRID, 0))
            without = module(points, GRID, 0)
        assert torch.equal(without, module(points, GRID, 0))

    def test_a_point_on_the_grid_keeps_its_value(self) -> None:
        points = PointSet(GRID[20].reshape(1, 1, 1), torch.full((1, 1, 1), 3.0).double())
        density, data = encoder()(points, GRID, 0)[0]
        assert density[20] == 1.0
        torch.testing.assert_close(data[20].item(), 3.0 / (1.0 + DENSITY_EPSILON))
        # One grid step is one length scale here.
        torch.testing.assert_close(density[21].item(), math.exp(-0.5))
        assert density[-1] < 1e-29

    def test_gradient_reaches_inputs_and_outputs(self) -> None:
        module, points = encoder(), draw_set(1, 3, 0)
        torch.autograd.gradcheck(
            lambda x, y: module(PointSet(x, y), GRID[15:20], 0),
            (points.x.requires_grad_(), points.y.requires_grad_()),
        )

    @given(seeds, st.integers(0, 4), st.sampled_from([math.nan, math.inf, 1e30]))
    def test_padding_reaches_neither_values_nor_gradients(
        self, seed: int, size: int, filler: float
    ) -> None:
        module, points = encoder(), draw_set(2, size, seed)
        results = [module(p, GRID, 0) for p in (points, pad(points, 2, filler))]
        torch.testing.assert_close(results[1], results[0])
        gradients = [torch.autograd.grad(r.sum(), module.log_scale)[0] for r in results]
        torch.testing.assert_close(gradients[1], gradients[0])

    def test_second_derivatives_stop_at_the_length_scale(self) -> None:
        module, points = encoder(), draw_set(2, 5, 0)
        real = PointSet(points.x, points.y.requires_grad_(), points.mask)
        loss = module(real, GRID, 0).square().sum()
        parts = torch.autograd.grad(loss, (module.log_scale, real.y), create_graph=True)
        for part in parts:
            with pytest.raises(RuntimeError, match=r"length scale.*log_scale"):
                part.sum().backward(retain_graph=True)
        (by_outputs,) = torch.autograd.grad(parts[1].sum(), real.y)
        frozen = encoder().requires_grad_(False)
        loss = frozen(real, GRID, 0).square().sum()
        (first,) = torch.autograd.grad(loss, real.y, create_graph=True)
        (expected,) = torch.autograd.grad(first.sum(), real.y)
        torch.testing.assert_close(by_outputs, expected)

    def test_first_derivatives_are_left_to_function_transforms(self) -> None:
        module, points = encoder(), draw_set(2, 5, 0)

        def loss(log_scale: Tensor) -> Tensor:
            arguments = {"log_scale": log_scale}
            return torch.func.functional_call(module, arguments, (points, GRID, 0)).square().sum()

        (expected,) = torch.autograd.grad(loss(module.log_scale), module.log_scale)
        torch.testing.assert_close(torch.func.grad(loss)(module.log_scale.detach()), expected)

    def test_nothing_encodes_as_zero(self) -> None:
        empty = PointSet.empty(2, dtype=torch.float64)
        assert torch.equal(encoder()(empty, GRID, 0), torch.zeros(2, 2, len(GRID)).double())


class TestDecoder:
    @given(seeds, st.integers(1, 5), st.sampled_from([(1, 3), (3, 1), (3, 3)]))
    def test_is_the_formula_and_so_are_its_gradients(
        self, seed: int, size: int, batches: tuple[int, int]
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        module = SetConvDecoder(0.125).double()
        pointwise = nn.Conv2d(6, 4, 1).double()
        for parameter in pointwise.parameters():
            nn.init.normal_(parameter, generator=generator)
        xt = draw_set(batches[1], size, seed).x
        shape = (batches[0], 6, len(GRID))
        features = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        actual = module(features, GRID, xt, pointwise)
        assert actual.shape == (3, size, 4)
        on_grid = pointwise(features.unsqueeze(-2)).squeeze(-2)
        weights = gaussian(xt, GRID[None, :, None], module.log_scale.exp())
        expected = weights @ on_grid.mT
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
        inputs = [features, *module.parameters(), *pointwise.parameters()]
        direction = torch.randn(actual.shape, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(
            torch.autograd.grad((actual * direction).sum(), inputs),
            torch.autograd.grad((expected * direction).sum(), inputs),
            rtol=1e-8,
            atol=1e-8,
        )
