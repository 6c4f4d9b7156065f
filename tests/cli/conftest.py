"""Checkpoints, tasks and an empty folder for the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_models import MODELS

from danp_lib.data.generators import Sawtooth
from danp_lib.storage.checkpoint import save_checkpoint
from danp_lib.storage.tasks import save_tasks


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    paths = {name: folder / f"{name}.safetensors" for name in MODELS}
    for name, path in paths.items():
        save_checkpoint(path, MODELS[name](), task_generator=Sawtooth())
    return paths


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "tasks.safetensors"
    generator = torch.Generator().manual_seed(0)
    task = Sawtooth().sample_task(3, num_targets=5, pool_size=30, generator=generator)
    save_tasks(path, task, metadata={})
    return path
