"""What a function sees while it runs as one replica of several.

Owns the replica context and the averaging of losses. It does not own how replicas are started
(``run.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ShapeError, unknown_name
from neurenix.distribute.mesh import DATA_AXIS

_ACROSS: dict[str, Callable[..., Any]] = {
    "sum": jax.lax.psum,
    "mean": jax.lax.pmean,
    "max": jax.lax.pmax,
    "min": jax.lax.pmin,
}


class ReplicaContext:
    """The replica that is being computed, and how it talks to the others.

    Outside of ``strategy.run`` there is one replica, number 0, and every reduction returns its
    value.
    """

    def __init__(self, num_replicas_in_sync: int, *, axis: str | None) -> None:
        self.num_replicas_in_sync = num_replicas_in_sync
        self._axis = axis

    @property
    def replica_id(self) -> jax.Array:
        """Number of this replica, int32, from 0."""
        if self._axis is None:
            return jnp.int32(0)
        return jax.lax.axis_index(self._axis)

    def all_reduce(self, op: str, value: Any) -> Any:
        """Return the ``"sum"``, ``"mean"``, ``"max"`` or ``"min"`` of a tree over all replicas.

        Raises:
            UnknownNameError: ``op`` is none of these.
        """
        if op not in _ACROSS:
            raise unknown_name("reduction", op, _ACROSS)
        return value if self._axis is None else _ACROSS[op](value, self._axis)

    def all_gather(self, value: Any, *, axis: int = 0) -> Any:
        """Return the replicas' arrays concatenated along ``axis``, the same on every replica."""
        if self._axis is None:
            return value
        name = self._axis
        return jax.tree.map(lambda x: jax.lax.all_gather(x, name, axis=axis, tiled=True), value)


_ALONE = ReplicaContext(1, axis=None)
_current: ContextVar[ReplicaContext] = ContextVar("neurenix_replica_context", default=_ALONE)


def get_replica_context() -> ReplicaContext:
    """Return the context of the replica that is being computed.

    Example:
        >>> get_replica_context().num_replicas_in_sync
        1
    """
    return _current.get()


@contextmanager
def enter_replica(num_replicas_in_sync: int) -> Iterator[None]:
    """Make the code inside run as a replica along the data axis of a mesh."""
    token = _current.set(ReplicaContext(num_replicas_in_sync, axis=DATA_AXIS))
    try:
        yield
    finally:
        _current.reset(token)


def compute_average_loss(
    per_example_loss: jax.Array,
    sample_weight: jax.Array | None = None,
    *,
    global_batch_size: int | None = None,
) -> jax.Array:
    """Return this replica's part of the mean loss over the global batch.

    The parts of all replicas *sum* to the mean, and so do their gradients: that is what
    ``Optimizer.update`` does with the gradients inside ``strategy.run``.

    Args:
        per_example_loss: losses of this replica's examples, shape (N,) or (N, …).
        sample_weight: weights that broadcast with the losses.
        global_batch_size: examples of all replicas together; by default N times the replicas.

    Raises:
        ShapeError: the losses are a scalar.
        ArgumentError: ``global_batch_size`` is below 1.

    Example:
        >>> float(compute_average_loss(jnp.array([1.0, 3.0]), global_batch_size=4))
        1.0
    """
    if jnp.ndim(per_example_loss) == 0:
        raise ShapeError(
            "compute_average_loss: per_example_loss is a scalar. Give the loss of each example, "
            "shape (N,): the functions of nx.losses return that."
        )
    if sample_weight is not None:
        per_example_loss = per_example_loss * sample_weight
    if global_batch_size is None:
        replicas = get_replica_context().num_replicas_in_sync
        global_batch_size = per_example_loss.shape[0] * replicas
    elif isinstance(global_batch_size, (int, np.integer)) and global_batch_size < 1:
        raise ArgumentError(
            f"compute_average_loss: global_batch_size is {global_batch_size}, expected the number "
            "of examples of all replicas together, from 1."
        )
    rest = per_example_loss[0].size
    return jnp.sum(per_example_loss) / (global_batch_size * rest)
