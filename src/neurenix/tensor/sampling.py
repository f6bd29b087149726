"""Making tensors of random numbers.

Owns the check of keys, and the word on numbers that a compiled function would draw once for ever.
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
    """Return numbers of the standard normal distribution.

    Without ``key`` they are of the process's stream. In a compiled function, so in a module that
    ``fit``, ``predict`` or ``nx.jit`` runs, that stream is asked once, while the function is
    compiled: every batch gets the same numbers, and a ``neurenix.random.FrozenDrawWarning`` says
    so. There keep an ``nnx.Rngs`` in the module and draw with its keys, as the example does.
    (``evaluate`` and ``predict`` leave a module's state as it was, that stream with it: there the
    keys, and the numbers, are those of the first batch for every batch.)

    Args:
        shape: sizes, or one sequence of them.
        dtype: of floats; float32 by default.
        device: where to put them.
        key: a key of ``jax.random.key`` or of an ``nnx.Rngs``; one of the process's by default.

    Raises:
        ArgumentError: the dtype is none of floats.
        ArgumentTypeError: ``key`` is no key.

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
    """Return numbers evenly distributed over [0, 1).

    Without ``key`` they are of the process's stream, and in a compiled function the same at every
    call; see :func:`randn`, also for the arguments.

    Raises:
        ArgumentError: the dtype is none of floats.
        ArgumentTypeError: ``key`` is no key.

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
    """Return integers from ``low`` up to, without, ``high``.

    Without ``key`` they are of the process's stream, and in a compiled function the same at every
    call; see :func:`randn`.

    Raises:
        ArgumentTypeError: ``low`` or ``high`` is no whole number, or ``key`` is no key.
        ArgumentError: no integer lies between, or the dtype is none of integers.
        DataError: the dtype cannot hold the integers; 32 bits must hold ``high``, too.

    Example:
        >>> import jax
        >>> int(nx.randint(3, 4, (1,))[0])
        3
        >>> jax.jit(lambda key: nx.randint(0, 9, (2,), key=key))(nx.random.next_key()).shape
        (2,)
    """
    kind = dtypes.dtype(dtype_beside_shape(dtype, "int32"))
    if not jnp.issubdtype(kind, jnp.integer):
        raise ArgumentError(f"randint(dtype=…) is a type of integers, got {kind}.")
    try:
        low, high = operator.index(low), operator.index(high)
    except TypeError as error:
        raise ArgumentTypeError(
            f"randint(low, high) takes whole numbers, got {low!r} and {high!r}."
        ) from error
    if low >= high:
        raise ArgumentError(f"randint(low, high) needs low < high, got {low} and {high}.")
    bounds = kind if kind.itemsize >= 4 else np.dtype("int32")  # 256, of uint8, fits no uint8
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
    """Return the key to draw with: the one given, or the next of the process.

    Raises:
        ArgumentTypeError: what was given is no key.
    """
    if key is None:
        drawn = random.next_key()
        # Traced construction (``nnx.eval_shape``, a compiled initialiser) draws once on purpose,
        # and cannot be told from a step that is being compiled: so this is no error.
        if isinstance(drawn, Tracer):
            warnings.warn(
                f"{caller}() without a key inside a compiled function draws once, while it is "
                "compiled: every call, so every batch, gets the same numbers. Keep an nnx.Rngs in "
                "the module, as nn.Dropout does, and draw with its keys: self.rngs = "
                f"nnx.Rngs(nx.random.next_key()), and in __call__ nx.{caller}(…, "
                "key=self.rngs()). Where once is meant, pass key=nx.random.next_key().",
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
        raise ArgumentError(f"{caller}(dtype=…) is a type of floats, got {kind}.")
    return kind
