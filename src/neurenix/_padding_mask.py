"""Which rows of a batch are examples, and which were added to fill it up.

Owns the context that a training step gives to the layers that look over a whole batch. It does
not fill anything up (``neurenix.train.batch``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_examples: ContextVar[jax.Array | None] = ContextVar("neurenix_examples", default=None)


@contextmanager
def examples_among_rows(examples: jax.Array | None) -> Iterator[None]:
    """Run a module on a batch of which only some rows are examples.

    Args:
        examples: bool, shape (N,), False for rows that were added; None if none was.
    """
    token = _examples.set(examples)
    try:
        yield
    finally:
        _examples.reset(token)


def examples_of(x: jax.Array) -> jax.Array | None:
    """Return bool (N, 1, …), of ``x``'s rank, which of its rows are examples; None if all are.

    An ``x`` with another number of rows than the batch has is no batch: all its rows count.

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
