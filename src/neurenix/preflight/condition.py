"""Conditions such as ``not fits or step_time > 0.2``, for ``--fail-if``.

Owns a very small language: Python's grammar, of which only what is listed here is understood.
Nothing is ever evaluated as Python. It knows no report: a condition is asked with a mapping.

- the names in ``NAMES``;
- ``and``, ``or``, ``not``, ``<  <=  >  >=  ==  !=`` (chains too), ``+ - * /``, parentheses;
- numbers, with an optional unit: ``200 ms``, ``15.5 GiB``, ``40 %``, ``1e-9``; seconds, bytes and
  fractions are what they become.

A comparison with a value that is not known, such as the step time of a program that does not fit,
is neither true nor false. ``and``, ``or`` and ``not`` follow Kleene's logic, and a whole condition
that stays unknown counts as true: what cannot be shown to pass has not passed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neurenix._core.errors import ArgumentError, unknown_name

NAMES = {
    "fits": "whether the compiler accepted the program, its memory included",
    "step_time": "estimated seconds of a step",
    "step_time_low": "low end of its interval, seconds",
    "step_time_high": "high end of its interval, seconds",
    "hbm_peak_bytes": "bytes of HBM that a device needs",
    "hbm_headroom": "bytes of HBM that are left on a device; negative when it does not fit",
    "mfu": "model FLOPs ÷ (estimated step time × peak), 0 to 1",
    "cost_per_step": "estimated USD of a step",
    "findings": "number of findings",
    "errors": "number of findings of severity error",
    "warnings": "number of findings of severity warning",
}

_UNITS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
    "kB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0, "USD": 1.0, "%": 0.01,
}  # fmt: skip
_NUMBER_WITH_UNIT = re.compile(
    r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+|(?![eE][+-]?\d)))"
    r"\s*(%|[A-Za-zµ]+)(?![\w.])"
)
_WORDS = frozenset({"and", "or", "not", "if", "else", "in", "is"})
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_LONGEST = 1000
_LARGEST = 1e100

Value = bool | float | int | None


@dataclass(frozen=True)
class Condition:
    """A condition that has been read. ``names`` are those it uses, in order."""

    text: str
    names: tuple[str, ...]
    _tree: ast.expr

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether the condition is true of ``values``, or cannot be known.

        Args:
            values: one for each name of ``NAMES``; ``None`` where it is not known.

        Example:
            >>> parse("not fits or step_time > 200 ms").holds({"fits": True, "step_time": 0.21})
            True
        """
        return _value(self._tree, values) is not False

    def values(self, values: Mapping[str, Value]) -> str:
        """Return the values that the condition looked at, as text.

        Example:
            >>> parse("mfu < 40 %").values({"mfu": 0.25})
            'mfu = 0.25'
        """
        return ", ".join(f"{name} = {_text(values[name])}" for name in self.names)


def parse(text: str) -> Condition:
    """Read a condition.

    Raises:
        UnknownNameError: a name or a unit that nothing has.
        ArgumentError: it is no condition, or uses what this language has not.

    Example:
        >>> parse("fits and hbm_headroom >= 1.5 GiB").names
        ('fits', 'hbm_headroom')
        >>> parse("step_tim > 1")
        Traceback (most recent call last):
        neurenix._core.errors.UnknownNameError: There is no value named 'step_tim'. ...
    """
    if len(text) > _LONGEST:
        raise ArgumentError(f"A condition has at most {_LONGEST} characters; got {len(text)}.")
    try:
        tree = ast.parse(_without_units(text).strip(), mode="eval").body
        names: dict[str, None] = {}
        kind = _check(tree, text, names)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ArgumentError(
            f"{text!r} is not a condition ({getattr(error, 'msg', error)}). "
            'Write for example "not fits or step_time > 0.2".'
        ) from None
    if kind != "truth":
        raise ArgumentError(
            f"{text!r} is a number, neither true nor false: compare it, as in {text} > 0."
        )
    return Condition(text, tuple(names), tree)


def _without_units(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        number, unit = match.groups()
        if unit in _WORDS:
            return match[0]
        if unit not in _UNITS:
            raise unknown_name("unit", unit, _UNITS)
        return repr(float(number) * _UNITS[unit])

    return _NUMBER_WITH_UNIT.sub(replace, text)


def _check(node: ast.expr, text: str, names: dict[str, None]) -> str:
    """Return ``"truth"`` or ``"number"``, what a part is, and note the names it uses."""

    def need(part: ast.expr, kind: str) -> None:
        if _check(part, text, names) != kind:
            what = "true or false" if kind == "truth" else "a number"
            raise ArgumentError(f"In {text!r}, {ast.unparse(part)} is not {what}.")

    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                need(part, "truth")
            return "truth"
        case ast.UnaryOp(op=ast.Not(), operand=part):
            need(part, "truth")
            return "truth"
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=part):
            need(part, "number")
            return "number"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            need(left, "number")
            need(right, "number")
            return "number"
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _COMPARE for op in ops
        ):
            kind = _check(left, text, names)
            if kind == "truth" and not all(isinstance(op, ast.Eq | ast.NotEq) for op in ops):
                raise ArgumentError(f"In {text!r}, {ast.unparse(left)} has no order.")
            for other in others:
                need(other, kind)
            return "truth"
        case ast.Constant(value=bool()):
            return "truth"
        case ast.Constant(value=int() | float() as number) if abs(number) <= _LARGEST:
            return "number"
        case ast.Name(id=name):
            if name not in NAMES:
                raise unknown_name("value", name, NAMES)
            names[name] = None
            return "truth" if name == "fits" else "number"
    raise ArgumentError(
        f"{ast.unparse(node)!r} is not understood in {text!r}. There are and, or, not, "
        f"comparisons, + - * /, numbers, parentheses and these names: {', '.join(NAMES)}."
    )


def _value(node: ast.expr, values: Mapping[str, Value]) -> Value:
    match node:
        case ast.BoolOp(op=op, values=parts):
            decisive = isinstance(op, ast.Or)
            found = [_value(part, values) for part in parts]
            if any(value is decisive for value in found):
                return decisive
            return None if any(value is None for value in found) else not decisive
        case ast.UnaryOp(op=op, operand=part):
            value = _value(part, values)
            if value is None:
                return None
            if isinstance(op, ast.Not):
                return not value
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _value(left, values), _value(right, values)
            if one is None or other is None or (isinstance(op, ast.Div) and not other):
                return None
            return _finite(_ARITHMETIC[type(op)](one, other))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compare([left, *others], ops, values)
        case ast.Constant(value=value):
            return value  # pyright: ignore[reportReturnType]  _check let no other through
        case ast.Name(id=name):
            value = values[name]
            return value if value is None or isinstance(value, bool) else _finite(value)
    raise AssertionError(f"unchecked: {ast.dump(node)}")


def _compare(
    parts: list[ast.expr], ops: list[ast.cmpop], values: Mapping[str, Value]
) -> bool | None:
    found = [_value(part, values) for part in parts]
    results = [
        None if a is None or b is None else _COMPARE[type(op)](a, b)
        for a, op, b in zip(found, ops, found[1:], strict=False)
    ]
    if False in results:
        return False
    return None if None in results else True


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _text(value: Value) -> str:
    if value is None:
        return "not known"
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}"
