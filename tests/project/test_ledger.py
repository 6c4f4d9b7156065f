"""The ledger: it has everything that the paper has, and each row points at what exists."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from danp_lib.data.generators import split_name
from danp_lib.evaluation.curves import Samples
from danp_lib.evaluation.results import load_result, result_name, results_folder
from danp_lib.evaluation.score import Evaluation, mean_and_ci95
from danp_lib.evaluation.table import ESTIMATOR_OF, PAPER, table

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
LEDGER = BOOK / "ledger.yml"
Row = dict[str, Any]
SECTIONS: dict[str, dict[str, Row]] = yaml.safe_load(LEDGER.read_text(encoding="utf-8"))
ROWS = {name: row for rows in SECTIONS.values() for name, row in rows.items()}
our_table = cache(table)

STATUSES = ("reproduced", "exceeded", "differs", "not stated")
# What a result can earn, from the worst on.
MERIT = ("differs", "reproduced", "exceeded")
REQUIRED = {"paper", "book", "library", "test", "status"}
OPTIONAL = {"why", "result"}

DATASETS = ("sawtooth", "square", "gp")
MODELS = ("danp", "convcnp", "convgnp", "ar-convcnp")
# What the paper has. Its equations 1 to 7, Figures 1 to 9 and both tables have numbers; the other
# equations stand in its text. A table has an entry for each number or each row.
PAPER_HAS = {
    "equations": {
        *(f"eq-{number}" for number in range(1, 8)),
        *("eq-task", "eq-step", "eq-channels", "eq-masked-task", "eq-objective"),
        *("eq-passes", "eq-kernel"),
    },
    "figures": {f"fig-{number}" for number in range(1, 10)},
    "tables": {
        *(f"table-1-{dataset}-{model}" for dataset in DATASETS for model in MODELS),
        *(f"table-2-{dataset}" for dataset in DATASETS),
    },
    "hyperparameters": {
        *("hp-frequency-sawtooth", "hp-direction", "hp-frequency-square", "hp-phase"),
        *("hp-length-scale", "hp-context-size", "hp-context-size-ar", "hp-num-targets"),
        *("hp-test-tasks", "hp-unet", "hp-epochs", "hp-batch-size", "hp-optimizer"),
        *("hp-learning-rate", "hp-level", "hp-auxiliary-inputs", "hp-noise-variance"),
        *("hp-final-variance", *(f"hp-samples-{dataset}" for dataset in DATASETS)),
    },
    "claims": {
        *("claim-non-gaussian", "claim-consistent", "claim-cost", "claim-best", "claim-all-sizes"),
        *("claim-latent", "claim-no-filling", "claim-two-points", "claim-more-samples"),
        "claim-real-data",
    },
}


def entries(value: str | list[str]) -> list[str]:
    """One entry, or several."""
    return [value] if isinstance(value, str) else value


@cache
def anchors(page: str) -> set[str] | None:
    """What a link to a page of the book may name after the ``#``; ``None`` if there is no page."""
    if (path := BOOK / f"{page}.ipynb").is_file():
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    elif (path := BOOK / f"{page}.md").is_file():
        source = path.read_text(encoding="utf-8")
        cells = [{"cell_type": "markdown", "source": source, "metadata": {}}]
    else:
        return None
    figures = {
        cell["metadata"].get("mystnb", {}).get("figure", {}).get("name")
        for cell in cells
        if cell["cell_type"] == "code"
    }
    prose = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    labels = re.findall(
        r"^\$\$\s*\(([\w-]+)\)|^\(([\w-]+)\)=|^:name: ([\w-]+)", prose, re.MULTILINE
    )
    headings = re.findall(r"^#{2,} +(.+?) *$", prose, re.MULTILINE)
    slugs = {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}
    return {name for name in figures if name} | {"".join(label) for label in labels} | slugs


def faults_of_place(entry: str) -> list[str]:
    """Return why a place in the book does not exist."""
    page, _, anchor = entry.partition("#")
    known = anchors(page)
    if known is None:
        return [f"book/ has no page {page!r} (.ipynb or .md)"]
    if anchor and anchor not in known:
        return [f"{page} has no figure, equation label or heading {anchor!r}; it has {known}"]
    return []


