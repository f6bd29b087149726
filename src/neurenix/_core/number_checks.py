"""Check numbers that users set as options."""

from __future__ import annotations

import numbers
import operator
from typing import Any

from neurenix._core.errors import ArgumentError, ArgumentTypeError

_NUMBERS = "fiuV"
"""Kinds of NumPy's dtypes; bfloat16 is a V."""


def check_number(what: str, value: Any) -> None:
    """Raise unless an option is one number of Python, NumPy or JAX.

    Raises:
        ArgumentTypeError: it is not a number; booleans are not numbers.

    Example:
        >>> check_number("The argument `delta`", "1")
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentTypeError: The argument `delta` must be a number; got '1'.
    """
    if isinstance(value, bool):
        known = False
    elif getattr(value, "shape", None) == ():
        known = getattr(getattr(value, "dtype", None), "kind", "") in _NUMBERS
    else:
        known = isinstance(value, numbers.Real)
    if not known:
        raise ArgumentTypeError(f"{what} must be a number; got {value!r}.")


def whole_number(name: str, value: Any, *, least: int = 1) -> int:
    """Return ``value``, an integer of Python or NumPy, as an int.

    Raises:
        ArgumentError: it is not a whole number, or below ``least``.

    Example:
        >>> import numpy as np
        >>> whole_number("epochs", np.int64(3))
        3
    """
    number = None
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
    if number is None or number < least:
        raise ArgumentError(f"{name} must be a whole number from {least}, got {value!r}.")
    return number


def optional_number(name: str, value: Any) -> int | None:
    """Return ``whole_number(name, value)``, and None for None."""
    return None if value is None else whole_number(name, value)
