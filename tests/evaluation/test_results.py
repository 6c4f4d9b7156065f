"""Results of every kind: how they are made, resumed, written and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from randomness import rng
from small_models import scored_config, scored_danp

from danp_lib.data.points import Task
from danp_lib.evaluation import curves as evaluation_curves
from danp_lib.evaluation import results as evaluation_results
from danp_lib.evaluation import score as evaluation_score
from danp_lib.evaluation.curves import SampleCurve, Samples, sample_curves
from danp_lib.evaluation.marginals import Marginals, score_marginals
from danp_lib.evaluation.results import (
    AS_IN_PAPER,
    KINDS,
    Origin,
    Result,
    load_model,
    load_result,
    result_name,
    run_benchmark,
    save_result,
)
from danp_lib.evaluation.score import Evaluation, TaskRecord, evaluate, evaluate_task
from danp_lib.evaluation.used import Used
from danp_lib.exact.oracles import GaussianProcessOracle
from danp_lib.inference.likelihood import NUM_ORDERS, Estimator
from danp_lib.models.convnp import ConvGNP

NAME = "danp-gp"
FEW: dict[Estimator, tuple[int, ...]] = {"model": (3, 5, 9), "both": (4, 6)}
ENDINGS = {Evaluation: "both", Marginals: "marginals", Samples: "samples", Used: "used"}
OPTIONS: dict[type[Any], dict[str, Any]] = {
    Evaluation: {"num_samples": 4},
    Marginals: {"num_samples": 4},
    Samples: {"tasks_per_size": 2},
    Used: {"num_samples": 4},
}


@pytest.fixture(scope="module", autouse=True)
def small(tasks: Task) -> Any:
    """A small network and a few tasks under the names of a trained model and of a benchmark."""
    model = scored_danp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_results, "load_pretrained", lambda name, device: model)
        patch.setattr(evaluation_results, "benchmark_tasks", lambda dataset: tasks)
        patch.setattr(evaluation_curves, "NUM_SAMPLES", FEW)
        yield


@pytest.fixture(scope="module")
def results() -> dict[type[Any], Result[Any]]:
    return {kind: run_benchmark(NAME, kind, seed=5, **OPTIONS[kind]) for kind in KINDS}


def test_a_result_holds_what_its_function_computes(tasks: Task) -> None:
    likelihood = run_benchmark("ceiling-gp", Evaluation, seed=5)
    direct = evaluate(GaussianProcessOracle(), tasks, generator=rng(5))
    assert likelihood.content.average_likelihood == direct.average_likelihood
    marginals = run_benchmark("ceiling-gp", Marginals, seed=5)
    assert (
        marginals.content.crps
        == score_marginals(GaussianProcessOracle(), tasks, generator=rng(5)).crps
    )
    assert likelihood.configuration == marginals.configuration
    assert likelihood.configuration["length_scale"] == 0.25


def test_a_result_says_where_it_comes_from(results: dict[type[Any], Result[Any]]) -> None:
    for kind, result in results.items():
        origin = result.origin
        assert (origin.name, origin.dataset, origin.seed) == (NAME, "gp", 5)
        assert (len(str(origin.weights)), len(origin.tasks)) == (64, 64)
        assert (origin.torch, origin.compiled) == (torch.__version__, False)
        assert result.configuration["base"]["rank"] == 2
        assert isinstance(result.content, kind)
    assert run_benchmark("ceiling-gp", Evaluation).origin.weights is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_round_trips(
    kind: type[Any], results: dict[type[Any], Result[Any]], tmp_path: Path
) -> None:
    path = save_result(tmp_path / "new", results[kind])
    assert path == tmp_path / "new" / result_name(NAME, ENDINGS[kind])
    assert load_result(path, kind) == results[kind]
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    other = next(k for k in KINDS if k is not kind)
    with pytest.raises(ValueError, match=f"{KINDS[other].key} must be an object"):
        load_result(path, other)


def text_changed(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Evaluation, lambda d: d.update(average_likelihood=400.0), "average_likelihood .*400"),
        (Evaluation, lambda d: d.update(num_samples=5), "num_samples must be 4, .*5"),
        (Evaluation, lambda d: d["tasks"].pop(), "evaluation.average_likelihood"),
        (Marginals, lambda d: d.update(crps=0.0), "crps .*got 0"),
        (Marginals, lambda d: d.update(crps_ci95=None), "crps_ci95 .*None"),
        (Marginals, lambda d: d["tasks"].pop(), "marginals.crps"),
        (Marginals, lambda d: d["tasks"][0].pop("crps"), r"tasks\[0\]\.crps"),
        (Samples, lambda d: d["curves"][0]["log_likelihood"].pop(), "log_likelihood .*3"),
        (Samples, lambda d: d["curves"][0].update(estimator="noise"), r"curves\[0\]\.estimator"),
        (Samples, lambda d: d.pop("curves"), "samples.curves"),
        (Used, lambda d: d["marginals"].update(crps=0.0), "used.marginals.crps .*got 0"),
        (Used, lambda d: d["evaluation"].update(num_tasks=9), "used.evaluation.num_tasks"),
        (Used, lambda d: d.pop("defensive_weight"), "used.defensive_weight"),
    ],
)
def test_a_changed_summary_or_record_is_refused(
    kind: type[Any],
    change: Any,
    message: str,
    results: dict[type[Any], Result[Any]],
    tmp_path: Path,
) -> None:
    path = save_result(tmp_path, results[kind])
    text_changed(path, lambda document: change(document[KINDS[kind].key]))
    with pytest.raises(ValueError, match=message) as caught:
        load_result(path, kind)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(extra=1), "result.extra"),
        (lambda d: d.pop("seed"), "result.seed"),
        (lambda d: d.pop("evaluation"), "evaluation"),
        (lambda d: d.update(configuration=[]), "configuration must be a dict, got list"),
    ],
)
def test_a_changed_origin_is_refused(
    change: Any, message: str, results: dict[type[Any], Result[Any]], tmp_path: Path
) -> None:
    path = save_result(tmp_path, results[Evaluation])
    text_changed(path, change)
    with pytest.raises(ValueError, match=message):
        load_result(path, Evaluation)


def test_missing_files_and_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        load_result(tmp_path / "none.json", Evaluation)
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match=r"list\.json"):
        load_result(tmp_path / "list.json", Evaluation)
    with pytest.raises(ValueError, match=r"^name .*'ceiling'"):
        run_benchmark("ceiling", Evaluation)
    with pytest.raises(ValueError, match=r"estimator = 'both' .* marginals.*num_samples"):
        run_benchmark(NAME, Marginals, estimator="both")
    with pytest.raises(
        ValueError, match=r"^num_samples = 'paper' is for the likelihood, got .*'used"
    ):
        run_benchmark(NAME, Used, num_samples=AS_IN_PAPER)


def test_an_interrupted_run_of_samples_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_benchmark(NAME, Samples)
    done: list[int] = []

    def interrupted(*args: Any, row: int, **options: Any) -> tuple[SampleCurve, ...]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(row)
        return sample_curves(*args, row=row, **options)

    monkeypatch.setattr(evaluation_curves, "sample_curves", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(NAME, Samples, folder=tmp_path)
    partial = tmp_path / "danp-gp-samples.partial.json"
    kept = load_result(partial, Samples)
    assert [curve.row for curve in kept.content.curves] == [0, 0, 2, 2]
    done.clear()
    result = run_benchmark(NAME, Samples, folder=tmp_path)
    assert done == [4, 6]
    assert timeless(result) == timeless(whole)
    with pytest.raises(ValueError, match=r"seed 2 .* 0"):
        run_benchmark(NAME, Samples, folder=tmp_path, seed=2)
    path = save_result(tmp_path, result)
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_likelihood_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"estimator": "model", "num_samples": 4}
    whole = run_benchmark(NAME, Evaluation, **options)
    done: list[int] = []

    def counted(model: Any, task: Task, **options: Any) -> TaskRecord:
        done.append(int(task.context.sizes))
        return evaluate_task(model, task, **options)

    def interrupted(*arguments: Any, **options: Any) -> TaskRecord:
        if len(done) == 3:
            raise KeyboardInterrupt
        return counted(*arguments, **options)

    monkeypatch.setattr(evaluation_score, "evaluate_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(NAME, Evaluation, folder=tmp_path, **options)
    partial = tmp_path / "danp-gp-model.partial.json"
    assert load_result(partial, Evaluation).content.num_tasks == 3
    with pytest.raises(
        ValueError, match=r"partial\.json .* 5 samples for \d context points .* got 4; delete"
    ):
        run_benchmark(NAME, Evaluation, folder=tmp_path, **options | {"num_samples": 5})
    done.clear()
    monkeypatch.setattr(evaluation_score, "evaluate_task", counted)
    result = run_benchmark(NAME, Evaluation, folder=tmp_path, **options)
    assert done == [1, 2, 2, 3, 3]
    records = [replace(record, seconds=0.0) for record in result.content.tasks]
    assert records == [replace(record, seconds=0.0) for record in whole.content.tasks]
    path = save_result(tmp_path, result)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("estimator", "num_orders"),
    [("outward", 1), ("orders", NUM_ORDERS), ("orders-outward", NUM_ORDERS)],
)
def test_a_rollout_has_a_name_of_its_own_and_resumes(
    tmp_path: Path, estimator: str, num_orders: int
) -> None:
    options: dict[str, Any] = {"estimator": estimator, "num_samples": 1, "defended": True}
    whole = run_benchmark(NAME, Evaluation, **options)
    assert (whole.measured, whole.content.num_samples) == (f"{estimator}-defended", num_orders)
    begun = replace(whole, content=Evaluation.summarize(whole.content.tasks[:2]))
    save_result(tmp_path, begun).rename(tmp_path / f"danp-gp-{estimator}-defended.partial.json")
    with pytest.raises(ValueError, match=rf"{2 * num_orders} samples for .* got {num_orders};"):
        run_benchmark(NAME, Evaluation, folder=tmp_path, **options | {"num_samples": 2})
    with pytest.raises(
        ValueError, match=rf"{50_000 * num_orders} samples for .* got {num_orders};"
    ):
        run_benchmark(NAME, Evaluation, folder=tmp_path, **options | {"num_samples": "paper"})
    result = run_benchmark(NAME, Evaluation, folder=tmp_path, **options)
    assert result.content.tasks[:2] == whole.content.tasks[:2]  # their seconds, too
    assert result.content.average_likelihood == pytest.approx(whole.content.average_likelihood)


def test_a_likelihood_of_a_defended_model_has_a_name_of_its_own(tmp_path: Path) -> None:
    options: dict[str, Any] = {"estimator": "model", "num_samples": 4}
    plain = run_benchmark(NAME, Evaluation, **options)
    result = run_benchmark(NAME, Evaluation, defended=True, **options)
    assert (plain.measured, result.measured) == ("model", "model-defended")
    used = run_benchmark(NAME, Used, num_samples=4).content.evaluation
    scores = [[t.log_likelihood for t in r.tasks] for r in (result.content, used, plain.content)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
    assert scores[0] != pytest.approx(scores[2], rel=1e-6)
    path = save_result(tmp_path, result)
    assert path.name == "danp-gp-model-defended.json"
    assert load_result(path, Evaluation).measured == "model-defended"
    with pytest.raises(ValueError, match=r"for the likelihood, got the measure 'marginals'"):
        run_benchmark(NAME, Marginals, defended=True)
    with pytest.raises(ValueError, match=r"^defended is for a DANP, got a GaussianProcessOracle"):
        run_benchmark("ceiling-gp", Evaluation, defended=True)


@pytest.mark.parametrize("key", ["name", "weights", "tasks", "danp_lib", "torch"])
def test_what_another_origin_kept_is_refused(key: str, tmp_path: Path) -> None:
    run_benchmark(NAME, Samples, folder=tmp_path)
    partial = tmp_path / "danp-gp-samples.partial.json"
    document = json.loads(partial.read_text(encoding="utf-8"))
    partial.write_text(json.dumps(document | {key: "other"}), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"be of {key} .* to be resumed, got other"):
        run_benchmark(NAME, Samples, folder=tmp_path)


@pytest.mark.parametrize("estimator", ["both", "autoregressive"])
def test_a_likelihood_in_closed_form_keeps_nothing_on_the_way(
    estimator: str, tmp_path: Path
) -> None:
    run_benchmark("ceiling-gp", Evaluation, folder=tmp_path, estimator=estimator)
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_is_of_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_results, "commit", lambda: "first")
    run_benchmark(NAME, Samples, folder=tmp_path)
    monkeypatch.setattr(evaluation_results, "commit", lambda: "second")
    resumed: Origin = run_benchmark(NAME, Samples, folder=tmp_path, tasks_per_size=2).origin
    assert resumed.commit == "first"


def timeless(result: Result[Samples]) -> list[SampleCurve]:
    return [replace(curve, seconds=0.0) for curve in result.content.curves]


def test_results_say_compiled_only_of_samples_by_a_compiled_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[object] = []
    monkeypatch.setattr(
        evaluation_results, "compile_unet", lambda model, **_: compiled.append(model)
    )
    monkeypatch.setattr(evaluation_results, "can_compile", lambda device: True)
    kind = KINDS[Marginals]._replace(score=lambda *_, **__: None)
    monkeypatch.setitem(KINDS, Marginals, kind)
    cases: list[tuple[str, dict[str, Any], bool]] = [
        ("ceiling-gp", {}, False),
        (NAME, {"num_samples": 255}, False),
        (NAME, {"num_samples": 256}, True),
        (NAME, {}, True),
    ]
    for name, options, expected in cases:
        result = run_benchmark(name, Marginals, compiled=True, **options)
        assert result.origin.compiled == expected
        assert len(compiled) == expected
        compiled.clear()


@pytest.mark.parametrize(("num_levels", "expected"), [(0, False), (1, True)])
def test_only_a_network_that_draws_samples_is_compiled(
    num_levels: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = scored_danp(num_levels)
    monkeypatch.setattr(evaluation_results, "load_pretrained", lambda name, device: model)
    monkeypatch.setattr(evaluation_results, "compile_unet", lambda model, **_: None)
    monkeypatch.setattr(evaluation_results, "can_compile", lambda device: True)
    assert load_model(NAME, compiled=True)[1].compiled is expected


def test_the_papers_numbers_of_samples_are_those_of_the_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    kind = KINDS[Evaluation]._replace(score=lambda *_, num_samples, **__: seen.append(num_samples))
    monkeypatch.setitem(KINDS, Evaluation, kind)
    run_benchmark("ceiling-gp", Evaluation, num_samples=AS_IN_PAPER)
    run_benchmark("ceiling-sawtooth", Evaluation, num_samples=AS_IN_PAPER)
    assert [drawn(7) for drawn in seen] == [50_000, 5_000]


def test_a_rollout_of_a_convgnp_is_kept_and_never_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ConvGNP(scored_config())
    monkeypatch.setattr(evaluation_results, "load_pretrained", lambda name, device: model)
    monkeypatch.setattr(evaluation_results, "can_compile", lambda device: True)
    how: Any = {"estimator": "outward", "folder": tmp_path, "compiled": True}
    assert not run_benchmark("convgnp-gp", Evaluation, **how).origin.compiled
    assert (tmp_path / "convgnp-gp-outward.partial.json").is_file()


def test_the_default_number_of_samples_resumes(tmp_path: Path) -> None:
    first, again = (run_benchmark(NAME, Evaluation, folder=tmp_path) for _ in range(2))
    assert again.content == first.content
