"""Run a chapter from top to bottom in a fresh kernel, and store its outputs.

    python scripts/outputs.py CHAPTER [CHAPTER ...]

A chapter that fails is left as it was.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SECONDS_A_CELL = 900


def run(path: Path) -> None:
    """Run one chapter in place; the file is written when all cells have run."""
    notebook = nbformat.read(path, as_version=4)
    metadata = copy.deepcopy(notebook.metadata)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    start = time.monotonic()
    NotebookClient(notebook, timeout=SECONDS_A_CELL, record_timing=False).execute(
        cwd=str(path.parent)
    )
    # The kernel notes its Python's version, which is one machine's.
    notebook.metadata = metadata
    # By this the chapters that take longest are started first when all are run side by side.
    notebook.metadata["seconds"] = round(time.monotonic() - start)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = merged(cell.outputs)
    nbformat.write(notebook, path)


def merged(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Outputs with what was printed in several chunks as one."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        last = kept[-1] if kept else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def main(paths: list[str]) -> int:
    """Run the chapters that are named."""
    if not paths:
        print("name a chapter, as in: make outputs CHAPTER=book/05-convgnp.ipynb", file=sys.stderr)
        return 2
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for path in paths:
        run(Path(path).resolve())
        print(f"{path}: outputs stored")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
