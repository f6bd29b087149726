"""The mesh of devices and where arrays lie on it.

Owns the names of the mesh axes and the placement of whole trees. It does not own the strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

DATA_AXIS = "data"


def data_mesh(devices: Sequence[jax.Device]) -> Mesh:
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


def place(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Put every array of ``tree`` where ``sharding`` says; asynchronous."""
    return jax.device_put(tree, sharding)
