"""Set convolutions."""

from __future__ import annotations

import math

import pytest
import torch
from contracts import draw_set, pad
from hypothesis import given
from hypothesis import strategies as st
from small_models import seeded
from torch import Tensor, nn

from danp_lib.data.domain import Domain, Grid
from danp_lib.data.points import PointSet
from danp_lib.nn.setconv import DENSITY_EPSILON, SetConvDecoder, SetConvEncoder

GRID = Grid(Domain.of((-2.0, 2.0)), 8, 0.25, 4).points()
PLANE = Grid(Domain.of(((-2.0, 2.0), (-1.0, 1.0))), 4, 0.25, 1).points()
seeds = st.integers(0, 2**32)
# In float32 a sum is over the grid's points nearby, in float64 over all.
either = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def encoder(num_sets: int = 1, dtype: torch.dtype = torch.float64) -> SetConvEncoder:
    module = SetConvEncoder(num_sets, 0.125).to(dtype)
    with torch.no_grad():
        module.log_scale.add_(0.3 * torch.arange(num_sets))
    return module


def draw(batch_size: int, size: int, seed: int, dim_x: int) -> PointSet:
    points = draw_set(batch_size, size, seed)
    others = draw_set(batch_size, size, seed + 1)
    return PointSet(torch.cat([points.x, others.x], dim=-1)[..., :dim_x], points.y)


def real_set(size: int, dtype: torch.dtype = torch.float64) -> PointSet:
    points = draw_set(2, size, 0)
    return PointSet(points.x.to(dtype), points.y.to(dtype), points.mask)


def gaussian(x1: Tensor, x2: Tensor, scale: Tensor) -> Tensor:
    """Weights ``(batch, n1, n2)``, written the obvious way."""
    squared = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square().sum(dim=-1)
    return torch.exp(-0.5 * squared / scale**2)


def plain_encoding(points: PointSet, grid: Tensor, log_scale: Tensor) -> Tensor:
    weights = gaussian(grid[None], points.x, log_scale.exp())
    density = weights.sum(dim=-1)
    return torch.stack([density, (weights @ points.y)[..., 0] / (density + DENSITY_EPSILON)], 1)


