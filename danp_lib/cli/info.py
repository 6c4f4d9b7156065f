"""``danp info`` and ``danp export``: what a model is, and a page that it answers on."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from danp_lib._config import to_dict
from danp_lib.cli.arguments import CHECKPOINT, AsJson, Dataset, as_text, open_fitted, say
from danp_lib.cli.records import render_card
from danp_lib.data.generators import dataset_name
from danp_lib.fitting.fitted import Fitted
from danp_lib.models.convnp import count_parameters
from danp_lib.storage.card import card_paths, read_card
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.pretrained import find_checkpoint
from danp_lib.storage.web import export_page
from danp_lib.training import recipes


def info(
    checkpoint: Annotated[str | None, CHECKPOINT] = None,
    model: Annotated[str | None, Option(help="danp, convcnp, convgnp, ar-convcnp.")] = None,
    dataset: Dataset = None,
    recipe: Annotated[str | None, Option(help="paper or fast.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the configuration and the number of parameters of a trained model or of a recipe.

    For a model of your own records, first say what it is for and how well it did.
    """
    if checkpoint is not None:
        if (model, dataset, recipe) != (None, None, None):
            raise ValueError("info takes a checkpoint, or --model, --dataset and --recipe.")
        path, fitted = find_checkpoint(checkpoint), open_fitted(checkpoint)
        found = describe_checkpoint(path, fitted)
        if fitted.scores and not as_json:
            print(render_card(path.stem, fitted))
    else:
        if model is None or dataset is None:
            raise ValueError("info needs a checkpoint, or --model and --dataset.")
        chosen = recipes.recipe(recipe or "fast", model=model, dataset=dataset)
        found = {
            "model": model,
            "parameters": count_parameters(chosen.build_model()),
            "config": to_dict(chosen.model_config),
            "dataset": dataset,
            "generator": to_dict(chosen.task_generator),
            "recipe": chosen.name,
            "training": to_dict(chosen.training),
        }
    print(as_text(found) if as_json else render(found))


def describe_checkpoint(path: Path, fitted: Fitted) -> dict[str, Any]:
    """The configuration of a checkpoint, how it was made, and its card, if it has one."""
    header = read_header(path)
    generator = header.generator or {"name": None, "config": None}
    known = header.task_generator
    found = {
        "model": header.model,
        "parameters": count_parameters(fitted.model),
        "config": to_dict(header.config),
        "dataset": generator["name"] if known is None else dataset_name(known),
        "generator": generator["config"],
        "provenance": header.provenance,
    }
    if "recipe" in header.provenance and card_paths(path)[0].is_file():
        said = found.keys() | header.provenance.keys()
        card = to_dict(read_card(path))
        found["card"] = {key: value for key, value in card.items() if key not in said}
    return found


def render(values: Mapping[str, Any], indent: str = "") -> str:
    """Nested values as indented lines."""
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}", render(value, indent + "  ")] if value else []
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            lines.append(f"{indent}{key:{max(2, 24 - len(indent))}} {shown}")
    return "\n".join(lines)


def export(
    web: Annotated[str, Option(help="A DANP's checkpoint or name, for a web page.")],
    out: Annotated[Path, Option(help="The folder to write the page's files to.")],
) -> None:
    """Write a model as a page that answers in a browser, without a server or a network.

    The folder gets the model's weights and configuration as one script, the engine as another, and
    an index.html that shows how a page of one's own has them. To put the engine together takes the
    package wasmtime.
    """
    path, opened = find_checkpoint(web), open_fitted(web)
    if opened.season is not None:
        raise ValueError(
            "a page has no season to put back: --web must be a model trained without --period, got "
            f"{web}, of period {opened.season.period:g}."
        )
    model: Any = opened.model
    if getattr(model.config, "defensive_weight", 0.0):
        say(web, "the page answers without the defensive component.")
        model.config = replace(model.config, defensive_weight=0.0)
    prior, scaling = read_header(path).task_generator, opened.scaling
    for made in export_page(model, path.stem, out, task_generator=prior, scaling=scaling):
        print(f"{made}: {made.stat().st_size / 1000:.0f} kB", file=sys.stderr)
