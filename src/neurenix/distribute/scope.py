"""A value that is the current one inside of a ``with`` block.

Owns entering and leaving, nested and again. It does not own what the value means (``strategy.py``).
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Scope(Generic[T]):
    """Makes ``value`` that of ``current`` inside; it may be entered again, within itself, too.

    Example:
        >>> current = ContextVar("current", default=0)
        >>> scope = Scope(current, 1)
        >>> for _ in range(2):
        ...     with scope as value, scope:
        ...         print(value, current.get())
        1 1
        1 1
        >>> current.get()
        0
    """

    def __init__(self, current: ContextVar[Any], value: T) -> None:
        self._current = current
        self._value = value
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> T:
        """Make the value the current one, and return it."""
        self._tokens.append(self._current.set(self._value))
        return self._value

    def __exit__(self, *_: object) -> None:
        """Make the one before the current one again."""
        self._current.reset(self._tokens.pop())
