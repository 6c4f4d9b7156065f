"""Configurations survive JSON, and what does not fit is refused by the path of its key."""

from __future__ import annotations

import json
import math
import re
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danp_lib._config import (
    ORDERED,
    Configuration,
    Limit,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    from_dict,
    to_dict,
)
from danp_lib.data.generators import DATASETS
from danp_lib.models.convnp import ConvNPConfig
from danp_lib.models.danp import DANPConfig
from danp_lib.training.config import TrainingConfig
from danp_lib.training.recipes import RECIPES, recipe


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
@pytest.mark.parametrize("dataset", DATASETS)
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
    with pytest.raises(ValueError, match=r"^config\.base\.kernel_size .* odd, got 4"):
        from_dict(DANPConfig, values, name="config")
    values["base"]["kernel_size"] = 0
    with pytest.raises(ValueError, match=r"^config\.base\.kernel_size .* >= 1 and odd, got 0"):
        from_dict(DANPConfig, values, name="config")


def test_lists_become_tuples() -> None:
    assert to_dict(ConvNPConfig())["domain"] == [-2.0, 2.0]
    assert from_dict(ConvNPConfig, {"domain": [0, 1]}).domain == (0.0, 1.0)
    run = from_dict(TrainingConfig, {"num_steps": 1, "batch": {"context_size": [1, 2]}})
    assert run.batch.context_size == (1, 2)


@dataclass(frozen=True)
class Checked(Configuration):
    count: PositiveInt = 1
    rate: PositiveFloat | None = None
    share: Annotated[float, Limit("> 0 and <= 1", lambda value: 0 < value <= 1)] = 1.0
    seed: Seed = 0
    span: Annotated[tuple[NonNegativeInt, NonNegativeInt], ORDERED] = (0, 3)
    flag: bool = False
    inner: Inner = Inner(1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 2.5}, "count must be an integer >= 1, got 2.5."),
        ({"count": 0}, "count must be an integer >= 1, got 0."),
        ({"count": True}, "count must be an integer >= 1, got True."),
        ({"count": "1"}, "count must be an integer >= 1, got '1'."),
        ({"count": np.float64(2.0)}, "count must be an integer >= 1, got np.float64(2.0)."),
        ({"rate": 0}, "rate must be a finite number > 0 or null, got 0.0."),
        ({"rate": math.nan}, "rate must be a finite number > 0 or null, got nan."),
        ({"rate": math.inf}, "rate must be a finite number > 0 or null, got inf."),
        ({"rate": False}, "rate must be a finite number > 0 or null, got False."),
        ({"share": 1.5}, "share must be a finite number > 0 and <= 1, got 1.5."),
        ({"span": (30, 0)}, "with lower <= upper, got (30, 0)."),
        ({"span": (-1, 0)}, "span[0] must be an integer >= 0, got -1."),
        ({"span": (0, 1, 2)}, "(an integer >= 0, an integer >= 0) with lower <= upper, got (0, 1"),
        ({"span": 3}, "with lower <= upper, got 3."),
        ({"flag": 1}, "flag must be true or false, got 1."),
        ({"seed": 2**64}, f"seed must be an integer from -2**63 to 2**64 - 1, got {2**64}."),
        ({"inner": {"ratio": "x"}}, "inner.ratio must be a finite number, got 'x'."),
        ({"inner": 3}, "inner must be an object, got 3."),
    ],
)
def test_a_configuration_refuses_what_does_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Checked(**change)
    assert str(caught.value).startswith(next(iter(change)))
    with pytest.raises(ValueError, match=rf"^Checked\.{re.escape(next(iter(change)))}"):
        from_dict(Checked, change)


def test_numbers_become_pythons_own() -> None:
    made = Checked(count=np.int32(3), rate=np.float32(0.25), share=1, span=[np.int64(1), 2])  # type: ignore[arg-type]
    assert made == Checked(3, 0.25, 1.0, span=(1, 2))
    values = [made.count, made.rate, made.share, *made.span]
    assert [type(value) for value in values] == [int, float, float, int, int]
    assert json.loads(json.dumps(to_dict(made))) == to_dict(made)
    # Too large for a float, though Python compares it with one.
    with pytest.raises(ValueError, match=r"^rate .* finite"):
        Checked(rate=10**400)


def test_a_configuration_is_a_frozen_dataclass() -> None:
    made = Checked(count=2)
    assert replace(made, count=1) == Checked()
    assert hash(made) == hash(Checked(count=2)) != hash(Checked())
    with pytest.raises(ValueError, match=r"^count "):
        replace(made, count=0)
    with pytest.raises(FrozenInstanceError):
        made.count = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="'counts'"):
        Checked(counts=3)  # type: ignore[call-arg]


def test_fields_of_what_is_no_dataclass_are_refused() -> None:
    class Forgotten(Checked):
        kind: ClassVar[str] = "fine"
        height: float = 2.0

    class Below(Forgotten):
        pass

    class Assigned(Checked):
        count = 7

    for kind, name in ((Forgotten, "height"), (Below, "height"), (Assigned, "count")):
        owner = "Forgotten" if kind is Below else kind.__name__
        message = rf"^{owner} must be a frozen dataclass, for {name} to be a field of it: put @data"
        with pytest.raises(ValueError, match=message):
            kind()


def test_a_subclass_without_fields_of_its_own_needs_no_decorator() -> None:
    class Same(Checked):
        kind: ClassVar[str] = "fine"
        count: int

    assert Same(count=2).count == 2


def test_a_type_without_a_rule_is_refused() -> None:
    @dataclass(frozen=True)
    class Unruly(Configuration):
        values: dict  # type: ignore[type-arg]

    with pytest.raises(TypeError, match=r"^values: no rule for the type .*dict"):
        Unruly({})
