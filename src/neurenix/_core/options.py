"""Numbers that users set as options.

Owns what is one number; which range it must lie in is its asker's.
"""

from __future__ import annotations

import numbers
from typing import Any

from neurenix._core.errors import ArgumentTypeError

_NUMBERS = "fiuV"
"""Kinds of NumPy's dtypes; bfloat16 is a V."""


def check_number(what: str, value: Any) -> None:
    """Raise unless an option is one number: Python's, or NumPy's or JAX's without axes.

    Raises:
        ArgumentTypeError: it is True or False, text, a list, None, or anything else.

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
