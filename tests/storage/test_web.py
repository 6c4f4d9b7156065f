"""Models for a web page: what the scripts hold, and what cannot be exported."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from danp_lib.data.generators import GaussianProcess
from danp_lib.data.scaling import Scaling
from danp_lib.models.convnp import ConvGNP, ConvNPConfig
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.storage.web import export_page, model_script, pack, page_script, widget_module

TINY = ConvNPConfig(
    points_per_unit=16, channels=8, num_layers=3, rank=4, head_channels=16, conditioned=True
)


def tiny(**changes: Any) -> DANP:
    torch.manual_seed(0)
    return DANP(DANPConfig(base=replace(TINY, **changes), num_levels=2, num_auxiliary=10)).eval()


class Named(DANP):
    """Another kind of model, which a page's engine may not answer as."""

    name = "named"


def read(text: str) -> dict[str, Any]:
    """The object in a model's script."""
    before, _, after = text.partition('DANP.models["mine"] = ')
    assert before
    return json.loads(after.rstrip().removesuffix(";"))


def test_script_holds_every_weight() -> None:
    model = tiny()
    script = read(model_script(model, "mine"))
    data, at = base64.b64decode(script["data"]), 0
    weights = model.state_dict()
    assert [name for name, *_ in script["tensors"]] == list(weights)
    for name, shape, bits in script["tensors"]:
        dtype = {16: "<f2", 32: "<f4"}[bits]
        values = np.frombuffer(data, dtype, count=weights[name].numel(), offset=at)
        at += values.nbytes
        np.testing.assert_array_equal(values.reshape(shape), pack(weights[name]).numpy())
        np.testing.assert_allclose(values.reshape(shape), weights[name], rtol=1e-3, atol=1e-7)
    assert at == len(data)


def test_script_holds_the_configuration() -> None:
    text = model_script(
        tiny(),
        "mine",
        task_generator=GaussianProcess(),
        scaling=Scaling(x_offset=1900.0, x_unit=25.0, y_offset=3.0, y_unit=2.0),
    )
    config = read(text)["config"]
    assert config["gridPoints"] == len(TINY.grid.points())
    assert config["numLevels"] == 2
    assert config["conditioned"] is True
    assert config["prior"]["name"] == "gp"
    assert config["prior"]["lengthScale"] == GaussianProcess().length_scale
    assert config["scaling"] == {"xOffset": 1900.0, "xUnit": 25.0, "yOffset": 3.0, "yUnit": 2.0}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"unet": "paper"}, "unet='paper'"),
        ({"channels": 12}, "channels=12"),
        ({"head_channels": 20}, "head_channels=20"),
        ({"head_layers": 0}, "head_layers=0"),
    ],
)
def test_what_a_page_cannot_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    pytest.importorskip("wasmtime")
    with pytest.raises(ValueError, match=named):
        export_page(tiny(**changes), "mine", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_defensive_component_is_refused() -> None:
    with pytest.raises(ValueError, match=r"defensive_weight=0\.05"):
        model_script(tiny().defended(), "mine")
    with pytest.raises(ValueError, match="samples_known=False"):
        model_script(tiny().defended(weight=0.0), "mine")


def test_other_models_are_refused() -> None:
    other: Any = ConvGNP(TINY)
    with pytest.raises(ValueError, match="model must be a DANP, got ConvGNP"):
        model_script(other, "mine")
    with pytest.raises(ValueError, match="model must be a DANP, got Named"):
        model_script(Named(DANPConfig(base=TINY)), "mine")
    huge = tiny()
    torch.nn.init.constant_(huge.core.unet.out.weight, 1e6)
    with pytest.raises(ValueError, match="finite in float16"):
        model_script(huge, "mine")


def test_page_is_whole(tmp_path: Path) -> None:
    pytest.importorskip("wasmtime")
    made = export_page(tiny(), "mine", tmp_path / "page")
    assert sorted(made) == sorted((tmp_path / "page").iterdir())
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert 'data-model="mine"' in page
    assert 'src="danp-live.js"' in page
    assert page.index('src="mine.js"') < page.index('src="danp-live.js"')
    assert "://" not in page
    export_page(tiny(), "50% & #1", tmp_path / "odd")
    page = (tmp_path / "odd" / "index.html").read_text(encoding="utf-8")
    assert 'src="50%25%20%26%20%231.js"' in page
    assert 'data-model="50% &amp; #1"' in page


def test_module_is_the_script_with_an_export() -> None:
    pytest.importorskip("wasmtime")
    module = widget_module("/* a model */")
    assert module.startswith(page_script())
    assert "/* a model */" in module
    assert module.rstrip().endswith("export default { render: DANP.render };")


def test_without_wasmtime_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    with pytest.raises(ModuleNotFoundError, match="pip install wasmtime"):
        page_script()


def test_a_model_by_the_name_of_the_engine_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("wasmtime")
    with pytest.raises(ValueError, match="name must be another than 'danp-live'"):
        export_page(tiny(), "danp-live", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a/b", "a\\b"])
def test_a_name_that_would_be_a_path_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name must hold no slash"):
        export_page(tiny(), name, tmp_path)
    assert not list(tmp_path.iterdir())
