"""A training step as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class GraphedStep:
    """Call a function eagerly a few times, then record its kernels once and replay them.

    A replay costs one launch where the step has thousands. The function must be of static shapes,
    read nothing on the host, take its randomness from ``generator``, and change only tensors that
    stay where they are; it returns tensors, which every replay overwrites.

    Args:
        function: The step.
        generator: Its source of randomness, on the GPU.
        warmup: Number of eager calls, in which the libraries settle their workspaces.
    """

    def __init__(
        self, function: Callable[[], Any], generator: torch.Generator, *, warmup: int = 5
    ) -> None:
        self.function = function
        self.generator = generator
        self.warmup = warmup
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Any = None

    def __call__(self) -> Any:
        """Run one step."""
        if self.warmup > 0:
            self.warmup -= 1
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                result = self.function()
            torch.cuda.current_stream().wait_stream(stream)
            return result
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.generator)
            with torch.cuda.graph(self.graph):
                self.result = self.function()
        self.graph.replay()
        return self.result
