"""Arrays that somebody else may fill again, before a computation or a transfer has read them.

Owns the copy. Whose arrays need one is known where they are read: batches of data, arguments of
compiled functions, and what is moved to a device.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from neurenix._core.keys import keys_explained


def owned(tree: Any) -> Any:
    """Return a tree of arrays with copies of NumPy's: compiled calls read them after they return.

    A masked array stays one, so that JAX refuses it: its mask would be lost.

    Raises:
        ArgumentTypeError: the keys of a dict have no order.

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