class TestEncoder:
    @given(seeds, st.integers(0, 6), st.integers(0, 2), st.sampled_from([1, 2]))
    def test_is_the_formula_and_so_is_its_gradient(
        self, seed: int, size: int, index: int, dim_x: int
    ) -> None:
        module, points = encoder(3), draw(2, size, seed, dim_x)
        grid = PLANE if dim_x == 2 else GRID
        actual = module(points, grid, index)
        assert actual.shape == (2, 2, len(grid))
        log_scale = module.log_scale.detach().clone().requires_grad_()
        expected = plain_encoding(points, grid, log_scale[index])
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
        direction = torch.randn(actual.shape, generator=torch.Generator().manual_seed(seed))
        (gradient,) = torch.autograd.grad((actual * direction).sum(), module.log_scale)
        (expected,) = torch.autograd.grad((expected * direction).sum(), log_scale)
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)

    def test_is_the_same_without_gradients(self) -> None:
        module, points = encoder(), draw_set(2, 5, 0)
        with torch.no_grad():
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

    @given(seeds, st.sampled_from([1, 3, 40]), st.sampled_from([0.03, 0.125, 1.0]), st.booleans())
    def test_sums_are_those_over_the_whole_grid(
        self, seed: int, size: int, scale: float, padded: bool
    ) -> None:
        points = draw_set(2, size, seed)
        points = pad(points, 3, math.nan) if padded else points
        results = []
        for dtype in (torch.float32, torch.float64):
            y = points.y.to(dtype).requires_grad_()
            module = SetConvEncoder(1, scale).to(dtype)
            encoded = module(PointSet(points.x.to(dtype), y, points.mask), GRID.to(dtype), 0)
            slopes = torch.autograd.grad(encoded.square().sum(), [y, module.log_scale])
            results.append([encoded, *slopes])
        for near, exact in zip(*results, strict=True):
            tolerance = 1e-5 * float(exact.detach().abs().max()) + 1e-5
            torch.testing.assert_close(near.double(), exact, rtol=1e-3, atol=tolerance)

    @either
    def test_second_derivatives_stop_at_the_length_scale(self, dtype: torch.dtype) -> None:
        module, real, grid = encoder(dtype=dtype), real_set(5, dtype), GRID.to(dtype)
        real.y.requires_grad_()
        loss = module(real, grid, 0).square().sum()
        parts = torch.autograd.grad(loss, (module.log_scale, real.y), create_graph=True)
        for part in parts:
            with pytest.raises(RuntimeError, match=r"length scale.*log_scale"):
                part.sum().backward(retain_graph=True)
        (by_scale,) = torch.autograd.grad(loss, module.log_scale, create_graph=True)
        with pytest.raises(RuntimeError, match=r"length scale.*log_scale"):
            torch.autograd.grad(by_scale.sum(), real.y)
        (by_outputs,) = torch.autograd.grad(parts[1].sum(), real.y)
        frozen = encoder(dtype=dtype).requires_grad_(False)
        loss = frozen(real, grid, 0).square().sum()
        (first,) = torch.autograd.grad(loss, real.y, create_graph=True)
        (expected,) = torch.autograd.grad(first.sum(), real.y)
        torch.testing.assert_close(by_outputs, expected)

    @either
    def test_first_derivatives_are_left_to_function_transforms(self, dtype: torch.dtype) -> None:
        module, points, grid = encoder(dtype=dtype), real_set(5, dtype), GRID.to(dtype)

        def loss(log_scale: Tensor) -> Tensor:
            arguments = {"log_scale": log_scale}
            return torch.func.functional_call(module, arguments, (points, grid, 0)).square().sum()

        (expected,) = torch.autograd.grad(loss(module.log_scale), module.log_scale)
        torch.testing.assert_close(torch.func.grad(loss)(module.log_scale.detach()), expected)

    @either
    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own
    def test_forward_derivatives_reach_the_length_scale(self, dtype: torch.dtype) -> None:
        module, points, grid = encoder(dtype=dtype), real_set(5, dtype), GRID.to(dtype)

        def loss(log_scale: Tensor, y: Tensor) -> Tensor:
            arguments = (PointSet(points.x, y, points.mask), grid, 0)
            encoding = torch.func.functional_call(module, {"log_scale": log_scale}, arguments)
            return encoding.square().sum()

        scale = module.log_scale.detach()
        gradient = torch.func.grad(loss)(scale, points.y)
        by_scale = torch.func.jvp(lambda s: loss(s, points.y), (scale,), (torch.ones_like(scale),))
        torch.testing.assert_close(by_scale[1], gradient.sum())
        # Those of the derivatives by the outputs, too, by the rule of difference quotients.
        by_outputs = torch.func.grad(loss, argnums=1)
        for transform in (torch.func.jacrev, torch.func.jacfwd):
            mixed = transform(by_outputs)(scale, points.y)
            step = torch.finfo(dtype).eps ** (1 / 3)
            upper, lower = (by_outputs(scale + sign * step, points.y) for sign in (1, -1))
            expected = (upper - lower) / (2.0 * step)
            atol = 1e3 * step**2 * float(expected.abs().max())
            torch.testing.assert_close(mixed[..., 0], expected, rtol=0.0, atol=atol)

    def test_nothing_encodes_as_zero(self) -> None:
        empty = PointSet.empty(2, dtype=torch.float64)
        assert torch.equal(encoder()(empty, GRID, 0), torch.zeros(2, 2, len(GRID)).double())


class TestDecoder:
    @given(seeds, st.integers(1, 5), st.sampled_from([(1, 3), (3, 1), (3, 3)]), st.integers(1, 2))
    def test_is_the_formula_and_so_are_its_gradients(
        self, seed: int, size: int, batches: tuple[int, int], dim_x: int
    ) -> None:
        grid = PLANE if dim_x == 2 else GRID
        generator = torch.Generator().manual_seed(seed)
        module = SetConvDecoder(0.125).double()
        pointwise = nn.Conv2d(6, 4, 1).double()
        for parameter in pointwise.parameters():
            nn.init.normal_(parameter, generator=generator)
        xt = draw(batches[1], size, seed, dim_x).x
        shape = (batches[0], 6, len(grid))
        features = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        actual = module(features, grid, xt, pointwise)
        assert actual.shape == (3, size, 4)
        on_grid = pointwise(features.unsqueeze(-2)).squeeze(-2)
        weights = gaussian(xt, grid[None], module.log_scale.exp())
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


