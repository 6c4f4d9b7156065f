"""The pages as documents: their weight, their headings and names, and the colors of our sheet."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from sphinx.application import Sphinx
from sphinx.ext import autodoc

from danp_lib.training.config import TrainingConfig

sys.path.append(str(Path(__file__).parents[2] / "book" / "_ext"))
import plain_types

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "book"
NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
PAGES = NOTEBOOKS + sorted(BOOK.glob("*.md"))
CSS = re.sub(
    r"/\*.*?\*/", "", (BOOK / "_static" / "custom.css").read_text(encoding="utf-8"), flags=re.DOTALL
)
FENCED = re.compile(r"^(`{3,}|:{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
LARGEST_NOTEBOOK = 900_000  # bytes
# The theme's pages, light and dark.
GROUNDS = {"light": (255.0, 255.0, 255.0), "dark": (20.0, 24.0, 30.0)}

Color = tuple[float, float, float]


def cells_of(path: Path) -> list[dict[str, Any]]:
    """The cells of a page, each source in one string; a .md page is one cell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [{"cell_type": "markdown", "metadata": {}, "source": text}]
    return [{**cell, "source": "".join(cell["source"])} for cell in json.loads(text)["cells"]]


def prose(path: Path) -> str:
    """The Markdown of a page, without what stands in fences."""
    text = "\n\n".join(c["source"] for c in cells_of(path) if c["cell_type"] == "markdown")
    return FENCED.sub("", text)


