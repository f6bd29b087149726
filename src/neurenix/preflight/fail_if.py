"""Conditions of ``--fail-if``, such as ``not fits or step_time > 200 ms``.

A condition has the names in ``NAMES``, numbers with an optional unit, ``and``, ``or``, ``not``,
comparisons, ``+ - * /`` and parentheses. Python parses it and never evaluates it.

A number without a unit is in seconds, bytes, USD or a fraction. A gate in the wrong unit never
fails, so a comparison without ``*`` and ``/`` must have one dimension.

A value may be unknown, such as the step time of a program that does not fit. Logic is then
three-valued (Kleene), and a condition with an unknown result counts as true.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neurenix._core.errors import ArgumentError, unknown_name

NAMES = {
    "fits": "truth",
    "step_time": "time", "step_time_low": "time", "step_time_high": "time",
    "hbm_peak_bytes": "bytes", "hbm_headroom": "bytes",
    "mfu": "share",
    "cost_per_step": "money",
    "findings": "count", "errors": "count", "warnings": "count",
}  # fmt: skip
"""The names of a condition and their dimensions; ``Record.values`` has their values."""
UNITS = {
    "s": (1.0, "time"), "ms": (1e-3, "time"), "us": (1e-6, "time"),
    "\u00b5s": (1e-6, "time"), "\u03bcs": (1e-6, "time"),  # the micro sign and the Greek letter
    "min": (60.0, "time"), "h": (3600.0, "time"),
    "B": (1.0, "bytes"), "kB": (1e3, "bytes"), "MB": (1e6, "bytes"), "GB": (1e9, "bytes"),
    "KiB": (2.0**10, "bytes"), "MiB": (2.0**20, "bytes"),
    "GiB": (2.0**30, "bytes"), "TiB": (2.0**40, "bytes"),
    "%": (0.01, "share"), "USD": (1.0, "money"),
}  # fmt: skip
_QUANTITY = re.compile(
    r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+|(?![eE][+-]?\d)))"
    "\\s*(%|[A-Za-z\u00b5\u03bc]+)(?![\\w.])"
)
_WORDS = ("and", "or", "not")
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_LARGEST = 1e100

Values = Mapping[str, Any]
Part = Callable[[Values], Any]


@dataclass(frozen=True)
class Condition:
    """A parsed condition. ``names`` are those it uses, in order."""

    text: str
    names: tuple[str, ...]
    _evaluate: Part

    def holds(self, values: Values) -> bool:
        """Return whether the condition is true of ``values``, or unknown.

        Args:
            values: one for each name of ``NAMES``; ``None`` if it is unknown.

        Example:
            >>> parse("not fits or step_time > 200 ms").holds({"fits": True, "step_time": 0.21})
            True
        """
        return self._evaluate(values) is not False

    def values(self, values: Values) -> str:
        """Return the values that the condition uses, as text.

        Example:
            >>> parse("mfu < 40 %").values({"mfu": 0.25})
            'mfu = 0.25'
        """
        return ", ".join(f"{name} = {_text(values[name])}" for name in self.names)


def parse(text: str) -> Condition:
    """Parse a condition.

    Raises:
        UnknownNameError: unknown name or unit.
        ArgumentError: the text is not a condition, or a comparison mixes dimensions.

    Example:
        >>> parse("fits and hbm_headroom >= 1.5 GiB").names
        ('fits', 'hbm_headroom')
        >>> parse("step_tim > 1")
        Traceback (most recent call last):
        neurenix._core.errors.UnknownNameError: There is no value named 'step_tim'. ...
    """
    # A number with its unit becomes a string, which Python can parse.
    python = _QUANTITY.sub(lambda m: m[0] if m[2] in _WORDS else repr(m[0]), text)
    try:
        tree = ast.parse(python.strip(), mode="eval").body
        evaluate = _truth(tree)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ArgumentError(
            f"{text!r} is not a condition ({getattr(error, 'msg', error)}). "
            'Write for example "not fits or step_time > 0.2".'
        ) from None
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names.sort(key=lambda node: node.col_offset)
    return Condition(text, tuple(dict.fromkeys(node.id for node in names)), evaluate)


def _truth(node: ast.expr) -> Part:
    """Return a function that evaluates a condition to True, False or None (unknown)."""
    match node:
        case ast.Name(id="fits"):
            return lambda values: values["fits"]
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return _applied(operator.is_, _truth(part), lambda _: False)
        case ast.BoolOp(op=op, values=parts):
            return _joined([_truth(part) for part in parts], decisive=isinstance(op, ast.Or))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _OPERATORS for op in ops
        ):
            pairs = itertools.pairwise([_number(part) for part in (left, *others)])
            _check_dimensions(node)
            return _joined(
                [
                    _applied(_OPERATORS[type(op)], *pair)
                    for op, pair in zip(ops, pairs, strict=True)
                ],
                decisive=False,
            )
    raise _not_understood(node, "true or false")


def _number(node: ast.expr) -> Part:
    """Return a function that evaluates an expression to a number or None (unknown)."""
    match node:
        case ast.Name(id=name) if name != "fits":
            if name not in NAMES:
                raise unknown_name("value", name, NAMES)
            return lambda values: values[name]
        case ast.Constant(value=int() | float() as number) if (
            not isinstance(number, bool) and number <= _LARGEST
        ):
            return lambda _: number
        case ast.Constant(value=str() as written) if quantity := _quantity(written):
            return lambda _: quantity[0]
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return _applied(operator.sub, lambda _: 0, _number(part))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _applied(_OPERATORS[type(op)], _number(left), _number(right))
    raise _not_understood(node, "a number")


def _quantity(written: str) -> tuple[float, str] | None:
    """Return the number and the dimension of text such as ``200 ms``; None for other text."""
    found = _QUANTITY.fullmatch(written)
    if found is None:
        return None
    if found[2] not in UNITS:
        raise unknown_name("unit", found[2], UNITS)
    size, dimension = UNITS[found[2]]
    return float(found[1]) * size, dimension


def _not_understood(node: ast.expr, expected: str) -> ArgumentError:
    return ArgumentError(
        f"{ast.unparse(node)} is not {expected}. A condition has and, or, not, comparisons, "
        f"+ - * /, parentheses, numbers with units, and these names: {', '.join(NAMES)}."
    )


def _applied(function: Callable[[Any, Any], Any], left: Part, right: Part) -> Part:
    """Return a function that is unknown if an operand is, or after a division by zero."""

    def evaluate(values: Values) -> Any:
        one, other = left(values), right(values)
        if one is None or other is None or (function is operator.truediv and not other):
            return None
        return function(one, other)

    return evaluate


def _joined(parts: Sequence[Part], *, decisive: bool) -> Part:
    """Return the conjunction of the parts, or the disjunction if True is decisive."""

    def evaluate(values: Values) -> bool | None:
        found = [part(values) for part in parts]
        if decisive in found:
            return decisive
        return None if None in found else not decisive

    return evaluate


def _check_dimensions(comparison: ast.Compare) -> None:
    """Check that a comparison without products has one dimension, and a share no number above 1."""
    nodes = list(ast.walk(comparison))
    if any(isinstance(node, ast.Mult | ast.Div) for node in nodes):
        return
    found: dict[str, str] = {}
    above_one: float = 0
    for node in nodes:
        match node:
            case ast.Name(id=name):
                found[name] = NAMES[name]
            case ast.Constant(value=str() as written) if quantity := _quantity(written):
                found[written] = quantity[1]
            case ast.Constant(value=int() | float() as number) if number > 1:
                above_one = number
    if len({*found.values()}) > 1:
        parts = " and ".join(f"{part} ({dimension})" for part, dimension in found.items())
        raise ArgumentError(f"{parts} cannot be compared: their dimensions differ.")
    if above_one and "share" in found.values():
        raise ArgumentError(
            f"{next(iter(found))} is a share, from 0 to 1, and cannot reach {above_one:g}. "
            f"Write {above_one:g} % or {above_one / 100:g}."
        )


def _text(value: bool | float | None) -> str:
    if value is None:
        return "not known"
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}"
