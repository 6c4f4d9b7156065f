"""The results that come with the library: their hashes, and a few records computed again."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from danp_lib._config import from_dict
from danp_lib._random import spawn
from danp_lib.evaluation.curves import Samples
from danp_lib.evaluation.marginals import Marginals
from danp_lib.evaluation.results import (
    CEILING,
    DEFENDED,
    Result,
    load_result,
    result_name,
    results_folder,
    save_result,
)
from danp_lib.evaluation.score import ESTIMATORS, Evaluation, evaluate_task
from danp_lib.evaluation.used import Used
from danp_lib.exact.oracles import ORACLES
from danp_lib.inference.likelihood import num_orders
from danp_lib.models.danp import defend
from danp_lib.storage.card import read_card
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import load_pretrained, pretrained_path
from danp_lib.storage.tasks import benchmark_path, benchmark_tasks

ENDINGS = tuple(
    f"-{estimator}{ending}.json"
    for estimator in ("exact", *ESTIMATORS)
    for ending in ("", DEFENDED)
)
PATHS = sorted(p for p in results_folder().glob("*.json") if p.name.endswith(ENDINGS))
RECOMPUTED = (129, 304)
"""Rows of a set with 12 and 30 context points, where few samples give a stable estimate."""


@cache
def load(path: Path) -> Result[Evaluation]:
    return load_result(path, Evaluation)


def test_there_are_results() -> None:
    assert {f"{CEILING}-{dataset}-exact.json" for dataset in ORACLES} <= {p.name for p in PATHS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_is_of_the_weights_and_the_tasks_that_are_shipped(path: Path) -> None:
    result = load(path)
    origin = result.origin
    assert path.name == result_name(origin.name, result.measured)
    assert origin.tasks == sha256(benchmark_path(origin.dataset))
    assert result.content.num_tasks == 310
    assert origin.commit is not None
    assert "dirty" not in origin.commit
    if origin.weights is None:
        assert origin.name.startswith(CEILING)
        return
    weights = pretrained_path(origin.name)
    assert origin.weights == sha256(weights) == read_card(weights).sha256
    config = read_header(weights).config
    if result.measured.endswith(DEFENDED):
        config = defend(load_pretrained(origin.name)).config
    assert from_dict(type(config), result.configuration) == config


def one_record(index: int, path: Path) -> Any:
    """One record of a result, in turn with few points and with many.

    A DANP's take seconds: ``make test`` has those on sawtooth waves, and chapter 9 one of every
    usual model by the table's estimator.
    """
    takes_long = path.stem.endswith(
        (f"-orders{DEFENDED}", f"-halved{DEFENDED}", "-paper-model")
    ) or (path.stem.startswith("danp-") and not path.stem.startswith("danp-sawtooth-"))
    marks = [pytest.mark.thorough] if takes_long else []
    return pytest.param(path, RECOMPUTED[index % len(RECOMPUTED)], id=path.stem, marks=marks)


@pytest.mark.parametrize(("path", "row"), [one_record(i, path) for i, path in enumerate(PATHS)])
def test_a_record_comes_out_again(path: Path, row: int) -> None:
    result = load(path)
    origin, record = result.origin, result.content.tasks[row]
    exact = origin.weights is None
    model = ORACLES[origin.dataset]() if exact else load_pretrained(origin.name)
    if result.measured.endswith(DEFENDED):
        model = defend(model)
    tasks = benchmark_tasks(origin.dataset)
    stream = spawn(torch.Generator().manual_seed(origin.seed), tasks.batch_size)[row]
    estimator = "both" if record.estimator == "exact" else record.estimator
    again = evaluate_task(
        model,
        tasks[row],
        estimator=estimator,  # type: ignore[arg-type]
        num_samples=record.num_samples // num_orders(estimator),
        generator=stream,
    )
    assert again.context_size == record.context_size == (12, 30)[RECOMPUTED.index(row)]
    assert again.estimator == record.estimator
    assert again.forward_passes == record.forward_passes
    # Another processor rounds differently, and the network passes that on.
    assert again.log_likelihood == pytest.approx(record.log_likelihood, abs=0.02)


OF_OTHER_KINDS = [
    *((path, Marginals) for path in sorted(results_folder().glob("*-marginals.json"))),
    *((path, Samples) for path in sorted(results_folder().rglob("*-samples.json"))),
    *((path, Used) for path in sorted(results_folder().glob("*-used.json"))),
]


@pytest.mark.parametrize(
    ("path", "kind"), [*((path, Evaluation) for path in PATHS), *OF_OTHER_KINDS], ids=str
)
def test_saved_again_it_has_the_same_bytes(path: Path, kind: type[Any], tmp_path: Path) -> None:
    result: Result[Any] = load_result(path, kind)
    stored = path.read_bytes()
    if b'"compiled"' not in stored:  # it is from before there was compiling
        stored = stored.replace(b' "configuration"', b' "compiled": false,\n "configuration"', 1)
    again = save_result(tmp_path, result)
    assert (again.name, again.read_bytes()) == (path.name, stored)