def shown_as_figures(path: Path) -> list[dict[str, Any]]:
    """What the code cells of a page say of the figures that they show."""
    shown = (cell["metadata"].get("mystnb", {}) for cell in cells_of(path))
    return [entry for entry in shown if "figure" in entry]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_light(path: Path) -> None:
    assert path.stat().st_size < LARGEST_NOTEBOOK


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_one_title_and_no_level_of_headings_is_skipped(path: Path) -> None:
    levels = [len(marks) for marks in re.findall(r"^(#+) ", prose(path), re.MULTILINE)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_headings_under_one_heading_differ(path: Path) -> None:
    outline: list[str] = []
    seen = set()
    for marks, heading in re.findall(r"^(#+) (.+)$", prose(path), re.MULTILINE):
        outline = [*outline[: len(marks) - 1], heading]
        assert tuple(outline) not in seen, "links and screen readers go by them"
        seen.add(tuple(outline))


def test_names_are_used_once_in_the_book() -> None:
    names: Counter[str] = Counter()
    for path in PAGES:
        names.update(entry["figure"]["name"] for entry in shown_as_figures(path))
        text = "\n".join(c["source"] for c in cells_of(path) if c["cell_type"] == "markdown")
        names.update(
            re.findall(r"^(?:\$\$ *|:name: *)?\(?([a-z]+-[\w-]+)(?:\)=?)?$", text, re.MULTILINE)
        )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_descriptions_are_more_than_a_name_and_other_than_the_caption(path: Path) -> None:
    for entry in shown_as_figures(path):
        name, alt = entry["figure"]["name"], entry["image"]["alt"]
        assert len(alt) >= 40, f"{name}: say what there is to see"
        assert alt != entry["figure"]["caption"], f"{name}: a screen reader reads both"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_displayed_markdown_is_read_as_the_pages_are(path: Path) -> None:
    for cell in cells_of(path):
        shown = [o for o in cell.get("outputs", ()) if "text/markdown" in o.get("data", {})]
        own = cell["metadata"].get("mystnb", {})
        assert not shown or own.get("markdown_format") == "myst", "its tables would be plain text"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_figure_of_the_paper_says_so(path: Path) -> None:
    for entry in shown_as_figures(path):
        if number := re.fullmatch(r"fig-(\d+)", entry["figure"]["name"]):
            assert re.search(rf"paper's Figure {number[1]}\b", entry["figure"]["caption"])


def test_citation_page_says_what_the_citation_file_says() -> None:
    page = (BOOK / "citation.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    paper, software = re.findall(r"^```bibtex\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert paper in (BOOK / "references.bib").read_text(encoding="utf-8")

    preferred = citation["preferred-citation"]
    authors = (f"{a['family-names']}, {a['given-names']}" for a in preferred["authors"])
    for key, value in {
        "title": preferred["title"],
        "author": " and ".join(authors),
        "booktitle": preferred["collection-title"],
        "year": preferred["year"],
    }.items():
        assert f"  {key} = {{{value}}},\n" in paper
    (author,) = citation["authors"]
    for key, value in {
        "title": citation["title"],
        "author": f"{{{author['name']}}}",
        "version": citation["version"],
        "year": config["copyright"],
    }.items():
        assert f"  {key} = {{{value}}},\n" in software


def parse(color: str) -> tuple[Color, float]:
    """Red, green and blue from 0 to 255, and the opacity."""
    if match := re.fullmatch(r"#([0-9a-f]{3}|[0-9a-f]{6})", color):
        digits = match[1] if len(match[1]) == 6 else "".join(2 * digit for digit in match[1])
        red, green, blue = (float(int(digits[i : i + 2], 16)) for i in (0, 2, 4))
        return (red, green, blue), 1.0
    match = re.fullmatch(r"rgba\((\d+), (\d+), (\d+), ([\d.]+)\)", color)
    assert match, f"{color}: write #rgb, #rrggbb or rgba(...)"
    red, green, blue, alpha = map(float, match.groups())
    return (red, green, blue), alpha


def over(color: str, ground: Color) -> Color:
    """A color as it looks on a ground."""
    top, alpha = parse(color)
    red, green, blue = (alpha * t + (1 - alpha) * g for t, g in zip(top, ground, strict=True))
    return red, green, blue


def contrast(first: Color, second: Color) -> float:
    """The ratio of luminances that WCAG 2 defines, from 1 to 21."""

    def luminance(color: Color) -> float:
        shares = (value / 255 for value in color)
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted(map(luminance, (first, second)))
    return (lighter + 0.05) / (darker + 0.05)


def faint(css: str) -> list[str]:
    """Return the text colors of a style sheet that stand out too little from a ground of theirs.

    A color without a theme in its selector is of the light one. It has to stand out from the page
    and from every translucent band that the sheet paints.
    """
    bands = re.findall(r"background-color: (rgba\([^)]*\))", css)
    found = []
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css):
        page = GROUNDS["dark" if 'data-theme="dark"' in selector else "light"]
        for color in re.findall(r"(?<!-)color: ([^;]+);", body):
            for ground in [page, *(over(band, page) for band in bands)]:
                if (ratio := contrast(over(color, ground), ground)) < 4.5:
                    found.append(f"{selector.strip()}: {color} has {ratio:.2f}")
    return found


def test_text_colors_of_the_style_sheet_stand_out() -> None:
    assert faint(CSS) == []


@pytest.mark.parametrize(
    ("css", "count"),
    [
        ("a { color: #767676; }", 0),
        ("a { color: #777777; }", 1),
        ("a { color: #767676; } b { background-color: rgba(0, 0, 0, 0.1); }", 1),
        ('html[data-theme="dark"] a { color: #767676; }', 1),
        ('html[data-theme="dark"] a { color: #ccc; border-color: #000; }', 0),
    ],
)
def test_the_check_of_colors_can_fail(css: str, count: int) -> None:
    assert len(faint(css)) == count


def test_contrast_at_its_ends() -> None:
    white, black = (255.0, 255.0, 255.0), (0.0, 0.0, 0.0)
    assert contrast(white, black) == pytest.approx(21)
    assert contrast(black, black) == 1


def test_the_library_reference_shows_types_without_the_limits_of_configurations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader: Any = autodoc
    monkeypatch.setattr(reader, "get_type_hints", reader.get_type_hints)
    plain_types.setup(Sphinx.__new__(Sphinx))
    types = reader.get_type_hints(TrainingConfig, include_extras=True)
    assert types["gradient_clip"] == float | None
    assert types["num_steps"] is int
