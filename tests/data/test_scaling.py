"""The map between the data's units and the model's, and what it does to a density."""

import json
import math
from typing import Any, cast

import pytest
import torch
from contracts import draw_set
from hypothesis import given, settings
from hypothesis import strategies as st
from randomness import rng

from danp_lib._config import from_dict, to_dict
from danp_lib.data.domain import Domain
from danp_lib.data.points import PointSet
from danp_lib.data.scaling import Scaling
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.distributions.mixture import Mixture

property_test = settings(deadline=None, max_examples=50, derandomize=True)
offsets = st.floats(-1e4, 1e4)
units = st.floats(1e-3, 1e3)
scalings = st.builds(Scaling, offsets, units, offsets, units)
seeds = st.integers(0, 2**32)


def draw_normal(seed: int, *batch: int, points: int = 5, rank: int = 3) -> LowRankNormal:
    generator = rng(seed)

    def randn(last: int) -> torch.Tensor:
        return torch.randn(*batch, points, last, generator=generator, dtype=torch.float64)

    return LowRankNormal(randn(1), randn(rank), 0.1 + randn(1).exp())


@given(scaling=scalings, seed=seeds)
@property_test
def test_what_is_scaled_comes_back(scaling: Scaling, seed: int) -> None:
    points = draw_set(2, 6, seed, width=100.0)
    there = scaling.apply(points, dtype=torch.float64)
    x_offset, x_unit = cast(float, scaling.x_offset), cast(float, scaling.x_unit)
    # The offsets take digits away.
    size = max(abs(x_offset), abs(scaling.y_offset), 100.0)
    torch.testing.assert_close(x_offset + x_unit * there.x, points.x, rtol=0, atol=1e-13 * size)
    torch.testing.assert_close(scaling.outputs(there.y), points.y, rtol=0, atol=1e-13 * size)
    assert torch.equal(there.mask, points.mask)


@given(scaling=scalings, seed=seeds, components=st.integers(0, 4))
@property_test
def test_log_densities_are_in_the_units_of_the_data(
    scaling: Scaling, seed: int, components: int
) -> None:
    normal = draw_normal(seed, 2, *(components,) * (components > 0))
    scaled: Any = Mixture(torch.zeros(2, components), normal) if components else normal
    y = draw_set(2, 5, seed).y
    in_units = scaling.predictive(scaled)
    jacobian = -5 * math.log(scaling.y_unit)
    expected = scaled.log_prob(y) + jacobian
    actual = in_units.log_prob(scaling.y_offset + scaling.y_unit * y)
    # An offset of 10,000 in units of 0.001 leaves 9 digits of the residuals.
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
    assert type(in_units) is type(scaled)


@given(seed=seeds)
@property_test
def test_a_density_in_the_datas_units_has_the_moments_and_quantiles_there(seed: int) -> None:
    scaling, normal = Scaling(0.0, 1.0, 20.0, 3.0), draw_normal(seed, 2, 4)
    mixture = Mixture(torch.zeros(2, 4), normal)
    there = scaling.predictive(mixture)
    torch.testing.assert_close(there.mean, 20.0 + 3.0 * mixture.mean)
    torch.testing.assert_close(there.stddev, 3.0 * mixture.stddev)
    torch.testing.assert_close(there.quantile(0.9), 20.0 + 3.0 * mixture.quantile(0.9))


@given(seed=seeds, offset=offsets, unit=units)
@property_test
def test_fitted_y_have_mean_zero_and_variance_one(seed: int, offset: float, unit: float) -> None:
    table = draw_set(3, 20, seed)
    table = PointSet(table.x, offset + unit * table.y)
    y = Scaling.fit(table).apply(table, dtype=torch.float64).y
    tolerance = 1e-10 * (1.0 + abs(offset) / unit)
    assert abs(float(y.mean())) < tolerance
    assert abs(float(y.std(correction=0)) - 1.0) < tolerance


def test_x_fills_the_domain() -> None:
    table = draw_set(3, 20, 0)
    own = Scaling.fit(table, domain=(0.0, 7.0)).inputs(table.x, dtype=torch.float64)
    assert float(own.min()) == pytest.approx(0.0, abs=1e-12)
    assert float(own.max()) == pytest.approx(7.0)
    given_range = Scaling.fit(table, x_range=(-10.0, 30.0), domain=(-2.0, 2.0))
    ends = given_range.inputs(torch.tensor([-10.0, 10.0, 30.0]))
    assert ends.tolist() == [-2.0, 0.0, 2.0]


@given(seed=seeds)
@property_test
def test_masked_points_have_no_part(seed: int) -> None:
    table = draw_set(3, 8, seed)
    mask = torch.rand(3, 8, generator=rng(seed)) < 0.7
    mask[:, 0] = True
    hidden = ~mask.unsqueeze(-1)
    first = PointSet(table.x, table.y.masked_fill(hidden, math.nan), mask)
    second = PointSet(table.x.masked_fill(hidden, 1e9), table.y, mask)
    assert Scaling.fit(first) == Scaling.fit(second)


