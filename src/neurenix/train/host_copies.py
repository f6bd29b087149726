"""Arrays of devices kept on the host for a while, and put back where they lay.

A step gives away the state that it is called with; whoever wants to call it and go on from before
keeps a copy here. Owns the copy and the way back. It does not own what is done meanwhile.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._jit.random_keys import like, numbers_of

_CHANGES = np.random.default_rng(0).uniform(-0.1, 0.1, 1009)


class HostCopy:
    """The numbers of one array.

    Of an array that other processes hold a part of, or whose dtype is weak, which NumPy does not
    know, it is a copy beside it.

    Args:
        leaf: the array.

    Example:
        >>> leaf = jnp.arange(3.0)
        >>> copy = HostCopy(leaf)
        >>> leaf.delete()
        >>> copy.array().tolist(), bool((copy.changed_array()[1:] != copy.array()[1:]).all())
        ([0.0, 1.0, 2.0], True)
    """

    def __init__(self, leaf: jax.Array) -> None:
        self._like, self._sharding = leaf, leaf.sharding
        kept = leaf.is_fully_addressable and not numbers_of(leaf).weak_type
        self._held: Any = np.array(numbers_of(leaf)) if kept else jnp.copy(leaf)

    def array(self) -> jax.Array:
        """Return the array as it was, in memory of its own."""
        if isinstance(self._held, jax.Array):
            return jnp.copy(self._held)
        return self._put(self._held)

    def changed_array(self) -> jax.Array:
        """Return it with every number that is a fraction changed by up to 10 %, and 0 by 0.1."""
        held = self._held
        if isinstance(held, jax.Array) or not jnp.issubdtype(held.dtype, jnp.floating):
            return self.array()
        by = np.resize(_CHANGES, held.shape).astype(np.float32)
        wide = held.astype(np.float32)
        return self._put(np.where(wide == 0, by, wide * (1 + by)).astype(held.dtype))

    def _put(self, numbers: np.ndarray) -> jax.Array:
        # JAX may take NumPy's memory for its own on a CPU, and a step gives it away.
        return jax.device_put(like(self._like, jnp.array(numbers)), self._sharding)


def numbers_here(leaf: Any) -> np.ndarray:
    """Return the numbers of an array, those of this process where others hold a part.

    Example:
        >>> numbers_here(jax.random.key(7)).tolist()
        [0, 7]
    """
    leaf = numbers_of(leaf)
    if leaf.is_fully_addressable:
        return np.array(leaf)
    return np.concatenate([np.ravel(np.asarray(one.data)) for one in leaf.addressable_shards])
