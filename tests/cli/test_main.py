"""Help, mistakes and interruptions of the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from commands import danp, good, refused

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
