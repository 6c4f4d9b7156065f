"""Muon on kernels, and the optimizer's state."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from danp_lib.models.convnp import ConvNPConfig
from danp_lib.training.config import TrainingConfig
from danp_lib.training.optim import KernelMuon, Optimizer, orthogonalized
from danp_lib.training.recipes import build_model


@pytest.mark.parametrize("in_float64", [True, False])
def test_kernel_muon_is_torchs_muon_on_the_flattened_kernel(
    in_float64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stacks of wide, square and tall matrices: but for torch's bfloat16, to the last digits."""
    if in_float64:
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
    g = torch.Generator().manual_seed(0)
    shapes = [(6, 4, 1, 5), (6, 6), (6, 4, 1, 5), (9, 2, 1, 2), (6, 4, 1, 5), (6, 6)]
    kernels = [nn.Parameter(torch.randn(shape, generator=g)) for shape in shapes]
    matrices = [nn.Parameter(k.detach().clone().flatten(1)) for k in kernels]
    starts = [k.detach().clone() for k in kernels]
    ours = KernelMuon(kernels, momentum=0.95, weight_decay=0.2)
    assert [tuple(m.shape) for m in ours.momenta] == [(3, 6, 20), (2, 6, 6), (1, 9, 4)]
    reference = torch.optim.Muon(matrices, lr=0.03, momentum=0.95, weight_decay=0.2)
    for _ in range(3):
        for kernel, matrix in zip(kernels, matrices, strict=True):
            kernel.grad = torch.randn(kernel.shape, generator=g)
            matrix.grad = kernel.grad.flatten(1)
        ours.step(torch.tensor(0.03))
        reference.step()
    for kernel, matrix, start in zip(kernels, matrices, starts, strict=True):
        assert (kernel - start).abs().max() > 0.03
        torch.testing.assert_close(
            kernel.detach().flatten(1),
            matrix.detach(),
            rtol=0,
            atol=1e-6 if in_float64 else 3 * 0.03 * 0.05,
        )


def test_the_average_of_a_unit_that_never_fires_again_ends_at_zero() -> None:
    """Not at subnormal numbers, with which a product takes many times as long."""
    kernel = nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))
    muon = KernelMuon([kernel], momentum=0.5)
    kernel.grad = torch.ones_like(kernel)
    muon.step(torch.tensor(0.01))
    kernel.grad[:2] = 0.0
    for step in range(200):
        muon.step(torch.tensor(0.01))
        average = muon.momenta[0][0, :2]
        assert ((average == 0) | (average.abs() > torch.finfo().tiny)).all(), step
    assert (average == 0).all()
    assert (muon.momenta[0][0, 2:] > 0.9).all()


@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 8, 5), (1, 6, 6)])
def test_orthogonalizing_brings_all_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalized(1e-3 * matrices))
    assert 0.6 < values.min() <= values.max() < 1.3
    assert torch.equal(orthogonalized(torch.zeros(shape)), torch.zeros(shape))


def test_muon_remembers_gradients_as_its_authors_do() -> None:
    """Momentum 0.95 with a step ahead, as in Jordan et al. (2024).

    The second step then goes against ``1.95 g2 + 0.95**2 g1``. Where the second gradient is the
    first's opposite in direction, it turns round from 0.463 of its size on; at other momenta from
    another size on (0.167 at a half), and without the step ahead from 0.95.
    """
    net = small_net()
    kernel = net.get_parameter("0.weight")
    optimizer = optimizer_of(net, "muon")
    shares = torch.tensor([0.45, 0.475])  # on either side of 0.463
    steps = []
    for sizes in (torch.ones(2), -shares):
        before = kernel.detach().clone()
        # One gradient for each of two outputs and inputs, so that they do not mix.
        gradient = torch.zeros_like(kernel)
        gradient[[0, 1], [0, 1], 0, 0] = sizes
        kernel.grad = gradient
        optimizer.step()
        steps.append((kernel.detach() - before)[[0, 1], [0, 1], 0, 0].sign().tolist())
    assert steps == [[-1.0, -1.0], [-1.0, 1.0]]


def test_weight_decay_shrinks_the_kernels_before_the_step() -> None:
    g = torch.Generator().manual_seed(0)
    start, gradient = torch.randn(2, 6, 4, 1, 5, generator=g)
    kernels = [nn.Parameter(start.clone()) for _ in range(2)]
    for kernel, decay in zip(kernels, (0.0, 0.5), strict=True):
        kernel.grad = gradient.clone()
        KernelMuon([kernel], momentum=0.95, weight_decay=decay).step(torch.tensor(0.1))
    torch.testing.assert_close(kernels[1].detach(), kernels[0].detach() - 0.05 * start)