def faults_of_symbol(path: str) -> list[str]:
    """Return why a dotted path is not a name of the library."""
    parts = path.split(".")
    if parts[0] != "danp_lib":
        return [f"{path} is not of danp_lib"]
    found: Any = importlib.import_module("danp_lib")
    for depth, part in enumerate(parts[1:], start=2):
        fields = getattr(found, "__dataclass_fields__", {})
        if hasattr(found, part) and part not in fields:
            # The reference documents a method where it is written, not where it is inherited.
            if isinstance(found, type) and part not in vars(found):
                return [f"{path} is inherited: name the class that defines it"]
            found = getattr(found, part)
        elif part in fields and depth == len(parts):
            assert dataclasses.is_dataclass(found)
        elif any(
            (ROOT / Path(*parts[:depth]) / name).with_suffix(".py").is_file()
            for name in ("", "__init__")
        ):
            found = importlib.import_module(".".join(parts[:depth]))
        else:
            return [f"{'.'.join(parts[:depth])} cannot be imported"]
    return []


@cache
def collected(path: str) -> set[str]:
    """The classes and functions that pytest collects from a file, and a class's own tests."""
    found = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found.add(node.name)
            found |= {
                f"{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test_")
            }
    return found


def faults_of_test(node: str) -> list[str]:
    """Return why a test is not there."""
    path, _, name = node.partition("::")
    if not re.fullmatch(r"tests/(\w+/)?test_\w+\.py", path) or not (ROOT / path).is_file():
        return [f"{path} is not a file of tests"]
    return [] if name in collected(path) else [f"{path} has no test {name!r}"]


def measured(result: str, scores: dict[str, dict[str, dict[str, Any]]]) -> str | None:
    """The status that a number of Table 1 has earned; ``None`` without a result.

    The two averages are of different models on different tasks, so that the variance of their
    difference is the sum of their variances.
    """
    model, dataset = split_name(result)
    paper, paper_ci95 = PAPER[dataset][model]
    row = scores[dataset][model]
    if row["ours"] is None:
        return None
    difference, interval = row["ours"] - paper, math.hypot(row["ours_ci95"], paper_ci95)
    if abs(difference) <= interval:
        return "reproduced"
    return "exceeded" if difference > 0 else "differs"


