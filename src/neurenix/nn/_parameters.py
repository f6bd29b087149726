"""Default random streams, parameter dtypes and PyTorch's initial values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix import _cpu, random
from neurenix import _dtypes as dtypes
from neurenix._core.errors import ArgumentError
from neurenix._nnx import nnx
from neurenix.hardware.allocation import allocated

Initializer = Callable[..., jax.Array]


def rngs_or_default(rngs: nnx.Rngs | None) -> nnx.Rngs:
    """Return ``rngs``, or new streams seeded from the process (``neurenix.seed``)."""
    return nnx.Rngs(random.next_key()) if rngs is None else rngs


def parameter_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of a layer's parameters: ``dtype``, float32 by default.

    Raises:
        UnknownNameError: unknown dtype name.
        ArgumentError: the dtype is not floating-point, so it has no gradient.
    """
    kind = dtypes.dtype("float32" if dtype is None else dtype)
    if not jnp.issubdtype(kind, jnp.inexact):
        raise ArgumentError(f"Parameters of a layer must be floating-point; got dtype={kind}.")
    return kind


def fan_in_uniform(fan_in: int) -> Initializer:
    """Return PyTorch's default initializer for linear and convolution layers.

    Draws from U(-1/√fan_in, 1/√fan_in): ``kaiming_uniform_(a=√5)`` for weights and the same bound
    for biases.
    """
    return symmetric_uniform(1 / math.sqrt(fan_in) if fan_in > 0 else 0.0)


def symmetric_uniform(bound: float) -> Initializer:
    """Return an initializer that draws from U(-bound, bound)."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32, **_) -> jax.Array:
        def sample(sizes: tuple[int, ...]) -> jax.Array:
            return jax.random.uniform(key, sizes, dtype, -bound, bound)

        return allocated(lambda: _cpu.drawn(sample, key, shape), shape, dtype)

    return init


def standard_normal(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32, **_) -> jax.Array:
    """Initialize with draws from N(0, 1)."""

    def sample(sizes: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(key, sizes, dtype)

    return allocated(lambda: _cpu.drawn(sample, key, shape), shape, dtype)


def promote_to_input(arrays: Any, *, dtype: Any = None, inexact: bool = True) -> Any:
    """Cast all arrays to the dtype of the first, the layer's input.

    An integer input is cast to the dtype of the parameters instead. Passed to Flax layers as
    ``promote_dtype``: a bfloat16 input gives a bfloat16 output, whatever the parameters' dtype.
    """
    dtype = dtype or compute_dtype(*arrays)
    return tuple(None if a is None else jnp.asarray(a, dtype) for a in arrays)


def compute_dtype(x: jax.Array, *parameters: jax.Array | None):
    """Return the dtype of ``x`` if floating, else that of the first parameter, else float32."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return x.dtype
    present = [p.dtype for p in parameters if p is not None]
    return present[0] if present else jnp.float32
