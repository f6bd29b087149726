"""How often a loop with a counter runs."""

from __future__ import annotations

import operator
from collections.abc import Callable

MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
"""The comparison with its two operands exchanged, by the name of the comparison."""

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt,
    "GE": operator.ge, "NE": operator.ne, "EQ": operator.eq,
}  # fmt: skip
_MOST_BITS = 64  # of a counter, and so of the multiplications before it overflows


def trip_count(start: int, bound: int, comparison: str, factor: int, growth: int) -> int | None:
    """Return how often a loop runs whose counter becomes ``factor * counter + growth`` each time.

    Args:
        start: the first value of the counter.
        bound: the value that the counter is compared with before each iteration.
        comparison: the condition to go on: ``"LT"``, ``"LE"``, ``"GT"``, ``"GE"``, ``"NE"`` or
            ``"EQ"``.
        factor: the factor of the counter in each iteration.
        growth: the number that is then added.

    Returns:
        ``None`` for an unknown comparison, and for a loop that ends by overflow only or never.

    Example:
        >>> trip_count(0, 10, "LT", 1, 3), trip_count(10, 0, "GT", 1, -1)
        (4, 10)
        >>> trip_count(1, 1024, "LT", 2, 0)
        10
        >>> trip_count(0, 10, "NE", 1, 2), trip_count(0, 10, "NE", 1, 3)
        (5, None)
    """
    goes_on = _COMPARISONS.get(comparison)
    if goes_on is None:
        return None
    if not goes_on(start, bound):
        return 0
    if factor != 1 or comparison == "EQ":
        for count in range(_MOST_BITS):
            if not goes_on(start, bound):
                return count
            start = factor * start + growth
        return None
    if growth == 0:
        return None
    if comparison == "NE":
        count, left = divmod(bound - start, growth)
        return count if left == 0 and count > 0 else None
    towards = bound - start if growth > 0 else start - bound
    if comparison[0] != ("L" if growth > 0 else "G"):
        return None
    return -(-(towards + (comparison[1] == "E")) // abs(growth))
