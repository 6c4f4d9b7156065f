"""``danp info`` and ``danp export``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import danp, good, refused
from small_models import MODELS

from danp_lib._config import to_dict
from danp_lib.models.convnp import count_parameters
from danp_lib.training import recipes


def test_info_of_a_recipe() -> None:
    recipe = ["--model", "danp", "--dataset", "sawtooth", "--recipe", "paper"]
    made = recipes.recipe("paper", model="danp", dataset="sawtooth")
    found = json.loads(good("info", *recipe, "--json"))
    assert found["parameters"] == count_parameters(made.build_model())
    assert found["config"] == to_dict(made.model_config)
    assert found["training"] == to_dict(made.training)
    assert str(found["parameters"]) in good("info", *recipe)


@pytest.mark.parametrize("name", MODELS)
def test_info_of_a_checkpoint(name: str, checkpoints: dict[str, Path]) -> None:
    found = json.loads(good("info", checkpoints[name], "--json"))
    assert (found["model"], found["dataset"]) == (name, "sawtooth")
    assert found["parameters"] == count_parameters(MODELS[name]())
    assert found["config"].get("base", found["config"])["channels"] == 8
    assert re.search(r"^ +channels +8$", good("info", checkpoints[name]), re.MULTILINE)


def test_a_changed_checkpoint_is_refused(checkpoints: dict[str, Path], here: Path) -> None:
    data = bytearray(checkpoints["danp"].read_bytes())
    data[-1] ^= 1
    (here / "changed.safetensors").write_bytes(data)
    assert "was changed" in refused("info", "changed.safetensors")


def test_export_writes_a_page(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("wasmtime")
    path, folder = checkpoints["danp"], tmp_path / "page"
    result = danp("export", "--web", path, "--out", folder)
    assert result.exit_code == 0
    names = {"index.html", "danp-live.js", f"{path.stem}.js"}
    assert {file.name for file in folder.iterdir()} == names
    assert all(name in result.stderr for name in names)
    refused = danp("export", "--web", checkpoints["convgnp"], "--out", tmp_path / "other")
    assert refused.exit_code == 2
    assert "must be a DANP, got ConvGNP" in refused.stderr
    assert not (tmp_path / "other").exists()
