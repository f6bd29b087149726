"""Conditions such as ``not fits or step_time > 0.2``, for ``--fail-if``.

Owns a very small language: Python's grammar, of which only what is listed here is understood.
Nothing is ever evaluated as Python. It knows no report: a condition is asked with a mapping.

- the names in ``NAMES``;
- ``and``, ``or``, ``not``, ``<  <=  >  >=  ==  !=`` (chains too), ``+ - * /``, parentheses;
- numbers, with an optional unit: ``200 ms``, ``15.5 GiB``, ``40 %``, ``1e-9``; seconds, bytes and
  fractions are what they become, and what a number without a unit is taken for.

A gate in the wrong unit never fails, so what is compared, added or subtracted must be of one
dimension: times, bytes, shares, USD or counts.

A comparison with a value that is not known, such as the step time of a program that does not fit,
is neither true nor false. ``and``, ``or`` and ``not`` follow Kleene's logic, and a whole condition
that stays unknown counts as true: what cannot be shown to pass has not passed.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neurenix._core.errors import ArgumentError, unknown_name

Dimension = tuple[tuple[str, int], ...]
"""Base units and their powers, such as ``(("bytes", 1), ("seconds", -1))``; a share has none."""

_SECONDS: Dimension = (("seconds", 1),)
_BYTES: Dimension = (("bytes", 1),)
_USD: Dimension = (("USD", 1),)
_COUNT: Dimension = (("count", 1),)
_SHARE: Dimension = ()

_NAMED: dict[str, tuple[Dimension | None, str]] = {
    "fits": (None, "whether the compiler accepted the program, its memory included"),
    "step_time": (_SECONDS, "estimated seconds of a step"),
    "step_time_low": (_SECONDS, "low end of its 80 % interval, seconds"),
    "step_time_high": (_SECONDS, "high end of its 80 % interval, seconds"),
    "hbm_peak_bytes": (_BYTES, "bytes of HBM that a device needs"),
    "hbm_headroom": (
        _BYTES,
        "bytes of HBM that are left on a device; negative when it does not fit",
    ),
    "mfu": (_SHARE, "model FLOPs ÷ (estimated step time × peak), 0 to 1"),
    "cost_per_step": (_USD, "estimated USD of a step"),
    "findings": (_COUNT, "number of findings"),
    "errors": (_COUNT, "number of findings of severity error"),
    "warnings": (_COUNT, "number of findings of severity warning"),
}
NAMES = {name: meaning for name, (_, meaning) in _NAMED.items()}

_UNITS_OF: dict[Dimension, dict[str, float]] = {
    _SECONDS: {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0},
    _BYTES: {
        "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
        "kB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0,
    },
    _USD: {"USD": 1.0},
    _SHARE: {"%": 0.01},
}  # fmt: skip
UNITS = {
    unit: (size, dimension)
    for dimension, units in _UNITS_OF.items()
    for unit, size in units.items()
}
_WORDS_FOR = {
    _SECONDS: "a time",
    _BYTES: "bytes",
    _USD: "money",
    _SHARE: "a share",
    _COUNT: "a count",
}
_GREEK_MU, _MICRO = "\u03bc", "\u00b5"  # two letters that look alike, and both mean a millionth
_NUMBER_WITH_UNIT = re.compile(
    r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+|(?![eE][+-]?\d)))"
    rf"\s*(%|[A-Za-z{_MICRO}{_GREEK_MU}]+)(?![\w.])"
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
        ArgumentError: it is no condition, uses what this language has not, or compares what has
            another unit.

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
        tree: ast.expr = ast.parse(_quoted(text).strip(), mode="eval").body
        tree = _Quantities().visit(tree)
        names: dict[str, None] = {}
        kind = _check(tree, text, names)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ArgumentError(
            f"{text!r} is not a condition ({getattr(error, 'msg', error)}). "
            'Write for example "not fits or step_time > 0.2".'
        ) from None
    if kind != _TRUTH:
        raise ArgumentError(
            f"{text!r} is a number, neither true nor false: compare it, as in {text} > 0."
        )
    return Condition(text, tuple(names), tree)


class _Quantity(float):
    """A number with its unit, which it shows as it was written."""

    dimension: Dimension
    written: str

    def __repr__(self) -> str:
        return self.written


class _Quantities(ast.NodeTransformer):
    """Turns what ``_quoted`` put between quotes into quantities."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:  # noqa: N802  ast's own name
        match = _NUMBER_WITH_UNIT.fullmatch(node.value) if isinstance(node.value, str) else None
        return node if match is None else ast.Constant(_quantity(match))


def _quantity(match: re.Match[str]) -> _Quantity:
    number, unit = match[1], match[2].replace(_GREEK_MU, _MICRO)
    if unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)
    size, dimension = UNITS[unit]
    quantity = _Quantity(float(number) * size)
    quantity.dimension, quantity.written = dimension, match[0]
    return quantity


def _quoted(text: str) -> str:
    """Put every number with a unit between quotes, which makes it Python."""

    def quote(match: re.Match[str]) -> str:
        return match[0] if match[2] in _WORDS else repr(match[0])

    return _NUMBER_WITH_UNIT.sub(quote, text)


