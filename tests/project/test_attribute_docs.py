"""What the reference says of constants and fields, as Sphinx takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.pycode import ModuleAnalyzer

PACKAGE = Path(__file__).parents[2] / "danp_lib"


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
def test_no_description_loses_its_beginning(path: Path) -> None:
    documented = ModuleAnalyzer.for_file(str(path), path.stem).find_attr_docs()
    for (owner, name), lines in documented.items():
        shown = str(GoogleDocstring(lines, what="attribute", name=name))
        # Napoleon takes what stands before a colon in the first line for a type.
        assert ":type:" not in shown, f"{owner}.{name}: put the colon of {lines[0]!r} otherwise"
