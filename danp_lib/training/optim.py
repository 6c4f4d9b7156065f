"""The schedules of learning rate and jitter, and Muon for kernels and hidden layers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, cast

import torch
from torch import Size, Tensor, nn

from danp_lib._config import checked
from danp_lib.distributions.gaussian import VARIANCE_FLOOR

OptimizerKind = Literal["adam", "muon"]
Schedule = Literal["constant", "cosine", "quadratic"]
JitterSchedule = Literal["constant", "geometric"]


def schedule_factor(step: int, *, num_steps: int, warmup_steps: int, schedule: Schedule) -> float:
    """What the learning rate is multiplied by at a step, counted from 0.

    It rises linearly from near 0 over the warmup. A ``"cosine"`` is a half one, from 1 down to 0;
    ``"quadratic"`` is the square of what is left of the run.
    """
    checked(Schedule, schedule, "schedule")
    warmup = min(1.0, (step + 1) / (warmup_steps + 1))
    if schedule == "constant":
        return warmup
    if schedule == "quadratic":
        return warmup * (1.0 - step / num_steps) ** 2
    return warmup * 0.5 * (1.0 + math.cos(math.pi * step / num_steps))


def jitter_at(step: int, *, jitter: float, num_steps: int, schedule: JitterSchedule) -> float:
    """The variance added to each prediction at a step of training.

    Without it, a value that is predicted wrongly and with confidence costs up to
    1 / (2 * 10**-6) nats an output, and the loss of a jumping function is made of little else.

    Args:
        step: From 0.
        jitter: At step 0, in squared units of y.
        num_steps: Number of steps with jitter.
        schedule: ``"constant"``, or ``"geometric"`` for a fall down to the variance floor.
    """
    checked(JitterSchedule, schedule, "schedule")
    if step >= num_steps:
        return 0.0
    if schedule == "constant":
        return jitter
    return float(jitter * (VARIANCE_FLOOR / jitter) ** (step / num_steps))


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of the iteration (Jordan et al., 2024)."""


