"""A Sphinx extension: the trained models that answer in a page.

A page holds ``<div class="danp-live" data-model="danp-sawtooth"></div>``. The build writes the
script of the widget, which such pages load, and a script with the weights of each model, which
nobody loads before a reader starts it. Both are made of what the repository holds, and neither is
kept there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.console import bold
from torch import Tensor

from danp_lib.data.points import PointSet
from danp_lib.models.danp import DANP
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.pretrained import load_pretrained, pretrained_path
from danp_lib.storage.web import PAGE_SCRIPT, model_script, page_script

logger = logging.getLogger(__name__)

MODELS = ("danp-sawtooth", "danp-square", "danp-gp")
"""What pages offer."""

FIRST = "danp-sawtooth"
FIRST_POINTS = [(-0.06, 0.9), (0.52, 0.92)]
"""The model that pages begin with, and the points that it shows an answer for before it starts."""


def write_scripts(folder: Path) -> None:
    """Write the widget's script and the models' to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        prior = read_header(pretrained_path(name)).task_generator
        script = model_script(load_pretrained(name), name, task_generator=prior)
        (folder / f"{name}.js").write_text(script, encoding="utf-8")
    x, y = torch.tensor(FIRST_POINTS)[None].split(1, dim=-1)
    picture = poster(load_pretrained(FIRST), PointSet(x, y))
    script = page_script({FIRST: picture})
    (folder / PAGE_SCRIPT).write_text(script, encoding="utf-8")


def poster(
    model: DANP, context: PointSet, *, num_samples: int = 12
) -> dict[str, Any]:
    """What a page shows before the model is fetched: a few samples at 161 inputs, to two digits.

    The context is one set, the points that the page begins with.
    """
    (lower,), (upper,) = model.domain.lower, model.domain.upper
    xt = torch.linspace(lower, upper, 161)
    generator = torch.Generator().manual_seed(0)
    walks = model.predict(
        context, xt[None, :, None], num_samples=num_samples, generator=generator
    ).components
    size = (num_samples, model.config.base.rank, 1)
    shared = torch.randn(size, generator=generator, dtype=torch.float64)
    curves = (walks.loc + walks.cov_factor @ shared)[0, ..., 0]

    def digits(values: Tensor) -> Any:
        return [[round(v, 2) for v in row] for row in values.tolist()]

    return {
        "points": digits(torch.cat([context.x, context.y], dim=-1)[0]),
        "xt": [round(x, 4) for x in xt.tolist()],
        "curves": digits(curves),
    }


def write_before_reading(app: Sphinx) -> None:
    """Make the scripts before a page asks for their checksum."""
    if app.builder.format == "html":
        logger.info(bold("writing the models of the pages"))
        write_scripts(Path(app.outdir) / "_static" / "live")


def load_on_page(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Let a page with a model load the widget."""
    if 'class="danp-live"' in context.get("body", ""):
        app.add_js_file(f"live/{PAGE_SCRIPT}", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", write_before_reading)
    app.connect("html-page-context", load_on_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
