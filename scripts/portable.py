"""The tests and the chapters on simulated processors: one line for each that fails.

    python scripts/portable.py [--variant avx2 --variant sse4 ...] [PATH ...]

A chapter's cells are those of Jupyter, ``In [1]``, ``In [2]`` and so on. A kind that this processor
is by itself is left out: on it, ``make test`` says the same.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch
from processors import OWN, VARIANTS

ROOT = Path(__file__).parents[1]
WORKERS = (
    "--numprocesses",
    "auto",
    "--maxprocesses",
    "4",
    "--dist",
    "loadfile",
    "--no-loadscope-reorder",
)
# nbval counts the code cells from 0.
CELL = re.compile(r"^(?:FAILED|ERROR) (?:book/)?(?P<chapter>[\w-]+)\.ipynb::Cell (?P<number>\d+)")
TEST = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+)")
COUNTS = re.compile(r"^(?:=+ )?(?P<counts>\d+ (?:passed|failed|error).*?) in [\d.]+s")


def failed(line: str) -> str | None:
    """What a line of pytest's summary says has failed, or None."""
    if cell := CELL.match(line):
        return f"{cell['chapter']} cell [{int(cell['number']) + 1}]"
    if test := TEST.match(line):
        return test["test"]
    return None


def run(variant: str, paths: list[str]) -> list[str]:
    """Run pytest on a simulated processor; print and return what failed."""
    lines: list[str] = []
    for path in paths:
        nbval = ["--nbval"] if path.split("/")[0] == "book" else []
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", *WORKERS, *nbval, path],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **VARIANTS[variant]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()
        found = [what for line in said if (what := failed(line))]
        if done.returncode not in (0, 1) or (done.returncode == 1 and not found):
            found.append(f"{path}: pytest ended with {done.returncode}: {said[-1] if said else ''}")
        for what in found:
            print(f"{variant}: {what}", flush=True)
        counts = next((m["counts"] for line in reversed(said) if (m := COUNTS.match(line))), "")
        minutes = (time.monotonic() - start) / 60.0
        print(f"{variant}: {path}: {counts} in {minutes:.1f} min", flush=True)
        lines += found
    return lines


def parser() -> argparse.ArgumentParser:
    """The command line. An option takes one value, so a path may follow it."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("paths", nargs="*", default=["tests", "book"])
    made.add_argument("--variant", action="append", choices=VARIANTS, dest="variants")
    return made


def main() -> int:
    """Try every variant, and print what fails."""
    arguments = parser().parse_args()
    asked = arguments.variants or list(VARIANTS)
    own = OWN.get(torch.backends.cpu.get_cpu_capability())
    variants = [variant for variant in asked if variant != own]
    if own in asked:
        print(f"{own}: left out, since this processor is one", flush=True)
    found = [line for variant in variants for line in run(variant, arguments.paths)]
    print(f"{len(found)} failed on {len(variants)} processors")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
