"""Random numbers on a CPU, without a program of their own for each shape.

XLA compiles ``jax.random.uniform`` for 0.1 s, for some shapes of four axes for 1 s, and the
parameters of a small network have ten shapes. Owns how the numbers of all of them come from few
programs. It does not own keys (``neurenix.random``) nor distributions (``jax.random``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.core import Tracer

from neurenix._jax import trace_state_clean

_LEAST, _MOST = 2**12, 2**20
"""Numbers of the smallest and the largest program; 2**20 take 20 ms. Of more, as many as needed."""


def drawn(
    sample: Callable[[tuple[int, ...]], jax.Array], key: jax.Array, shape: Sequence[int]
) -> jax.Array:
    """Return ``sample(shape)``, by programs for a few sizes of one axis where that is possible.

    Where JAX's keys are partitionable, as they are by default, a number depends on its place in
    the order of memory and not on the shape: it is the same either way.

    Args:
        sample: draws from ``jax.random``, element by element, with ``key``.
        key: what it draws with.
        shape: of the numbers.

    Example:
        >>> key = jax.random.key(0)
        >>> numbers = drawn(lambda shape: jax.random.normal(key, shape), key, (3, 5))
        >>> bool((numbers == jax.random.normal(key, (3, 5))).all())
        True
    """
    shape, count = tuple(shape), math.prod(shape)
    if not count or not _by_place_on_cpu(key):
        return sample(shape)
    if count > _MOST:
        return sample((count,)).reshape(shape)
    size = max(_LEAST, 1 << (count - 1).bit_length())
    # By NumPy: JAX would compile the part and its copy, too, for each shape.
    part = np.asarray(sample((size,)))[:count].reshape(shape)
    return jax.device_put(part, may_alias=False)


def _by_place_on_cpu(key: jax.Array) -> bool:
    """Whether numbers are drawn here and now, on a CPU, and each depends on its place alone."""
    if isinstance(key, Tracer) or not trace_state_clean():
        return False
    by_place = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    return (
        by_place
        and str(jax.random.key_impl(key)) == "threefry2x32"
        and not key.committed
        and jax.sharding.get_abstract_mesh().empty
        and jax.default_backend() == "cpu"
    )
