"""Configurations survive JSON, and what does not fit is refused by the path of its key."""

from __future__ import annotations

import json
import math
import re
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
    ("change", "path"),
    [
        ({"colour": "red"}, "Outer.colour"),
        ({"inner": {"ratio": 1.0, "x": 2}}, "Outer.inner.x"),
        ({"inner": {}}, "Outer.inner.ratio"),
        ({"inner": 3}, "Outer.inner"),
        ({"inner": {"ratio": True}}, "Outer.inner.ratio"),
        ({"inner": {"ratio": "1"}}, "Outer.inner.ratio"),
        ({"inner": {"ratio": math.inf}}, "Outer.inner.ratio"),
        ({"inner": {"ratio": 1, "flag": 1}}, "Outer.inner.flag"),
        ({"count": True}, "Outer.count"),
        ({"count": 1.0}, "Outer.count"),
        ({"count": None}, "Outer.count"),
        ({"count": -1}, "Outer: count"),
        ({"name": 1}, "Outer.name"),
        ({"kind": "c"}, "Outer.kind"),
        ({"pair": [1.0]}, "Outer.pair"),
        ({"pair": [1.0, 2.0]}, "Outer.pair[1]"),
        ({"pair": "ab"}, "Outer.pair"),
        ({"many": [1, None]}, "Outer.many[1]"),
        ({"many": 1}, "Outer.many"),
        ({"limit": "no"}, "Outer.limit"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(path)} "):
        from_dict(Outer, GOOD | change)


def test_a_missing_key_and_a_value_that_is_no_object_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^Outer\.name "):
        from_dict(Outer, {})
    with pytest.raises(ValueError, match=r"^config .*\[\]"):
        from_dict(Outer, [], name="config")


def test_the_path_reaches_into_the_configuration_of_a_model() -> None:
    values = to_dict(DANPConfig())
    values["base"]["kernel_size"] = "5"
    with pytest.raises(ValueError, match=r"^config\.base\.kernel_size .*'5'"):
        from_dict(DANPConfig, values, name="config")
    values["base"]["kernel_size"] = 4
    with pytest.raises(ValueError, match=r"^config\.base: kernel_size .*4"):
        from_dict(DANPConfig, values, name="config")


def test_lists_become_tuples() -> None:
    assert to_dict(ConvNPConfig())["domain"] == [-2.0, 2.0]
    assert from_dict(ConvNPConfig, {"domain": [0, 1]}).domain == (0.0, 1.0)
    run = from_dict(TrainingConfig, {"num_steps": 1, "batch": {"context_size": [1, 2]}})
    assert run.batch.context_size == (1, 2)
