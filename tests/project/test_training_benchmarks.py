"""The benchmarks of training: what they time, and how ratios of timings are averaged."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from danp_lib.models.danp import DANPConfig
from danp_lib.training.recipes import recipe

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("training_step")


def test_ratios_are_averaged_with_the_probabilities_of_the_levels(step: Any) -> None:
    for name, expected in (("fast", 0.5 * 3.0 + 0.5 / 3 * 6.0), ("paper", (3.0 + 6.0) / 4)):
        side = step.Side(name)
        # What was timed first does not count.
        side.levels = [2, 2, *[0] * 6, 1, 1, 2, 2, 3, 3]
        seconds = [3.0] * 6 + [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        found = side.mean_ratio(seconds, [1.0] * 12)
        assert found["median"] == pytest.approx(expected)
    with pytest.raises(ValueError, match="--rounds"):
        side.mean_ratio(seconds[:7], [1.0] * 7)


def test_the_convolutions_are_all_of_the_unet_but_its_last_on_their_inputs(step: Any) -> None:
    unet = step.Side("fast").model.core.unet
    encoding = torch.randn(2, 8, 128, generator=torch.Generator().manual_seed(0))
    found = step.convolutions(unet, encoding)
    # The stem, and down, up and mix in six layers.
    assert len(found) == 1 + 3 * 6
    assert torch.equal(found[0][1].squeeze(-2), encoding)
    assert all(module is not unet.out for module, _ in found)
    step.forward_and_backward(found)()
    assert all(parameter.grad is None for parameter in unet.parameters())


def test_the_time_to_the_papers_likelihood_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    time_to_paper = importlib.import_module("time_to_paper")

    def tiny(*names: str, **options: Any) -> Any:
        made = recipe(*names, **options)
        assert isinstance(made.model_config, DANPConfig)
        base = replace(made.model_config.base, points_per_unit=16, channels=4, num_layers=2, rank=2)
        return replace(made, model_config=replace(made.model_config, base=base))

    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(time_to_paper, "recipe", tiny)
    monkeypatch.setattr(time_to_paper, "CONTEXT_SIZES", (0, 3))
    arguments = ["--datasets", "square-released", "--steps", "2", "1", "--num-samples", "2"]
    monkeypatch.setattr("sys.argv", ["time_to_paper.py", "--out", str(tmp_path), *arguments])
    printed = []
    for _ in range(2):
        time_to_paper.main()
        printed.append(capsys.readouterr().out)
        # Scored already, nothing is trained again.
        monkeypatch.setattr(time_to_paper, "train", None)
    assert printed[0] == printed[1]
    saved = json.loads((tmp_path / "time_to_paper.json").read_text(encoding="utf-8"))
    assert [point["steps"] for point in saved["points"]["square-released"]] == [1, 2]
    assert saved["points"]["square-released"][0]["num_tasks"] == 4
