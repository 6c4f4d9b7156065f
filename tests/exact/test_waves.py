"""What the exact posteriors of waves share."""

from __future__ import annotations

import pytest
import torch
from randomness import rng

from danp_lib.data.generators import GENERATORS
from danp_lib.data.points import PointSet
from danp_lib.exact.oracles import ORACLES, SawtoothOracle, SquareWaveOracle


@pytest.mark.parametrize("name", ["sawtooth", "square", "square-released"])
def test_without_a_context_the_moments_are_those_of_the_generator(name: str) -> None:
    x = torch.linspace(-1.9, 1.9, 7, dtype=torch.float64).reshape(1, -1, 1)
    many = 20_000
    generator = rng()
    y = GENERATORS[name]().sample_outputs(x.expand(many, -1, -1), generator=generator)
    predicted = ORACLES[name]().predict(PointSet.empty(dtype=torch.float64), x)
    error = 4.0 * (y.var(dim=0) / many).sqrt() + 0.005  # of the Monte Carlo mean, and of the nodes
    assert ((predicted.mean[0] - y.mean(dim=0)).abs() < error).all()
    torch.testing.assert_close(predicted.variance[0], y.var(dim=0), rtol=0, atol=0.01)


@pytest.mark.parametrize("oracle", [SawtoothOracle, SquareWaveOracle])
def test_waves_refuse_what_makes_no_prior(oracle: type[SawtoothOracle | SquareWaveOracle]) -> None:
    with pytest.raises(ValueError, match=r"^frequency .*0\.5"):
        oracle(frequency=(0.5, 2.0))
    with pytest.raises(ValueError, match="num_nodes"):
        oracle(num_nodes=0)
    with pytest.raises(ValueError, match="variance_floor"):
        oracle(variance_floor=0.0)
    with pytest.raises(ValueError, match="one dimension"):
        oracle().predict(PointSet.empty(dim_x=2), torch.zeros(1, 3, 2))
