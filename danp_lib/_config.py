"""Configurations: frozen dataclasses of plain values, checked at construction, to and from JSON."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from inspect import get_annotations
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Limit:
    """What is asked of a value beyond its type, for :data:`typing.Annotated`."""

    text: str
    holds: Callable[[Any], bool]


PositiveInt = Annotated[int, Limit(">= 1", lambda value: value >= 1)]
NonNegativeInt = Annotated[int, Limit(">= 0", lambda value: value >= 0)]
PositiveFloat = Annotated[float, Limit("> 0", lambda value: value > 0)]
NonNegativeFloat = Annotated[float, Limit(">= 0", lambda value: value >= 0)]
Seed = Annotated[int, Limit("from -2**63 to 2**64 - 1", lambda value: -(2**63) <= value < 2**64)]
ORDERED = Limit("with lower <= upper", lambda pair: pair[0] <= pair[1])

_ACCEPTED = {bool: bool, int: Integral, float: Real, str: str}
_IN_WORDS = {bool: "true or false", int: "an integer", float: "a finite number", str: "a string"}


class Configuration:
    """Base of frozen dataclasses whose fields are checked at construction, by :func:`checked`."""

    def __post_init__(self) -> None:
        for name, kind in _fields(type(self))[0].items():  # type: ignore[arg-type]
            object.__setattr__(self, name, checked(kind, getattr(self, name), name))


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as JSON holds it: nested objects, lists for tuples."""
    return json.loads(json.dumps(asdict(config)))


def from_dict(cls: type[T], values: Any, *, name: str = "") -> T:
    """The configuration that :func:`to_dict` came from; a key with a default may be left out.

    What does not fit is refused with the path of its key, from ``name`` or the class's name on.
    """
    name = name or cls.__name__
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be an object, got {values!r}.")
    kinds, required = _fields(cls)  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in kinds:
            known = ", ".join(kinds)
            raise ValueError(f"{name}.{key} = {value!r} is unknown; the keys are {known}.")
    for key in required:
        if key not in values:
            raise ValueError(f"{name}.{key} is missing: it must be {_describe(kinds[key])}.")
    converted = {key: checked(kinds[key], values[key], f"{name}.{key}") for key in values}
    with naming(name):
        return cls(**converted)


@cache  # slow, and a file of results asks for the same few a thousand times
def _fields(cls: type[Any]) -> tuple[dict[str, Any], list[str]]:
    """The types of the fields that the constructor takes, and the names without a default."""
    hints = get_type_hints(cls, include_extras=True)
    known = {field.name for field in fields(cls)}
    for base in cls.__mro__:
        if not issubclass(base, Configuration) or "__dataclass_params__" in vars(base):
            continue
        new = [
            name
            for name in get_annotations(base)
            if name not in known and ClassVar not in (hints[name], get_origin(hints[name]))
        ]
        if missed := [*new, *(name for name in vars(base) if name in known)]:
            raise ValueError(
                f"{base.__name__} must be a frozen dataclass, for {missed[0]} to be a field of it: "
                "put @dataclass(frozen=True) before the class."
            )
    taken = [field for field in fields(cls) if field.init]
    required = [f.name for f in taken if f.default is MISSING and f.default_factory is MISSING]
    return {field.name: hints[field.name] for field in taken}, required


@cache
def _parts(kind: Any) -> tuple[bool, Any, Any, tuple[Any, ...], list[Limit]]:
    """Whether a type allows ``None``; the type itself, its origin and arguments; its limits."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    present, *others = (option for option in options if option is not NoneType)
    if others:
        return NoneType in options, kind, Union, (present, *others), []
    base, *limits = get_args(present) if get_origin(present) is Annotated else (present,)
    return NoneType in options, base, get_origin(base), get_args(base), limits


def checked(kind: Any, value: Any, name: str) -> Any:
    """A value of an annotated type, in Python's own types, or a ``ValueError`` that names it.

    The types are bool, int, float, str, ``Literal``, tuples and dataclasses of these, each perhaps
    ``Annotated`` with a :class:`Limit`, and unions, of which the first that fits is taken. An
    integer serves for a float, NumPy's numbers for Python's, a list for a tuple, and an object for
    a dataclass; true and false serve for no number.
    """
    nullable, base, origin, arguments, limits = _parts(kind)
    if value is None and nullable:
        return None
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in arguments)
    elif origin is tuple:
        many = arguments[1:] == (Ellipsis,)
        if fits := isinstance(value, (list, tuple)) and (many or len(value) == len(arguments)):
            kinds = arguments[:1] * len(value) if many else arguments
            pairs = enumerate(zip(kinds, value, strict=True))
            value = tuple(checked(item, v, f"{name}[{i}]") for i, (item, v) in pairs)
    elif origin is Union:
        for option in arguments:
            with suppress(ValueError):
                return checked(option, value, name)
        fits = False
    elif base in _ACCEPTED:
        if fits := isinstance(value, _ACCEPTED[base]) and isinstance(value, bool) == (base is bool):
            try:
                value = base(value)  # of a subclass too: PyTorch's version is one of str
            except OverflowError:  # an integer too large for a float
                value = math.inf
            fits = base is not float or math.isfinite(value)
    elif isinstance(base, type) and is_dataclass(base):
        return value if isinstance(value, base) else from_dict(base, value, name=name)
    else:
        raise TypeError(f"{name}: no rule for the type {kind}.")
    if not fits or not all(limit.holds(value) for limit in limits):
        raise ValueError(f"{name} must be {_describe(kind)}, got {value!r}.")
    return value


def _describe(kind: Any) -> str:
    """What a value of a type looks like, in words."""
    nullable, base, origin, arguments, limits = _parts(kind)
    if origin is Literal:
        words = " or ".join(map(repr, arguments))
    elif origin is Union:
        words = " or ".join(map(_describe, arguments))
    elif origin is tuple and arguments[1:] == (Ellipsis,):
        words = f"a list with {_describe(arguments[0])} in every place"
    elif origin is tuple:
        words = f"a list of {len(arguments)} ({', '.join(map(_describe, arguments))})"
    else:
        words = _IN_WORDS.get(base, "an object")
    return " ".join([words, *(limit.text for limit in limits), *["or null"] * nullable])


def check_kind(kind: type[Any], **values: Any) -> None:
    """Refuse what is of another class, such as a NumPy array in the place of a tensor."""
    for name, value in values.items():
        if not isinstance(value, kind):
            hint = "; use torch.as_tensor" if kind.__name__ == "Tensor" else ""
            is_class = isinstance(value, type)
            found = f"the class {value.__name__}" if is_class else type(value).__name__
            raise ValueError(f"{name} must be a {kind.__name__}, got {found}{hint}.")


def check_at_least(least: int, **values: int) -> None:
    """Refuse integers below a bound, and what is no integer."""
    for name, value in values.items():
        if checked(int, value, name) < least:
            raise ValueError(f"{name} must be >= {least}, got {value}.")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse what is none of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")


@contextmanager
def naming(source: str | os.PathLike[str], kind: type[ValueError] = ValueError) -> Iterator[None]:
    """Put a source before what a ``ValueError`` says, and raise it as one of a kind."""
    try:
        yield
    except ValueError as error:
        raise kind(f"{source}: {error}") from error