def faults_of_status(row: Row, scores: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Return what is wrong with a row's status; that a result is better than it says is not."""
    status = row["status"]
    if status not in STATUSES:
        return [f"the status {status!r} is none of {', '.join(STATUSES)}"]
    faults = []
    if status in ("differs", "not stated") and not row.get("why"):
        faults.append(f"{status!r} needs a why")
    if "result" not in row:
        return [*faults, "'exceeded' needs a result"] if status == "exceeded" else faults
    earned = measured(row["result"], scores)
    if earned is None:
        return [*faults, f"results/ has no result of {row['result']} for it"]
    if status in MERIT and MERIT.index(earned) < MERIT.index(status):
        faults.append(f"the status is {status!r}, the result of {row['result']} says {earned!r}")
    return faults


@pytest.mark.parametrize("section", PAPER_HAS)
def test_nothing_of_the_paper_is_missing_and_nothing_else_is_there(section: str) -> None:
    assert set(SECTIONS[section]) == PAPER_HAS[section]


def test_sections_and_names() -> None:
    assert set(SECTIONS) == {*PAPER_HAS, "unstated"}
    assert len(ROWS) == sum(len(rows) for rows in SECTIONS.values())
    keys = re.findall(r"^  ([\w-]+):$", LEDGER.read_text(encoding="utf-8"), re.MULTILINE)
    assert keys == list(ROWS), "a key that is there twice: YAML keeps the last one only"
    for name, row in SECTIONS["unstated"].items():
        assert row["status"] == "not stated", name
    stated = {name: row["status"] for key in PAPER_HAS for name, row in SECTIONS[key].items()}
    # Experiments on real data are to follow.
    assert [name for name, status in stated.items() if status == "not stated"] == [
        "claim-real-data"
    ]


@pytest.mark.parametrize("name", ROWS)
def test_row_points_at_what_exists(name: str) -> None:
    row = ROWS[name]
    assert set(row) >= REQUIRED
    assert set(row) <= REQUIRED | OPTIONAL
    faults = [fault for entry in entries(row["book"]) for fault in faults_of_place(entry)]
    faults += [fault for entry in entries(row["library"]) for fault in faults_of_symbol(entry)]
    faults += [fault for entry in entries(row["test"]) for fault in faults_of_test(entry)]
    assert not faults, f"book/ledger.yml, {name}: {'; '.join(faults)}"


@pytest.mark.parametrize("name", ROWS)
def test_status_is_earned(name: str) -> None:
    faults = faults_of_status(ROWS[name], our_table())
    assert not faults, f"book/ledger.yml, {name}: {'; '.join(faults)}"


def by_size(dataset: str, model: str) -> torch.Tensor:
    """The average likelihood at each context size."""
    name = result_name(f"{model}-{dataset}", ESTIMATOR_OF[model])
    tasks = load_result(results_folder() / name, Evaluation).content.tasks
    assert [t.context_size for t in tasks] == [n for n in range(31) for _ in range(10)]
    return torch.tensor([t.log_likelihood for t in tasks]).exp().reshape(31, 10).mean(dim=1)


def beaten(dataset: str) -> list[str]:
    """The models that our DANP does not lead by more than the error bars, where the paper's does.

    On GP data the paper's DANP beats the AR ConvCNP, and loses to the ConvGNP.
    """
    row = our_table()[dataset]
    found = []
    for rival in ("ar-convcnp",) if dataset == "gp" else MODELS[1:]:
        for name in ("danp", rival):
            assert row[name]["ours"] is not None, f"results/ has no result of {name}-{dataset}"
        lead = row["danp"]["ours"] - row[rival]["ours"]
        if lead <= math.hypot(row["danp"]["ours_ci95"], row[rival]["ours_ci95"]):
            found.append(rival)
    return found


@pytest.mark.parametrize("dataset", [*DATASETS, "square-released"])
def test_a_danp_is_the_best_where_the_paper_says_so(dataset: str) -> None:
    assert beaten(dataset) == []


@pytest.mark.parametrize(
    ("dataset", "least"), [("sawtooth", 140.0), ("square", 220.0), ("gp", 60.0)]
)
def test_the_committed_danps_are_as_good_as_this(dataset: str, least: float) -> None:
    assert our_table()[dataset]["danp"]["ours"] >= least


def test_on_gp_data_no_model_is_far_above_the_danp() -> None:
    """The exact predictive is the best there is, and the error bars do not tell the two apart."""
    row = our_table()["gp"]
    behind = row["ceiling"]["ours"] - row["danp"]["ours"]
    assert behind <= math.hypot(row["danp"]["ours_ci95"], row["ceiling"]["ours_ci95"])


def test_a_danp_leads_at_most_context_sizes_on_waves_only() -> None:
    """The ledger claims no more than the waves; were it to say "reproduced", all data would do."""
    claims_all = ROWS["claim-all-sizes"]["status"] == "reproduced"
    for dataset in ("sawtooth", "square", "square-released", *(("gp",) if claims_all else ())):
        rivals = torch.stack([by_size(dataset, model) for model in MODELS[1:]])
        assert int((by_size(dataset, "danp") > rivals.amax(dim=0)).sum()) > 20, dataset


def test_with_two_points_a_danp_is_ahead_and_far_from_exact() -> None:
    for dataset, nats in (("sawtooth", 1.0), ("square-released", 0.4)):
        danp, *rivals = (by_size(dataset, model)[2] for model in MODELS)
        assert danp > max(rivals)
        assert danp < math.exp(-nats) * by_size(dataset, "ceiling")[2]


def test_more_samples_matter_where_the_context_is_small() -> None:
    path = results_folder() / "ten-tasks" / result_name("danp-sawtooth-paper", "samples")
    content = load_result(path, Samples).content
    curves = [curve for curve in content.curves if curve.estimator == "model"]
    assert {c.num_samples for c in curves} == {(100, 500, 1000, 5000)}
    scores = torch.tensor([c.log_likelihood for c in curves]).exp()
    few = torch.tensor([c.context_size for c in curves]) <= 5
    assert scores[few, -1].mean() > 1.5 * scores[few, 0].mean()
    assert 1.0 < scores[~few, -1].mean() / scores[~few, 0].mean() < 1.1


@pytest.mark.parametrize(
    ("dataset", "baselines", "sizes"),
    [("sawtooth", MODELS[1:], 26), ("square-released", ("ar-convcnp",), 31)],
)
def test_by_the_papers_recipe_a_danp_leads_too(
    dataset: str, baselines: tuple[str, ...], sizes: int
) -> None:
    def likelihoods(model: str, how: str) -> torch.Tensor:
        path = results_folder() / result_name(f"{model}-{dataset}-paper", how)
        tasks = load_result(path, Evaluation).content.tasks
        return torch.tensor([t.log_likelihood for t in tasks]).exp()

    danp = likelihoods("danp", "model")
    rivals = torch.stack([likelihoods(model, ESTIMATOR_OF[model]) for model in baselines])
    for rival in rivals:
        lead, width = mean_and_ci95(danp - rival)
        assert width is not None
        assert lead > 5 * width
    by_size = rivals.reshape(-1, 31, 10).mean(dim=2).amax(dim=0)
    assert int((danp.reshape(31, 10).mean(dim=1) > by_size).sum()) == sizes


def test_a_few_dozen_samples_come_as_near_as_it_is_told() -> None:
    path = results_folder() / result_name("danp-sawtooth", "samples")
    samples = load_result(path, Samples).content
    curves = {(c.context_size, c.estimator): c for c in samples.curves}
    assert len(curves) == 62  # one task of each context size, either estimator
    misses, apart = [], []
    for size in range(31):
        own, halves = curves[size, "model"], curves[size, "both"]
        assert (own.num_samples[-1], halves.num_samples[0], halves.num_samples[-1]) == (
            50_000,
            32,
            2048,
        )
        best = max(own.log_likelihood[-1], halves.log_likelihood[-1])
        misses.append(best - halves.log_likelihood[0])
        apart.append(own.log_likelihood[-1] - halves.log_likelihood[-1])
    assert max(misses) < 0.4
    assert abs(sum(apart[6:]) / 25) < 0.02


@pytest.mark.parametrize(
    ("find", "entry", "fault"),
    [
        (faults_of_place, "04-noising", None),
        (faults_of_place, "04-noising#fig-1", None),
        (faults_of_place, "04-noising#eq-step", None),
        (faults_of_place, "04-noising#the-papers-table-2", None),
        (faults_of_place, "notation#conventions", None),
        (faults_of_place, "04-noising#fig-99", "has no figure"),
        (faults_of_place, "99-nothing#fig-1", "has no page"),
        (faults_of_symbol, "danp_lib.models.danp.DANP.predict", None),
        (faults_of_symbol, "danp_lib.training.config.TrainingConfig.num_steps", None),
        (faults_of_symbol, "danp_lib.training.recipes.PAPER_NOISE", None),
        (faults_of_symbol, "danp_lib.models.danp.DANP.imagine", "cannot be imported"),
        (faults_of_symbol, "danp_lib.magic", "cannot be imported"),
        (faults_of_symbol, "torch.nn.Linear", "not of danp_lib"),
        (faults_of_test, "tests/models/test_danp.py::TestPrediction", None),
        (faults_of_test, "tests/models/test_danp.py::TestErrors::test_level", None),
        (faults_of_test, "tests/models/test_danp.py::test_that_is_not_there", "has no test"),
        (faults_of_test, "tests/contracts.py::PredictiveContract", "not a file of tests"),
    ],
)
def test_the_checks_of_places_can_fail(find: Any, entry: str, fault: str | None) -> None:
    found = find(entry)
    assert (found == []) if fault is None else (len(found) == 1 and fault in found[0])


@pytest.mark.parametrize(
    ("ours", "change", "fault"),
    [
        (120.0, {}, None),
        (86.0, {}, "says 'reproduced'"),
        (60.0, {}, "says 'differs'"),
        (None, {}, "has no result"),
        (80.0, {"status": "reproduced"}, None),
        (120.0, {"status": "reproduced"}, None),
        (60.0, {"status": "reproduced"}, "says 'differs'"),
        (60.0, {"status": "differs", "why": "Shorter training"}, None),
        (120.0, {"status": "differs", "why": "Shorter training"}, None),
        (60.0, {"status": "differs"}, "needs a why"),
        (120.0, {"status": "beaten"}, "none of"),
    ],
)
def test_the_check_of_statuses_can_fail(ours: float | None, change: Row, fault: str | None) -> None:
    scores = {"sawtooth": {"danp": {"ours": ours, "ours_ci95": 4.0}}}
    found = faults_of_status({"status": "exceeded", "result": "danp-sawtooth", **change}, scores)
    assert (found == []) if fault is None else any(fault in entry for entry in found)
    assert faults_of_status({"status": "exceeded"}, scores) == ["'exceeded' needs a result"]
