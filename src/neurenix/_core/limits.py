"""Check time limits that users set."""

from __future__ import annotations

from typing import Any

from neurenix._core.errors import ArgumentError, ArgumentTypeError


def check_seconds(name: str, seconds: Any) -> None:
    """Raise unless a limit is a positive number of seconds, which may be infinite.

    Raises:
        ArgumentTypeError: it is not a number.
        ArgumentError: it is 0, negative or NaN.

    Example:
        >>> check_seconds("--timeout", 600)
    """
    if not isinstance(seconds, (int, float)):
        raise ArgumentTypeError(f"{name} must be a number of seconds; got {seconds!r}.")
    if not seconds > 0:
        raise ArgumentError(f"{name} must be positive; got {seconds:g}.")
