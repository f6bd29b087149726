"""The mesh of devices and where arrays lie on it.

Owns the names of the mesh axes and the placement of whole trees. It does not own the strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

DATA_AXIS = "data"


def data_mesh(devices: Sequence[Any]) -> Mesh:
    """Return a one-axis mesh over ``devices``: every device takes a share of the batch."""
    return Mesh(np.array(devices), (DATA_AXIS,), axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Return the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharded(mesh: Mesh | AbstractMesh, *, leading: int = 0) -> NamedSharding:
    """Return the sharding of a batch: its axis number ``leading`` is split over the replicas."""
    return NamedSharding(mesh, PartitionSpec(*([None] * leading), DATA_AXIS))


def replicas_of(mesh: Mesh | AbstractMesh) -> int:
    """Return the number of shares that a batch is split into."""
    return mesh.shape[DATA_AXIS]


def known_mesh(sharding: jax.sharding.Sharding | None) -> AbstractContextManager[Any]:
    """Let code that is traced inside see the mesh of ``sharding``, if it has one.

    A kernel that XLA cannot divide by itself, such as a TPU's attention, is used only where the
    mesh is known: it then divides its work over it.
    """
    if isinstance(sharding, NamedSharding):
        return jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh)
    return nullcontext()


def place(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Put every array of ``tree`` where ``sharding`` says; asynchronous."""
    return jax.device_put(tree, sharding)
