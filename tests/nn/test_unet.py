"""The two U-Nets, against the same networks written plainly in one dimension."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import seeded
from torch import Tensor
from torch.nn import functional as F

from danp_lib.models.convnp import count_parameters
from danp_lib.nn.unet import (
    ACTIVATION_BOUND,
    UNETS,
    FullResolutionUNet,
    PaperUNet,
    bounded_gelu,
    fold_average_pooling,
    paper_pooling_layers,
    soft_bound,
)


def build(kind: str, num_layers: int = 3, kernel_size: int = 5) -> PaperUNet | FullResolutionUNet:
    return seeded(
        lambda: UNETS[kind](4, 6, channels=8, num_layers=num_layers, kernel_size=kernel_size)
    )


def encoding(batch: int = 2, length: int = 32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 4, length, generator=generator, dtype=torch.float64)


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 5, 7]), st.integers(1, 6))
def test_average_pooling_folds_into_the_kernel(seed: int, size: int, half: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 1, 2 * half, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, 3, 1, size, generator=generator, dtype=torch.float64)
    bias = torch.randn(5, generator=generator, dtype=torch.float64)
    padding = (0, size // 2)
    folded = fold_average_pooling(weight)
    assert folded.shape == (5, 3, 1, size + 1)
    torch.testing.assert_close(
        F.conv2d(x, folded, bias, (1, 2), padding),
        F.avg_pool2d(F.conv2d(x, weight, bias, padding=padding), (1, 2)),
    )


@pytest.mark.parametrize(
    ("num_layers", "kernel_size", "expected"),
    [
        (6, 5, [True, True, False, False, False, False]),
        (3, 5, [True, True, False]),
        (4, 3, [True, False, False, False]),
    ],
)
def test_layers_that_pool(num_layers: int, kernel_size: int, expected: list[bool]) -> None:
    assert list(paper_pooling_layers(num_layers, kernel_size)) == expected


@pytest.mark.parametrize("kernel_size", [3, 5])
def test_paper_unet_written_plainly(kernel_size: int) -> None:
    net = build("paper", kernel_size=kernel_size)
    state = {k: v.squeeze(-2) if v.ndim == 4 else v for k, v in net.state_dict().items()}
    pad = kernel_size // 2
    x = h = encoding()
    skips = []
    for i, pools in enumerate(paper_pooling_layers(3, kernel_size)):
        layer = (state[f"down.{i}.weight"], state[f"down.{i}.bias"])
        if pools:
            h = F.relu(F.avg_pool1d(F.conv1d(h, *layer, padding=pad), 2))
        else:
            h = F.relu(F.conv1d(h, *layer, stride=2, padding=pad))
        skips.append(h)
    assert [s.shape[-1] for s in skips] == [16, 8, 4]
    for i, skip in enumerate([None, skips[1], skips[0]]):
        h = h if skip is None else torch.cat([skip, h], dim=1)
        layer = (state[f"up.{i}.weight"], state[f"up.{i}.bias"])
        h = F.relu(F.conv_transpose1d(h, *layer, stride=2, padding=pad, output_padding=1))
    torch.testing.assert_close(net(x), h)
    assert net.out.weight.shape == (6, 8, 1, 1)


def test_full_resolution_unet_written_plainly() -> None:
    net = build("full-resolution")
    state = {k: v.squeeze(-2) if v.ndim == 4 else v for k, v in net.state_dict().items()}

    def layer(name: str) -> tuple[Tensor, Tensor]:
        return state[f"{name}.weight"], state[f"{name}.bias"]

    def bounded(h: Tensor) -> Tensor:
        return h / (1 + h.square().sum(dim=1, keepdim=True) / 8 / 16).sqrt()

    x = 10 * encoding()
    at = [bounded(F.gelu(F.conv1d(x, *layer("stem"), padding=2)))]
    for i in range(3):
        at.append(bounded(F.gelu(F.conv1d(at[-1], *layer(f"down.{i}"), stride=2, padding=2))))
    h = at.pop()
    for i in range(3):
        h = F.gelu(F.conv_transpose1d(h, *layer(f"up.{i}"), stride=2, padding=1) + at.pop())
        h = bounded(h + F.gelu(F.conv1d(h, *layer(f"mix.{i}"), padding=1)))
    torch.testing.assert_close(net(x), h)
    assert net.out.weight.shape == (6, 8, 1, 1)


@pytest.mark.parametrize("kind", UNETS)
def test_whole_strides_move_the_features_along(kind: str) -> None:
    """Away from the ends; 8 grid points are the stride of the coarsest of three layers."""
    net = build(kind)
    x = torch.zeros(1, 4, 256, dtype=torch.float64)
    x[..., 120:136] = encoding(1, 16)
    features, moved = net(x), net(x.roll(24, dims=-1))
    inside = slice(64, 192)
    torch.testing.assert_close(moved[..., 88:216], features[..., inside], rtol=1e-12, atol=1e-12)
    other = net(x.roll(1, dims=-1))
    assert (other[..., 65:193] - features[..., inside]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", UNETS)
@pytest.mark.parametrize("num_layers", [1, 4])
def test_shapes_and_gradients(kind: str, num_layers: int) -> None:
    net = build(kind, num_layers)
    features = net(encoding(3, 2**num_layers * 2))
    assert features.shape == (3, 8, 2**num_layers * 2)
    features.square().sum().backward()
    for name, parameter in net.named_parameters():
        if not name.startswith("out."):  # the decoder applies it
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0.0, name


@pytest.mark.parametrize("kind", UNETS)
def test_memory_layout_of_the_input_does_not_matter(kind: str) -> None:
    net, x = build(kind), encoding()
    torch.testing.assert_close(net(x.mT.contiguous().mT), net(x))


@pytest.mark.parametrize("kind", UNETS)
def test_kernels_and_features_have_the_channels_last_in_memory(kind: str) -> None:
    net = build(kind)
    assert net(encoding()).mT.is_contiguous()
    for name, parameter in net.named_parameters():
        if parameter.ndim == 4:
            assert parameter.is_contiguous(memory_format=torch.channels_last), name


def test_number_of_parameters() -> None:
    size = {"channels": 64, "num_layers": 6, "kernel_size": 5}
    # Six layers down and five up with skips, one up without, and the last layer.
    paper = (8 + 5 * 64) * 64 * 5 + 6 * 64 + (1 + 5 * 2) * 64 * 64 * 5 + 6 * 64 + 64 * 65
    assert count_parameters(PaperUNet(8, 64, **size)) == paper
    full = 8 * 64 * 5 + 64 + 6 * (64 * 64 * (5 + 4 + 3) + 3 * 64) + 64 * 65
    assert count_parameters(FullResolutionUNet(8, 64, **size)) == full


def test_soft_bound_passes_small_activations_and_bounds_large_ones() -> None:
    h = torch.randn(3, 16, 1, 20, generator=torch.Generator().manual_seed(0))
    small = 1e-3 * h
    torch.testing.assert_close(soft_bound(small), small, rtol=1e-6, atol=0)
    for scale in (1.0, 1e3, 1e6):
        root = soft_bound(scale * h).square().mean(dim=1).sqrt()
        assert root.max() <= ACTIVATION_BOUND * (1 + 1e-6)
    assert root.min() > ACTIVATION_BOUND * (1 - 1e-6)


def draw(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("with_residual", [True, False])
def test_the_bounded_gelu_is_the_soft_bound_of_the_gelu(with_residual: bool, scale: float) -> None:
    x = draw(2, 6, 1, 5, scale=scale)
    residual = draw(2, 6, 1, 5, scale=scale, seed=1)
    inputs = (x, residual) if with_residual else (x,)
    expected = soft_bound(residual + F.gelu(x) if with_residual else F.gelu(x))
    torch.testing.assert_close(bounded_gelu(*inputs), expected)
    with torch.no_grad():
        torch.testing.assert_close(bounded_gelu(*inputs), expected)
    assert torch.autograd.gradcheck(bounded_gelu, inputs)
    assert torch.autograd.gradgradcheck(bounded_gelu, inputs)


def test_the_bounded_gelu_leaves_its_residual_alone_and_is_left_to_function_transforms() -> None:
    x, residual = draw(3, 6, 1, 5).detach(), draw(3, 6, 1, 5, seed=1).detach()
    before = residual.clone()

    def energy(x: Tensor, residual: Tensor) -> Tensor:
        return bounded_gelu(x[None], residual[None]).square().sum()

    gradients = torch.func.vmap(torch.func.grad(energy, argnums=(0, 1)))(x, residual)
    assert torch.equal(residual, before)
    x, residual = x.requires_grad_(), residual.requires_grad_()
    loss = soft_bound(residual + F.gelu(x)).square().sum()
    torch.testing.assert_close(gradients, torch.autograd.grad(loss, (x, residual)))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_full_resolution_unet_bounds_its_features_whatever_it_is_given(scale: float) -> None:
    unet = build("full-resolution")
    x = scale * encoding(length=64)
    with torch.no_grad():
        for parameter in unet.parameters():
            parameter.mul_(20.0)
        features = unet(x)
    assert features.square().mean(dim=1).max() <= ACTIVATION_BOUND**2 * (1 + 1e-5)


@pytest.mark.parametrize("kind", UNETS)
def test_first_derivatives_are_the_same_with_a_graph_for_second_ones(kind: str) -> None:
    # In the full-resolution U-Net a residual is also what the layer beside it reads.
    unet = build(kind).double()
    x = encoding().requires_grad_()
    wanted = [x, *(p for name, p in unet.named_parameters() if not name.startswith("out."))]
    plain, graphed = (
        torch.autograd.grad(unet(x).square().sum(), wanted, create_graph=graph)
        for graph in (False, True)
    )
    for one, other in zip(plain, graphed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)

    def loss(x: Tensor) -> Tensor:
        return unet(x).square().sum()

    direction = encoding(seed=1)
    step = 1e-5
    ahead, behind = (
        torch.func.grad(loss)(x.detach() + sign * step * direction) for sign in (1.0, -1.0)
    )
    (slope,) = torch.autograd.grad((graphed[0] * direction).sum(), x)
    torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)


def test_the_mixing_layers_can_be_trained_alone_with_a_graph() -> None:
    unet = build("full-resolution").double().requires_grad_(False)
    parameters = [p for name, p in unet.named_parameters() if name.startswith("mix.")]
    for parameter in parameters:
        parameter.requires_grad_()
    plain, graphed = (
        torch.autograd.grad(unet(encoding()).square().sum(), parameters, create_graph=graph)
        for graph in (False, True)
    )
    for one, other in zip(plain, graphed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
