"""Asynchronous transfers between the host and devices; PJRT copies the data."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import jax
import numpy as np

from neurenix._copy_host_arrays import owned
from neurenix._core.errors import ArgumentTypeError

T = TypeVar("T")


class Transfer(Generic[T]):
    """A transfer in progress. ``result()`` waits for it.

    Attributes:
        arrays: the pytree of ``jax.Array`` being transferred. To a device, these are the arrays on
            the device, which can be used in computations at once.
    """

    def __init__(self, arrays: T, *, to_host: bool) -> None:
        self.arrays = arrays
        self._to_host = to_host

    def done(self) -> bool:
        """Return whether the arrays are computed and, for a device, transferred."""
        return all(array.is_ready() for array in jax.tree.leaves(self.arrays))

    def result(self) -> T:
        """Wait for the transfer and return the arrays: NumPy arrays on the host, else JAX's."""
        if self._to_host:
            return jax.tree.map(np.asarray, self.arrays)
        return jax.block_until_ready(self.arrays)


def start_to_device(arrays: T, sharding: Any) -> Transfer[T]:
    """Start moving a pytree of arrays to a device or a ``Sharding``, or a pytree of them.

    NumPy arrays are copied first, so they can be overwritten at once.

    Raises:
        ArgumentTypeError: ``sharding`` has another type.
    """
    places = jax.tree.map(_place, sharding)
    return Transfer(jax.device_put(owned(arrays), places), to_host=False)


def _place(place: Any) -> Any:
    place = getattr(place, "jax_device", place)  # of a ``neurenix.Device``
    known = jax.sharding.Sharding | jax.sharding.PartitionSpec | jax.Device
    if not isinstance(place, known) and not hasattr(place, "sharding"):  # a JAX layout has one
        raise ArgumentTypeError(
            f'transfer(to=...) takes "host", a Sharding or a Device; got {place!r}.'
        )
    return place


def start_to_host(arrays: T) -> Transfer[T]:
    """Start moving a pytree of ``jax.Array``, sharded or not, to host memory.

    Raises:
        ArgumentTypeError: a leaf is not a ``jax.Array``, or is partly on another host.
    """
    leaves = jax.tree.leaves(arrays)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array):
            raise ArgumentTypeError(
                f"Only arrays on a device can be moved to the host; got {type(leaf).__name__}."
            )
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            raise ArgumentTypeError(
                "Part of this array is on devices of another host; gather it first with "
                "jax.experimental.multihost_utils.process_allgather."
            )
    for leaf in leaves:
        leaf.copy_to_host_async()
    return Transfer(arrays, to_host=True)
