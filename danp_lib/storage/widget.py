"""The widgets of the book's pages in a running notebook, which takes the extra ``book``."""

import secrets
from collections.abc import Sequence
from typing import Any

import anywidget
from traitlets import Int, List, Unicode

from danp_lib._config import check_at_least
from danp_lib.models.danp import DANP
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.pretrained import load_pretrained, pretrained_path
from danp_lib.storage.web import model_script, widget_module


class LiveWidget(anywidget.AnyWidget):
    """A widget of the pages; a model's ``points``, pairs (x, y), are its context, on both sides."""

    _esm = Unicode().tag(sync=True)
    widget = Unicode().tag(sync=True)
    models = List(Unicode()).tag(sync=True)
    controls = Unicode("full").tag(sync=True)
    samples = Int(16).tag(sync=True)
    points: Any = List(allow_none=True, default_value=None).tag(sync=True)


def live_model(
    *models: str | DANP, points: Sequence[tuple[float, float]] | None = None, num_samples: int = 16
) -> LiveWidget:
    """Models to choose from, which answer to points set on a plot: pretrained DANPs, or others.

    Where the points to begin with are left out, they are a few of the data set's.
    """
    if not models:
        raise ValueError("models must hold at least one, got none.")
    check_at_least(1, num_samples=num_samples)
    scripts: dict[str, str] = {}
    for model in models:
        if isinstance(model, str):
            prior = read_header(pretrained_path(model)).task_generator
            scripts[model] = model_script(load_pretrained(model), model, task_generator=prior)
        else:
            # A browser's page has one set of models, for all notebooks in it.
            name = f"model {secrets.token_hex(3)}"
            scripts[name] = model_script(model, name)
    return LiveWidget(
        _esm=widget_module(*scripts.values()),
        widget="model",
        models=list(scripts),
        samples=num_samples,
        points=None if points is None else [list(point) for point in points],
    )


def live_noising() -> LiveWidget:
    """A function and its noised levels, with sliders for beta, F and the level."""
    return LiveWidget(_esm=widget_module(), widget="noising")


def live_prior() -> LiveWidget:
    """Functions of a prior, and those that are left where points of one are known."""
    return LiveWidget(_esm=widget_module(), widget="prior")