def plane_table() -> PointSet:
    x = torch.rand(3, 20, 2, generator=rng())
    return PointSet(x * torch.tensor([10.0, 0.5]) + torch.tensor([1990.0, 3.0]), x[..., :1])


def test_every_input_dimension_has_its_own_map() -> None:
    table = plane_table()
    box = ((-2.0, 2.0), (0.0, 7.0))
    scaling = Scaling.fit(table, domain=box)
    own = scaling.apply(table, dtype=torch.float64)
    for axis, (low, high) in enumerate(box):
        ends = own.x[..., axis].aminmax()
        assert float(ends.min) == pytest.approx(low, abs=1e-9)
        assert float(ends.max) == pytest.approx(high)
        alone = Scaling.fit(PointSet(table.x[..., axis : axis + 1], table.y), domain=(low, high))
        one = alone.inputs(table.x[..., axis : axis + 1], dtype=torch.float64)
        assert torch.equal(one, own.x[..., axis : axis + 1])
    offset, unit = (torch.tensor(part) for part in (scaling.x_offset, scaling.x_unit))
    torch.testing.assert_close(offset + unit * own.x, table.x.double())
    data = scaling.data_domain(Domain.of(box))
    flat = table.x.flatten(0, 1).double()
    assert data.lower == pytest.approx(flat.amin(dim=0).tolist())
    assert data.upper == pytest.approx(flat.amax(dim=0).tolist())


def test_it_travels_as_json() -> None:
    scaling = Scaling.fit(draw_set(2, 9, 4))
    assert isinstance(to_dict(scaling)["x_unit"], float)
    plane = Scaling.fit(plane_table(), domain=((0.0, 1.0), (0.0, 1.0)))
    for made in (scaling, plane):
        assert from_dict(Scaling, json.loads(json.dumps(to_dict(made)))) == made


def test_points_are_scaled_before_they_are_rounded() -> None:
    # 2010.01 in float32 is off by up to 6e-5, two hours of a year.
    x = torch.tensor([[[2010.0], [2010.01]]], dtype=torch.float64)
    scaled = Scaling(2010.0, 0.01, 0.0, 1.0).apply(PointSet(x, x))
    assert scaled.x.dtype == torch.float32
    assert scaled.x[0, 1, 0].item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    "change", [{"x_unit": 0.0}, {"y_unit": -1.0}, {"y_offset": math.nan}, {"x_offset": math.inf}]
)
def test_a_map_that_is_none_is_refused(change: dict[str, float]) -> None:
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=f"^{name} .*{value}"):
        Scaling(**{"x_offset": 0.0, "x_unit": 1.0, "y_offset": 0.0, "y_unit": 1.0, **change})


@pytest.mark.parametrize(
    ("offset", "unit"), [((0.0, 1.0), (1.0, 2.0, 3.0)), ((0.0,), (1.0, 2.0)), ((), ()), (0.0, ())]
)
def test_an_offset_and_a_unit_of_different_dimensions_are_refused(offset: Any, unit: Any) -> None:
    with pytest.raises(ValueError, match=r"^x_offset and x_unit must be numbers, or hold one for "):
        Scaling(offset, unit, 0.0, 1.0)


def test_one_number_is_for_every_dimension() -> None:
    x = torch.tensor([[3.0, 5.0]])
    assert Scaling(1.0, 2.0, 0.0, 1.0).inputs(x).tolist() == [[1.0, 2.0]]
    assert Scaling((1.0, 3.0), 2.0, 0.0, 1.0).inputs(x).tolist() == [[1.0, 1.0]]


def test_a_table_that_gives_no_map_is_refused() -> None:
    x = torch.arange(3.0).reshape(1, 3, 1)
    with pytest.raises(ValueError, match=r"outputs of the functions .*5\.0"):
        Scaling.fit(PointSet(x, torch.full_like(x, 5.0)))
    with pytest.raises(ValueError, match=r"outputs of the functions .*0\.1"):
        Scaling.fit(PointSet(x.double(), torch.full_like(x.double(), 0.1)))
    with pytest.raises(ValueError, match=r"^table "):
        Scaling.fit(PointSet.empty())
    with pytest.raises(ValueError, match=r"^x_range .*\(3.0, 3.0\)"):
        Scaling.fit(PointSet(x, x), x_range=(3.0, 3.0))
    with pytest.raises(ValueError, match=r"^x_range and domain .*dimension of table, 2"):
        Scaling.fit(plane_table())
    with pytest.raises(ValueError, match=r"^table\.y"):
        Scaling.fit(PointSet(x, torch.full_like(x, math.nan)))


def test_inputs_of_another_dimension_are_refused() -> None:
    scaling = Scaling((0.0, 1.0), (1.0, 2.0), 0.0, 1.0)
    with pytest.raises(ValueError, match="x must have the input dimension of the scaling, 2, got"):
        scaling.inputs(torch.zeros(1, 5, 1))
    with pytest.raises(
        ValueError, match=r"domain must be \(lower, upper\), or a pair per dimension"
    ):
        Scaling.fit(PointSet(torch.rand(1, 3, 1), torch.rand(1, 3, 1)), x_range=(0.0, 1.0, 2.0))  # type: ignore[arg-type]
