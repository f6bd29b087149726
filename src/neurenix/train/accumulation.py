"""Split a batch into parts for gradient accumulation, and join their outputs.

Part i of A has the rows i, i + A, i + 2A, … of the batch, so that each replica keeps its own rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def rows_of_parts(examples: int, parts: int) -> list[np.ndarray]:
    """Return the rows of the parts: an array (parts of one size, rows of each) for each size.

    All have one size if A divides the number of examples. Empty parts are left out.

    Example:
        >>> [index.tolist() for index in rows_of_parts(5, 3)]
        [[[0, 3], [1, 4]], [[2]]]
    """
    size, rest = divmod(examples, parts)
    groups = [(0, rest, size + 1), (rest, parts - rest, size)]
    return [
        first + np.arange(number)[:, None] + parts * np.arange(rows)
        for first, number, rows in groups
        if number and rows
    ]


def take_parts(leaf: jax.Array, *, index: np.ndarray) -> jax.Array:
    """Return the rows of parts of one size, (parts, rows, …)."""
    parts, rows = index.shape
    if index.size == leaf.shape[0]:  # all of them, which moves nothing between replicas
        return leaf.reshape(rows, parts, *leaf.shape[1:]).swapaxes(0, 1)
    return leaf[index]


def join_parts(*leaves: jax.Array, rows: list[np.ndarray]) -> jax.Array:
    """Return the output for the whole batch from those of its parts, (parts, …) for each size.

    An output with a row for each example gets its rows in the order of the batch. Of any other
    output, such as a penalty, it is the mean over the parts, or for integers that of the last part.
    """
    pairs = list(zip(leaves, rows, strict=True))
    if any(leaf.shape[1:2] != index.shape[1:] for leaf, index in pairs):
        whole = jnp.concatenate(leaves)
        return whole.mean(0) if jnp.issubdtype(whole.dtype, jnp.inexact) else whole[-1]
    if len(pairs) == 1:
        return leaves[0].swapaxes(0, 1).reshape(-1, *leaves[0].shape[2:])
    flat = jnp.concatenate([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves])
    return flat[np.argsort(np.concatenate([index.reshape(-1) for index in rows]))]
