"""What a cell compares and prints, noted down while it runs; see margins.py.

:func:`instrument` rewrites the source of a cell so that every comparison in an assertion, every
number in a format and every rounding passes through this module, which notes it and changes
nothing. A note holds the place, the kind, the values, and the step between two that would be
printed otherwise; margins.py finds how far the values are from the nearest edge.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import math
import operator
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

NOTES: list[dict[str, Any]] = []
"""Place, kind, the quantity as a flat list, and the quantum of a rounding."""

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
}


def _numbers(value: Any) -> np.ndarray | None:
    """A value as float64 numbers, or None where it is not one or several numbers."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


def _note(place: str, kind: str, values: np.ndarray, quantum: float | None = None) -> None:
    if values.size > 20_000:
        values = values.reshape(-1)[:: values.size // 20_000 + 1]
    NOTES.append(
        {"place": place, "kind": kind, "values": values.ravel().tolist(), "quantum": quantum}
    )


def compare(place: str, names: list[str], *operands: Any) -> Any:
    """The comparison ``operands[0] names[0] operands[1] names[1] ...``."""
    result: Any = True
    for name, left, right in zip(names, operands, operands[1:], strict=False):
        a, b = _numbers(left), _numbers(right)
        if a is not None and b is not None:
            # Shapes may not broadcast; the comparison itself says so.
            with contextlib.suppress(ValueError):
                _note(place, name, a - b)
        part = _OPERATORS[name](left, right)
        result = part if result is True else result and part
    return result


def formatted(place: str, value: Any, spec: str) -> Any:
    """A value about to be printed with a format."""
    numbers = _numbers(value)
    if isinstance(value, float | np.floating | torch.Tensor) and numbers is not None:
        _note(place, f"format {spec!r}", numbers, _quantum(spec, float(numbers.ravel()[0])))
    return value


def _quantum(spec: str, value: float) -> float:
    kind = spec[-1:] if spec[-1:].isalpha() or spec[-1:] == "%" else ""
    digits = spec[:-1].rpartition(".")[2] if kind else spec.rpartition(".")[2]
    precision = int(digits) if "." in spec and digits.isdigit() else None
    if kind in ("f", "F"):
        return 10.0 ** -(6 if precision is None else precision)
    if kind == "%":
        return 10.0 ** -(2 + (6 if precision is None else precision))
    if kind in ("e", "g", "G", "") and (precision is not None or kind):
        leading = math.floor(math.log10(abs(value))) if value else 0
        shown = 6 if precision is None else max(precision, 1)
        return 10.0 ** (leading - shown + (0 if kind == "e" else 1))
    return 1e-17 * max(abs(value), 1e-300)  # every digit


def str_format(place: str, template: str, *args: Any, **kwargs: Any) -> str:
    """``template.format(...)``."""
    position = 0
    for _, field, spec, _ in string.Formatter().parse(template):
        if field is None:
            continue
        if field == "":
            field, position = str(position), position + 1
        value, _ = string.Formatter().get_field(field, args, kwargs)
        formatted(place, value, spec or "")
    return template.format(*args, **kwargs)


def rounded(place: str, value: Any, digits: Any = None) -> Any:
    """``round(value, digits)``."""
    numbers = _numbers(value)
    if numbers is not None and isinstance(value, float | np.floating | torch.Tensor):
        _note(place, f"round {digits}", numbers, 10.0 ** -(digits or 0))
    return builtins.round(value, digits) if digits is not None else builtins.round(value)


def method_round(place: str, value: Any, *args: Any, **kwargs: Any) -> Any:
    """``value.round(...)``."""
    digits = args[0] if args else kwargs.get("decimals", 0)
    numbers = _numbers(value)
    if numbers is not None and isinstance(digits, int):
        _note(place, f"round {digits}", numbers, 10.0**-digits)
    return value.round(*args, **kwargs)


def close(place: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``function(actual, expected, rtol=..., atol=...)`` of one of the usual names."""
    a, b = (_numbers(v) for v in args[:2])
    if a is not None and b is not None:
        name = function.__name__
        if name == "isclose" and function.__module__ == "math":
            relative, absolute = kwargs.get("rel_tol", 1e-9), kwargs.get("abs_tol", 0.0)
            bound = np.maximum(relative * np.maximum(abs(a), abs(b)), absolute)
        else:
            single = any(getattr(v, "dtype", None) == torch.float32 for v in args[:2])
            defaults = {
                "assert_close": (1.3e-6, 1e-5) if single else (1e-7, 1e-7),
                "assert_allclose": (1e-7, 0.0),
            }.get(name, (1e-5, 1e-8))
            relative = kwargs.get("rtol", args[2] if len(args) > 2 else defaults[0])
            absolute = kwargs.get("atol", args[3] if len(args) > 3 else defaults[1])
            bound = absolute + relative * abs(b)
        share = np.divide(abs(a - b), bound, out=np.zeros_like(a + b), where=abs(a - b) > 0)
        _note(place, f"{name} (share of the tolerance, minus 1)", np.max(share, initial=0.0) - 1.0)
    return function(*args, **kwargs)


class _Instrument(ast.NodeTransformer):
    """Send comparisons in assertions, formats, roundings and closeness through the recorder."""

    def __init__(self, cell: str, formats: bool) -> None:
        self.cell = cell
        self.formats = formats
        self.asserting = 0

    def _call(self, name: str, node: ast.AST, *args: ast.expr) -> ast.Call:
        place = ast.Constant(f"{self.cell} line {getattr(node, 'lineno', 0)}")
        function = ast.Attribute(ast.Name("_margins", ast.Load()), name, ast.Load())
        return ast.Call(function, [place, *args], [])

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.asserting += 1
        node.test = self.visit(node.test)
        self.asserting -= 1
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        names = [type(op).__name__ for op in node.ops]
        if not self.asserting or not set(names) <= set(_OPERATORS):
            return node
        listed = ast.List([ast.Constant(name) for name in names], ast.Load())
        return self._call("compare", node, listed, node.left, *node.comparators)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        self.generic_visit(node)
        if self.formats and node.conversion == -1:
            spec = node.format_spec or ast.JoinedStr([])
            node.value = self._call("formatted", node, node.value, spec)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = ast.unparse(node.func)
        if called.split(".")[-1] in ("assert_close", "isclose", "assert_allclose", "allclose"):
            call = self._call("close", node, node.func, *node.args)
        elif not self.formats:
            return node
        elif called == "round":
            call = self._call("rounded", node, *node.args)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "round":
            call = self._call("method_round", node, node.func.value, *node.args)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            call = self._call("str_format", node, node.func.value, *node.args)
        else:
            return node
        call.keywords = node.keywords
        return call


def instrument(source: str, cell: str, formats: bool) -> str:
    """The source of a cell, with everything that it compares and prints noted.

    Args:
        source: Python.
        cell: What the notes call the cell.
        formats: Whether what it prints is compared at all.
    """
    tree = _Instrument(cell, formats).visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree))


def dump(path: str) -> None:
    """Write the notes."""
    Path(path).write_text(json.dumps(NOTES), encoding="utf-8")
