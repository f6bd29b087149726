"""The replica context, and losses that are averaged over the global batch.

Does not own how replicas run (``run_replicas.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError, unknown_name
from neurenix.distribute.mesh import DATA_AXIS

_ACROSS: dict[str, Callable[..., Any]] = {
    "sum": jax.lax.psum,
    "mean": jax.lax.pmean,
    "max": jax.lax.pmax,
    "min": jax.lax.pmin,
}


class ReplicaContext:
    """The current replica and its collective operations.

    Outside ``strategy.run`` there is one replica, number 0, and a reduction returns its argument.
    """

    def __init__(self, num_replicas_in_sync: int, *, axis: str | None) -> None:
        self.num_replicas_in_sync = num_replicas_in_sync
        self._axis = axis

    @property
    def is_running(self) -> bool:
        """Whether this is the context of a function that ``strategy.run`` runs."""
        return self._axis is not None

    @property
    def replica_id(self) -> jax.Array:
        """Number of this replica, int32, from 0."""
        if self._axis is None:
            return jnp.int32(0)
        return jax.lax.axis_index(self._axis)

    def all_reduce(self, op: str, value: Any) -> Any:
        """Return the ``"sum"``, ``"mean"``, ``"max"`` or ``"min"`` of a tree over all replicas.

        Raises:
            UnknownNameError: unknown reduction.
        """
        if op not in _ACROSS:
            raise unknown_name("reduction", op, _ACROSS)
        return value if self._axis is None else _ACROSS[op](value, self._axis)

    def all_gather(self, value: Any, *, axis: int = 0) -> Any:
        """Return the arrays of all replicas concatenated along ``axis``; the result is replicated.

        Args:
            value: an array or a tree of arrays of rank 1 or more.
            axis: negative numbers count from the last axis.

        Raises:
            ShapeError: an array is a scalar.
            ArgumentError: an array has no such axis.
            ArgumentTypeError: ``axis`` is not an integer.
        """
        if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
            raise ArgumentTypeError(f"all_gather: axis is {axis!r}, expected a whole number.")

        def gather(x: Any) -> Any:
            rank = np.ndim(x)
            if rank == 0:
                raise ShapeError(
                    "all_gather: value is a scalar, which has no axis to concatenate along. Give "
                    "it one, value[None]: the result has one entry for each replica."
                )
            if not -rank <= axis < rank:
                raise ArgumentError(
                    f"all_gather: axis is {axis}, and a value has the axes 0 to {rank - 1}."
                )
            if self._axis is None:
                return x
            return jax.lax.all_gather(x, self._axis, axis=int(axis) % rank, tiled=True)

        return jax.tree.map(gather, value)


_ALONE = ReplicaContext(1, axis=None)
_current: ContextVar[ReplicaContext] = ContextVar("neurenix_replica_context", default=_ALONE)


def get_replica_context() -> ReplicaContext:
    """Return the context of the current replica.

    Example:
        >>> nx.distribute.get_replica_context().num_replicas_in_sync
        1
    """
    return _current.get()


@contextmanager
def enter_replica(num_replicas_in_sync: int) -> Iterator[None]:
    """Set the replica context to one along the data axis of a mesh."""
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

    The parts of all replicas *sum* to the mean, and so do their gradients. ``Optimizer.update``
    sums gradients inside ``strategy.run``.

    Args:
        per_example_loss: losses of this replica's examples, shape (N,) or (N, …).
        sample_weight: weights that match the leading axes of the losses: (N,) or (N, 1) for losses
            (N, T) is one weight per example, () one for all.
        global_batch_size: examples of all replicas; N times the number of replicas by default.

    Raises:
        ShapeError: the losses are a scalar, or the weights do not match them.
        ArgumentError: ``global_batch_size`` is below 1.
        ArgumentTypeError: ``global_batch_size`` is not a number.

    Example:
        >>> float(nx.distribute.compute_average_loss(nx.tensor([1.0, 3.0]), global_batch_size=4))
        1.0
    """
    per_example_loss = jnp.asarray(per_example_loss)
    if per_example_loss.ndim == 0:
        raise ShapeError(
            "compute_average_loss: per_example_loss is a scalar. Give the loss of each example, "
            "shape (N,): the functions of nx.losses return that."
        )
    if sample_weight is not None:
        per_example_loss = per_example_loss * _matched(sample_weight, per_example_loss.shape)
    if global_batch_size is None:
        replicas = get_replica_context().num_replicas_in_sync
        global_batch_size = per_example_loss.shape[0] * replicas
    elif not isinstance(global_batch_size, (Real, np.ndarray, jax.Array)):
        raise ArgumentTypeError(
            f"compute_average_loss: global_batch_size is {global_batch_size!r}, expected a whole "
            "number."
        )
    elif isinstance(global_batch_size, Real) and global_batch_size < 1:
        raise ArgumentError(
            f"compute_average_loss: global_batch_size is {global_batch_size}, expected the number "
            "of examples of all replicas together, from 1."
        )
    rest = math.prod(per_example_loss.shape[1:])
    return jnp.sum(per_example_loss) / (global_batch_size * rest)


def _matched(sample_weight: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return the weights with the rank of ``shape``, matched from the first axis."""
    weight = jnp.asarray(sample_weight)
    sizes = list(weight.shape)
    while len(sizes) > len(shape) and sizes[-1] == 1:
        sizes.pop()
    fits = len(sizes) <= len(shape) and all(
        size in (1, other) for size, other in zip(sizes, shape, strict=False)
    )
    if not fits:
        raise ShapeError(
            f"compute_average_loss: sample_weight has shape {weight.shape}, and the losses have "
            f"shape {shape}. Give one weight per example, shape {shape[:1]}."
        )
    return weight.reshape(*sizes, *(1 for _ in range(len(shape) - len(sizes))))
