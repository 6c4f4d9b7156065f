"""pyproject.toml, constraints.txt, environment.yml and the Makefile say the same."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DIRECT = [
    Requirement(line)
    for lines in [PROJECT["dependencies"], *EXTRAS.values()]
    for line in lines
    if not line.startswith("danp_lib[")  # the extras that an extra is made of
]
CONSTRAINTS = [
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
PINS: dict[str, Version] = {
    canonicalize_name(name): Version(version)
    for name, version in (line.split("==") for line in CONSTRAINTS)
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))


def test_constraints_are_exact_versions() -> None:
    assert len(PINS) == len(CONSTRAINTS) > 100
    assert not [name for name, version in PINS.items() if version.local], "no +cpu, +cu130, ..."


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_dependency_is_bounded_and_its_pin_is_within(requirement: Requirement) -> None:
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier
    assert {"<", "=="} & {clause.operator for clause in requirement.specifier}, "an upper bound"


def test_pins_take_the_first_python_that_is_promised() -> None:
    first = Version(PROJECT["requires-python"].removeprefix(">=") + ".0")
    seen = 0
    for name in PINS:
        try:
            found = metadata(name)
        except PackageNotFoundError:  # of another system
            continue
        if PINS[name] == Version(found["Version"]):
            seen += 1
            (takes,) = found.get_all("Requires-Python", [""])
            assert first in SpecifierSet(takes), name
    assert seen > 100


def test_packages_that_others_bring_in_are_pinned_too() -> None:
    waiting = [canonicalize_name(requirement.name) for requirement in DIRECT]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # of another system
            continue
        needed = (Requirement(line) for line in lines)
        waiting += [
            canonicalize_name(requirement.name)
            for requirement in needed
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    assert len(seen) > 50
    assert seen <= set(PINS)


def test_conda_environment_agrees() -> None:
    (python,) = [entry for entry in CONDA["dependencies"] if str(entry).startswith("python=")]
    (pip,) = [entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict)]
    assert Version(python.removeprefix("python=")) in SpecifierSet(PROJECT["requires-python"])
    assert pip == ["--constraint constraints.txt", "--editable .[book,test,lint]"]
    # Everything else comes from pip, so that the pins hold there too.
    assert [entry for entry in CONDA["dependencies"] if isinstance(entry, str)] == [python, "pip"]


def test_makefile_agrees() -> None:
    (extras,) = re.findall(r"--editable '\.\[([a-z,]+)\]'", MAKEFILE)
    assert "--constraint constraints.txt" in MAKEFILE
    assert EXTRAS["all"] == [f"danp_lib[{extras}]"]
    # The tests run the workflow.
    assert "danp_lib[workflow]" in EXTRAS["test"]
    assert f"--editable .[{extras}]" in str(CONDA)


def test_citation_has_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
