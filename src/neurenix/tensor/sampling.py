"""Create tensors of random numbers.

Warns about draws without a key in a compiled function, which happen once, during tracing.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neurenix import _cpu, random
from neurenix import _dtypes as dtypes
from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._dtypes import expect_held
from neurenix.hardware.allocation import allocated
from neurenix.tensor.creation import DeviceLike, Shape, dtype_beside_shape, placed, sizes_of

__all__ = ["rand", "randint", "randn"]


def randn(
    *shape: int | Sequence[int],
    dtype: Any = None,
    device: DeviceLike = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """Return samples of the standard normal distribution.

    Without ``key``, the process's random stream is used. In a compiled function, including a module
    run by ``fit``, ``predict`` or ``nx.jit``, that stream is read once, during tracing: every
    batch gets the same numbers, and a ``neurenix.random.FrozenDrawWarning`` is issued. There, keep
    an ``nnx.Rngs`` in the module and draw with its keys, as in the example. (``evaluate`` and
    ``predict`` restore the module's state, including that stream, so every batch gets the same
    keys and numbers.)

    Args:
        shape: sizes, or one sequence of them.
        dtype: a floating dtype; float32 by default.
        device: device of the result.
        key: a key of ``jax.random.key`` or of an ``nnx.Rngs``; the next key of the process by
            default.

    Raises:
        ArgumentError: the dtype is not floating-point.
        ArgumentTypeError: ``key`` is not a key.

    Example:
        >>> nx.randn(2, 3).shape, nx.randn((2, 3)).shape
        ((2, 3), (2, 3))
        >>> import neurenix as nx
        >>> from flax import nnx
        >>> class Noise(nx.nn.Module):
        ...     def __init__(self):
        ...         self.rngs = nnx.Rngs(nx.random.next_key())
        ...     def __call__(self, x):
        ...         return x + nx.randn(*x.shape, key=self.rngs())
        >>> noise, x = nx.jit(Noise()), nx.zeros((2, 3))
        >>> bool((noise(x) == noise(x)).any())
        False
    """
    kind, key = _inexact("randn", dtype, jnp.inexact), _key("randn", key)
    return _drawn(
        lambda sizes: jax.random.normal(key, sizes, kind), key, sizes_of(shape), kind, device
    )


def rand(
    *shape: int | Sequence[int],
    dtype: Any = None,
    device: DeviceLike = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """Return samples of the uniform distribution over [0, 1).

    Arguments, and draws without ``key`` in a compiled function, as for :func:`randn`.

    Raises:
        ArgumentError: the dtype is not floating-point.
        ArgumentTypeError: ``key`` is not a key.

    Example:
        >>> import jax
        >>> bool((nx.rand(100) < 1).all())
        True
        >>> jax.jit(lambda key: nx.rand(2, 3, key=key))(nx.random.next_key()).shape
        (2, 3)
    """
    kind, key = _inexact("rand", dtype, jnp.floating), _key("rand", key)
    return _drawn(
        lambda sizes: jax.random.uniform(key, sizes, kind), key, sizes_of(shape), kind, device
    )


def randint(
    low: int,
    high: int,
    shape: Shape,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """Return random integers from ``low`` up to but excluding ``high``.

    Arguments, and draws without ``key`` in a compiled function, as for :func:`randn`.

    Raises:
        ArgumentTypeError: ``low`` or ``high`` is not an integer, or ``key`` is not a key.
        ArgumentError: ``low`` is not below ``high``, or the dtype is not an integer dtype.
        DataError: the dtype cannot hold the integers, or 32 bits cannot hold ``high``.

    Example:
        >>> import jax
        >>> int(nx.randint(3, 4, (1,))[0])
        3
        >>> jax.jit(lambda key: nx.randint(0, 9, (2,), key=key))(nx.random.next_key()).shape
        (2,)
    """
    kind = dtypes.dtype(dtype_beside_shape(dtype, "int32"))
    if not jnp.issubdtype(kind, jnp.integer):
        raise ArgumentError(f"randint(dtype=…) must be an integer dtype, got {kind}.")
    try:
        low, high = operator.index(low), operator.index(high)
    except TypeError as error:
        raise ArgumentTypeError(
            f"randint(low, high) takes whole numbers, got {low!r} and {high!r}."
        ) from error
    if low >= high:
        raise ArgumentError(f"randint(low, high) needs low < high, got {low} and {high}.")
    bounds = kind if kind.itemsize >= 4 else np.dtype("int32")  # high=256 does not fit uint8
    expect_held("randint", low, high - 1, kind)
    expect_held("randint(high)", low, high, bounds)
    minimum, maximum = np.array([low, high], bounds)
    key = _key("randint", key)

    def sample(sizes: tuple[int, ...]) -> jax.Array:
        return jax.random.randint(key, sizes, minimum, maximum, kind)

    return _drawn(sample, key, sizes_of(shape), kind, device)


def _drawn(
    sample: Callable[[tuple[int, ...]], jax.Array],
    key: jax.Array,
    sizes: tuple[int, ...],
    kind: np.dtype,
    device: DeviceLike,
) -> jax.Array:
    return placed(allocated(lambda: _cpu.drawn(sample, key, sizes), sizes, kind), device)


def _key(caller: str, key: Any) -> jax.Array:
    """Return ``key``, or the next key of the process if None.

    Raises:
        ArgumentTypeError: ``key`` is not a key.
    """
    if key is None:
        drawn = random.next_key()
        # Traced construction (``nnx.eval_shape``, a compiled initializer) draws once on purpose
        # and looks the same as a compiled step, so this warns instead of raising.
        if isinstance(drawn, Tracer):
            warnings.warn(
                f"{caller}() without a key inside a compiled function draws once, while it is "
                "compiled: every call, so every batch, gets the same numbers. Keep an nnx.Rngs in "
                "the module, as nn.Dropout does, and draw with its keys: self.rngs = "
                f"nnx.Rngs(nx.random.next_key()), and in __call__ nx.{caller}(…, "
                "key=self.rngs()). If one draw is intended, pass key=nx.random.next_key().",
                random.FrozenDrawWarning,
                stacklevel=3,
            )
        return drawn
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.ndim == 1
    if not raw and not (typed and key.ndim == 0):
        hint = " Call it: key=rngs()." if callable(key) else ""
        raise ArgumentTypeError(
            f"{caller}(key=…) takes one key, such as jax.random.key(0) or that of an nnx.Rngs, "
            f"rngs(); got {key!r:.80}.{hint}"
        )
    return key


def _inexact(caller: str, dtype: Any, family: Any) -> np.dtype:
    kind = dtypes.dtype(dtype or "float32")
    if not jnp.issubdtype(kind, family):
        raise ArgumentError(f"{caller}(dtype=…) must be a floating dtype, got {kind}.")
    return kind
