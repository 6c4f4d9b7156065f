"""The workflows, the hooks and CONTRIBUTING.md name what README, pyproject and Makefile do."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import portable

ROOT = Path(__file__).parents[2]
WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
NEWEST_PYTHON = (3, 13)
"""The newest one that constraints.txt is for."""

workflows = pytest.mark.parametrize("name", WORKFLOWS)


def commands(job: dict[str, Any]) -> list[str]:
    """The lines that a job runs, without quotes, which some shells need and others do not."""
    steps = (step.get("run", "") for step in job["steps"])
    return [line.replace('"', "") for run in steps for line in run.splitlines()]


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return [line.strip() for line in lines.splitlines()]


def supported_pythons() -> list[str]:
    """The Python versions that the project allows, up to the newest one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed = SpecifierSet(project["requires-python"])
    major, newest = NEWEST_PYTHON
    versions = (f"{major}.{minor}" for minor in range(newest + 1))
    return [version for version in versions if version in allowed]


def test_every_python_is_tested_on_every_system() -> None:
    jobs = WORKFLOWS["test"]["jobs"]
    assert supported_pythons()[-1] == "3.13"
    for job in (jobs["make"], jobs["without-make"]):
        assert job["strategy"]["matrix"]["python"] == supported_pythons()
        assert job["strategy"]["fail-fast"] is False
    systems = [*jobs["make"]["strategy"]["matrix"]["os"], jobs["without-make"]["runs-on"]]
    assert systems == ["ubuntu-latest", "macos-latest", "windows-latest"]


def test_the_readmes_commands_are_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with_make, without_make = re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)[:2]
    jobs = WORKFLOWS["test"]["jobs"]
    listed = [line.split("#")[0].strip() for line in with_make.splitlines()]
    assert sorted(listed) == sorted(commands(jobs["make"])) == ["make book", "make test"]
    # A workflow makes, enters and leaves environments and folders in its own way.
    ways = ("py -m venv", ".venv", "cd ")
    needed = [line for line in without_make.splitlines() if not line.startswith(ways)]
    assert [line.replace('"', "") for line in needed] == commands(jobs["without-make"])[-4:]


def test_ci_runs_the_chapters_on_another_processor() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if "portable.py" in line)
    arguments = portable.parser().parse_args(shlex.split(line.partition("portable.py")[2]))
    assert (arguments.paths, arguments.variants) == (["book"], ["avx2"])


def test_ci_runs_all_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"make test", "make thorough", "make browser"} <= set(lines)
    left_out = re.findall(r"not (\w+)", " ".join(recipe("test")))
    assert left_out == ["browser", "thorough"]
    assert all(f"-m {marker}" in " ".join(recipe(marker)) for marker in left_out)


def test_the_long_targets_are_run_weekly() -> None:
    jobs = WORKFLOWS["weekly"]["jobs"]
    assert commands(jobs["portable"]) == ["make portable"]
    assert commands(jobs["browser"])[-2:] == ["make book", "make browser"]


@workflows
def test_workflow_may_do_little_and_ends(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for title, job in WORKFLOWS[name]["jobs"].items():
        assert job["timeout-minutes"] <= 240
        assert ("permissions" in job) == (title == "deploy")
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)


def test_only_main_is_deployed() -> None:
    deploy = WORKFLOWS["book"]["jobs"]["deploy"]
    assert deploy["if"] == "github.ref == 'refs/heads/main'"
    assert deploy["permissions"] == {"pages": "write", "id-token": "write"}


def test_hooks_are_what_make_lint_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (local,) = config["repos"]
    assert local["repo"] == "local"
    hooks = {hook["id"]: hook for hook in local["hooks"]}
    assert list(hooks) == ["ruff-check", "ruff-format", "mypy", "actionlint"]
    for hook in hooks.values():
        # The environment's commands, so that constraints.txt has their versions.
        assert hook["language"] == "system"
        commands = [*recipe("style"), *recipe("lint")]
        assert any(hook["entry"] in command for command in commands), hook["entry"]


def test_contributing_fits_a_screen_and_names_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 55
    targets = set(re.findall(r"`make ([a-z]+)", text))
    assert {"quick", "test", "portable", "outputs", "margins"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    folders = ("", "danp_lib", "book", "tests")
    for name in re.findall(r"`([\w/.]+\.(?:py|md|yml|txt))`", text):
        assert any((ROOT / folder / name).is_file() for folder in folders), name
