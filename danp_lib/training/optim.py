"""The optimizers: Adam, and Muon for kernels and hidden layers."""

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Size, Tensor, nn

from danp_lib.training.config import TrainingConfig

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of the iteration (Jordan et al., 2024)."""


def orthogonalized(matrices: Tensor) -> Tensor:
    r"""Matrices ``(count, rows, columns)`` with all singular values moved close to 1.

    From the matrix divided by its Frobenius norm on, each of five steps is
    :math:`X \leftarrow (a + b X X^\top + c (X X^\top)^2) X`. All the factors are polynomials in the
    first :math:`X X^\top`, a small matrix, and X is multiplied by their product once: half of the
    work for a wide matrix. A singular value far below the largest loses a digit or two.
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    gram = x @ x.mT
    product = torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device).expand_as(gram)
    for step in range(5):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor @ product if step else factor
        if step < 4:
            gram = factor @ gram @ factor
    x = product @ x
    return x.mT if is_tall else x


class KernelMuon:
    """Muon (Jordan et al., 2024) on kernels, each as the matrix of its first dimension by the rest.

    Unlike :class:`torch.optim.Muon`, it computes kernels of one shape as one stack of matrices,
    which takes half the time on a CPU, and in float32, which costs a CPU no more than bfloat16 and
    is exact to three digits or more. A step at rate 1 takes away ``weight_decay`` of the kernels.
    """

    def __init__(
        self, kernels: Iterable[nn.Parameter], *, momentum: float, weight_decay: float = 0.0
    ) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        by_shape: dict[Size, list[Tensor]] = {}
        for kernel in kernels:
            by_shape.setdefault(kernel.shape, []).append(kernel)
        self.stacks = list(by_shape.values())
        self.momenta = [torch.zeros_like(torch.stack(same).flatten(2)) for same in self.stacks]

    @torch.no_grad()
    def step(self, learning_rate: Tensor) -> None:
        """Move the kernels along their gradients; a captured step reads the rate on its device."""
        for same, average in zip(self.stacks, self.momenta, strict=True):
            # A kernel without a gradient is an error here.
            gradient = torch.stack([cast(Tensor, kernel.grad) for kernel in same]).flatten(2)
            average.lerp_(gradient, 1.0 - self.momentum)
            # That of a unit which never fires again would become subnormal, and the products slow.
            average.masked_fill_(average.abs() < 1e-30, 0.0)
            step = orthogonalized(gradient.lerp_(average, self.momentum))
            step = step * (-math.sqrt(max(1.0, step.shape[1] / step.shape[2])) * learning_rate)
            torch._foreach_mul_(same, 1.0 - learning_rate * self.weight_decay)
            torch._foreach_add_(same, step.unflatten(2, same[0].shape[1:]).unbind())


class Optimizer:
    """Adam on everything, or Muon on the convolutions and the head's hidden layers.

    The output layer, the biases and the length scales are always Adam's. Frozen parameters are
    left out. Parts of another network are told by their names and shapes: Muon takes what has three
    dimensions or more, and the matrices of a module named ``hidden``.
    """

    def __init__(self, model: nn.Module, config: TrainingConfig) -> None:
        self.config = config
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("model must have a parameter that is not frozen, got none.")
        model.zero_grad()  # of an earlier use
        named = dict(model.named_parameters())
        # Without a head, the U-Net itself ends in the outputs.
        output = "core.head.weight" if "core.head.weight" in named else "core.unet.out.weight"
        kernels: list[nn.Parameter] = []
        self.rest: list[nn.Parameter] = []
        for name, parameter in named.items():
            inner = parameter.ndim > 2 or (parameter.ndim == 2 and ".hidden." in name)
            by_muon = config.optimizer == "muon" and inner and name != output
            if parameter.requires_grad:
                (kernels if by_muon else self.rest).append(parameter)
        self.muon = KernelMuon(kernels, momentum=0.95, weight_decay=config.muon_weight_decay)
        # A rate in a tensor is read at every replay of a captured step, where a number is not.
        device = self.parameters[0].device
        self.adam_rate = torch.tensor(config.learning_rate, device=device)
        self.muon_rate = torch.tensor(config.muon_learning_rate, device=device)
        captured = device.type == "cuda"
        group = {"params": self.rest}  # may be empty, as a bare list may not
        self.adam = torch.optim.Adam([group], lr=self.adam_rate, capturable=captured, fused=True)

    def set_factor(self, factor: float) -> None:
        """Set the rates to their peaks times a factor."""
        self.adam_rate.fill_(self.config.learning_rate * factor)
        self.muon_rate.fill_(self.config.muon_learning_rate * factor)

    def clip_gradient(self) -> Tensor:
        """Scale the gradient down to the largest norm allowed; returns its norm before."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        # clip_grad_norm_ with an infinite bound would still multiply every gradient by 1.
        if self.config.gradient_clip is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.config.gradient_clip, norm)
        return norm

    def step(self) -> None:
        """Move the parameters and drop the gradients."""
        self.adam.step()
        self.muon.step(self.muon_rate)
        for parameter in self.parameters:
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """The whole state as named tensors."""
        tensors = {
            f"adam.{index}.{name}": value
            for index, parameter in enumerate(self.rest)
            for name, value in self.adam.state[parameter].items()
        }
        return tensors | {f"muon.{i}": value for i, value in enumerate(self.muon.momenta)}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over a state from :meth:`state_tensors`."""
        for key, value in tensors.items():
            part, index, *names = key.split(".")
            if part == "adam":
                parameter = self.rest[int(index)]
                # The fused kernel takes it that moments lie in memory as their parameter does.
                like = parameter if value.shape == parameter.shape else value.to(parameter.device)
                self.adam.state[parameter][names[0]] = torch.empty_like(like).copy_(value)
        for i, momentum in enumerate(self.muon.momenta):
            momentum.copy_(tensors[f"muon.{i}"])
