"""Arrays and files that several JAX processes hold in common.

Every function here is collective where other processes take part: all of them must call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import CheckpointError
from neurenix._jax import process_allgather


def is_shared(leaf: Any) -> bool:
    """Return whether other processes hold this array, or a part of it, too.

    Example:
        >>> is_shared(jax.numpy.ones(2)), is_shared(np.ones(2))
        (False, False)
    """
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def is_first() -> bool:
    """Return whether this process is the one that writes files."""
    return jax.process_index() == 0


def gathered(leaf: Any) -> np.ndarray:
    """Return the numbers of a whole array, on every process.

    Example:
        >>> gathered(jax.numpy.arange(3))
        array([0, 1, 2], dtype=int32)
    """
    if is_shared(leaf) and not leaf.is_fully_replicated:
        return np.asarray(process_allgather(leaf, tiled=True))
    return np.asarray(leaf)


def concatenated(batch: Any, *, axis: int = 0) -> Any:
    """Return the host batches of all processes, concatenated in their order, on every process."""
    shares = process_allgather(batch)
    return jax.tree.map(lambda leaf: np.concatenate(list(leaf), axis=axis), shares)


def by_first(write: Callable[[], None]) -> None:
    """Call ``write`` in process 0 while the others wait for its end.

    Raises:
        CheckpointError: in the others, if ``write`` raised in process 0, which raises that error.
    """
    failure: BaseException | None = None
    if is_first():
        try:
            write()
        except BaseException as error:
            failure = error
    failed = process_allgather(np.int32(failure is not None))
    if failure is not None:
        raise failure
    if failed.any():
        raise CheckpointError("Process 0 could not write the file; its own error says why.")
