"""The schedules of learning rate and jitter, and Muon for kernels and hidden layers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from danp_lib._config import checked
from danp_lib.distributions.gaussian import VARIANCE_FLOOR

OptimizerKind = Literal["adam", "muon"]
Schedule = Literal["constant", "cosine", "quadratic"]
JitterSchedule = Literal["constant", "geometric"]


def schedule_factor(step: int, *, num_steps: int, warmup_steps: int, schedule: Schedule) -> float:
    """What the learning rate is multiplied by at a step, in [0, 1].

    Args:
        step: From 0.
        num_steps: Length of the run.
        warmup_steps: Number of steps over which the rate rises linearly from near 0.
        schedule: ``"constant"``, ``"cosine"`` for a half cosine from 1 down to 0, or
            ``"quadratic"`` for the square of what is left of the run.

    Raises:
        ValueError: If the schedule is unknown.
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

    Raises:
        ValueError: If the schedule is unknown.
    """
    checked(JitterSchedule, schedule, "schedule")
    if step >= num_steps:
        return 0.0
    if schedule == "constant":
        return jitter
    return float(jitter * (VARIANCE_FLOOR / jitter) ** (step / num_steps))


class KernelMuon:
    """Muon (Jordan et al., 2024) on kernels, each as the matrix of its first dimension by the rest.

    That is ``(out, in * size)`` for a convolution and ``(in, out * size)`` for a transposed one.

    :class:`torch.optim.Muon` takes matrices and a learning rate known to the host. Here it works
    on matrices of zeros, so that what it leaves in them is the step at rate 1; the kernels then
    move by that times a rate that may live on the GPU, where a captured step can read it.

    Args:
        kernels: Parameters of two or more dimensions.
        momentum: Momentum of the gradients.
        weight_decay: Fraction of the kernels that a step at rate 1 takes away.
    """

    def __init__(
        self, kernels: Iterable[nn.Parameter], *, momentum: float, weight_decay: float = 0.0
    ) -> None:
        self.weight_decay = weight_decay
        self.kernels = list(kernels)
        self.matrices = [nn.Parameter(torch.zeros_like(k).flatten(1)) for k in self.kernels]
        self.muon = torch.optim.Muon(self.matrices, lr=1.0, momentum=momentum, weight_decay=0.0)

    @torch.no_grad()
    def step(self, learning_rate: Tensor) -> None:
        """Move the kernels along their gradients.

        Args:
            learning_rate: A scalar on the device of the kernels.
        """
        for matrix, kernel in zip(self.matrices, self.kernels, strict=True):
            assert kernel.grad is not None
            matrix.zero_()
            matrix.grad = kernel.grad.flatten(1)
        self.muon.step()
        for matrix, kernel in zip(self.matrices, self.kernels, strict=True):
            kernel.mul_(1.0 - learning_rate * self.weight_decay)
            kernel.add_(matrix.reshape(kernel.shape) * learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """The momenta."""
        return self.muon.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over momenta from :meth:`state_dict`."""
        self.muon.load_state_dict(state)


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

    Raises:
        ValueError: If the kind is unknown.
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
        parts = {"adam": self.adam.state_dict()["state"]}
        if self.muon is not None:
            parts["muon"] = self.muon.state_dict()["state"]
        return {
            f"{part}.{index}.{name}": value
            for part, entries in parts.items()
            for index, entry in entries.items()
            for name, value in entry.items()
        }

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over a state from :meth:`state_tensors`."""
        states: dict[str, dict[int, dict[str, Tensor]]] = {"adam": {}, "muon": {}}
        for key, value in tensors.items():
            part, index, name = key.split(".")
            states[part].setdefault(int(index), {})[name] = value
        groups = self.adam.state_dict()["param_groups"]
        self.adam.load_state_dict({"state": states["adam"], "param_groups": groups})
        # Loading copies the rate; the one that set_factor writes to must stay in use.
        for group in self.adam.param_groups:
            group["lr"] = self.adam_rate
        if self.muon is not None:
            groups = self.muon.state_dict()["param_groups"]
            self.muon.load_state_dict({"state": states["muon"], "param_groups": groups})
