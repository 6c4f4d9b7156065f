"""Models for a web page: weights in a script, and the scripts that answer with them.

A page that was opened as a file may run classic scripts that lie beside it, and read nothing else.
So a model is one script, ``DANP.models["name"] = {...}``, with its weights as text, and the engine,
the widget and the assembled kernel are another, :func:`page_script`.
"""

import base64
import html
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from danp_lib._config import to_dict
from danp_lib._files import data_file, write_atomically
from danp_lib.data.generators import TaskGenerator
from danp_lib.data.scaling import IDENTITY, Scaling
from danp_lib.models.conditioning import MAX_CHI_SQUARE
from danp_lib.models.danp import DANP
from danp_lib.nn.unet import ACTIVATION_BOUND

SCRIPTS = (
    *("parts", "weights", "kernels", "setconv", "unet", "head", "conditioning", "denoising"),
    *("priors", "exact", "plot", "sampler", "widget", "noising", "prior", "render"),
)
"""The parts of :func:`page_script`, in their order."""

PAGE_SCRIPT = "danp-live.js"


def model_script(
    model: DANP,
    name: str,
    *,
    task_generator: TaskGenerator | None = None,
    scaling: Scaling = IDENTITY,
) -> str:
    """A model as a script for a page; a ``ValueError`` if a page cannot run it.

    Pages ask for it by its name. The prior that it was trained on gives the plot's range and an
    exact posterior beside it, and the scaling the units of the axes. Matrices are stored as
    float16, which moves a mean by 2e-4 in the median; biases and length scales as float32.
    """
    config = _page_config(model, task_generator, scaling)
    weights = {key: pack(value) for key, value in model.state_dict().items()}
    # The same bytes from every machine.
    data = b"".join(v.numpy().astype(f"<f{v.element_size()}").tobytes() for v in weights.values())
    script = {
        "config": config,
        "tensors": [[k, list(v.shape), 8 * v.element_size()] for k, v in weights.items()],
        "data": base64.b64encode(data).decode(),
    }
    text = json.dumps(script, separators=(",", ":"), allow_nan=False)
    return (
        "(globalThis.DANP = globalThis.DANP || {}).models = DANP.models || {};\n"
        f"DANP.models[{json.dumps(name)}] = {text};\n"
    )


def pack(weight: Tensor) -> Tensor:
    """A weight as a page has it: float16 if it is a matrix, else float32."""
    packed = weight.detach().cpu().to(torch.float16 if weight.ndim > 1 else torch.float32)
    if not packed.isfinite().all():
        raise ValueError("model must have weights that are finite in float16.")
    return packed.contiguous()


def _page_config(
    model: DANP, task_generator: TaskGenerator | None, scaling: Scaling
) -> dict[str, Any]:
    if getattr(model, "name", None) != DANP.name:
        raise ValueError(f"model must be a DANP, got {type(model).__name__}.")
    base = model.config.base
    values = vars(base) | vars(model.config)
    for name, right in {
        "domain": model.domain.dim_x == 1,
        "unet": values["unet"] == "full-resolution",
        "channels": values["channels"] % 8 == 0,
        "head_channels": values["head_channels"] % 8 == 0,
        "head_layers": values["head_layers"] > 0,
        "observation_noise": values["observation_noise"] == 0.0,  # then largest_noise is too
        "defensive_weight": values["defensive_weight"] == 0.0,
        "samples_known": values["samples_known"] or not values["conditioned"],
    }.items():
        if not right:
            raise ValueError(
                "model must have one input dimension, the full-resolution U-Net, a head with "
                "hidden layers, multiples of 8 channels, data free of noise, samples that count as "
                "known, and no defensive component, for a page to run it; got "
                f"{name}={values[name]!r}."
            )
    values["domain"], values["grid_points"] = model.domain.ends[0], len(base.grid.points())
    values |= {"bound": ACTIVATION_BOUND, "max_chi_square": MAX_CHI_SQUARE}
    names = "domain grid_points points_per_unit channels num_layers kernel_size bound rank "
    names += "variance_gain variance_offset factor_divisor head_layers head_channels conditioned "
    names += "max_chi_square num_levels num_auxiliary"
    config = _camel({name: values[name] for name in names.split()})
    if task_generator is not None:
        config["prior"] = _camel({"name": task_generator.name, **to_dict(task_generator)})
    if scaling != IDENTITY:
        # One of a single dimension may hold its numbers in lists.
        parts = {k: v[0] if isinstance(v, list) else v for k, v in to_dict(scaling).items()}
        config["scaling"] = _camel(parts)
    return config


def _camel(values: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub("_(.)", lambda m: m[1].upper(), name): value for name, value in values.items()}


def source(name: str) -> str:
    """One of the page's sources, such as ``"unet.js"`` or ``"kernel.wat"``."""
    return data_file("book/_static/live", name, packaged="live").read_text(encoding="utf-8")


def page_script(posters: Mapping[str, Any] | None = None) -> str:
    """The engine and the widget as one classic script; the package wasmtime assembles its kernel.

    Posters are what pages show before a model is fetched, by its name.
    """
    try:
        from wasmtime import wat2wasm
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the package wasmtime assembles a page's kernel: pip install wasmtime", name="wasmtime"
        ) from error
    kernel = base64.b64encode(bytes(wat2wasm(source("kernel.wat")))).decode()
    values = {"wasm": kernel, "css": source("live.css"), "posters": dict(posters or {})}
    parts = ["globalThis.DANP = globalThis.DANP || {};"]
    parts += [f"DANP.{k} = {json.dumps(v, separators=(',', ':'))};" for k, v in values.items()]
    return "\n".join([*parts, *(source(f"{name}.js") for name in SCRIPTS)])


def widget_module(*scripts: str) -> str:
    """:func:`page_script` and models' scripts, a module: an ``anywidget.AnyWidget``'s ``_esm``."""
    return "\n".join([page_script(), *scripts, "export default { render: DANP.render };\n"])


def export_page(
    model: DANP, name: str, folder: str | os.PathLike[str], **options: Any
) -> tuple[Path, ...]:
    """Write a page that works as it is: :func:`model_script`, the engine's and an index.html."""
    if f"{name}.js" == PAGE_SCRIPT:
        raise ValueError(f"name must be another than {name!r}, which the engine's script has.")
    if "/" in name or "\\" in name:
        raise ValueError(f"name must hold no slash, which would name a folder, got {name!r}.")
    texts = {PAGE_SCRIPT: page_script(), f"{name}.js": model_script(model, name, **options)}
    texts["index.html"] = source("page.html").format(
        name=html.escape(name), model=quote(f"{name}.js", safe=""), script=PAGE_SCRIPT
    )
    for file, text in texts.items():
        write_atomically(Path(folder) / file, text)
    return tuple(Path(folder) / file for file in texts)
