"""Explain the error of using an array that a compiled step donated.

Does not own the arrays of a module (``flat_modules.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from neurenix._core.errors import ArgumentError, NeurenixError

_GONE = re.compile("(array|buffer) has been (deleted|donated)", re.IGNORECASE)


@contextmanager
def gone_explained(user: str) -> Iterator[None]:
    """Replace JAX's error about a donated array by one that says what to do.

    Args:
        user: what runs in the ``with`` block, the subject of the message.

    Raises:
        ArgumentError: a donated array was used.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> kept = jnp.ones(3)
        >>> kept.delete()
        >>> with gone_explained("My callback"):
        ...     kept + 1
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentError: My callback uses an array that is gone: …
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        explain_gone(error, user)
        raise


def explain_gone(error: Exception, user: str) -> None:
    """Raise ArgumentError if ``error`` is JAX's error about a donated array."""
    if isinstance(error, NeurenixError) or not _GONE.search(str(error)):
        return
    raise ArgumentError(
        f"{user} uses an array that is gone: a training step was given it, and has reused its "
        "memory for the new weights. Keep a copy: jax.tree.map(jnp.copy, nnx.state(model)). "
        "A moving average of the weights is nx.callbacks.EMA."
    ) from error
