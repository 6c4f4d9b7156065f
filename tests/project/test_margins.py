"""The scripts that try the chapters on other processors."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import margins_recorder
import portable
from margins import tight
from margins_recorder import NOTES, instrument
from portable import failed


@pytest.fixture(autouse=True)
def no_notes() -> Iterator[None]:
    NOTES.clear()
    yield
    NOTES.clear()


def run(source: str, **names: Any) -> list[dict[str, Any]]:
    """The notes of a cell."""
    NOTES.clear()
    code = instrument(source, "cell [1]", formats=True)
    exec(code, {"_margins": margins_recorder, "torch": torch, "math": math, **names})
    return [dict(note) for note in NOTES]


def test_a_comparison_is_noted_and_stays_what_it_is() -> None:
    notes = run("assert 1.0 < x < 3.0", x=2.5)
    assert [(note["kind"], note["values"]) for note in notes] == [("Lt", [-1.5]), ("Lt", [-0.5])]
    with pytest.raises(AssertionError):
        run("assert x < 1.0", x=2.0)
    # Only assertions are.
    assert run("y = x < 1.0", x=2.0) == []


@pytest.mark.parametrize(
    ("source", "quantum"),
    [
        ("f'{x:.2f}'", 0.01),
        ("f'{x:8.1%}'", 0.001),
        ("f'{x:.3g}'", 0.01),
        ("f'{x:.1e}'", 0.1),
        ("'{:.2f}'.format(x)", 0.01),
        ("round(x, 1)", 0.1),
        ("torch.tensor(x).round(decimals=3)", 0.001),
    ],
)
def test_a_printed_number_is_noted_with_its_last_digit(source: str, quantum: float) -> None:
    (note,) = run(source, x=1.234)
    assert note["quantum"] == pytest.approx(quantum)
    assert note["values"] == pytest.approx([1.234])


def test_closeness_is_noted_as_a_share_of_the_tolerance() -> None:
    (note,) = run("torch.testing.assert_close(a, b, rtol=0, atol=0.1)", a=1.0, b=1.05)
    assert note["values"] == pytest.approx([0.5 - 1.0])
    (note,) = run("assert math.isclose(2.0, 2.2, rel_tol=0.2)")
    assert note["values"] == pytest.approx([0.2 / 0.44 - 1.0])


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ((1.0, 1.0), 0),  # the same on both
        ((1.0, 1.1), 0),
        ((0.5, 0.7), 1),  # two and a half spreads from 0
        ((0.1, -0.1), 1),
    ],
)
def test_five_spreads_must_fit_before_a_comparison_turns(
    values: tuple[float, float], lines: int
) -> None:
    assert len(tight({str(x): run("assert x > 0 or True", x=x) for x in values})) == lines


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ((0.5601, 0.5602), 0),
        ((0.5549, 0.5551), 1),  # another digit
        ((0.5540, 0.5546), 1),  # the same, but on the edge
        ((1e-9, -1e-9), 1),  # a minus before zero
        ((0.0, 0.0), 0),
    ],
)
def test_five_spreads_must_fit_before_another_digit_is_printed(
    values: tuple[float, float], lines: int
) -> None:
    assert len(tight({str(x): run("f'{x:.2f}'", x=x) for x in values})) == lines


def test_what_is_done_more_often_on_one_processor_is_told() -> None:
    one, two = (run("for _ in range(n):\n    f'{x:.1f}'", n=n, x=np.float64(1)) for n in (1, 2))
    (line,) = tight({"one": one, "two": two})
    assert "not compared equally often" in line


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("FAILED book/05-convgnp.ipynb::Cell 20", "05-convgnp cell [21]"),
        (
            "FAILED tests/models/test_danp.py::test_a[1-2] - ValueError: x",
            "tests/models/test_danp.py::test_a[1-2]",
        ),
        ("ERROR tests/models/test_danp.py", "tests/models/test_danp.py"),
        ("1 failed, 2 passed in 3.2s", None),
    ],
)
def test_a_failure_is_named(line: str, what: str | None) -> None:
    assert failed(line) == what


@pytest.mark.parametrize(
    ("capability", "tried"),
    [("AVX512", ["as-is", "avx2", "sse4"]), ("AVX2", ["as-is", "sse4"])],
)
def test_what_this_processor_is_by_itself_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capability: str, tried: list[str]
) -> None:
    asked: list[str] = []

    def run(variant: str, paths: list[str]) -> list[str]:
        asked.append(variant)
        return []

    monkeypatch.setattr(portable, "run", run)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    options = [f"--variant={variant}" for variant in ("as-is", "avx2", "sse4")]
    monkeypatch.setattr(sys, "argv", ["portable.py", *options, "book"])
    assert portable.main() == 0
    assert asked == tried
