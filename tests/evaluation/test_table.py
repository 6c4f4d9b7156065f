"""Table 1: the paper's numbers, ours, and what stands beside them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from danp_lib.data.generators import DATASETS, join_name, split_name
from danp_lib.evaluation.marginals import MarginalRecord, Marginals
from danp_lib.evaluation.results import (
    DEFENDED,
    Origin,
    Result,
    result_name,
    results_folder,
    save_result,
)
from danp_lib.evaluation.score import ESTIMATORS, Evaluation, TaskRecord
from danp_lib.evaluation.table import MEASURES, PAPER, ROWS, table
from danp_lib.evaluation.used import Used
from danp_lib.storage.origin import Hardware

CONTRACT = {"paper", "ours", "ours_ci95", "estimator", "num_samples"}
MODELS = ["danp", "convcnp", "convgnp", "ar-convcnp", "ceiling"]
RECORD = TaskRecord(3, -1.0, "both", 512, 12.5, 1537, 2.0)


def origin(name: str, weights: str | None = "a" * 64) -> Origin:
    dataset = split_name(name)[1]
    machine = Hardware("a processor", None, 1)
    return Origin(name, dataset, weights, "b" * 64, 0, None, machine, "0.1.0", "2.13.0")


def with_papers(dataset: str, labels: list[str]) -> list[str]:
    """The rows of models by the paper's recipe too, which are there for its numbers."""
    return [*labels[:-1], *(f"{model}-paper" for model in PAPER[dataset]), labels[-1]]


def save(folder: Path, name: str, *records: TaskRecord, weights: str | None = "a" * 64) -> Path:
    return save_result(
        folder, Result(origin(name, weights), {}, Evaluation.summarize(records or [RECORD] * 2))
    )


def save_marginal(folder: Path, name: str, weights: str | None = "a" * 64) -> Path:
    records = [MarginalRecord(0, 0.25, 0.5, 0.75, 1.0), MarginalRecord(1, 0.75, 0.25, 1.0, 1.0)]
    marginals = Marginals.summarize(records, num_samples=256)
    return save_result(folder, Result(origin(name, weights), {}, marginals))


def test_without_results_it_has_the_papers_numbers(tmp_path: Path) -> None:
    found = table(tmp_path)
    assert json.loads(json.dumps(found)) == found
    assert list(found) == list(DATASETS)
    for dataset, rows in found.items():
        assert list(rows) == with_papers(dataset, MODELS)
        for label, row in rows.items():
            assert set(row) == CONTRACT | set(MEASURES)
            model, suffix, _ = label.partition("-paper")
            expected = PAPER[dataset][model] if suffix else (None, None)
            assert (row.pop("paper"), row.pop("paper_ci95")) == expected
            assert set(row.values()) == {None}
    # What the paper concludes from its table.
    best = {d: max(rows, key=lambda m: rows[m][0]) for d, rows in PAPER.items() if rows}
    assert best == {"sawtooth": "danp", "square-released": "danp", "gp": "convgnp"}


def test_it_shows_the_results_there_are(tmp_path: Path) -> None:
    save(tmp_path, "danp-gp", RECORD, replace(RECORD, log_likelihood=1.0, seconds=4.0))
    exact = replace(RECORD, estimator="exact", num_samples=1, forward_passes=0)
    save(tmp_path, "ceiling-gp", exact, weights=None)
    rows = table(tmp_path)["gp"]
    assert list(rows) == with_papers("gp", MODELS)
    danp, ceiling = rows["danp"], rows["ceiling"]
    assert danp["ours"] == pytest.approx((math.exp(-1) + math.exp(1)) / 2)
    assert danp["ours_ci95"] == pytest.approx(1.96 * (math.exp(1) - math.exp(-1)) / 2)
    papers = rows["danp-paper"]
    assert (papers["paper"], papers["paper_ci95"], papers["ours"]) == (*PAPER["gp"]["danp"], None)
    assert danp["paper"] is None  # another model's number
    assert (danp["estimator"], danp["num_samples"], danp["fewest_samples"]) == ("both", 512, 512)
    assert danp["mean_log_likelihood"] == 0.0
    assert (danp["forward_passes"], danp["seconds"]) == (1537, 3.0)  # a task
    assert danp["crps"] is None
    assert (ceiling["ours"], ceiling["ours_ci95"]) == (pytest.approx(math.exp(-1)), None)
    assert (ceiling["estimator"], ceiling["num_samples"]) == ("exact", 1)
    assert rows["convcnp"]["ours"] is None


def test_the_marginals_stand_beside_the_scores(tmp_path: Path) -> None:
    save(tmp_path, "danp-gp")
    save_marginal(tmp_path, "danp-gp")
    save_marginal(tmp_path, "convcnp-gp", weights="c" * 64)
    rows = table(tmp_path)["gp"]
    for model in ("danp", "convcnp"):
        assert rows[model]["crps"] == 0.5
        assert rows[model]["crps_ci95"] == pytest.approx(1.96 * 0.25)
        assert (rows[model]["coverage_50"], rows[model]["coverage_90"]) == (0.375, 0.875)
    assert rows["convcnp"]["ours"] is None


