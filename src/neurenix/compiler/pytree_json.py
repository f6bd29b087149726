"""Describe trees of arrays as JSON data, so that files need no pickle.

Dictionaries, lists, tuples and ``None`` are restored exactly, except that keys other than strings
and integers become strings. Dataclasses, named tuples and other registered nodes are restored as
dictionaries of their fields, because the file names no code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax


def describe(tree: Any) -> Any:
    """Return the structure of ``tree`` as JSON data, with leaves in flattening order.

    Example:
        >>> describe({"loss": 1.0, "state": (2.0, None)})
        ['dict', [['loss', 'leaf'], ['state', ['tuple', ['leaf', 'none']]]]]
    """
    if tree is None:
        return "none"
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    if paths and not paths[0][0]:
        return "leaf"
    children = [describe(child) for _, child in paths]
    if type(tree) in (list, tuple):
        return [type(tree).__name__, children]
    keys = [_key(path[0]) for path, _ in paths]
    return ["dict", [list(pair) for pair in zip(keys, children, strict=True)]]


def build(described: Any, leaves: Iterator[Any]) -> Any:
    """Return the described tree with ``leaves`` in it.

    Raises:
        ValueError, TypeError: the description is invalid.

    Example:
        >>> build(describe({"loss": 1.0, "state": (2.0, None)}), iter("ab"))
        {'loss': 'a', 'state': ('b', None)}
    """
    if described == "leaf":
        return next(leaves)
    if described == "none":
        return None
    kind, children = described
    if kind == "dict":
        return {key: build(child, leaves) for key, child in children}
    if kind not in ("list", "tuple"):
        raise ValueError(f"there is no node {kind!r}")
    built = [build(child, leaves) for child in children]
    return built if kind == "list" else tuple(built)


def count_leaves(described: Any) -> int:
    """Return the number of leaves of a described tree.

    Example:
        >>> count_leaves(describe([1, (2, None)]))
        2
    """
    return len(jax.tree.leaves(build(described, iter(int, 1))))


def _key(entry: Any) -> str | int:
    """Return the name or number of this child in its parent."""
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            value = getattr(entry, attribute)
            return value if isinstance(value, int) else str(value)
    return str(entry)
