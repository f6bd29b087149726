"""Explain JAX's error for a dict in a tree whose keys cannot be sorted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from neurenix._core.errors import ArgumentTypeError


@contextmanager
def keys_explained(tree: Any) -> Iterator[None]:
    """Replace JAX's error for keys that cannot be sorted by one that names them.

    Raises:
        ArgumentTypeError: a dict in the tree has such keys.

    Example:
        >>> import jax
        >>> with keys_explained([{"a": 1, 2: 3}]):
        ...     jax.tree.leaves([{"a": 1, 2: 3}])
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentTypeError: A dict of arrays has the keys 'a' (str) and 2 \
(int), which have no order. JAX sorts keys: give texts alone, or whole numbers.
    """
    try:
        yield
    except ValueError as error:
        keys = _unordered(tree)
        if keys is None:
            raise
        first = keys[0]
        others = [key for key in keys if type(key) is not type(first)] or keys[1:]
        named = " and ".join(f"{key!r} ({type(key).__name__})" for key in (first, others[0]))
        raise ArgumentTypeError(
            f"A dict of arrays has the keys {named}, which have no order. JAX sorts keys: give "
            "texts alone, or whole numbers."
        ) from error


def _unordered(tree: Any) -> list[Any] | None:
    """Return the keys of a dict that cannot be sorted; JAX takes those of an OrderedDict as is."""
    if isinstance(tree, dict) and not isinstance(tree, OrderedDict):
        try:
            sorted(tree)
        except TypeError:
            return list(tree)
    if isinstance(tree, (dict, list, tuple)):
        items = tree.values() if isinstance(tree, dict) else tree
        return next((keys for keys in map(_unordered, items) if keys is not None), None)
    return None
