"""A reentrant context manager that sets a context variable."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Scope(Generic[T]):
    """Set ``current`` to ``value`` inside a ``with`` block. Reusable and reentrant.

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
        """Set the value and return it."""
        self._tokens.append(self._current.set(self._value))
        return self._value

    def __exit__(self, *_: object) -> None:
        """Restore the previous value."""
        self._current.reset(self._tokens.pop())
