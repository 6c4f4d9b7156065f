"""The ConvNPs and the DANP's core agree with the PyPI package NeuralProcesses, weight for weight.

The package's grid follows its data and ours belongs to a domain, so the package is handed our grid.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from danp_lib.data.points import PointSet
from danp_lib.models.convnp import ConvNPCore, count_parameters, paper_config

pytestmark = pytest.mark.parity

MODELS = {"convcnp": (1, 0), "convgnp": (1, 64), "danp": (4, 64)}
"""Number of sets and rank."""


@pytest.fixture(scope="module")
def nps() -> ModuleType:
    # The package and what it stands on warn of deprecations where they are imported, and the
    # warnings are errors here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import neuralprocesses.torch as package
    return package


@pytest.fixture(autouse=True)
def _package_may_warn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build_reference(nps: ModuleType, num_sets: int, rank: int, dtype: torch.dtype) -> Any:
    likelihood = {"likelihood": "lowrank", "num_basis_functions": rank}
    return nps.construct_convgnp(
        dim_yc=(1,) * num_sets,
        dim_yt=num_sets,
        dtype=dtype,
        **(likelihood if rank else {"likelihood": "het"}),
    )


def our_state(theirs: dict[str, Tensor], num_sets: int, rank: int) -> dict[str, Tensor]:
    """Their weights under our names, in our order of outputs and as kernels of height 1."""
    scale = "encoder.coder.links.2.elements.{}.log_scale"
    ours = {
        "encoder.log_scale": torch.stack([theirs[scale.format(i)] for i in range(num_sets)]),
        "decoder.log_scale": theirs["decoder.links.1.coder.links.0.log_scale"],
    }
    unet = "decoder.links.0."
    for layer in range(6):
        # Where a layer pools, its convolution is the first of a pair.
        down = f"{unet}before_turn_layers.{layer}.{'0.' if layer < 2 else ''}"
        up = f"{unet}after_turn_layers.{5 - layer}."
        for part in ("weight", "bias"):
            ours[f"unet.down.{layer}.{part}"] = theirs[down + part]
            ours[f"unet.up.{layer}.{part}"] = theirs[up + part]
    for part in ("weight", "bias"):
        ours[f"unet.out.{part}"] = theirs[f"{unet}final_linear.{part}"]
        if rank:
            rows = theirs[f"decoder.links.1.coder.links.1.net.{part}"]
            # Theirs: the means of all outputs, their factors column by column, their variances.
            mean, factor, variance = rows.split([num_sets, rank * num_sets, num_sets])
            factor = factor.unflatten(0, (rank, num_sets)).transpose(0, 1)
            parts = [mean.unsqueeze(1), variance.unsqueeze(1), factor]
            ours[f"head.{part}"] = torch.cat(parts, dim=1).flatten(0, 1)
    return {k: v.unsqueeze(-2) if "unet" in k and v.ndim == 3 else v for k, v in ours.items()}


def pair(nps: ModuleType, model: str, dtype: torch.dtype) -> tuple[Any, ConvNPCore]:
    """Their model and ours with the same weights, theirs on our grid."""
    num_sets, rank = MODELS[model]
    torch.manual_seed(0)
    theirs = build_reference(nps, num_sets, rank, dtype)
    with torch.no_grad():
        # Equal length scales could be swapped unseen.
        scales = [p for name, p in theirs.named_parameters() if name.endswith("log_scale")]
        for i, scale in enumerate(scales):
            scale += 0.1 * (i + 1)
    ours = ConvNPCore(paper_config(rank=rank), num_sets).to(dtype)
    ours.load_state_dict(our_state(theirs.state_dict(), num_sets, rank))

    class OurGrid(nn.Module):
        def forward(self, *inputs: Any, **options: Any) -> Tensor:
            return ours.grid.mT.expand(3, 1, -1)

    theirs.encoder.disc = OurGrid()
    return theirs, ours


def sample_sets(sizes: list[int], dtype: torch.dtype) -> list[PointSet]:
    generator = torch.Generator().manual_seed(1)
    return [
        PointSet(
            4 * torch.rand(3, n, 1, generator=generator, dtype=dtype) - 2,
            torch.randn(3, n, 1, generator=generator, dtype=dtype),
        )
        for n in sizes
    ]


def their_log_prob(
    nps: ModuleType, model: Any, sets: list[PointSet], target: PointSet, level: int
) -> Tensor:
    contexts = [(points.x.mT, points.y.mT) for points in sets]
    xt, yt = target.x.mT, target.y.mT
    if len(sets) == 1:
        return nps.loglik(model, contexts, xt, yt)
    return nps.loglik(model, contexts, nps.AggregateInput((xt, level)), nps.Aggregate(yt))


def our_log_prob(model: ConvNPCore, sets: list[PointSet], target: PointSet, level: int) -> Tensor:
    features = model.features(model.encode(sets))
    return model.decode(features, target.x, level).log_prob(target.y)


SIZES = {"full": [12, 20, 21, 22], "empty": [0, 0, 0, 0], "masked levels": [5, 0, 0, 20]}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_log_likelihood(nps: ModuleType, model: str, dtype: torch.dtype, sizes: list[int]) -> None:
    theirs, ours = pair(nps, model, dtype)
    *sets, target = sample_sets([*sizes[: ours.num_sets], 50], dtype)
    for level in range(ours.num_sets):
        expected = their_log_prob(nps, theirs, sets, target, level)
        assert expected.dtype == torch.float64
        actual = our_log_prob(ours, sets, target, level)
        # Jointly in float64; per target where the networks round to float32.
        tolerance = 1e-5 if dtype == torch.float64 else 1e-5 * target.num_points
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0.0)


def test_padding_here_is_absence_there(nps: ModuleType) -> None:
    theirs, ours = pair(nps, "convgnp", torch.float64)
    context, target = sample_sets([12, 50], torch.float64)
    kept = torch.arange(12) < 7
    fewer = PointSet(context.x[:, kept], context.y[:, kept])
    real = kept.expand(3, -1)
    hidden = real.unsqueeze(-1)
    padded = PointSet(
        context.x.where(hidden, math.nan), context.y.where(hidden, math.nan), mask=real
    )
    expected = their_log_prob(nps, theirs, [fewer], target, 0)
    torch.testing.assert_close(our_log_prob(ours, [padded], target, 0), expected)


def test_gradients(nps: ModuleType) -> None:
    theirs, ours = pair(nps, "danp", torch.float64)
    *sets, target = sample_sets([12, 20, 20, 20, 50], torch.float64)
    their_log_prob(nps, theirs, sets, target, 0).sum().backward()
    our_log_prob(ours, sets, target, 0).sum().backward()
    expected = our_state({k: p.grad for k, p in theirs.named_parameters()}, *MODELS["danp"])
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_number_of_parameters(nps: ModuleType, model: str) -> None:
    theirs, ours = pair(nps, model, torch.float32)
    assert count_parameters(ours) == count_parameters(theirs)
