"""The processors that tests are tried on: how to make PyTorch round as others do.

PyTorch chooses its kernels by what the processor can do, and sums in another order where it chooses
others or divides the work among more threads. These variables make it choose as on a processor of
that kind.
"""

from __future__ import annotations

VARIANTS: dict[str, dict[str, str]] = {
    "as-is": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "sse4": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
    # Threads that have nothing to do sleep: there may be fewer cores than threads.
    "four-threads": {"OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE"},
}
"""Environment variables of each simulated processor."""

OWN = {"AVX2": "avx2", "DEFAULT": "sse4"}
"""What PyTorch calls a processor that is one of these by itself."""
