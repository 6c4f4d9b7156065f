"""Configurations survive JSON, and what does not fit is refused by the path of its key."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danp_lib._config import from_dict, to_dict
from danp_lib.data.generators import GENERATORS
from danp_lib.models.convnp import ConvNPConfig
from danp_lib.models.danp import DANPConfig
from danp_lib.training.recipes import RECIPES, recipe
from danp_lib.training.resume import TrainingConfig


@dataclass(frozen=True)
class Inner:
    ratio: float
    flag: bool = False


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    inner: Inner
    kind: Literal["a", "b"] = "a"
    pair: tuple[float, int] = (0.5, 1)
    many: tuple[float, ...] = ()
    limit: float | None = None
    other: Inner = field(default_factory=lambda: Inner(1.0))

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must be >= 0, got {self.count}.")


FINITE = st.floats(allow_nan=False, allow_infinity=False)
INNERS = st.builds(Inner, FINITE, st.booleans())
OUTERS = st.builds(
    Outer,
    st.text(),
    st.integers(min_value=0),
    INNERS,
    st.sampled_from(["a", "b"]),
    st.tuples(FINITE, st.integers()),
    st.lists(FINITE).map(tuple),
    st.none() | FINITE,
    INNERS,
)
GOOD: dict[str, Any] = {"name": "n", "count": 1, "inner": {"ratio": 2}}


@given(OUTERS)
def test_json_and_back(config: Outer) -> None:
    assert from_dict(Outer, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dataset", GENERATORS)
def test_the_configurations_of_the_library_survive(name: str, dataset: str) -> None:
    made = recipe(name, model="danp", dataset=dataset)
    for config in (made.model_config, made.task_generator, made.training):
        assert from_dict(type(config), json.loads(json.dumps(to_dict(config)))) == config


def test_an_integer_becomes_a_float_and_what_has_a_default_may_be_missing() -> None:
    config = from_dict(Outer, GOOD | {"pair": [1, 2], "limit": 3})
    assert config == Outer("n", 1, Inner(2.0), pair=(1.0, 2), limit=3.0)
    assert [type(v) for v in (config.inner.ratio, config.pair[0], config.limit)] == [float] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, r"Outer\.colour = 'red' is unknown; the keys are name, count, inner"),
        ({"inner": {"ratio": 1.0, "x": 2}}, r"Outer\.inner\.x = 2 is unknown; .* ratio, flag"),
        ({"inner": {}}, r"Outer\.inner\.ratio is missing: it must be a finite number"),
        ({"inner": 3}, r"Outer\.inner must be an object, got 3"),
        ({"inner": {"ratio": True}}, r"Outer\.inner\.ratio must be a finite number, got True"),
        ({"inner": {"ratio": "1"}}, r"Outer\.inner\.ratio must be a finite number, got '1'"),
        ({"inner": {"ratio": math.inf}}, r"Outer\.inner\.ratio must be a finite number, got inf"),
        ({"inner": {"ratio": 1, "flag": 1}}, r"inner\.flag must be true or false, got 1"),
        ({"count": True}, r"Outer\.count must be an integer, got True"),
        ({"count": 1.0}, r"Outer\.count must be an integer, got 1\.0"),
        ({"count": None}, r"Outer\.count must be an integer, got None"),
        ({"count": -1}, r"Outer: count must be >= 0, got -1"),
        ({"name": 1}, r"Outer\.name must be a string, got 1"),
        ({"kind": "c"}, r"Outer\.kind must be 'a' or 'b', got 'c'"),
        ({"pair": [1.0]}, r"Outer\.pair must be a list of 2: a finite number, an integer, got"),
        ({"pair": [1.0, 2.0]}, r"Outer\.pair\[1\] must be an integer, got 2\.0"),
        ({"pair": "ab"}, r"Outer\.pair must be a list of 2.*, got 'ab'"),
        ({"many": [1, None]}, r"Outer\.many\[1\] must be a finite number, got None"),
        ({"many": 1}, r"Outer\.many must be a list with a finite number in every place, got 1"),
        ({"limit": "no"}, r"Outer\.limit must be a finite number, got 'no'"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(Outer, GOOD | change)


def test_a_missing_key_and_a_value_that_is_no_object_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Outer\.name is missing: it must be a string"):
        from_dict(Outer, {})
    with pytest.raises(ValueError, match=r"config must be an object, got \[\]"):
        from_dict(Outer, [], name="config")


def test_the_path_reaches_into_the_configuration_of_a_model() -> None:
    values = to_dict(DANPConfig())
    values["base"]["kernel_size"] = "5"
    with pytest.raises(ValueError, match=r"config\.base\.kernel_size must be an integer, got '5'"):
        from_dict(DANPConfig, values, name="config")
    values["base"]["kernel_size"] = 4
    with pytest.raises(ValueError, match=r"config\.base: kernel_size must be odd, got 4"):
        from_dict(DANPConfig, values, name="config")


def test_lists_become_tuples() -> None:
    assert to_dict(ConvNPConfig())["domain"] == [-2.0, 2.0]
    assert from_dict(ConvNPConfig, {"domain": [0, 1]}).domain == (0.0, 1.0)
    run = from_dict(TrainingConfig, {"num_steps": 1, "batch": {"context_size": [1, 2]}})
    assert run.batch.context_size == (1, 2)
