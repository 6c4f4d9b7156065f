"""Take the README's figure from the introduction as it is stored.

Run it after the introduction: ``python scripts/readme_figure.py``
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHAPTER = ROOT / "book" / "01-introduction.ipynb"
FIGURE = "fig-first-prediction"
TARGET = ROOT / "book" / "_static" / "first-prediction.png"


def stored_figure() -> bytes:
    """The picture that the introduction shows first, as PNG."""
    for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]:
        figure = cell["metadata"].get("mystnb", {}).get("figure", {})
        if figure.get("name") == FIGURE:
            for output in cell["outputs"]:
                if picture := output.get("data", {}).get("image/png"):
                    return base64.b64decode(picture)
    raise ValueError(f"{CHAPTER} must hold a stored figure named {FIGURE}, got none; run it first.")


if __name__ == "__main__":
    TARGET.write_bytes(stored_figure())
    print(TARGET.relative_to(ROOT))
