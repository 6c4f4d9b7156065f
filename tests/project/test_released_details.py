"""The tasks with the released code's phases."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import pretrained_path

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("released_details")


def test_the_released_phases_are_drawn_from_zero_to_one_period(script: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    omega, phi, _ = script.ReleasedSawtooth().sample_parameters(4000, generator=generator)
    share = phi * omega
    assert float(share.min()) >= 0.0
    assert float(share.max()) <= 1.0
    assert float(share.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(share.std()) == pytest.approx(12**-0.5, abs=0.01)


@pytest.mark.parametrize(
    ("one", "other"),
    [("sawtooth", "sawtooth, released phases"), ("square", "square-released")],
)
def test_the_tasks_of_a_pair_differ_in_their_phase_alone(script: Any, one: str, other: str) -> None:
    drawn = []
    for prior in (one, other):
        generator = torch.Generator().manual_seed(3)
        drawn.append(script.PRIORS[prior].sample_task(4, context_size=5, generator=generator))
    first, second = drawn
    torch.testing.assert_close(first.xt, second.xt, rtol=0, atol=0)
    torch.testing.assert_close(first.xc, second.xc, rtol=0, atol=0)
    assert ((first.yt - second.yt).abs() > 1e-3).double().mean() > 0.3


def test_the_stored_scores_are_of_the_models_that_are_shipped(script: Any) -> None:
    stored = json.loads((ROOT / script.OUT).read_text(encoding="utf-8"))
    assert [record["run"] for record in stored["records"]] == script.plan()
    assert stored["seed"] == script.SEED
    for record in stored["records"]:
        run = record["run"]
        assert record["weights"] == sha256(pretrained_path(run["model"]))
        sizes = [size for size in range(31) for _ in range(run["tasks_per_size"])]
        assert record["context_sizes"] == sizes
        assert len(record["log_likelihoods"]) == len(sizes)
