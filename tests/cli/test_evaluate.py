"""``danp evaluate``, ``danp benchmark`` and ``danp table``."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import good, refused, write
from small_models import MODELS

from danp_lib._config import to_dict
from danp_lib._files import DATA_VARIABLE
from danp_lib.cli.evaluate import render, render_table
from danp_lib.data.generators import Sawtooth
from danp_lib.data.points import PointSet, Task
from danp_lib.data.scaling import Scaling
from danp_lib.evaluation.curves import Samples
from danp_lib.evaluation.marginals import Marginals
from danp_lib.evaluation.results import load_result
from danp_lib.evaluation.score import Evaluation, TaskRecord, evaluate
from danp_lib.fitting.fitted import Fitted
from danp_lib.storage.checkpoint import load_checkpoint, save_checkpoint
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import pretrained_path
from danp_lib.storage.tasks import benchmark_tasks, load_tasks, save_tasks


@pytest.mark.parametrize("name", MODELS)
def test_evaluate_prints_the_evaluation(
    name: str, checkpoints: dict[str, Path], tasks: Path
) -> None:
    options = ["--tasks", tasks, "--num-samples", 4, "--seed", 3]
    found = json.loads(good("evaluate", checkpoints[name], *options, "--json"))
    expected = evaluate(
        load_checkpoint(checkpoints[name]),
        load_tasks(tasks),
        num_samples=4,
        generator=torch.Generator().manual_seed(3),
    ).to_dict()
    del found["seconds"], expected["seconds"]
    assert found == expected
    lines = good("evaluate", checkpoints[name], *options).splitlines()
    assert lines[0].startswith(f"average likelihood   {found['average_likelihood']:.2f} ±")
    assert len(lines) == 7 + len({task["context_size"] for task in found["tasks"]})


@pytest.mark.parametrize("estimator", ["model", "noising"])
def test_evaluate_takes_the_estimator(
    estimator: str, checkpoints: dict[str, Path], tasks: Path
) -> None:
    options = ["--tasks", tasks, "--num-samples", 4, "--estimator", estimator, "--json"]
    found = json.loads(good("evaluate", checkpoints["danp"], *options))
    assert (found["estimator"], found["num_samples"]) == (estimator, 4)


@pytest.mark.parametrize("estimator", ["model", "autoregressive"])
def test_evaluate_scores_a_defended_danp(
    estimator: str, checkpoints: dict[str, Path], tasks: Path
) -> None:
    options = ["--tasks", tasks, "--num-samples", 4, "--estimator", estimator]
    found = json.loads(good("evaluate", checkpoints["danp"], *options, "--defended", "--json"))
    model, own = load_checkpoint(checkpoints["danp"]), load_tasks(tasks)
    plain, defended = (
        evaluate(
            one,
            own,
            estimator=estimator,  # type: ignore[arg-type]
            num_samples=4,
            generator=torch.Generator().manual_seed(0),
        )
        for one in (model, model.defended())
    )
    assert found["mean_log_likelihood"] == defended.mean_log_likelihood
    assert found["mean_log_likelihood"] != plain.mean_log_likelihood
    message = refused("evaluate", checkpoints["convgnp"], *options, "--defended")
    assert "defended is for a DANP, got a convgnp" in message


@pytest.mark.parametrize("name", ["danp", "ar-convcnp"])
def test_evaluate_speaks_the_units_of_the_data(
    name: str, checkpoints: dict[str, Path], tasks: Path, here: Path
) -> None:
    scaling = Scaling(x_offset=1990.0, x_unit=0.5, y_offset=20.0, y_unit=4.0)
    model, own = load_checkpoint(checkpoints[name]), load_tasks(tasks)
    save_checkpoint("scaled.safetensors", model, provenance={"scaling": to_dict(scaling)})
    of_data = own.map(
        lambda s: PointSet(1990.0 + 0.5 * s.x.double(), 20.0 + 4.0 * s.y.double(), s.mask)
    )
    save_tasks("data", of_data, metadata={})
    options = ["--num-samples", 4, "--json"]
    expected = json.loads(good("evaluate", checkpoints[name], "--tasks", tasks, *options))
    found = json.loads(good("evaluate", "scaled.safetensors", "--tasks", "data", *options))
    for one, other in zip(found["tasks"], expected["tasks"], strict=True):
        shifted = other["log_likelihood"] - math.log(4.0)
        assert one["log_likelihood"] == pytest.approx(shifted, abs=1e-4)
    for score in ("average_likelihood", "average_likelihood_ci95"):
        assert found[score] == pytest.approx(expected[score] / 4.0, rel=1e-3)


def test_evaluate_refuses_what_it_cannot_read(checkpoints: dict[str, Path], here: Path) -> None:
    assert "'none'" in refused("evaluate", checkpoints["danp"], "--tasks", "none")
    line = refused("evaluate", checkpoints["danp"], "--tasks", checkpoints["danp"])
    assert "xc, yc, xt, yt" in line
    generator = torch.Generator().manual_seed(0)
    nothing = Sawtooth().sample_task(1, num_targets=0, generator=generator)
    save_tasks(here / "t", nothing, metadata={})
    line = refused("evaluate", checkpoints["danp"], "--tasks", here / "t")
    assert "one target" in line
    assert str(here) in refused("evaluate", here, "--tasks", "gp")
    scaling = Scaling(x_offset=1990.0, x_unit=0.5, y_offset=20.0, y_unit=4.0)
    Fitted(load_checkpoint(checkpoints["danp"]), scaling).save("scaled.safetensors")
    save_tasks(here / "t", Sawtooth().sample_task(1, generator=generator), metadata={})
    line = refused("evaluate", "scaled.safetensors", "--tasks", here / "t")
    assert re.search(r"t: xc .*\[1989\.0, 1991\.0\]", line)
    inside = Sawtooth().sample_task(1, pool_size=4, dtype=torch.float64, generator=generator)
    context, target = (PointSet(1990 + s.x / 2, s.y) for s in (inside.context, inside.target))
    save_tasks(here / "t", Task(context, target, inside.pool), metadata={})
    line = refused("evaluate", "scaled.safetensors", "--tasks", here / "t")
    assert re.search(r"t: x_pool .*\[1989\.0, 1991\.0\]", line)


def test_table_prints_the_table(
    shipped_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = json.loads(good("table", "--json"))
    assert rows == shipped_table
    monkeypatch.setattr("danp_lib.cli.evaluate.benchmark_table", lambda: rows)
    everything = good("table", "--all")
    assert "--all" not in everything
    _, *lines = everything.splitlines()[: 1 + sum(map(len, rows.values()))]
    assert [line.split()[0] for line in lines] == [d for d in rows for _ in rows[d]]
    of_table_1, rest = good("table").split("\n\n")
    _, *main = of_table_1.splitlines()
    assert {tuple(line.split()) for line in main} < {tuple(line.split()) for line in lines}
    assert [line.split()[1] for line in main if line.startswith("gp ")] == [
        *("danp", "danp", "danp", "convcnp", "convgnp", "ar-convcnp"),
        *("danp-paper", "convcnp-paper", "convgnp-paper", "ar-convcnp-paper", "ceiling"),
    ]
    assert "danp table --all" in rest
    assert any(re.match(r"sawtooth +danp-paper +82\.26 ± +2\.51", line) for line in lines)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        ("both", "both, 32 samples per task\n"),
        ("autoregressive", "autoregressive, 32 samples per target\n"),
        ("outward", "outward, 32 samples per target\n"),
        ("orders", "orders, 32 samples per target, added up over eight orders\n"),
        (
            "orders-halved",
            "orders-halved, 32 samples per target where no point is known, "
            "added up over eight orders\n",
        ),
        (
            "orders-outward",
            "orders-outward, 32 samples per target where no point is known, "
            "added up over eight orders\n",
        ),
    ],
)
def test_a_score_says_of_what_its_samples_are(estimator: str, said: str) -> None:
    record = TaskRecord(3, -1.0, estimator, 32, None, 97, 2.0)
    assert said in render(Evaluation.summarize([record, record]))


def test_a_table_row_shows_what_there_is_to_it() -> None:
    row = {"paper": 82.26, "ours": 91.5, "ours_ci95": 2.25, "estimator": "both", "num_samples": 256}
    bare = {"paper": None, "ours": 7, "ours_ci95": None, "estimator": "exact", "num_samples": 1}
    full = row | {
        "paper_ci95": 2.51,
        "num_samples": 50_000,
        "fewest_samples": 5_000,
        "estimator": "model",
        "mean_log_likelihood": 4.5678,
        "crps": 0.01234,
        "coverage_50": 0.523,
        "coverage_90": 0.938,
        "forward_passes": 1537.0,
        "seconds": 1.234,
    }
    lines = render_table({"gp": {"danp": row, "ceiling": bare, "danp-seed1": full}}).splitlines()
    shown = [" ".join(line.split()) for line in lines]
    assert shown[1] == "gp danp 82.26 91.50 ± 2.25 both (S = 256)"
    assert shown[2] == "gp ceiling 7.00 exact"
    assert shown[3] == (
        "gp danp-seed1 82.26 ± 2.51 91.50 ± 2.25 model (S = 5,000 to 50,000) 4.568 0.0123 "
        "52.3% 93.8% 1,537 1.23"
    )
    # Each number ends below its heading.
    for heading, cell in (("paper", "2.51"), ("CRPS", "0.0123"), ("seconds", "1.23")):
        assert lines[0].index(heading) + len(heading) == lines[3].index(cell) + len(cell)


@pytest.fixture
def two_tasks(here: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Two benchmark tasks and one trained model, of a GP, in the current folder."""
    tasks = benchmark_tasks("gp")[torch.tensor([20, 300])]
    shutil.copytree(
        pretrained_path("danp-gp").parent,
        here / "checkpoints",
        ignore=lambda _, names: [n for n in names if not n.startswith("danp-gp")],
    )
    (here / "benchmark_tasks").mkdir()
    path = here / "benchmark_tasks" / "gp.safetensors"
    save_tasks(path, tasks, metadata={})
    write(path.with_name("hashes.json"), json.dumps({"gp": sha256(path)}))
    monkeypatch.setenv(DATA_VARIABLE, str(here))
    return tasks


