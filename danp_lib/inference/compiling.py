"""Compiling on a CPU: whether it can be done, and a network as machine code made for it."""

import os
import shutil
import sys

import torch
from torch import Tensor

from danp_lib._config import check_kind
from danp_lib.models.convnp import ConvNeuralProcess


def can_compile(device: torch.device | str) -> bool:
    """Whether the device is a CPU and there is PyTorch's C++ compiler, or what ``CXX`` names."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    is_cpu = torch.device(device).type == "cpu"
    return is_cpu and shutil.which(os.environ.get("CXX", usual)) is not None


def compile_unet(model: ConvNeuralProcess, *, batch_size: int) -> None:
    """Compile the U-Net for batches of one size, in place; other batches pass as before.

    For prediction only: the weights become constants of the code. Predictions differ by rounding.
    Compiling may take a minute, and a third of that the next time: PyTorch keeps the kernels (with
    temporary files, or where ``TORCHINDUCTOR_CACHE_DIR`` says), but not what it laid out for the
    convolutions. The size is the number of sets that pass at a time, such as the ``chunk_size`` of
    an estimator.
    """
    check_kind(ConvNeuralProcess, model=model)
    # Here, since it takes as long to import as all the rest.
    from torch._inductor import config as inductor

    core, unet = model.core, model.core.unet
    eager = unet.forward
    compiled = torch.compile(eager, dynamic=False)

    def forward(x: Tensor) -> Tensor:
        return (compiled if len(x) == batch_size else eager)(x)

    unet.forward = forward  # type: ignore[method-assign]
    # Compiled now, so that the first task takes no longer than the others, and frozen: constants
    # are laid out for the convolutions once and for all.
    with torch.no_grad(), inductor.patch(freezing=True):
        unet(core.grid.new_zeros(batch_size, 2 * core.num_sets, len(core.grid)))
