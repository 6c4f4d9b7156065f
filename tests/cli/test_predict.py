"""``danp predict``."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
import torch
from commands import AT, CONTEXT, INPUTS, danp, good, read, refused, write
from small_models import MODELS
from torch import Tensor

from danp_lib.data.points import PointSet
from danp_lib.data.scaling import Scaling
from danp_lib.data.tables import from_csv
from danp_lib.fitting import prediction
from danp_lib.fitting.fitted import Fitted
from danp_lib.inference.autoregressive import ar_sample
from danp_lib.models.contexts import SizeRange, TrainingContexts
from danp_lib.models.convnp import ConvNPCore
from danp_lib.storage.checkpoint import load_checkpoint, save_checkpoint


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
        (["--start", "soon"], "start: it must be a number"),
        (
            ["--start", "2020-01-01"],
            "start: it must be a number, as the model's inputs are, got '2020-01-01'",
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
