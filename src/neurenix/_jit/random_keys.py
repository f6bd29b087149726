"""Convert typed random keys to plain integer arrays and back, for files and compiled programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def is_key(leaf: Any) -> bool:
    """Return whether an array or a shape has the dtype of typed random keys.

    Example:
        >>> is_key(jax.random.key(0)), is_key(jax.random.PRNGKey(0))
        (True, False)
    """
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def numbers_of(leaf: Any) -> Any:
    """Return the data of random keys; any other array is returned unchanged.

    Example:
        >>> numbers_of(jax.random.key(7)).tolist(), numbers_of(jnp.ones(2)).tolist()
        ([0, 7], [1.0, 1.0])
    """
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def like(leaf: Any, numbers: Any) -> Any:
    """Return ``numbers`` as random keys if ``leaf`` holds keys, else unchanged.

    Example:
        >>> key = jax.random.key(7)
        >>> bool(like(key, numbers_of(key)) == key)
        True
    """
    if not is_key(leaf):
        return numbers
    implementation = jax.random.key_impl(jnp.zeros((), leaf.dtype))
    return jax.random.wrap_key_data(jnp.asarray(numbers), impl=implementation)
