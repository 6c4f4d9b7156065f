"""The library's floors: imports only go down."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "danp_lib"
SOURCES = {path.stem: path for path in PACKAGE.glob("*.py")}
MAX_LINES = 300

# A part of a module stands where the module does: oracle_gp with oracle, cli_train with cli.
FLOORS = {
    0: "configuration files generators likelihoods noising observations randomness scaling setconv "
    "tasks unet",
    1: "cards checkpoint conditioning convnp oracle",
    2: "danp denoising rollout",
    3: "benchmark capture compiling estimators evaluation objective optimizers plotting pretrained "
    "recipes run_state training",
    4: "cli",
}
FLOOR_OF_NAME = {name: floor for floor, names in FLOORS.items() for name in names.split()}
FLOOR_OF = {
    module: FLOOR_OF_NAME[name]
    for module in SOURCES
    for name in (module, module.split("_")[0])
    if name in FLOOR_OF_NAME
}
# These may import anything: the public names, and `python -m danp_lib`.
ABOVE_ALL = {"__init__", "__main__"}


def imported(source: str) -> set[str]:
    """Names of the modules that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names.add(base)
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def own(source: str) -> set[str]:
    """The modules of the library among them."""
    parts = (name.split(".") for name in imported(source))
    return {part[1] for part in parts if part[0] == "danp_lib" and len(part) > 1} & set(SOURCES)


ARROWS = {
    name: own(path.read_text(encoding="utf-8"))
    for name, path in SOURCES.items()
    if name not in ABOVE_ALL
}


def test_every_module_stands_on_a_floor() -> None:
    assert len(ARROWS) > 10
    assert set(ARROWS) <= set(FLOOR_OF)
    assert not [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE]


@pytest.mark.parametrize("module", sorted(set(ARROWS) & set(FLOOR_OF)))
def test_no_arrow_runs_up(module: str) -> None:
    up = {other for other in ARROWS[module] if FLOOR_OF.get(other, 0) > FLOOR_OF[module]}
    assert not up, f"{module} (floor {FLOOR_OF[module]}) imports {up} from above it"


def test_no_cycle() -> None:
    TopologicalSorter(ARROWS).prepare()  # raises CycleError with the cycle in it


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_module_keeps_to_the_house_rules(module: str) -> None:
    source = SOURCES[module].read_text(encoding="utf-8")
    names = imported(source)
    assert len(source.splitlines()) <= MAX_LINES
    assert module not in {"utils", "helpers", "common", "misc"}
    assert not any(name.startswith(".") for name in names), "imports are absolute"
    if module.split("_")[0] != "plotting":
        assert not any(name.split(".")[0] == "matplotlib" for name in names)


def test_the_checks_can_fail() -> None:
    assert own("from danp_lib.models.danp import DANP") == {"danp"}
    assert own("def f():\n    import danp_lib.nn.unet as network") == {"unet"}
    assert own("from danp_lib import tasks") == {"tasks"}
    with pytest.raises(CycleError):
        TopologicalSorter({"danp": {"rollout"}, "rollout": {"danp"}}).prepare()
