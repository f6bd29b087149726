"""Device meshes, and the shardings of batches and replicated arrays.

Owns the names of the mesh axes. Does not own the strategies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from neurenix._core.errors import ArgumentTypeError, ShapeError, unknown_name
from neurenix._jax import create_device_mesh

DATA_AXIS = "data"
BATCH_AXES = ("data", "fsdp")
"""Mesh axes that shard a batch. FSDP shards parameters *and* batch."""
MESH_AXES = ("data", "fsdp", "tensor")
"""Mesh axes of strategies."""


def check_axes(mesh: Any) -> dict[str, int]:
    """Return the names and sizes of a mesh's axes.

    Raises:
        ArgumentTypeError: ``mesh`` is not a mapping from names to positive integers.

    Example:
        >>> check_axes({"data": 2, "fsdp": 4})
        {'data': 2, 'fsdp': 4}
    """
    if not isinstance(mesh, Mapping) or not all(
        isinstance(name, str)
        and isinstance(size, int | np.integer)
        and not isinstance(size, bool)
        and size >= 1
        for name, size in mesh.items()
    ):
        raise ArgumentTypeError(
            f"A mesh is axis names and sizes, whole numbers from 1, such as "
            f'{{"data": 2, "fsdp": 4}}; got {mesh!r}.'
        )
    return {name: int(size) for name, size in mesh.items()}


def data_mesh(devices: Sequence[Any]) -> Mesh:
    """Return a mesh of ``devices`` with one axis, ``"data"``."""
    return Mesh(np.array(devices), (DATA_AXIS,), axis_types=(AxisType.Auto,))


def device_mesh(devices: Sequence[Any], axes: Mapping[str, int]) -> Mesh:
    """Return a mesh of ``devices`` whose neighbours on an axis are neighbours on ICI.

    Args:
        devices: their number is the product of the sizes.
        axes: names and sizes, slowest first.
    """
    sizes = tuple(axes.values())
    grid = create_device_mesh(sizes, list(devices))
    return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(sizes))


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Return the sharding of a replicated array."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharded(mesh: Mesh | AbstractMesh, *, leading: int = 0) -> NamedSharding:
    """Return the sharding of a batch whose axis ``leading`` is sharded over the replicas."""
    axes = tuple(axis for axis in BATCH_AXES if axis in mesh.shape)
    entry = axes[0] if len(axes) == 1 else axes or None
    return NamedSharding(mesh, PartitionSpec(*([None] * leading), entry))


def replicas_of(mesh: Mesh | AbstractMesh) -> int:
    """Return the number of shards of a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES if axis in mesh.shape)


def known_mesh(sharding: jax.sharding.Sharding | None) -> AbstractContextManager[Any]:
    """Return a context that gives traced code the mesh of ``sharding``, if it has one.

    A kernel that XLA cannot partition, such as a TPU's attention, needs the mesh to shard its work.
    """
    if isinstance(sharding, NamedSharding):
        return jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh)
    return nullcontext()


def place(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Transfer every array of ``tree`` to ``sharding``, asynchronously."""
    return jax.device_put(tree, sharding)


def axes_over(mesh: Mapping[str, int], num_devices: int) -> dict[str, int]:
    """Return the names and sizes of the axes of a strategy's mesh.

    Raises:
        UnknownNameError: unknown axis name.
        ShapeError: the product of the sizes is not the number of devices.
    """
    axes = check_axes(mesh)
    unknown = set(axes) - set(MESH_AXES)
    if unknown:
        raise unknown_name("mesh axis", min(unknown), MESH_AXES)
    places = math.prod(axes.values())
    if places != num_devices:
        raise ShapeError(
            f"The mesh {axes} has {places} places, and there are {num_devices} devices. Its sizes "
            "must multiply to the number of devices."
        )
    return axes