def orthogonalized(matrices: Tensor) -> Tensor:
    r"""Matrices with all singular values moved close to 1, by five steps of Newton and Schulz.

    Each step is :math:`X \leftarrow (a + b X X^\top + c (X X^\top)^2) X`, starting at the matrix
    divided by its Frobenius norm. The factors are polynomials in the first :math:`X X^\top`, so
    all steps are taken on that small matrix, and X is multiplied by their product once: half of
    the work for a wide matrix. A singular value far below the largest loses a digit or two.

    Args:
        matrices: ``(count, rows, columns)``.
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

    That is ``(out, in * size)`` for a convolution and ``(in, out * size)`` for a transposed one.

    The steps are those of :class:`torch.optim.Muon`, with two differences. Kernels of one shape are
    computed as one stack of matrices: that takes half the time on a CPU. And the products are in
    float32, which costs a CPU no more than bfloat16 and is exact to three digits or more.

    Args:
        kernels: Parameters of two or more dimensions.
        momentum: Momentum of the gradients.
        weight_decay: Fraction of the kernels that a step at rate 1 takes away.
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

    @property
    def kernels(self) -> list[Tensor]:
        """All kernels, those of one shape side by side."""
        return [kernel for same in self.stacks for kernel in same]

    @torch.no_grad()
    def step(self, learning_rate: Tensor) -> None:
        """Move the kernels along their gradients; a captured step reads the rate on its device."""
        for same, average in zip(self.stacks, self.momenta, strict=True):
            # A kernel without a gradient is an error here.
            gradient = torch.stack([cast(Tensor, kernel.grad) for kernel in same]).flatten(2)
            average.lerp_(gradient, 1.0 - self.momentum)
            step = orthogonalized(gradient.lerp_(average, self.momentum))
            step = step * (-math.sqrt(max(1.0, step.shape[1] / step.shape[2])) * learning_rate)
            torch._foreach_mul_(same, 1.0 - learning_rate * self.weight_decay)
            torch._foreach_add_(same, step.unflatten(2, same[0].shape[1:]).unbind())


class Optimizer:
    """Adam on everything, or Muon on what maps features to features and Adam on the rest.

    Muon is for the convolutions and the hidden layers of the head. The output layer, the biases
    and the length scales are Adam's.

    Args:
        model: The model.
        kind: ``"adam"`` or ``"muon"``.
        learning_rate: Peak rate of Adam.
        muon_learning_rate: Peak rate of Muon.
        muon_weight_decay: Weight decay of Muon.
        gradient_clip: Largest Euclidean norm of the whole gradient; a larger one is scaled down.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        kind: OptimizerKind,
        learning_rate: float,
        muon_learning_rate: float,
        gradient_clip: float | None,
        muon_weight_decay: float = 0.0,
    ) -> None:
        checked(OptimizerKind, kind, "kind")
        self.parameters = list(model.parameters())
        device = self.parameters[0].device
        self.clip = math.inf if gradient_clip is None else gradient_clip
        self.rates = (learning_rate, muon_learning_rate)
        self.muon: KernelMuon | None = None
        rest = self.parameters
        if kind == "muon":
            named = dict(model.named_parameters())
            # Without a head, the U-Net itself ends in the outputs.
            output = "core.head.weight" if "core.head.weight" in named else "core.unet.out.weight"
            is_hidden = {
                n: n != output and (p.ndim > 2 or (p.ndim == 2 and ".hidden." in n))
                for n, p in named.items()
            }
            self.muon = KernelMuon(
                (p for n, p in named.items() if is_hidden[n]),
                momentum=0.95,
                weight_decay=muon_weight_decay,
            )
            rest = [p for n, p in named.items() if not is_hidden[n]]
        # A rate in a tensor is read at every replay of a captured step, where a number is not.
        self.adam_rate = torch.tensor(learning_rate, device=device)
        self.muon_rate = torch.tensor(muon_learning_rate, device=device)
        captured = device.type == "cuda"
        self.adam = torch.optim.Adam(rest, lr=self.adam_rate, capturable=captured, fused=True)

    def set_factor(self, factor: float) -> None:
        """Set the rates to their peaks times a factor."""
        adam, muon = self.rates
        self.adam_rate.fill_(adam * factor)
        self.muon_rate.fill_(muon * factor)

    def clip_gradient(self) -> Tensor:
        """Scale the gradient down to the largest norm allowed; returns its norm before."""
        return nn.utils.clip_grad_norm_(self.parameters, self.clip)

    def step(self) -> None:
        """Move the parameters and drop the gradients."""
        self.adam.step()
        if self.muon is not None:
            self.muon.step(self.muon_rate)
        for parameter in self.parameters:
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """The whole state as named tensors."""
        tensors = {
            f"adam.{index}.{name}": value
            for index, entry in self.adam.state_dict()["state"].items()
            for name, value in entry.items()
        }
        momenta = [] if self.muon is None else self.muon.momenta
        return tensors | {f"muon.{group}": value for group, value in enumerate(momenta)}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over a state from :meth:`state_tensors`."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            part, _, rest = key.partition(".")
            if part == "adam":
                index, name = rest.split(".")
                state.setdefault(int(index), {})[name] = value
        groups = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict({"state": state, "param_groups": groups})
        # The fused kernel takes it that moments lie in memory as their parameter does.
        for parameter, moments in self.adam.state.items():
            for name, value in moments.items():
                if value.shape == parameter.shape:
                    moments[name] = torch.empty_like(parameter).copy_(value)
        # Loading copies the rate; the one that set_factor writes to must stay in use.
        for group in self.adam.param_groups:
            group["lr"] = self.adam_rate
        for i, momentum in enumerate([] if self.muon is None else self.muon.momenta):
            momentum.copy_(tensors[f"muon.{i}"])
