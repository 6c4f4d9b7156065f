"""The chapters as they are stored: run to the end, clean, readable without their figures."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
LISTED = [TOC["root"]] + [entry["file"] for part in TOC["parts"] for entry in part["chapters"]]
CHAPTERS = sorted(BOOK.glob("*.ipynb"))
PAGES = sorted(BOOK.glob("*.md"))

MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:home|root|tmp|work|Users|private|mnt)/|[A-Z]:\\Users")
FIGURE_DIRECTIVE = re.compile(r"^(`{3,}|:{3,})\{(?:figure|image)\}.*?^\1", re.MULTILINE | re.DOTALL)
IMAGE_WITHOUT_ALT = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"]+\")[^>]*>")

Cell = dict[str, Any]


def read(path: Path) -> list[Cell]:
    """Return the cells of a notebook, each source in one string."""
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def code(cells: list[Cell]) -> list[Cell]:
    """Return the code cells that hold something."""
    return [cell for cell in cells if cell["cell_type"] == "code" and cell["source"].strip()]


def is_image(output: Cell) -> bool:
    """Tell whether an output shows a picture."""
    return any(kind.startswith("image/") for kind in output.get("data", {}))


def texts(output: Cell) -> list[str]:
    """Return what an output says in words; the stand-in text of a picture is none."""
    if output["output_type"] == "stream":
        return ["".join(output["text"])]
    if output["output_type"] == "error":
        return ["\n".join(output["traceback"])]
    return [
        "".join(value)
        for kind, value in output["data"].items()
        if kind.startswith("text/") and not is_image(output)
    ]


def said_as_html(outputs: list[Cell]) -> list[str]:
    """Return the HTML of outputs."""
    return ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]


def prints(source: str) -> bool:
    """Tell whether a cell prints whatever happens: not in a branch, a loop or a function."""
    code = re.sub(r"^[%!].*", "", source, flags=re.MULTILINE)
    return any(
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "print"
        for node in ast.parse(code).body
    )


def faults_of_cell(cell: Cell) -> list[str]:
    """Return what is wrong with a code cell as it is stored."""
    outputs = cell["outputs"]
    said = "\n".join(text for output in outputs for text in texts(output))
    faults = []
    if cell["execution_count"] is None:
        faults.append("never ran")
    if prints(cell["source"]) and not said:
        faults.append("prints, but stores nothing")
    if any(output["output_type"] == "error" for output in outputs):
        faults.append("ended in an error")
    if any(output.get("name") == "stderr" for output in outputs) or "Warning:" in said:
        faults.append("warns")
    if MACHINE_PATH.search(cell["source"] + "\n" + said):
        faults.append("names a path of one machine")
    if any(IMAGE_WITHOUT_ALT.search(text) for text in said_as_html(outputs)):
        faults.append("image without alt text")
    shown = cell["metadata"].get("mystnb", {})
    if "figure" in shown and not any(is_image(output) for output in outputs):
        faults.append("caption without its figure")
    if any(is_image(output) for output in outputs):
        if not shown.get("image", {}).get("alt", "").strip():
            faults.append("figure without mystnb.image.alt")
        if not shown.get("figure", {}).get("caption", "").strip():
            faults.append("figure without mystnb.figure.caption")
        if not said.strip() and not re.search(r"^\s*assert\b", cell["source"], re.MULTILINE):
            faults.append("figure with no printed or asserted number beside it")
    return faults


def faults_of_prose(text: str) -> list[str]:
    """Return what is wrong with a page or a Markdown cell."""
    faults = []
    if MACHINE_PATH.search(text):
        faults.append("names a path of one machine")
    if IMAGE_WITHOUT_ALT.search(text) or any(
        ":alt:" not in match[0] and "alt:" not in match[0]
        for match in FIGURE_DIRECTIVE.finditer(text)
    ):
        faults.append("image without alt text")
    return faults


def test_there_are_chapters_and_the_contents_list_them() -> None:
    assert CHAPTERS, "book/ holds no notebook"
    assert len(set(LISTED)) == len(LISTED)
    assert {path.stem for path in CHAPTERS + PAGES} == set(LISTED)


@pytest.mark.parametrize("name", ["_config.yml", "_toc.yml"])
def test_book_reads_the_files_at_the_top(name: str) -> None:
    # A link, or, where git makes none, a file that holds the link's target.
    link = BOOK / name
    assert link.resolve() == ROOT / name or link.read_text(encoding="utf-8").strip() == f"../{name}"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_code_cells_are_stored_as_they_ran(path: Path) -> None:
    cells = code(read(path))
    assert cells, "a chapter runs something"
    faults = {cell["source"]: found for cell in cells if (found := faults_of_cell(cell))}
    assert not faults
    assert any(cell["outputs"] for cell in cells)
    # From a fresh kernel, top to bottom.
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_runs_in_the_kernel_of_its_environment(path: Path) -> None:
    metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"


@pytest.mark.parametrize("path", CHAPTERS + PAGES, ids=lambda path: path.name)
def test_prose_is_clean(path: Path) -> None:
    if path.suffix == ".ipynb":
        prose = [cell["source"] for cell in read(path) if cell["cell_type"] == "markdown"]
    else:
        prose = [path.read_text(encoding="utf-8")]
    assert [fault for text in prose for fault in faults_of_prose(text)] == []


def test_reference_lists_the_library() -> None:
    text = (BOOK / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"automodule:: danp_lib\.([\w.]+)", text)
    files = (path.relative_to(ROOT / "danp_lib") for path in (ROOT / "danp_lib").rglob("*.py"))
    modules = {".".join(path.with_suffix("").parts) for path in files if path.stem != "__init__"}
    # The command explains itself.
    assert sorted(listed) == sorted(name for name in modules if not name.startswith("cli."))


FIGURE = {"output_type": "display_data", "data": {"image/png": "", "text/plain": ["<Figure>"]}}
IMAGE = {"output_type": "display_data", "data": {"text/html": ["<img src='a.png'>"]}}
DESCRIBED = {"mystnb": {"image": {"alt": "A line."}, "figure": {"caption": "A line."}}}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"execution_count": None}, "never ran"),
        ({"outputs": [{"output_type": "error", "traceback": ["ValueError"]}]}, "error"),
        ({"outputs": [{"output_type": "stream", "name": "stderr", "text": ["50%"]}]}, "warns"),
        ({"outputs": [{"output_type": "stream", "name": "stdout", "text": ["/tmp/a"]}]}, "path"),
        ({"source": "open('/home/someone/a.csv')"}, "path"),
        ({"source": "print(1)"}, "stores nothing"),
        ({"source": "if x:\n    print(1)"}, None),
        ({"outputs": [IMAGE]}, "without alt"),
        ({"source": "assert True", "outputs": [FIGURE], "metadata": DESCRIBED}, None),
        ({"source": "assert True", "outputs": [FIGURE]}, "alt"),
        ({"outputs": [FIGURE], "metadata": DESCRIBED}, "number"),
        ({"metadata": DESCRIBED}, "without its figure"),
    ],
)
def test_the_checks_of_cells_can_fail(change: Cell, fault: str | None) -> None:
    found = faults_of_cell(
        {"source": "x = 1", "execution_count": 1, "outputs": [], "metadata": {}, **change}
    )
    assert (found == []) if fault is None else any(fault in entry for entry in found)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("![A wave](wave.png) and and/or work/home", 0),
        ("![](wave.png)", 1),
        ('<img src="wave.png">', 1),
        ("```{figure} wave.png\n:name: wave\n```", 1),
        ("```{figure} wave.png\n:alt: A wave\n```", 0),
        ("see /work/notes.md", 1),
    ],
)
def test_the_checks_of_prose_can_fail(text: str, faults: int) -> None:
    assert len(faults_of_prose(text)) == faults