def test_muon_takes_the_kernels_and_the_hidden_layers() -> None:
    config = ConvNPConfig(points_per_unit=16, channels=8, num_layers=2, rank=4, head_channels=16)
    model = build_model("convgnp", config, seed=0)
    muon = optimizer_of(model, "muon").muon
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(kernel)] for same in muon.stacks for kernel in same} == {
        *(f"core.unet.{part}.weight" for part in ("stem", "out")),
        *(f"core.unet.{part}.{i}.weight" for part in ("down", "up", "mix") for i in range(2)),
        *(f"core.hidden.{i}.weight" for i in range(2)),
    }


def test_muon_leaves_out_the_output_layer_where_the_unet_ends_in_it() -> None:
    config = ConvNPConfig(points_per_unit=16, channels=8, num_layers=2, rank=4, head_layers=0)
    model: Any = build_model("convgnp", config, seed=0)
    assert model.core.head is None
    optimizer = optimizer_of(model, "muon")
    output = model.core.unet.out.weight
    assert not any(kernel is output for same in optimizer.muon.stacks for kernel in same)
    assert any(parameter is output for parameter in optimizer.adam.param_groups[0]["params"])


def test_a_frozen_head_stays_the_output_layer() -> None:
    config = ConvNPConfig(points_per_unit=16, channels=8, num_layers=2, rank=4)
    model: Any = build_model("convgnp", config, seed=0)
    assert model.core.head is not None
    model.core.head.requires_grad_(False)
    stacks = optimizer_of(model, "muon").muon.stacks
    assert any(kernel is model.core.unet.out.weight for same in stacks for kernel in same)


def small_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, (1, 3)), nn.Flatten(), nn.Linear(3 * 6, 1))


def optimizer_of(net: nn.Module, kind: Any, clip: float | None = 1.0) -> Optimizer:
    config = TrainingConfig(
        num_steps=1,
        optimizer=kind,
        learning_rate=1e-2,
        muon_learning_rate=1e-2,
        gradient_clip=clip,
    )
    return Optimizer(net, config)


def take_steps(net: nn.Module, optimizer: Optimizer, count: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        net(torch.randn(4, 2, 1, 8, generator=g)).square().mean().backward()
        optimizer.clip_gradient()
        optimizer.step()


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_a_restored_state_goes_on_bit_for_bit(kind: str) -> None:
    net, twin = small_net(), small_net()
    optimizer, restored = optimizer_of(net, kind), optimizer_of(twin, kind)
    take_steps(net, optimizer, 3, seed=1)
    twin.load_state_dict(net.state_dict())
    restored.load_state_tensors({k: v.clone() for k, v in optimizer.state_tensors().items()})
    for each in (optimizer, restored):
        each.set_factor(0.5)
    take_steps(net, optimizer, 3, seed=2)
    take_steps(twin, restored, 3, seed=2)
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_a_factor_of_zero_stops_every_parameter(kind: str) -> None:
    net = small_net()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = optimizer_of(net, kind)
    optimizer.set_factor(0.0)
    take_steps(net, optimizer, 2, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    optimizer.set_factor(1.0)
    take_steps(net, optimizer, 1, seed=1)
    assert not any(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_the_gradient_is_clipped_to_the_norm_and_its_norm_before_is_returned() -> None:
    net = small_net()
    optimizer = optimizer_of(net, "adam", clip=0.1)
    (100.0 * net(torch.ones(1, 2, 1, 8))).sum().backward()
    before = math.sqrt(
        sum(p.grad.square().sum().item() for p in net.parameters() if p.grad is not None)
    )
    norm = optimizer.clip_gradient().item()
    after = math.sqrt(
        sum(p.grad.square().sum().item() for p in net.parameters() if p.grad is not None)
    )
    assert norm == pytest.approx(before, rel=1e-5)
    assert after == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_frozen_parameters_stay_and_old_gradients_are_dropped(kind: Any) -> None:
    small = ConvNPConfig(points_per_unit=16, channels=8, num_layers=2, rank=2)
    model: Any = build_model("convgnp", small, seed=0)
    model.core.unet.down[0].requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = TrainingConfig(num_steps=1, optimizer=kind)
    optimizer = Optimizer(model, config)
    assert all(p.grad is None for p in optimizer.parameters)
    for parameter in optimizer.parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    frozen = {name for name in before if name.startswith("core.unet.down.0.")}
    assert len(frozen) == 2
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in frozen)


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_frozen_parameters_are_left_out(kind: str) -> None:
    model = small_net()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="must have a parameter that is not frozen"):
        optimizer_of(model, kind)
    kernel = model.get_parameter("0.weight").requires_grad_()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = optimizer_of(model, kind)
    kernel.grad = torch.ones_like(kernel)
    optimizer.step()
    moved = {name for name, value in model.named_parameters() if not value.equal(before[name])}
    assert moved == {"0.weight"}
