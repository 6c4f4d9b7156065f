"""Where a result was made: the machine and the commit."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

from danp_lib.storage.card import Hardware


def hardware(device: torch.device | str = "cpu") -> Hardware:
    """What this machine is, for work on a device."""
    device = torch.device(device)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return Hardware(cpu=_processor(), gpu=gpu, threads=torch.get_num_threads())


def commit() -> str | None:
    """The commit that the library is at in git, marked where files differ from it."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"
