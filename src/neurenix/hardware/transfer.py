"""Moving arrays between the host and the devices without waiting for it.

Owns one class: a move that is under way. PJRT does the copying.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import numpy as np

from neurenix._copy_host_arrays import owned
from neurenix._core.errors import ArgumentTypeError

T = TypeVar("T")


class Transfer(Generic[T]):
    """A move that was started. ``result()`` waits for it.

    Attributes:
        arrays: the pytree of ``jax.Array`` that is being moved; on its way to a device these are
            the arrays there, and may be used in computations at once.
    """

    def __init__(self, arrays: T, *, to_host: bool) -> None:
        self.arrays = arrays
        self._to_host = to_host

    def done(self) -> bool:
        """Return whether the arrays are computed, and, on their way to a device, there."""
        return all(array.is_ready() for array in jax.tree.leaves(self.arrays))

    def result(self) -> T:
        """Wait for the move, and return the arrays: NumPy's on the host, else JAX's."""
        if self._to_host:
            return jax.tree.map(np.asarray, self.arrays)
        return jax.block_until_ready(self.arrays)


def start_to_device(arrays: T, sharding: Any) -> Transfer[T]:
    """Start moving a pytree of arrays to a device or a ``Sharding``, or a pytree of them.

    NumPy's may be filled again at once: what moves is a copy.

    Raises:
        ArgumentTypeError: it is something else.
    """
    places = jax.tree.map(_place, sharding)
    return Transfer(jax.device_put(owned(arrays), places), to_host=False)


def _place(place: Any) -> Any:
    place = getattr(place, "jax_device", place)  # of a ``neurenix.Device``
    known = jax.sharding.Sharding | jax.sharding.PartitionSpec | jax.Device
    if not isinstance(place, known) and not hasattr(place, "sharding"):  # as a layout has one
        raise ArgumentTypeError(
            f'transfer(to=...) takes "host", a Sharding or a Device; got {place!r}.'
        )
    return place


def start_to_host(arrays: T) -> Transfer[T]:
    """Start moving a pytree of ``jax.Array``, sharded or not, into the memory of the host.

    Raises:
        ArgumentTypeError: a leaf is not a ``jax.Array``, or part of it lies on another host.
    """
    leaves = jax.tree.leaves(arrays)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array):
            raise ArgumentTypeError(
                f"Only arrays on a device can be moved to the host; got {type(leaf).__name__}."
            )
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            raise ArgumentTypeError(
                "Part of this array lies on devices of another host; gather it first with "
                "jax.experimental.multihost_utils.process_allgather."
            )
    for leaf in leaves:
        leaf.copy_to_host_async()
    return Transfer(arrays, to_host=True)
