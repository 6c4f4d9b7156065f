"""The library's floors: imports only go down."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "danp_lib"
SOURCES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py"
}
LONGEST_FUNCTION = 75
"""Lines, with the docstring."""

FLOORS = {
    0: "_config _files _random _warnings distributions",
    1: "data",
    2: "nn exact plotting",
    3: "models",
    4: "inference storage",
    5: "training evaluation",
    6: "fitting",
    7: "cli",
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms.split()}


MODELS = {"NeuralProcess", "ConvNeuralProcess", "ConvNP", "ConvCNP", "ConvGNP", "ARConvCNP"}
MODELS |= {"DANP", "Oracle", "WaveOracle"}
"""Outside the rooms of :data:`ASK_FOR_MODELS`, a model itself says what it can do."""
ASK_FOR_MODELS = {"models", "inference", "exact"}


def room(module: str) -> str:
    """The room that a module is in."""
    return module.split(".")[0]


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
    return {name.removeprefix("danp_lib.") for name in imported(source)} & set(SOURCES)


def asked_for(source: str) -> set[str]:
    """Names of the classes that a module asks for by ``isinstance``."""
    return {
        name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
        for name in ast.walk(node.args[1])
    }


ARROWS = {name: own(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


def test_every_module_stands_on_a_floor() -> None:
    assert len(ARROWS) > 10
    assert {room(module) for module in ARROWS} == set(FLOOR_OF)


@pytest.mark.parametrize("module", sorted(ARROWS))
def test_no_arrow_runs_up(module: str) -> None:
    floor = FLOOR_OF[room(module)]
    up = {other for other in ARROWS[module] if FLOOR_OF[room(other)] > floor}
    assert not up, f"{module} (floor {floor}) imports {up} from above it"


def test_no_cycle_of_modules_and_none_of_rooms() -> None:
    TopologicalSorter(ARROWS).prepare()  # raises CycleError with the cycle in it
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, others in ARROWS.items():
        rooms[room(module)] |= {room(other) for other in others} - {room(module)}
    TopologicalSorter(rooms).prepare()


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_every_module_has_a_file_of_tests(module: str) -> None:
    *rooms, name = module.split(".")
    assert TESTS.joinpath(*rooms, f"test_{name.removeprefix('_')}.py").is_file()


def closure(module: str) -> set[str]:
    """A module and all those of the library that its imports lead to."""
    found, ahead = set(), {module}
    while ahead:
        found |= ahead
        ahead = set().union(*(ARROWS[name] for name in ahead)) - found
    return found


def test_a_model_needs_nothing_that_reads_or_stores_files() -> None:
    found = closure("models.danp")
    assert {"models.convnp", "nn.unet", "data.points"} < found
    assert not {name for name in found if room(name) in {"storage", "_files"}}
    outside = set().union(*(imported(SOURCES[n].read_text(encoding="utf-8")) for n in found))
    assert not {name for name in outside if name.split(".")[0] == "safetensors"}


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_module_keeps_to_the_house_rules(module: str) -> None:
    source = SOURCES[module].read_text(encoding="utf-8")
    names = imported(source)
    assert module.split(".")[-1] not in {"utils", "helpers", "common", "misc"}
    assert not any(name.startswith(".") for name in names), "imports are absolute"
    if room(module) != "plotting":
        assert not any(name.split(".")[0] == "matplotlib" for name in names)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= LONGEST_FUNCTION, node.name


@pytest.mark.parametrize("module", sorted(m for m in SOURCES if room(m) not in ASK_FOR_MODELS))
def test_no_module_asks_for_the_class_of_a_model(module: str) -> None:
    assert not asked_for(SOURCES[module].read_text(encoding="utf-8")) & MODELS


def test_the_checks_can_fail() -> None:
    assert asked_for("isinstance(m, (danp.DANP, int))") & MODELS == {"DANP"}
    assert own("from danp_lib.models.danp import DANP") == {"models.danp"}
    assert own("def f():\n    import danp_lib.nn.unet as network") == {"nn.unet"}
    assert own("from danp_lib.data import points") == {"data.points"}
    with pytest.raises(CycleError):
        TopologicalSorter({"danp": {"rollout"}, "rollout": {"danp"}}).prepare()
