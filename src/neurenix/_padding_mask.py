"""The padding mask of the current batch: which rows are examples and which are padding.

A training step sets it for layers that reduce over the batch; ``neurenix.train.batch`` pads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_examples: ContextVar[jax.Array | None] = ContextVar("neurenix_examples", default=None)


@contextmanager
def examples_among_rows(examples: jax.Array | None) -> Iterator[None]:
    """Set the padding mask while a module runs on a padded batch.

    Args:
        examples: bool (N,), False for padding rows; None if there are none.
    """
    token = _examples.set(examples)
    try:
        yield
    finally:
        _examples.reset(token)


def examples_of(x: jax.Array) -> jax.Array | None:
    """Return the mask as bool (N, 1, …) of ``x``'s rank, True for examples; None without padding.

    If ``x`` has another number of rows than the batch, all its rows count, and None is returned.

    Example:
        >>> import jax.numpy as jnp
        >>> with examples_among_rows(jnp.array([True, True, False])):
        ...     print(examples_of(jnp.zeros((3, 5))).shape, examples_of(jnp.zeros((6, 5))))
        (3, 1) None
    """
    examples = _examples.get()
    if examples is None or x.shape[:1] != examples.shape:
        return None
    return examples.reshape(-1, *[1] * (x.ndim - 1))
