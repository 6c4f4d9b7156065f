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

from danp_lib.data.points import PointSet
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.pretrained import load_pretrained, pretrained_path
from danp_lib.storage.web import PAGE_SCRIPT, export_web, page_script, poster

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
        model = load_pretrained(name)
        export_web(model, folder / f"{name}.js", task_generator=prior)
    x, y = torch.tensor(FIRST_POINTS)[None].split(1, dim=-1)
    picture = poster(load_pretrained(FIRST), PointSet(x, y))
    script = page_script({FIRST: picture})
    (folder / PAGE_SCRIPT).write_text(script, encoding="utf-8")


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
