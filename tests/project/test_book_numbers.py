"""The results chapters' prose: a number in it is the paper's, or a cell prints it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[2] / "book"
# The chapters that report what our models do.
NUMBERS = ("09", "10", "11", "12", "13")
CHAPTERS = sorted(path for path in BOOK.glob("*.ipynb") if path.name.startswith(NUMBERS))

ALLOWED = {
    "0": "where a count or a probability starts",
    "1": "one of something, or a probability",
    "310": "tasks of a benchmark set (Appendix B.1)",
    "50": "targets of a task (Appendix B.1)",
    "30": "the largest context of a task (Appendix B.1)",
    "80": "the largest context of the AR ConvCNP's training (Appendix B.1)",
    "1.96": "standard errors of a 95 % interval",
    "95": "per cent: the level of every error bar",
}

NUMBER = re.compile(r"(?<![\w.])(?<!\w-)\d(?:[\d,]*\d)?(?:\.\d+)?(?!\w*[\d-])")
# A table of results is no reference: only what may have a number in the paper, the book or a model.
REFERENCE = re.compile(
    r"\b(?:Tables?|Figures?|Figs?\.?|Equations?|Eqs?\.?|Sections?|Appendix|Appendices|Chapters?"
    r"|Exercises?|Python|[Ll]evels?|[Ll]ayers?|[Ss]eeds?)\s+"
    r"(?:[A-Z]\.)?\d+(?:\.\d+)*(?:(?:,| and| to| or|, and)\s+(?:[A-Z]\.)?\d+(?:\.\d+)*)*"
)
FENCE = re.compile(r"^(`{3,}|:{3,})(.*)$")
NO_PROSE = (
    # Mathematics, roles, inline code, targets of links.
    re.compile(r"\$\$.*?\$\$|\$[^$]+\$", re.DOTALL),
    re.compile(r"(?:\{[\w:]+\})?(?<!`)`[^`]+`"),
    re.compile(r"\]\([^)]*\)|https?://\S+|^\([\w-]+\)=$", re.MULTILINE),
    # The marks of a list.
    re.compile(r"^\s*\d+\. ", re.MULTILINE),
    REFERENCE,
)


def outside_quotes(text: str) -> str:
    """Drop what the paper says, code, and the marks of the other fences; keep what is in those."""
    kept: list[str] = []
    waiting: list[str] = []
    dropped = False
    for line in text.splitlines():
        fence = FENCE.match(line)
        if fence and not fence[2].strip() and waiting and waiting[-1] == fence[1]:
            waiting.pop()
            dropped = False
        elif fence and not dropped:
            waiting.append(fence[1])
            quoted = fence[2].strip() == "{admonition} The paper says"
            dropped = quoted or not fence[2].startswith("{")
        elif not dropped:
            kept.append(line)
    return "\n".join(kept)


def stray_numbers(text: str) -> list[str]:
    """Return the numbers of a Markdown cell that are nobody's."""
    text = outside_quotes(text)
    for pattern in NO_PROSE:
        text = pattern.sub(" ", text)
    return [number for number in NUMBER.findall(text) if number not in ALLOWED]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_number_in_prose_has_a_source(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    stray = {text: numbers for text in prose if (numbers := stray_numbers(text))}
    assert not stray, "let a cell print it, quote it from the paper, or give a reason in ALLOWED"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("The DANP reaches 129.43 on sawtooth waves.", ["129.43"]),
        ("It takes 2,000 samples, or 50k, at -3.5 nats and 90 %.", ["2,000", "3.5", "90"]),
        ("Ours is 1.5 times as fast (see Table 1).", ["1.5"]),
        ("| DANP | 12.5 |", ["12.5"]),
        ("```{admonition} What was really done\n:class: note\nBeta is 0.2.\n```", ["0.2"]),
        ("```{admonition} The paper says\n:class: paper\n82.26 on sawtooth waves\n```", []),
        (
            ":::{admonition} The paper says\n82.26\n:::\n\nOurs is 99.5.\n\n```sh\nx=3\n```",
            ["99.5"],
        ),
        ("310 tasks, ± 1.96 standard errors, 0 to 30 context points", []),
        ("$S = 512$ samples\n\n$$\nx = 3\n$$ (eq-two)\n", []),
        ("Figures 4, 5, 7 and 9, Table 1, Equation 2, Appendix B.2, Section 2.1", []),
        ("level 2, levels 1 to 3, Exercise 3, [chapter](11-how-many-samples.ipynb)", []),
        ("{cite}`kong1992ess`, {numref}`fig-4`, `num_samples=256`, SHA-256, CO2", []),
        ("1. First.\n2. Second.", []),
    ],
)
def test_the_scan_can_fail(text: str, numbers: list[str]) -> None:
    assert stray_numbers(text) == numbers


def test_allowances_are_few_and_reasoned() -> None:
    assert len(ALLOWED) <= 10
    assert all(len(reason) > 10 for reason in ALLOWED.values())
