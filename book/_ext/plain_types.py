"""Types in the library reference without the limits that configurations check.

Autodoc shows what stands in ``Annotated`` as Python prints it, and a limit holds a function.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.ext import autodoc


def setup(app: Sphinx) -> dict[str, Any]:
    """Have autodoc read all types without what annotates them."""
    reader: Any = autodoc
    with_limits = reader.get_type_hints

    def type_hints(*args: Any, **options: Any) -> dict[str, Any]:
        return with_limits(*args, **options | {"include_extras": False})

    reader.get_type_hints = type_hints
    return {"parallel_read_safe": True}