def test_benchmark_writes_each_kind_of_result(two_tasks: Task, here: Path) -> None:
    out = ["--out", here / "out"]
    printed = good("benchmark", "danp-gp", *out, "--num-samples", 8, "--seed", 2)
    assert printed.strip() == str(here / "out" / "danp-gp-both.json")
    likelihood = load_result(printed.strip(), Evaluation)
    options = ["--tasks", "gp", "--num-samples", 8, "--seed", 2, "--json"]
    found = json.loads(good("evaluate", "danp-gp", *options))
    assert likelihood.content.average_likelihood == found["average_likelihood"]
    assert (likelihood.origin.name, likelihood.origin.seed) == ("danp-gp", 2)

    marginals = load_result(
        good("benchmark", "ceiling-gp", *out, "--measure", "marginals").strip(), Marginals
    )
    assert (marginals.origin.name, marginals.content.num_tasks) == ("ceiling-gp", 2)

    samples = load_result(
        good("benchmark", "danp-gp", *out, "--measure", "samples", "--max-samples", 100).strip(),
        Samples,
    )
    assert [curve.num_samples for curve in samples.content.curves] == 2 * [(100,), (32,)]
    assert sorted(path.name for path in (here / "out").iterdir()) == [
        "ceiling-gp-marginals.json",
        "danp-gp-both.json",
        "danp-gp-samples.json",
    ]
    write(here / "file", "")
    assert "file" in refused("benchmark", "danp-gp", "--out", here / "file")
