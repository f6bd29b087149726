"""Find arguments whose memory results could reuse.

Matches arguments with results, and writes the ``jax.jit`` options that donate them. ``findings``
decides whether it matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from neurenix.compiler.argument_roles import parts

_MOST = 0.5
"""Share of an argument's bytes that must match results: a counter may change its dtype."""


def replaceable(args: Sequence[Any], out: Any, kept_out: Sequence[int]) -> dict[int, list[int]]:
    """Return the arguments that results could overwrite: position, and matching leaves.

    Leaves are numbered within each argument. Each result is matched once: first with an argument of
    its structure, then with any argument that has arrays of its shapes and dtypes.

    Args:
        args: trees of arrays or specs.
        out: the tree of abstract results.
        kept_out: positions of arguments that must not be donated, such as the batch.

    Example:
        >>> w, x = jax.ShapeDtypeStruct((4, 4), "float32"), jax.ShapeDtypeStruct((8, 4), "float32")
        >>> replaceable((x, {"w": w}), ({"w": w}, x.update(shape=())), ())
        {1: [0]}
    """
    left = Counter(map(_array, jax.tree.leaves(out)))
    whole = Counter(map(_signature, (out, *parts(out))))
    places = [place for place in range(len(args)) if place not in kept_out]
    first = [place for place in places if whole[_signature(args[place])]]
    found = {}
    for place in (*first, *(place for place in places if place not in first)):
        matched = _taken(jax.tree.leaves(args[place]), left)
        if matched:
            found[place] = matched
    return dict(sorted(found.items()))


def donate_text(names: Sequence[int | str]) -> str:
    """Return the ``jax.jit`` options that donate these arguments.

    Example:
        >>> donate_text([2, 3]), donate_text([0, "state"])
        ('donate_argnums=(2, 3)', 'donate_argnums=(0,), donate_argnames=("state",)')
    """
    said = []
    for option, kind in (("donate_argnums", int), ("donate_argnames", str)):
        own = [f'"{name}"' if kind is str else str(name) for name in names if type(name) is kind]
        if own:
            said.append(f"{option}=({', '.join(own)}{',' if len(own) == 1 else ''})")
    return ", ".join(said)


def _taken(leaves: Sequence[Any], left: Counter[Any]) -> list[int]:
    """Return the leaves that match results, and remove these; none if too few match."""
    results = left.copy()
    matched = []
    for number, leaf in enumerate(leaves):
        if results[_array(leaf)]:
            results[_array(leaf)] -= 1
            matched.append(number)
    if sum(_size(leaves[number]) for number in matched) <= _MOST * sum(map(_size, leaves)):
        return []
    left.clear()
    left.update(results)
    return matched


def _array(leaf: Any) -> tuple[tuple[int, ...], str]:
    return tuple(leaf.shape), str(leaf.dtype)


def _size(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize


def _signature(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(map(_array, leaves))
