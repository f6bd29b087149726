"""Copy NumPy arrays that the caller may overwrite before a computation or transfer reads them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from neurenix._core.keys import keys_explained


def owned(tree: Any) -> Any:
    """Return a tree with NumPy arrays copied, because compiled calls may read them after returning.

    Masked arrays are not converted, so that JAX rejects them instead of dropping the mask.

    Raises:
        ArgumentTypeError: the keys of a dict cannot be sorted.

    Example:
        >>> x = np.zeros(2)
        >>> kept = owned({"x": x})
        >>> x[:] = 1
        >>> kept["x"]
        array([0., 0.])
    """
    with keys_explained(tree):
        return jax.tree.map(_copied, tree)


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    return np.array(leaf, subok=isinstance(leaf, np.ma.MaskedArray))