def test_all_rows_of_a_model_are_of_the_same_weights_and_tasks(tmp_path: Path) -> None:
    save(tmp_path, "danp-gp")
    save(tmp_path, "danp-gp", replace(RECORD, estimator="model"), weights="e" * 64)
    with pytest.raises(ValueError, match=r"danp-gp-model\.json must be of the weights a+, got e+"):
        table(tmp_path)
    other = replace(origin("danp-seed1-gp"), tasks="f" * 64)
    path = save_result(tmp_path, Result(other, {}, Evaluation.summarize([RECORD] * 2)))
    (tmp_path / "danp-gp-model.json").unlink()
    with pytest.raises(ValueError, match=r"must be of the tasks b+, got f+"):
        table(tmp_path)
    path.unlink()
    assert table(tmp_path)["gp"]["danp"]["ours"] is not None


def test_a_folder_that_is_not_there_is_no_empty_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folder must be one of results, got .*nowhere"):
        table(tmp_path / "nowhere")


def test_ancestral_samples_and_the_second_seed_have_rows(tmp_path: Path) -> None:
    many = replace(RECORD, estimator="model", num_samples=50_000)
    save(tmp_path, "danp-gp", many, replace(many, num_samples=5_000))
    save(tmp_path, "danp-seed1-gp", weights="d" * 64)
    save_marginal(tmp_path, "danp-gp")
    save_marginal(tmp_path, "danp-seed1-gp", weights="d" * 64)
    found = table(tmp_path)
    rows = found["gp"]
    assert list(rows) == with_papers(
        "gp", ["danp", "danp (ancestral samples)", *MODELS[1:-1], "danp-seed1", MODELS[-1]]
    )
    ancestral, second = rows["danp (ancestral samples)"], rows["danp-seed1"]
    assert (ancestral["num_samples"], ancestral["fewest_samples"]) == (50_000, 5_000)
    assert ancestral["estimator"] == "model"
    assert ancestral["paper"] is second["paper"] is None
    assert second["ours"] == pytest.approx(math.exp(-1))
    # The marginals are the model's, whatever estimates its likelihood.
    assert (rows["danp"]["crps"], second["crps"], ancestral["crps"]) == (0.5, 0.5, None)
    assert list(found["square"]) == MODELS


def test_models_by_the_papers_recipe_have_rows_before_the_ceiling(tmp_path: Path) -> None:
    for estimator in ("model", "both"):
        save(tmp_path, "danp-gp-paper", replace(RECORD, estimator=estimator))
    save(tmp_path, "convgnp-gp-paper", replace(RECORD, estimator="exact", num_samples=1))
    save_marginal(tmp_path, "danp-gp-paper")
    rows = table(tmp_path)["gp"]
    balanced = "danp-paper (balance heuristic)"
    expected = with_papers("gp", MODELS)
    expected.insert(expected.index("danp-paper") + 1, balanced)
    assert list(rows) == expected
    assert [rows[name]["estimator"] for name in ("danp-paper", balanced)] == ["model", "both"]
    for name in ("danp-paper", "convgnp-paper"):
        assert rows[name]["paper"] == PAPER["gp"][name.partition("-")[0]][0]
    assert rows[balanced]["paper"] is None  # another estimator's number
    for name in ("danp-paper", balanced, "convgnp-paper"):
        assert rows[name]["ours"] == pytest.approx(math.exp(-1))
    assert (rows["danp-paper"]["crps"], rows[balanced]["crps"]) == (0.5, None)


def test_every_result_that_is_shipped_has_a_row() -> None:
    rows = table()
    shown = {
        result_name(join_name(model, dataset), measured)
        for dataset, labels in rows.items()
        for model, measured in (ROWS[label] for label in labels)
    }
    endings = ("exact", "used", *ESTIMATORS, *(f"{how}{DEFENDED}" for how in ESTIMATORS))
    stored = {
        path.name
        for path in results_folder().glob("*.json")
        if path.name.endswith(tuple(f"-{ending}.json" for ending in endings))
    }
    assert stored
    assert stored <= shown


def test_the_defended_danp_has_a_row_of_one_mixture(tmp_path: Path) -> None:
    record = replace(RECORD, estimator="model", num_samples=256, effective_sample_size=None)
    marginal = MarginalRecord(3, 0.25, 0.5, 0.75, 1.0)
    used = Used(
        0.05,
        Evaluation.summarize([record] * 2),
        Marginals.summarize([marginal] * 2, num_samples=256),
    )
    path = save_result(tmp_path, Result(origin("danp-gp"), {}, used))
    assert path.name == "danp-gp-used.json"
    rows = table(tmp_path)["gp"]
    assert list(rows) == with_papers("gp", ["danp", "danp (defended)", *MODELS[1:]])
    row = rows["danp (defended)"]
    assert set(row) == CONTRACT | set(MEASURES)
    assert (row["mean_log_likelihood"], row["crps"], row["coverage_90"]) == (-1.0, 0.25, 0.75)
    assert (row["estimator"], row["num_samples"], row["paper"]) == ("model", 256, None)
    path.rename(tmp_path / "danp-square-used.json")
    with pytest.raises(ValueError, match=r"danp-square .*danp-gp"):
        table(tmp_path)


def test_a_result_under_another_name_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "danp-gp")
    path.rename(tmp_path / result_name("danp-square", "both"))
    with pytest.raises(ValueError, match=r"danp-square .*danp-gp"):
        table(tmp_path)


def test_marginals_of_other_weights_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "danp-gp")
    save_marginal(tmp_path, "danp-gp", weights="e" * 64)
    with pytest.raises(ValueError, match=r"danp-gp-marginals\.json .*aaa.*eee"):
        table(tmp_path)
