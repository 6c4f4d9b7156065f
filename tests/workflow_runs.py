"""Runs of the workflow, for the tests of what it plans and of what it makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / "workflow"
CONFIG = yaml.safe_load((WORKFLOW / "config.yaml").read_text(encoding="utf-8"))

Jobs = list[tuple[str, str]]
"""The rules of jobs, and the first file that each makes."""


def snakemake(folder: Path, *options: str) -> str:
    """Run the workflow in a folder, and return what it says."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(WORKFLOW / "Snakefile")]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [*command, "--directory", str(folder), *options],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def plan(folder: Path, *options: str) -> Jobs:
    """What a run would do."""
    return jobs_of(snakemake(folder, "--dry-run", *(options or ("--cores", "1"))))


def jobs_of(said: str) -> Jobs:
    """The jobs that Snakemake speaks of."""
    job = r"^(?:local)?rule (\w+):\n(?:    input: .*\n)?    output: ([^,\n]*)"
    jobs = sorted(re.findall(job, said, re.MULTILINE))
    assert jobs or "Nothing to be done" in said
    return jobs


def count(jobs: Jobs) -> dict[str, int]:
    return dict(Counter(rule for rule, _ in jobs))
