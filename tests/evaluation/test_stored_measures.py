"""The marginals and the curves that come with the library: their hashes, and some numbers again."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from danp_lib._config import from_dict
from danp_lib._random import spawn
from danp_lib.data.generators import split_name
from danp_lib.data.points import Task
from danp_lib.distributions.scores import crps
from danp_lib.evaluation.curves import Samples
from danp_lib.evaluation.marginals import Marginals, marginal_record
from danp_lib.evaluation.results import Result, load_model, load_result, result_name, results_folder
from danp_lib.evaluation.used import Used
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.storage.card import read_card
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import pretrained_path
from danp_lib.storage.tasks import benchmark_path, benchmark_tasks

MARGINALS = sorted(results_folder().glob("*-marginals.json"))
USED = sorted(results_folder().glob("danp-*-used.json"))
CURVES = sorted(results_folder().glob("*-curve.json"))
SAMPLES = sorted(results_folder().glob("*-samples.json"))
ROW = 129
"""Of a set, with 12 context points."""


@cache
def model_of(name: str) -> Any:
    """The model of a result; its weights are hashed, so once."""
    return load_model(name)[0]


def check_origin(result: Result[Any]) -> None:
    """The weights and the tasks are those that are shipped, and the commit is known."""
    origin = result.origin
    assert origin.tasks == sha256(benchmark_path(origin.dataset))
    assert origin.commit is not None
    assert "dirty" not in origin.commit
    if origin.weights is not None:
        assert origin.weights == sha256(pretrained_path(origin.name))
        config = model_of(origin.name).config
        assert from_dict(type(config), result.configuration) == config


def task_of(result: Result[Any], row: int) -> tuple[Any, Task, torch.Generator]:
    """The model, a task, and the generator that its samples were drawn from."""
    tasks = benchmark_tasks(result.origin.dataset)
    streams = spawn(torch.Generator().manual_seed(result.origin.seed), tasks.batch_size)
    return model_of(result.origin.name), tasks[row], streams[row]


@pytest.mark.parametrize("path", MARGINALS, ids=lambda path: path.stem)
def test_marginals_are_of_what_is_shipped_and_come_out_again(path: Path) -> None:
    result = load_result(path, Marginals)
    check_origin(result)
    assert path.name == result_name(result.origin.name, "marginals")
    assert result.content.num_tasks == 310
    record = result.content.tasks[ROW]
    assert record.context_size == 12
    model, task, stream = task_of(result, ROW)
    samples = {"num_samples": result.content.num_samples, "generator": stream}
    options = samples if model.num_levels else {}
    again = marginal_record(model.predict(task.context, task.xt, **options), task, start=0.0)
    # Another processor rounds differently, and the network passes that on.
    assert again.context_size == record.context_size
    assert again.crps == pytest.approx(record.crps, rel=0.02, abs=1e-4)
    assert again.coverage_50 == pytest.approx(record.coverage_50, abs=0.041)  # two targets of 50
    assert again.coverage_90 == pytest.approx(record.coverage_90, abs=0.041)


@pytest.mark.parametrize("path", USED, ids=lambda path: path.stem)
def test_as_used_a_danp_is_what_is_shipped_and_bounded(path: Path) -> None:
    result = load_result(path, Used)
    check_origin(result)
    assert path.name == result_name(result.origin.name, "used")
    used = result.content
    assert (used.evaluation.num_tasks, used.defensive_weight) == (310, 0.05)
    model, task, stream = task_of(result, ROW)
    record, marginal = used.evaluation.tasks[ROW], used.marginals.tasks[ROW]
    defended = model.defended(used.defensive_weight)
    predictive = defended.predict(
        task.context, task.xt, num_samples=record.num_samples, generator=stream
    )
    # Another processor rounds differently, and the network passes that on.
    again = float(predictive.log_prob(task.yt)) / 50
    assert again == pytest.approx(record.log_likelihood, abs=0.02)
    assert float(crps(predictive, task.yt.double()).mean()) == pytest.approx(
        marginal.crps, rel=0.02, abs=1e-4
    )
    # The defensive component is broad: it loses no task by more.
    assert min(task.log_likelihood for task in used.evaluation.tasks) > -3.0


@pytest.mark.parametrize("path", USED, ids=lambda path: path.stem)
def test_from_its_own_samples_a_danp_is_above_the_baselines(
    path: Path, shipped_table: dict[str, dict[str, dict[str, Any]]]
) -> None:
    origin = load_result(path, Used).origin
    model, dataset = split_name(origin.name)
    rows = shipped_table[dataset]
    likelihood = {name: row["mean_log_likelihood"] for name, row in rows.items()}
    # On GP data one joint Gaussian is the whole answer: 256 components come after the ConvGNP.
    rivals = ["convcnp", "ar-convcnp"] + ([] if dataset == "gp" else ["convgnp"])
    assert likelihood[f"{model} (defended)"] > max(likelihood[rival] for rival in rivals)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_curves_are_of_what_is_shipped_and_begin_as_they_did(path: Path) -> None:
    result = load_result(path, Samples)
    check_origin(result)
    assert path.name == result_name(result.origin.name, "samples")
    curves = {(c.context_size, c.estimator): c for c in result.content.curves}
    assert {size for size, _ in curves} == set(range(31))
    curve = curves[12, "both"]
    model, task, stream = task_of(result, curve.row)
    again = log_likelihood(
        model,
        task,
        estimator="both",
        num_samples=curve.num_samples[0],
        generator=spawn(stream, 2)[1],
    )
    # Another processor rounds differently, and the network passes that on.
    assert float(again.values) / 50 == pytest.approx(curve.log_likelihood[0], abs=0.05)


@pytest.mark.parametrize("path", CURVES, ids=lambda path: path.stem)
def test_learning_curves_are_of_what_is_shipped_and_cards_of_the_step_kept(path: Path) -> None:
    stored = json.loads(path.read_text(encoding="utf-8"))
    card = read_card(pretrained_path(path.stem.removesuffix("-curve")))
    assert stored["weights"] == card.sha256
    by_step = {entry["step"]: entry["by_level"] for entry in stored["validation"]}
    assert tuple(by_step[card.kept_step or card.steps]) == card.validation
    assert stored["curve"][-1]["step"] == card.steps


@pytest.mark.parametrize("name", ["danp-sawtooth", "danp-sawtooth-paper"])
def test_the_curves_of_ten_tasks_are_of_all_tasks_of_the_benchmark(name: str) -> None:
    ten = load_result(results_folder() / "ten-tasks" / result_name(name, "samples"), Samples)
    check_origin(ten)
    assert ten.origin.name == name
    assert [curve.row for curve in ten.content.curves[::2]] == list(range(310))


def test_the_curves_of_ten_tasks_begin_as_the_longer_ones_of_one() -> None:
    path = results_folder() / "ten-tasks" / result_name("danp-sawtooth", "samples")
    ten, one = (load_result(p, Samples) for p in (path, results_folder() / path.name))
    longer = {(curve.row, curve.estimator): curve for curve in one.content.curves}
    compared = 0
    for curve in ten.content.curves:
        other = longer.get((curve.row, curve.estimator))
        if other is not None:
            count = len(curve.num_samples)
            assert curve.num_samples == other.num_samples[:count]
            # Another processor rounds differently, and the network passes that on.
            begun = pytest.approx(other.log_likelihood[:count], abs=0.05)
            assert list(curve.log_likelihood) == begun
            compared += 1
    assert compared == 2 * 31
