"""Find the library of an object from the modules of its classes, without an import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def library_of(value: Any, libraries: Iterable[str]) -> str | None:
    """Return the library in which the class of ``value``, or a base of it, is defined, or None.

    Args:
        value: an object, or a class itself.
        libraries: packages to look for, such as ``"keras"`` or ``"flax.linen"``.

    Example:
        >>> from collections import OrderedDict
        >>> library_of(OrderedDict(), ["torch", "collections"]), library_of(1, ["torch"])
        ('collections', None)
    """
    kind = value if isinstance(value, type) else type(value)
    known = tuple(libraries)
    for base in kind.__mro__:
        for library in known:
            if f"{base.__module__}.".startswith(f"{library}."):
                return library
    return None
