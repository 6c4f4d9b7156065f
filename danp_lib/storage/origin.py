"""Where a file was made, and which file it is: machine, commit, versions, hash."""

import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from danp_lib._config import Configuration, PositiveInt


@dataclass(frozen=True)
class Hardware(Configuration):
    """The machine that a computation ran on: names, and PyTorch's threads on the CPU."""

    cpu: str
    gpu: str | None
    threads: PositiveInt


def hardware(device: torch.device | str = "cpu") -> Hardware:
    """This machine, for a computation on a device."""
    device = torch.device(device)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    cpu = platform.processor() or platform.machine() or "unknown"
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2] for line in lines if line.startswith("model name"))
    return Hardware(cpu=cpu.strip(), gpu=gpu, threads=torch.get_num_threads())


def commit() -> str | None:
    """The library's commit in git, marked where files differ from it; ``None`` outside a clone."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    with suppress(OSError):  # git may not be installed
        git = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return git.stdout.strip() or None
    return None


def versions() -> dict[str, str]:
    """The versions of this library and of PyTorch, by their names."""
    return {"danp_lib": version("danp_lib"), "torch": torch.__version__}


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
