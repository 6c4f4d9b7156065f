"""Commands run in this process, and the small models and files that they are given."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from danp_lib.cli.main import app


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
