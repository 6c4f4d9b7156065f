"""The pages' widgets in a notebook: what is sent to it, and what comes back."""

from __future__ import annotations

import re

import pytest
import torch

pytest.importorskip("anywidget")
pytest.importorskip("wasmtime")

from danp_lib.models.convnp import ConvNPConfig
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.storage.web import widget_module
from danp_lib.storage.widget import live_model, live_noising, live_prior

TINY = ConvNPConfig(points_per_unit=16, channels=8, num_layers=3, rank=4, head_channels=16)


def tiny() -> DANP:
    torch.manual_seed(0)
    return DANP(DANPConfig(base=TINY, num_levels=2, num_auxiliary=10))


def test_a_model_s_widget_has_the_scripts_and_the_models() -> None:
    made = live_model("danp-gp", tiny(), points=[(0.0, 0.5)], num_samples=4)
    given, own = made.models
    assert given == "danp-gp"
    assert re.fullmatch(r"model [0-9a-f]{6}", own)
    assert live_model(tiny()).models != [own]
    assert made._esm.startswith(widget_module()[:50_000])
    for name in made.models:
        assert f'DANP.models["{name}"] = ' in made._esm
    assert made.samples == 4
    assert made.points == [[0.0, 0.5]]


def test_points_are_shared_with_the_notebook() -> None:
    made = live_model(tiny())
    assert made.points is None
    sent = made.get_state()
    assert {"points", "models", "samples", "controls", "widget", "_esm"} <= sent.keys()
    made.set_state({"points": [[0.25, 0.75]]})  # as the page does it
    assert made.points == [[0.25, 0.75]]


def test_a_notebook_shows_the_widget() -> None:
    for made, kind in ((live_noising(), "noising"), (live_prior(), "prior")):
        assert made.widget == kind
        bundle = made._repr_mimebundle_()
        assert bundle is not None
        assert "application/vnd.jupyter.widget-view+json" in bundle[0]


def test_there_must_be_a_model_that_a_page_can_run() -> None:
    with pytest.raises(ValueError, match="models must hold at least one"):
        live_model()
    with pytest.raises(ValueError, match="num_samples must be >= 1"):
        live_model("danp-gp", num_samples=0)
    with pytest.raises(ValueError, match="multiples of 8 channels"):
        live_model(DANP(DANPConfig(base=ConvNPConfig(unet="paper"), num_levels=2)))
