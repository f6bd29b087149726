"""How parameters are made: default random streams and PyTorch's initial values.

Owns ``rngs_or_default`` and the initialisers. Does not own the parameters (the layers do).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from neurenix import random
from neurenix._nnx import nnx

Initializer = Callable[..., jax.Array]


def rngs_or_default(rngs: nnx.Rngs | None) -> nnx.Rngs:
    """Return ``rngs``, or fresh streams from the process's own seed (``neurenix.seed``)."""
    return nnx.Rngs(random.next_key()) if rngs is None else rngs


def fan_in_uniform(fan_in: int) -> Initializer:
    """Return PyTorch's default for linear and convolution layers: U(-1/√fan_in, 1/√fan_in).

    It is ``kaiming_uniform_(a=√5)`` for weights, and the same bound for biases.
    """
    return symmetric_uniform(1 / math.sqrt(fan_in) if fan_in > 0 else 0.0)


def symmetric_uniform(bound: float) -> Initializer:
    """Return an initialiser that draws from U(-bound, bound)."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32, **_) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def promote_to_input(arrays: Any, *, dtype: Any = None, inexact: bool = True) -> Any:
    """Cast all arrays to the dtype of the first, the input; integers to that of the parameters.

    Layers give this to Flax, so that a layer computes in the dtype of what it is given: bfloat16
    in, bfloat16 out, whatever the parameters are kept in.
    """
    dtype = dtype or compute_dtype(*arrays)
    return tuple(None if a is None else jnp.asarray(a, dtype) for a in arrays)


def compute_dtype(x: jax.Array, *parameters: jax.Array | None):
    """Return the dtype of ``x`` if it is a float, else that of the first parameter, or float32."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x.dtype
    present = [p.dtype for p in parameters if p is not None]
    return present[0] if present else jnp.float32
