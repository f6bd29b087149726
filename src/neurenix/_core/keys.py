"""Dicts whose keys have no order among them, which JAX refuses without saying which they are.

Owns that one error, for wherever a tree of the user's is first looked through.
"""

from __future__ import annotations

from typing import Any

from neurenix._core.errors import ArgumentTypeError


def check_keys(tree: Any) -> None:
    """Raise when a dict in a tree has keys that cannot be sorted; for use after JAX has failed.

    Raises:
        ArgumentTypeError: one has.

    Example:
        >>> check_keys([{"a": 1, 2: 3}])
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentTypeError: A dict of arrays has the keys 'a' (str) and 2 \
(int), which have no order. JAX sorts keys: give all of them one type.
    """
    if isinstance(tree, dict):
        try:
            sorted(tree)
        except TypeError as error:
            first = next(iter(tree))
            other = next((key for key in tree if type(key) is not type(first)), None)
            named = f"keys {first!r} ({type(first).__name__})"
            if other is None:
                raise ArgumentTypeError(
                    f"A dict of arrays has {named}, which have no order. JAX sorts keys: use texts "
                    "or numbers."
                ) from error
            raise ArgumentTypeError(
                f"A dict of arrays has the {named} and {other!r} ({type(other).__name__}), which "
                "have no order. JAX sorts keys: give all of them one type."
            ) from error
    if isinstance(tree, (dict, list, tuple)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            check_keys(item)