class TestNearby:
    """In float32 on a CPU a decoder sums over the grid points near each input."""

    @given(
        seeds,
        st.sampled_from([1, 3, 40]),
        st.sampled_from([0.03, 0.125, 1.0]),
        st.sampled_from([1, 2]),
        st.booleans(),
    )
    def test_sums_are_those_over_the_whole_grid(
        self, seed: int, size: int, scale: float, rows: int, layer: bool
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = draw_set(2, size, seed).x.float()
        features = torch.randn(rows, 6, len(GRID), generator=generator)
        pointwise, then = seeded(nn.Conv2d, 6, 6, 1), seeded(nn.Linear, 6, 4) if layer else None
        results = []
        for dtype in (torch.float32, torch.float64):
            decode = SetConvDecoder(scale).to(dtype)
            h = features.to(dtype).requires_grad_()
            for module in (pointwise, then):
                if module is not None:
                    module.to(dtype)
            decoded = decode(h, GRID.to(dtype), x.to(dtype), pointwise, then)
            wanted = [h, decode.log_scale, pointwise.weight]
            slopes = torch.autograd.grad(decoded.square().sum(), wanted)
            results.append([decoded, *slopes])
        for near, exact in zip(*results, strict=True):
            tolerance = 1e-5 * float(exact.detach().abs().max()) + 1e-5
            torch.testing.assert_close(near.double(), exact, rtol=1e-4, atol=tolerance)

    def test_inputs_have_the_derivative_of_the_whole_grid(self) -> None:
        generator = torch.Generator().manual_seed(0)
        h, x = torch.randn(1, 6, len(GRID), generator=generator), draw_set(1, 5, 0, width=1.9).x
        slopes = []
        for dtype in (torch.float32, torch.float64):
            pointwise = seeded(nn.Conv2d, 6, 4, 1, dtype=dtype)
            at, decode = x.to(dtype).requires_grad_(), SetConvDecoder(0.125).to(dtype)
            out = decode(h.to(dtype), GRID.to(dtype), at, pointwise)
            slopes.append(torch.autograd.grad(out.square().sum(), at)[0].double())
        tolerance = 1e-4 * float(slopes[1].abs().max())
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=tolerance)

    def test_second_derivatives_by_the_features_are_right(self) -> None:
        decode = SetConvDecoder(0.125)
        decode.log_scale.requires_grad_(False)
        pointwise, x = seeded(nn.Conv2d, 6, 6, 1, dtype=torch.float32), draw_set(2, 3, 0).x.float()
        h = torch.randn(2, 6, len(GRID), generator=torch.Generator().manual_seed(0))
        h.requires_grad_()
        grid = GRID.float()

        def loss(values: Tensor) -> Tensor:
            return decode(values, grid, x, pointwise).pow(3).sum() / 3.0

        (slope,) = torch.autograd.grad(loss(h), h, create_graph=True)
        direction = torch.randn(h.shape, generator=torch.Generator().manual_seed(1))
        (curved,) = torch.autograd.grad((slope * direction).sum(), h)
        # The Hessian of the sum of z ** 3 / 3 with z linear in h is the sum of 2 z z' z'^T.
        with torch.no_grad():
            z, moved = (decode(v, grid, x, pointwise) for v in (h, h + direction))
        again = h.detach().requires_grad_()
        inner = (2.0 * z * (moved - z)).detach()
        (expected,) = torch.autograd.grad((decode(again, grid, x, pointwise) * inner).sum(), again)
        torch.testing.assert_close(curved, expected, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("rows", [1, 2])
    def test_derivatives_of_derivatives_reach_the_length_scale(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        x = draw_set(2, 5, 0).x
        features = torch.randn(rows, 6, len(GRID), generator=generator)
        dtypes, decode = (torch.float32, torch.float64), SetConvDecoder(0.125)
        pointwise = {dtype: seeded(nn.Conv2d, 6, 6, 1, dtype=dtype) for dtype in dtypes}

        def loss(log_scale: Tensor, h: Tensor) -> Tensor:
            others = (GRID.to(h.dtype), x.to(h.dtype), pointwise[h.dtype])
            arguments = {"log_scale": log_scale}
            return torch.func.functional_call(decode, arguments, (h, *others)).square().sum()

        def slope(log_scale: Tensor, h: Tensor) -> Tensor:
            return torch.func.grad(loss, argnums=1)(log_scale, h).square().sum()

        found = [
            torch.func.grad(slope)(decode.log_scale.detach().to(dtype), features.to(dtype))
            for dtype in dtypes
        ]
        assert found[1].abs() > 1.0
        torch.testing.assert_close(found[0].double(), found[1], rtol=1e-4, atol=0.0)
