"""Move arrays onto and off devices that may belong to several processes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix._jit.random_keys import is_key, like, numbers_of
from neurenix._processes import gathered, is_shared


def uncommitted(leaf: Any) -> jax.Array:
    """Return the whole array on the default device, from where it may go to any other.

    Example:
        >>> uncommitted(jax.device_put(3, jax.devices()[-1])).committed
        False
    """
    return like(leaf, jnp.asarray(gathered(numbers_of(leaf))))


def put(leaf: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Return the array with this sharding, whose devices may belong to several processes.

    JAX refuses to move an array there that is committed to devices of one process, or random keys.
    """
    if not sharding.is_fully_addressable and is_key(leaf) and not is_shared(leaf):
        return like(leaf, put(numbers_of(leaf), sharding))
    if getattr(leaf, "committed", False) and not sharding.is_fully_addressable:
        leaf = leaf if is_shared(leaf) else uncommitted(leaf)
    return jax.device_put(leaf, sharding)
