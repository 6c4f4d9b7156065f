"""The danp command: what it prints and writes, and how it refuses."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from contracts import small_config
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from danp_lib._config import to_dict
from danp_lib._files import DATA_VARIABLE, check_writable
from danp_lib.cli.evaluate import render, render_table
from danp_lib.cli.main import app
from danp_lib.data.generators import Sawtooth
from danp_lib.data.points import PointSet, Task
from danp_lib.data.scaling import Scaling
from danp_lib.data.tables import from_csv
from danp_lib.evaluation.curves import Samples
from danp_lib.evaluation.marginals import Marginals
from danp_lib.evaluation.results import load_result
from danp_lib.evaluation.score import Evaluation, TaskRecord, evaluate
from danp_lib.fitting import prediction
from danp_lib.fitting.fitted import Fitted
from danp_lib.inference.autoregressive import ar_sample
from danp_lib.models.contexts import SizeRange, TrainingContexts
from danp_lib.models.convnp import (
    ARConvCNP,
    ConvCNP,
    ConvGNP,
    ConvNPConfig,
    ConvNPCore,
    count_parameters,
)
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.storage import pretrained
from danp_lib.storage.card import read_card, render_card
from danp_lib.storage.checkpoint import load_checkpoint, read_header, save_checkpoint
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import pretrained_path
from danp_lib.storage.tasks import benchmark_tasks, load_tasks, save_tasks
from danp_lib.training import loop, recipes
from danp_lib.training.objective import BatchConfig
from danp_lib.training.recipes import Recipe, build_model

TINY = ConvNPConfig(points_per_unit=16, channels=8, num_layers=3, rank=4)
INDEPENDENT = replace(TINY, rank=0)
MODELS: dict[str, Callable[[], Any]] = {
    "danp": lambda: DANP(DANPConfig(base=TINY, num_levels=2, num_auxiliary=10)),
    "convgnp": lambda: ConvGNP(TINY),
    "convcnp": lambda: ConvCNP(INDEPENDENT),
    "ar-convcnp": lambda: ARConvCNP(INDEPENDENT),
}


def danp(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def good(*arguments: object) -> str:
    """What a command prints that must succeed."""
    result = danp(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(*arguments: object) -> str:
    """The line that a command must refuse with."""
    result = danp(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("danp: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    return result.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    paths = {name: folder / f"{name}.safetensors" for name in MODELS}
    for name, path in paths.items():
        save_checkpoint(path, MODELS[name](), task_generator=Sawtooth())
    return paths


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "tasks.safetensors"
    generator = torch.Generator().manual_seed(0)
    task = Sawtooth().sample_task(3, num_targets=5, pool_size=30, generator=generator)
    save_tasks(path, task, metadata={})
    return path


# Help and mistakes


COMMANDS = ("train", "evaluate", "benchmark", "table", "predict", "info", "export")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_and_gives_an_example(command: str) -> None:
    text = good(command, "--help")
    assert f"danp {command} " in text.partition("Example")[2]
    assert command in good("--help")
    assert good("--help") == good()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "'fly'"),
        (["info", "--nope"], "--nope"),
        (["train", "--model", "danp"], "Missing option"),
        (["evaluate", "x", "--tasks", "y", "--num-samples", "many"], "--num-samples"),
        (["info"], "--model and --dataset"),
        (["info", "danp-gp", "--model", "danp"], "--model"),
        (["info", "danp-sine"], "'danp-sine'"),
        (["info", "--model", "cnp", "--dataset", "gp"], "model .*'cnp'"),
        (["evaluate", "x", "--tasks", "y", "--seed", str(2**64)], f"--seed.*{2**64}"),
        (["evaluate", "x", "--tasks", "y", "--estimator", "best"], "estimator .*'best'"),
        (["evaluate", "x", "--tasks", "y", "--device", "tpu"], "device .*'tpu'"),
        (["evaluate", "x", "--tasks", "y", "--device", "cuda:99"], "device .*'cuda:99'"),
        (["benchmark", "danp-sine"], "name .*'danp-sine'"),
        (["benchmark", "danp-gp", "--measure", "speed"], "measure .*'speed'"),
        (["benchmark", "danp-gp", "--measure", "samples", "--num-samples", "4"], "num_samples = 4"),
        (["benchmark", "danp-gp", "--device", "tpu"], "device .*'tpu'"),
        (["benchmark", "danp-gp", "--num-samples", "all"], "num-samples .*'all'"),
        (
            ["benchmark", "danp-gp", "--measure", "marginals", "--num-samples", "paper"],
            "num_samples .*'paper'",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], message: str) -> None:
    line = refused(*arguments)
    assert re.search(message, line), line


def test_debug_shows_the_traceback(here: Path) -> None:
    result = danp("--debug", "info", "missing")
    assert isinstance(result.exception, FileNotFoundError)
    trace = "".join(traceback.format_exception(result.exception))
    assert "in find_checkpoint" in trace
    assert "'missing'" in refused("info", "missing")


def test_the_command_is_installed(checkpoints: dict[str, Path], here: Path) -> None:
    command = shutil.which("danp", path=str(Path(sys.executable).parent))
    assert command is not None

    line = [command, "info", str(checkpoints["danp"]), "--json"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["model"] == "danp"


def test_the_version_is_printed() -> None:
    assert good("--version") == f"danp_lib {version('danp_lib')}\n"


def test_an_interrupted_command_ends_as_a_shell_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise typer.Abort

    monkeypatch.setattr("danp_lib.cli.evaluate.benchmark_table", interrupted)
    assert danp("table").exit_code == 130


# info


def test_info_of_a_recipe() -> None:
    recipe = ["--model", "danp", "--dataset", "sawtooth", "--recipe", "paper"]
    made = recipes.recipe("paper", model="danp", dataset="sawtooth")
    found = json.loads(good("info", *recipe, "--json"))
    assert found["parameters"] == count_parameters(made.build_model())
    assert found["config"] == to_dict(made.model_config)
    assert found["training"] == to_dict(made.training)
    assert str(found["parameters"]) in good("info", *recipe)


@pytest.mark.parametrize("name", MODELS)
def test_info_of_a_checkpoint(name: str, checkpoints: dict[str, Path]) -> None:
    found = json.loads(good("info", checkpoints[name], "--json"))
    assert (found["model"], found["dataset"]) == (name, "sawtooth")
    assert found["parameters"] == count_parameters(MODELS[name]())
    assert found["config"].get("base", found["config"])["channels"] == 8
    assert re.search(r"^ +channels +8$", good("info", checkpoints[name]), re.MULTILINE)


def test_a_changed_checkpoint_is_refused(checkpoints: dict[str, Path], here: Path) -> None:
    data = bytearray(checkpoints["danp"].read_bytes())
    data[-1] ^= 1
    (here / "changed.safetensors").write_bytes(data)
    assert "was changed" in refused("info", "changed.safetensors")


# evaluate


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
    assert own.pool is not None
    of_data = Task(*map(scaling.invert, (own.context, own.target, own.pool)))
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


def test_the_ends_of_the_data_are_predicted(checkpoints: dict[str, Path], here: Path) -> None:
    dates = ["2001-01-01T18:47", "2001-01-09", "2001-01-28T17:59:33"]
    rows = "".join(f"{date},{k}\n" for k, date in enumerate(dates))
    write(here / "dates.csv", "x,y\n" + rows)
    table = from_csv(here / "dates.csv")
    scaling = Scaling.fit(table)
    Fitted(load_checkpoint(checkpoints["danp"]), scaling).save("own.safetensors")
    ends = [float(end) for end in table.x[0, [0, 2], 0]]
    write(here / "a.csv", CONTEXT.split("\n")[0] + "\n")
    write(here / "b.csv", "x\n" + "".join(f"{end!r}\n" for end in ends))
    files = ["--context", "a.csv", "--at", "b.csv", "--out", "c.csv", "--num-samples", 2]
    good("predict", "own.safetensors", *files)
    assert [row[0] for row in read(here / "c.csv")[1]] == ends
    span = ends[1] - ends[0]
    write(here / "b.csv", f"x\n{ends[1] + 1e-5 * span!r}\n")
    assert "b.csv, line 2: x " in refused("predict", "own.safetensors", *files)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_context_may_come_through_a_pipe(checkpoints: dict[str, Path], here: Path) -> None:
    os.mkfifo(here / "a")
    writer = threading.Thread(target=write, args=(here / "a", CONTEXT), daemon=True)
    writer.start()
    write(here / "b.csv", AT)
    files = ["--context", "a", "--at", "b.csv", "--out", "c.csv", "--num-samples", 2]
    good("predict", checkpoints["danp"], *files)
    assert len(read(here / "c.csv")[1]) == 4


def test_repeated_inputs_are_kept_by_a_model_of_tasks(
    checkpoints: dict[str, Path], here: Path
) -> None:
    write(here / "a.csv", CONTEXT + "0.25,0.5\n")
    write(here / "b.csv", AT)
    files = ("--context", "a.csv", "--at", "b.csv", "--out", "c.csv", "--num-samples", 2)
    result = danp("predict", checkpoints["danp"], *files)
    assert result.exit_code == 0, result.stderr
    assert "points at the input of another were kept: 1." in result.stderr


def test_table_prints_the_table(
    shipped_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = json.loads(good("table", "--json"))
    assert rows == shipped_table
    monkeypatch.setattr("danp_lib.cli.evaluate.benchmark_table", lambda: rows)
    _, *lines = good("table").splitlines()[: 1 + sum(map(len, rows.values()))]
    assert [line.split()[0] for line in lines] == [d for d in rows for _ in rows[d]]
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


# benchmark and tasks


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


# predict


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path) -> tuple[list[str], list[list[float]]]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, [[float(cell) for cell in row] for row in rows]


CONTEXT = "x,y\n0.25,0.5\n-1,0.75\n"
INPUTS = [1.5, -0.1, 1.5, 0.30000000000000004]
AT = "x\n" + "".join(f"{x!r}\n" for x in INPUTS)


@pytest.mark.parametrize("name", MODELS)
def test_predict_writes_the_models_prediction(
    name: str, checkpoints: dict[str, Path], here: Path
) -> None:
    context, at = write(here / "a.csv", CONTEXT), write(here / "b.csv", AT)
    files = ["--context", context, "--at", at, "--out", here / "c.csv"]
    options = ["--num-samples", 6, "--quantiles", "0.1,0.5", "--samples", 2, "--seed", 5]
    assert good("predict", checkpoints[name], *files, *options) == ""
    header, rows = read(here / "c.csv")
    assert header == ["x", "mean", "sd", "q0.1", "q0.5", "sample_1", "sample_2"]
    x, mean, sd, low, middle, *samples = map(list, zip(*rows, strict=True))
    assert x == INPUTS

    model = load_checkpoint(checkpoints[name])
    points = PointSet(torch.tensor([[[0.25], [-1.0]]]), torch.tensor([[[0.5], [0.75]]]))
    xt = torch.tensor(INPUTS).reshape(1, -1, 1)
    generator = torch.Generator().manual_seed(5)
    if name == "danp":
        expected = model.predict(points, xt, num_samples=6, generator=generator)
    else:
        expected = model.predict(points, xt)
    assert mean == expected.mean.flatten().tolist()
    assert sd == expected.stddev.flatten().tolist()
    assert low == expected.quantile(0.1).flatten().tolist()
    assert middle == expected.quantile(0.5).flatten().tolist()
    if name == "ar-convcnp":
        drawn = ar_sample(model, points, xt, num_samples=2, generator=generator).values
    else:
        drawn = expected.sample((2,), generator=generator)
    assert samples == [sample.flatten().tolist() for sample in drawn]


def test_a_danp_predicts_defended(checkpoints: dict[str, Path], here: Path) -> None:
    context, at = write(here / "a.csv", CONTEXT), write(here / "b.csv", AT)
    files = ["--context", context, "--at", at, "--out", here / "c.csv"]
    good("predict", checkpoints["danp"], *files, "--num-samples", 6, "--defended")
    columns = list(zip(*read(here / "c.csv")[1], strict=True))

    model = load_checkpoint(checkpoints["danp"])
    points = PointSet(torch.tensor([[[0.25], [-1.0]]]), torch.tensor([[[0.5], [0.75]]]))
    xt = torch.tensor(INPUTS).reshape(1, -1, 1)
    plain, defended = (
        one.predict(points, xt, num_samples=6, generator=torch.Generator().manual_seed(0))
        for one in (model, model.defended())
    )
    assert list(columns[2]) == defended.stddev.flatten().tolist()
    assert list(columns[2]) != plain.stddev.flatten().tolist()

    message = refused("predict", checkpoints["convgnp"], *files, "--defended")
    assert "defended is for a DANP, got a convgnp" in message


@pytest.mark.parametrize("name", ["danp", "ar-convcnp"])
def test_predict_speaks_the_units_of_the_data(
    name: str, checkpoints: dict[str, Path], here: Path
) -> None:
    scaling = Scaling(x_offset=1990.0, x_unit=0.5, y_offset=20.0, y_unit=4.0)
    model = load_checkpoint(checkpoints[name])
    Fitted(model, scaling).save("scaled.safetensors")
    options = ["--num-samples", 6, "--samples", 2, "--seed", 5]
    write(here / "a.csv", CONTEXT)
    write(here / "b.csv", AT)
    write(here / "a-years.csv", "x,y\n1990.125,22\n1989.5,23\n")
    write(here / "b-years.csv", "x\n" + "".join(f"{1990 + x / 2!r}\n" for x in INPUTS))
    for checkpoint, kind in ((checkpoints[name], ""), ("scaled.safetensors", "-years")):
        files = ["--context", f"a{kind}.csv", "--at", f"b{kind}.csv", "--out", f"c{kind}.csv"]
        good("predict", checkpoint, *files, *options)
    (header, own), (_, years) = read(here / "c.csv"), read(here / "c-years.csv")
    columns = (zip(*rows, strict=True) for rows in (own, years))
    for column, of_model, of_data in zip(header, *columns, strict=True):
        offset, unit = {"x": (1990.0, 0.5), "sd": (0.0, 4.0)}.get(column, (20.0, 4.0))
        assert of_data == pytest.approx([offset + unit * value for value in of_model], abs=1e-4)
    write(here / "b-years.csv", "x\n1991\n1991.5\n")
    says = refused("predict", "scaled.safetensors", *files)
    assert re.search(r"b-years\.csv, line 3: x .*\[1989\.0, 1991\.0\]", says)

    save_checkpoint("bad.safetensors", model, provenance={"scaling": {"x_offset": 0.0}})
    assert "scaling.x_unit" in refused("predict", "bad.safetensors", *files)


def test_predict_takes_an_empty_context_other_columns_and_spreadsheets(
    checkpoints: dict[str, Path], here: Path
) -> None:
    at = write(here / "b.csv", "\ufeffname, y ,x\r\nfirst,,0\r\n\r\nsecond,,1\r\n")
    files = ["--context", write(here / "a.csv", "y,x\n"), "--at", at, "--out", here / "c.csv"]
    good("predict", checkpoints["convgnp"], *files, "--quantiles", "")
    header, rows = read(here / "c.csv")
    assert header == ["x", "mean", "sd"]
    assert [row[0] for row in rows] == [0.0, 1.0]


def test_predict_says_what_may_be_a_mistake(checkpoints: dict[str, Path], here: Path) -> None:
    model = load_checkpoint(checkpoints["convgnp"])
    likely = SizeRange(largest=2, least=-1e9, median=0.0)
    model.training_contexts = TrainingContexts((0.0, 1.0), (likely,), noise=0.0)
    save_checkpoint("known.safetensors", model)
    write(here / "a.csv", "time,level\n0,0.5\n0.5,\n0.7,NA\n1,0.25\n")
    write(here / "b.csv", "time\n0.25\n")
    files = ["--context", "a.csv", "--at", "b.csv", "--out", "c.csv", "--x", "time", "--y", "level"]
    result = danp("predict", "known.safetensors", *files)
    assert re.fullmatch(r"danp: a\.csv: .*left out.* 2\.\n", result.stderr)
    header, _ = read(here / "c.csv")
    assert header[:2] == ["time", "mean"]

    write(here / "a.csv", "time,level\n0,0.5\n0.5,-11\n1,0.25\n")
    result = danp("predict", "known.safetensors", *files)
    assert result.exit_code == 0
    assert re.search(r"3 points is larger than the 2", result.stderr)

    write(here / "a.csv", "time,level\n0,0.5\n0.5,-11\n")
    result = danp("predict", "known.safetensors", *files)
    assert re.search(r"a\.csv: .*-11", result.stderr)


def test_predict_does_not_write_over_what_it_reads(
    checkpoints: dict[str, Path], here: Path
) -> None:
    write(here / "a.csv", CONTEXT)
    write(here / "b.csv", AT)
    copy = here / "model.safetensors"
    copy.write_bytes(checkpoints["convcnp"].read_bytes())
    before = {path: path.read_bytes() for path in here.iterdir()}
    for out in ("a.csv", here / "b.csv", "./model.safetensors"):
        says = refused("predict", copy, "--context", "a.csv", "--at", "b.csv", "--out", out)
        assert f"got {Path(out)}" in says
    assert {path: path.read_bytes() for path in here.iterdir()} == before


@pytest.mark.parametrize("name", ["danp", "convgnp"])
def test_many_inputs_are_predicted_in_parts_that_agree(
    name: str, checkpoints: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here / "a.csv", CONTEXT)
    write(here / "b.csv", AT)
    passes: list[int] = []
    forward = ConvNPCore.features

    def counted(core: ConvNPCore, encoding: Tensor) -> Tensor:
        passes.append(len(encoding))
        return forward(core, encoding)

    monkeypatch.setattr(ConvNPCore, "features", counted)
    for out, at_once in (("whole.csv", 4), ("parts.csv", 3)):
        passes.clear()
        monkeypatch.setattr(prediction, "AT_ONCE", at_once)
        files = ["--context", "a.csv", "--at", "b.csv", "--out", out]
        good("predict", checkpoints[name], *files, "--num-samples", 6)
        if name == "danp":
            levels = load_checkpoint(checkpoints[name]).num_levels
            assert passes == [1, *(6,) * levels], "auxiliary sets are drawn once for all inputs"
    (_, whole), (_, parts) = read(here / "whole.csv"), read(here / "parts.csv")
    assert len(whole) == len(parts) == 4
    for together, apart in zip(whole, parts, strict=True):
        assert apart == pytest.approx(together, abs=1e-5)


@pytest.mark.parametrize(
    ("context", "at", "message"),
    [
        # What else may be wrong in a file, tests/data/test_tables.py shows of the same readers.
        ("x,y\n0,1\n0.5,abc\n", AT, "a.csv, line 3: y .*'abc'"),
        ("x,y\n0,1e39\n", AT, "a.csv, line 2: y .*'1e39'"),
        ("x,y\n,1\n", AT, "a.csv, line 2: x .*''"),
        ("x,y\n\n2.5,1\n", AT, "a.csv, line 3: x .*2.5"),
        (CONTEXT, "t\n1\n", "b.csv, line 1: .*'x'"),
        (CONTEXT, "x\n", "b.csv"),
        (CONTEXT, "x\n0\n-2.01\n", "b.csv, line 3: x .*-2.01"),
        (CONTEXT, "x\ninf\n", "b.csv, line 2: x .*'inf'"),
        (CONTEXT, "x\n2001-01-01\n", "b.csv, line 2: x .*'2001-01-01'"),
    ],
)
def test_predict_refuses_a_bad_file_by_its_line(
    checkpoints: dict[str, Path], here: Path, context: str, at: str, message: str
) -> None:
    write(here / "a.csv", context)
    write(here / "b.csv", at)
    write(here / "c.csv", "old")
    files = ["--context", "a.csv", "--at", "b.csv", "--out", "c.csv"]
    line = refused("predict", checkpoints["danp"], *files)
    assert re.search(message, line), line
    assert (here / "c.csv").read_text(encoding="utf-8") == "old"
    assert len(list(here.iterdir())) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quantiles", "0.5,1"], "quantiles"),
        (["--quantiles", "0.5,0.5"], "quantiles"),
        (["--quantiles", "half"], "quantiles"),
        (["--samples", "-1"], "danp: samples must be >= 0, got -1"),
        (["--x", "y"], "columns must have different names, got y, y"),
        (["--x", "q0.5"], "'q0.5'"),
        (["--x", "sample_2", "--samples", "2"], "'sample_2'"),
        (["--num-samples", "0"], "num_samples"),
        (["--out", "."], "is a folder"),
        (["--out", "a.csv/c.csv"], "a.csv"),
        (["--at", "missing.csv"], "'missing.csv'"),
        (["--start", "1"], "start is for a model whose inputs count from the start of a function"),
        (["--start", "soon"], "--start: start must be a number"),
        (
            ["--start", "2020-01-01"],
            "--start: start must be a number, as the model's inputs are, got '2020-01-01'",
        ),
    ],
)
def test_predict_refuses_bad_options(
    checkpoints: dict[str, Path], here: Path, options: list[str], message: str
) -> None:
    write(here / "a.csv", CONTEXT)
    write(here / "b.csv", AT)
    files = ["--context", "a.csv", "--at", "b.csv", "--out", "c.csv"]
    assert message in refused("predict", checkpoints["danp"], *files, *options)
    assert sorted(p.name for p in here.iterdir()) == ["a.csv", "b.csv"]


# train


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, here: Path) -> Path:
    """Recipes of small models and short runs, in an empty folder."""
    original = recipes.recipe

    def small(name: str, **options: Any) -> Recipe:
        made = original(name, **options)
        steps = options.get("num_steps") or 3
        base = INDEPENDENT if "convcnp" in made.model else TINY
        config = made.model_config
        return replace(
            made,
            model_config=(
                replace(config, base=base, num_auxiliary=5)
                if isinstance(config, DANPConfig)
                else base
            ),
            training=replace(
                made.training,
                num_steps=steps,
                batch=BatchConfig(batch_size=2, num_targets=5),
                num_validation_batches=1,
            ),
        )

    monkeypatch.setattr(recipes, "recipe", small)
    return here


TRAIN = ["train", "--model", "danp", "--dataset", "square"]


def test_train_makes_a_checkpoint_with_its_card(tiny: Path) -> None:
    assert good(*TRAIN, "--out", "run", "--seed", 7) == ""
    assert sorted(p.name for p in (tiny / "run").iterdir()) == [
        "danp-square.json",
        "danp-square.md",
        "danp-square.safetensors",
        "log.jsonl",
        "state.safetensors",
    ]
    path = tiny / "run" / "danp-square.safetensors"
    card = read_card(path)
    assert (card.name, card.model, card.dataset, card.recipe) == (
        "danp-square",
        "danp",
        "square",
        "fast",
    )
    assert (card.seed, card.steps, card.parameters) == (
        7,
        3,
        count_parameters(load_checkpoint(path)),
    )
    assert card.command == (
        "danp train --model danp --dataset square --recipe fast --seed 7 "
        "--out danp-square.safetensors"
    )
    assert card.validation is not None
    assert len(card.validation) == 4
    contexts = load_checkpoint(path).training_contexts
    assert contexts is not None
    assert [part.largest for part in contexts.sizes] == [1, 2, 4, 8, 16, 30]
    assert card.danp_lib == version("danp_lib")
    assert (card.torch, card.hardware.gpu) == (torch.__version__, None)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == render_card(card)
    header = read_header(path)
    assert header.provenance["steps"] == 3
    assert header.provenance["command"] == card.command
    assert header.task_generator is not None
    assert header.task_generator.name == "square"
    shown = json.loads(good("info", path, "--json"))
    assert shown["card"]["sha256"] == card.sha256
    # What the header says is not said again.
    assert not shown["card"].keys() & (shown.keys() | header.provenance.keys())


@pytest.mark.parametrize(
    ("last", "expected"),
    [({"validation": [0.5], "kept": 2}, (2, (1.0,))), ({}, (None, None))],
)
def test_the_card_is_of_the_weights_that_are_shipped(
    last: dict[str, Any],
    expected: tuple[int | None, tuple[float] | None],
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = [{"step": 2, "validation": [1.0]}, {"step": 3, "minutes": 0.2, **last}]
    monkeypatch.setattr(loop, "train", lambda *_, **__: history)
    options = ("--model", "convcnp", "--dataset", "gp", "--recipe", "paper", "--max-minutes", 1e-9)
    good("train", *options, "--compile", "--out", "m.safetensors")
    card = read_card(tiny / "m.safetensors")
    assert (card.steps, card.kept_step, card.validation) == (3, *expected)
    assert card.command.endswith("--out m.safetensors --compile")


def test_a_model_of_ones_own_may_lie_beside_any_json(tiny: Path) -> None:
    convgnp = build_model("convgnp", small_config(), seed=0)
    Fitted(convgnp).save(tiny / "m.safetensors")
    write(tiny / "m.json", '{"mine": 1}')
    assert "card" not in json.loads(good("info", "m.safetensors", "--json"))


def test_what_is_no_file_is_not_replaced(tiny: Path) -> None:
    os.mkfifo(tiny / "pipe")
    says = refused(*TRAIN, "--out", "pipe/m.safetensors")
    assert "not a folder" in says
    with pytest.raises(OSError, match="pipe is no regular file"):
        check_writable(tiny / "pipe")


def test_a_link_is_judged_by_where_it_leads(tiny: Path) -> None:
    write(tiny / "file", "")
    (tiny / "link.safetensors").symlink_to(tiny / "file" / "m.safetensors")
    says = refused(*TRAIN, "--out", "link.safetensors")
    assert "not a folder" in says


def test_a_checkpoint_of_another_run_is_not_replaced(tiny: Path) -> None:
    (tiny / "danp.safetensors").write_bytes(b"weights of a week")
    says = refused(*TRAIN, "--out", "danp.safetensors")
    assert "got danp.safetensors" in says
    assert (tiny / "danp.safetensors").read_bytes() == b"weights of a week"


@pytest.mark.parametrize("name", ["notes.md", "notes.json"])
def test_a_file_where_a_card_goes_is_not_replaced(tiny: Path, name: str) -> None:
    write(tiny / name, "mine")
    says = refused(*TRAIN, "--out", "notes.safetensors")
    assert f"got {name}" in says
    assert (tiny / name).read_text(encoding="utf-8") == "mine"
    assert list(tiny.iterdir()) == [tiny / name]


def test_a_trained_model_is_a_pretrained_one(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "pretrained_folders", lambda: (tiny,))
    good(*TRAIN, "--levels", 2, "--steps", 2, "--out", "danp-f2-square.safetensors")
    assert sorted(p.name for p in tiny.iterdir()) == [
        "danp-f2-square.json",
        "danp-f2-square.md",
        "danp-f2-square.run",
        "danp-f2-square.safetensors",
    ]
    assert sorted(p.name for p in (tiny / "danp-f2-square.run").iterdir()) == [
        "log.jsonl",
        "state.safetensors",
    ]
    found = json.loads(good("info", "danp-f2-square", "--json"))
    assert found["config"]["num_levels"] == 2
    command = found["provenance"]["command"]
    assert "--levels 2 --steps 2 --out danp-f2-square.safetensors" in command
    good(*TRAIN, "--levels", 2, "--out", "folder")
    assert (tiny / "folder" / "danp-f2-square.safetensors").is_file()


def test_checkpoints_of_one_name_in_two_folders_have_a_run_each(tiny: Path) -> None:
    good(*TRAIN, "--out", "a/m.safetensors")
    good(*TRAIN, "--out", "b/m.safetensors", "--seed", 1)
    cards = [read_card(tiny / folder / "m.safetensors") for folder in "ab"]
    assert [card.seed for card in cards] == [0, 1]
    assert cards[0].sha256 != cards[1].sha256
    assert all((tiny / folder / "m.run" / "state.safetensors").is_file() for folder in "ab")


def test_a_run_of_the_paper_can_be_lengthened(tiny: Path) -> None:
    paper = [*TRAIN, "--recipe", "paper"]
    good(*paper, "--steps", 2, "--out", "parts.safetensors")
    good(*paper, "--steps", 4, "--out", "parts.safetensors")
    good(*paper, "--steps", 4, "--out", "whole.safetensors")
    card = read_card(tiny / "parts.safetensors")
    assert card.steps == 4
    assert "--steps 4" in card.command
    whole, parts = (load_file(f"{name}.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[k], parts[k]) for k in whole)


def test_a_stopped_run_goes_on_to_the_same_weights(tiny: Path) -> None:
    good(*TRAIN, "--out", "whole.safetensors")
    good(*TRAIN, "--out", "parts.safetensors", "--max-minutes", 1e-9)
    card = read_card(tiny / "parts.safetensors")
    assert (card.steps, card.validation) == (1, None)
    assert "--max-minutes 1e-09" in card.command
    good(*TRAIN, "--out", "parts.safetensors")
    assert read_card(tiny / "parts.safetensors").steps == 3
    whole, parts = (load_file(f"{name}.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[k], parts[k]) for k in whole)


def test_an_interrupted_run_writes_no_checkpoint(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"step": 2, "minutes": 0.1}]

    monkeypatch.setattr(loop, "train", interrupted)
    result = danp(*TRAIN, "--out", "m.safetensors")
    assert result.exit_code == 130
    assert result.stderr.startswith("danp: stopped")
    assert not list(tiny.rglob("m.*"))


def test_a_full_disk_keeps_the_old_checkpoint(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(*TRAIN, "--out", "m.safetensors")
    old = {path.name: path.read_bytes() for path in tiny.iterdir() if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    line = danp(*TRAIN, "--seed", 1, "--out", "other.safetensors").stderr.splitlines()[-1]
    assert "No space left" in line
    assert {path.name: path.read_bytes() for path in tiny.iterdir() if path.is_file()} == old


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "cnp"], "'cnp'"),
        (["--dataset", "sine"], "'sine'"),
        (["--recipe", "slow"], "'slow'"),
        (["--model", "convcnp", "--levels", "2"], "num_levels"),
        (["--levels", "0"], "num_levels"),
        (["--seed", str(-(2**63) - 1)], "--seed"),
        (["--steps", "-1"], "num_steps"),
        (["--max-minutes", "0"], "--max-minutes must be a finite number > 0, got 0.0."),
        (["--threads", "0"], "--threads must be an integer >= 1, got 0."),
        (["--device", "tpu"], "'tpu'"),
        (["--device", "meta"], "'meta'"),
        (["--out", "taken"], "taken"),
        (["--out", "taken/m.safetensors"], "taken"),
    ],
)
def test_train_refuses_before_it_starts(tiny: Path, options: list[str], message: str) -> None:
    write(tiny / "taken", "")
    assert message in refused(*TRAIN, "--out", "run", *options)
    assert [p.name for p in tiny.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--seed", 1], "training.seed: 0 "),
        (["--dataset", "sawtooth"], "dataset: 'gp' "),
        (["--model", "ar-convcnp"], "model: 'convcnp' "),
        (["--recipe", "paper", "--steps", 9], "training.optimizer: 'muon' "),
        (["--steps", 9], "training.num_steps: 3 there, 9 here; a quadratic schedule depends on it"),
    ],
)
def test_another_run_in_the_folder_is_refused(
    tiny: Path, options: list[object], difference: str
) -> None:
    run = ["train", "--model", "convcnp", "--dataset", "gp", "--out", "run"]
    good(*run)
    old = {path.name: path.read_bytes() for path in (tiny / "run").iterdir()}
    line = refused(*run, *options)
    assert "another run" in line
    assert difference in line
    assert {path.name: path.read_bytes() for path in (tiny / "run").iterdir()} == old


def test_export_writes_a_page(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("wasmtime")
    path, folder = checkpoints["danp"], tmp_path / "page"
    result = danp("export", "--web", path, "--out", folder)
    assert result.exit_code == 0
    names = {"index.html", "danp-live.js", f"{path.stem}.js"}
    assert {file.name for file in folder.iterdir()} == names
    assert all(name in result.stderr for name in names)
    refused = danp("export", "--web", checkpoints["convgnp"], "--out", tmp_path / "other")
    assert refused.exit_code == 2
    assert "must be a DANP, got ConvGNP" in refused.stderr
    assert not (tmp_path / "other").exists()
