"""Numbers that users set as options.

Owns what is one number; which range it must lie in is its asker's.
"""

from __future__ import annotations

import numbers
from typing import Any

from neurenix._core.errors import ArgumentTypeError


def check_number(name: str, value: Any) -> None:
    """Raise unless an option is one number: Python's, or NumPy's or JAX's without axes.

    Raises:
        ArgumentTypeError: it is text, a list, None, or anything else.

    Example:
        >>> check_number("delta", "1")
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentTypeError: The argument `delta` must be a number; got '1'.
    """
    if not isinstance(value, numbers.Real) and getattr(value, "shape", None) != ():
        raise ArgumentTypeError(f"The argument `{name}` must be a number; got {value!r}.")
