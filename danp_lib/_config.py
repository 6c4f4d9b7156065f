"""Configurations to and from JSON, strictly: what does not fit is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

# Slow, and a file of results asks for the same few a thousand times.
_type_hints = cache(get_type_hints)

_PLAIN = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    NoneType: "null",
}


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as JSON holds it: nested objects, lists for tuples.

    Args:
        config: An instance of a frozen dataclass of plain values, tuples and such dataclasses.
    """
    return {field.name: _to_json(getattr(config, field.name)) for field in fields(config)}


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    return [_to_json(item) for item in value] if isinstance(value, tuple) else value


def from_dict(cls: type[T], values: Any, *, name: str = "") -> T:
    """The configuration that :func:`to_dict` came from.

    An integer serves for a float and becomes one; true and false serve for no number. A key may be
    left out where the dataclass has a default.

    Args:
        cls: The dataclass.
        values: The parsed JSON.
        name: What the messages call these values; the name of the class where left out.

    Raises:
        ValueError: If a key is unknown or missing, or a value has the wrong type or is refused by
            the dataclass; with the path of the key, its value and what would be right.
    """
    name = name or cls.__name__
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be an object, got {values!r}.")
    known = {field.name: field for field in fields(cls) if field.init}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ValueError(
                f"{name}.{key} = {values[key]!r} is unknown; the keys are {', '.join(known)}."
            )
    types = _type_hints(cls)  # type: ignore[arg-type]
    for key, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and key not in values:
            raise ValueError(f"{name}.{key} is missing: it must be {_describe(types[key])}.")
    converted = {key: _convert(types[key], values[key], f"{name}.{key}") for key in values}
    try:
        return cls(**converted)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _convert(kind: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return from_dict(kind, value, name=path)
    if origin in (Union, UnionType):
        # Only "this or null" occurs, so that a message can say what is wrong inside.
        if value is None and NoneType in arguments:
            return None
        present = [argument for argument in arguments if argument is not NoneType]
        if len(present) == 1 and value is not None:
            return _convert(present[0], value, path)
    elif origin is Literal:
        if any(type(value) is type(choice) and value == choice for choice in arguments):
            return value
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                arguments = arguments[:1] * len(value)
            if len(arguments) == len(value):
                pairs = enumerate(zip(arguments, value, strict=True))
                return tuple(_convert(item, v, f"{path}[{i}]") for i, (item, v) in pairs)
    elif kind is float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    elif kind in _PLAIN:
        if type(value) is kind:
            return value
    else:
        raise TypeError(f"{path}: no rule for the type {kind}.")
    raise ValueError(f"{path} must be {_describe(kind)}, got {value!r}.")


def _describe(kind: Any) -> str:
    """What a value of a type looks like in JSON, in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return "an object"
    if origin in (Union, UnionType):
        return " or ".join(_describe(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return f"a list with {_describe(arguments[0])} in every place"
    if origin is tuple:
        return f"a list of {len(arguments)}: {', '.join(map(_describe, arguments))}"
    return _PLAIN.get(kind, str(kind))


def check_at_least(least: int, **values: int) -> None:
    """Refuse numbers below a bound with a ``ValueError`` that names them."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be >= {least}, got {value}.")