_TRUTH = "truth"
_BARE = "number"
"""A number without a unit, which is taken for whatever it is compared with."""


def _check(node: ast.expr, text: str, names: dict[str, None]) -> Dimension | str:
    """Return what a part is: ``_TRUTH``, ``_BARE`` or its dimension. Note the names it uses."""

    def truth(part: ast.expr) -> None:
        if _check(part, text, names) != _TRUTH:
            raise ArgumentError(f"In {text!r}, {ast.unparse(part)} is not true or false.")

    def number(part: ast.expr) -> Dimension | str:
        kind = _check(part, text, names)
        if kind == _TRUTH:
            raise ArgumentError(f"In {text!r}, {ast.unparse(part)} is not a number.")
        return kind

    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                truth(part)
            return _TRUTH
        case ast.UnaryOp(op=ast.Not(), operand=part):
            truth(part)
            return _TRUTH
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=part):
            return number(part)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            one, other = number(left), number(right)
            if isinstance(op, ast.Mult | ast.Div):
                return _product(one, other, 1 if isinstance(op, ast.Mult) else -1)
            _check_same((left, one), (right, other), text)
            return other if one == _BARE else one
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _COMPARE for op in ops
        ):
            kinds = [_check(left, text, names)]
            if kinds == [_TRUTH]:
                if not all(isinstance(op, ast.Eq | ast.NotEq) for op in ops):
                    raise ArgumentError(f"In {text!r}, {ast.unparse(left)} has no order.")
                for other in others:
                    truth(other)
                return _TRUTH
            kinds += [number(other) for other in others]
            parts = list(zip([left, *others], kinds, strict=True))
            for one, other in itertools.pairwise(parts):
                _check_same(one, other, text)
            return _TRUTH
        case ast.Constant(value=bool()):
            return _TRUTH
        case ast.Constant(value=_Quantity() as quantity) if quantity <= _LARGEST:
            return quantity.dimension
        case ast.Constant(value=int() | float() as value) if abs(value) <= _LARGEST:
            return _BARE
        case ast.Name(id=name):
            if name not in NAMES:
                raise unknown_name("value", name, NAMES)
            names[name] = None
            dimension = _NAMED[name][0]
            return _TRUTH if dimension is None else dimension
    raise ArgumentError(
        f"{ast.unparse(node)!r} is not understood in {text!r}. There are and, or, not, "
        f"comparisons, + - * /, numbers, parentheses and these names: {', '.join(NAMES)}."
    )


def _product(one: Dimension | str, other: Dimension | str, sign: int) -> Dimension | str:
    """Return the dimension of a product, or with a sign of −1 of a quotient."""
    if isinstance(one, str) and isinstance(other, str):
        return _BARE
    powers = dict[str, int]()
    for kind, factor in ((one, 1), (other, sign)):
        for unit, power in () if isinstance(kind, str) else kind:
            powers[unit] = powers.get(unit, 0) + factor * power
    return tuple(sorted((unit, power) for unit, power in powers.items() if power))


_Part = tuple[ast.expr, Dimension | str]


def _check_same(one: _Part, other: _Part, text: str) -> None:
    """Check that two parts can be compared or added: they are of one dimension.

    Raises:
        ArgumentError: they are not, or a share is compared with a number above 1.
    """
    for (node, kind), (number, of_number) in ((one, other), (other, one)):
        if (
            kind == _SHARE
            and _is_share(node)
            and of_number == _BARE
            and (size := _literal(number)) is not None
            and size > 1
        ):
            raise ArgumentError(
                f"In {text!r}, {ast.unparse(node)} is a share, 0 to 1, and cannot reach {size:g}. "
                f"Write {size:g} % or {size / 100:g}."
            )
    if _BARE in (one[1], other[1]) or one[1] == other[1]:
        return
    (left, kind), (right, of_right) = one, other
    if isinstance(left, ast.Constant):  # the name comes first, and then what it is compared with
        (left, kind), (right, of_right) = other, one
    units = _UNITS_OF.get(kind if isinstance(kind, tuple) else _COUNT, {})
    advice = f" Units of {ast.unparse(left)}: {', '.join(units)}." if units else ""
    if kind == _COUNT:
        advice = f" {ast.unparse(left)} is compared with a plain number."
    raise ArgumentError(
        f"In {text!r}, {ast.unparse(left)} is {_said(kind)}, and {ast.unparse(right)} is "
        f"{_said(of_right)}.{advice}"
    )


def _is_share(node: ast.expr) -> bool:
    """Whether it is a share of something, 0 to 1: one by name, or what 1 lacks of it."""
    match node:
        case ast.Name(id=name):
            return _NAMED[name][0] == _SHARE
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _literal(left) == 1 and _is_share(right)
    return False


def _literal(node: ast.expr) -> float | None:
    """Return the number that stands there without a unit."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int | float) and not isinstance(value, _Quantity) else None


def _said(kind: Dimension | str) -> str:
    """Return a dimension in words."""
    if isinstance(kind, str):
        return "a number"
    powers = " × ".join(unit if power == 1 else f"{unit}^{power}" for unit, power in kind)
    return _WORDS_FOR.get(kind, f"in {powers}")


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
