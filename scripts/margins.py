"""How far what the chapters assert and print lies from the edge, in spreads over processors.

Every chapter runs once on each simulated processor. A value of an assertion or of a printed number
that differs between them must keep five times that spread from where the assertion would fail or
another digit would be printed. What does not is listed, with the cell and the line.

    python scripts/margins.py [CHAPTER ...] [--variant avx2 --variant sse4 ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from processors import VARIANTS

ROOT = Path(__file__).parents[1]
ROOM = 5.0
"""Spreads that must fit between a value and the edge."""

Notes = list[dict[str, Any]]


def run(chapter: Path, out: Path) -> None:
    """Run an instrumented chapter in this process's environment, and write its notes."""
    import nbclient
    import nbformat
    from margins_recorder import instrument

    notebook = nbformat.read(chapter, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    for number, cell in enumerate(cells, start=1):
        formats = "nbval-ignore-output" not in cell.metadata.get("tags", [])
        cell.source = instrument(cell.source, f"cell [{number}]", formats)
    scripts = str(Path(__file__).parent)
    first = f"import sys\nsys.path.append({scripts!r})\nimport margins_recorder as _margins"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    notebook.cells.append(nbformat.v4.new_code_cell(f"_margins.dump({str(out)!r})"))
    client = nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", allow_errors=True, force_raise_errors=False
    )
    client.execute(cwd=str(chapter.parent))
    for number, cell in enumerate(cells, start=1):
        for output in cell.outputs:
            if output.output_type == "error":
                said = " ".join(output.evalue.split())
                print(f"cell [{number}]: {output.ename}: {said}"[:200])


def tight(notes: dict[str, Notes]) -> list[str]:
    """What has too little room, one line each."""
    by_place: dict[str, dict[tuple[str, str], Notes]] = {}
    for variant, listed in notes.items():
        grouped: dict[tuple[str, str], Notes] = defaultdict(list)
        for note in listed:
            grouped[note["place"], note["kind"]].append(note)
        by_place[variant] = grouped
    lines = []
    for key in dict.fromkeys(key for grouped in by_place.values() for key in grouped):
        rows = [grouped.get(key, []) for grouped in by_place.values()]
        worst: tuple[float, float, float] | None = None
        shapes = [[len(note["values"]) for note in row] for row in rows]
        if any(shape != shapes[0] for shape in shapes):
            lines.append(f"{key[0]}: {key[1]}: not compared equally often on every processor")
            continue
        for same in zip(*rows, strict=True):
            values = np.array([note["values"] for note in same])
            if values.size == 0:
                continue
            spread = np.ptp(values, axis=0)
            distance = np.min(_distance(values, key[1], same[0]["quantum"]), axis=0)
            lacking = (spread > 0) & ~(distance >= ROOM * spread)
            if lacking.any():
                room = np.where(lacking, distance / np.where(spread > 0, spread, 1.0), np.inf)
                i = int(np.argmin(room))
                if worst is None or room[i] < worst[0]:
                    worst = float(room[i]), float(values[0, i]), float(spread[i])
        if worst is not None:
            lines.append(
                f"{key[0]}: {key[1]}: room for {worst[0]:.2g} spreads "
                f"(value {worst[1]:.6g}, spread {worst[2]:.2g})"
            )
    return lines


def _distance(values: np.ndarray, kind: str, quantum: float | None) -> np.ndarray:
    """From each value to the nearest edge."""
    if quantum is None:
        return np.abs(values)
    scaled = values / quantum
    to_edge = np.abs(scaled - np.floor(scaled) - 0.5)
    # -0.00 and 0.00 are different texts, unless the value is one that is never negative.
    signed = (np.abs(scaled) < 0.5) & (values < 0.0).any(axis=0)
    to_edge = np.where(signed, np.minimum(to_edge, np.abs(scaled)), to_edge)
    return to_edge * quantum


def main() -> int:
    """Measure, and print what has too little room."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chapters", nargs="*", type=Path, help="all, if none is given")
    parser.add_argument("--variant", action="append", choices=VARIANTS, dest="variants")
    parser.add_argument("--keep", type=Path, help="a folder to keep the notes in")
    parser.add_argument("--run", nargs=2, metavar=("CHAPTER", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(*map(Path, arguments.run))
        return 0
    variants = arguments.variants or list(VARIANTS)
    chapters = arguments.chapters or sorted((ROOT / "book").glob("*.ipynb"))
    found = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for chapter in chapters:
            notes: dict[str, Notes] = {}
            for variant in variants:
                out = folder.resolve() / f"{chapter.stem}-{variant}.json"
                if not out.exists():
                    done = subprocess.run(
                        [sys.executable, __file__, "--run", str(chapter.resolve()), str(out)],
                        env={**os.environ, **VARIANTS[variant]},
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                    )
                    for line in done.stdout.splitlines():
                        print(f"{chapter.stem} {variant} {line}", flush=True)
                        found += 1
                notes[variant] = json.loads(out.read_text(encoding="utf-8"))
            for line in tight(notes):
                print(f"{chapter.stem} {line}", flush=True)
                found += 1
    print(f"{found} found in {len(chapters)} chapters on {len(variants)} processors")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
