"""Describe how arrays are sharded: specs, abstract meshes and the shardings of arguments.

It does not trace (``program``); ``meshes`` finds the meshes that a user has built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec,
)

from neurenix._core.errors import ArgumentTypeError, ShapeError

HOST_MEMORIES = ("pinned_host", "unpinned_host")


class PartitionedSpec(jax.ShapeDtypeStruct):
    """A ``jax.ShapeDtypeStruct`` with a partition for a mesh that is not yet known."""

    __slots__ = ("partition",)

    def __init__(self, shape: tuple[int, ...], dtype: Any, partition: PartitionSpec) -> None:
        super().__init__(shape, dtype)
        self.partition = partition


class UnplacedSpec(jax.ShapeDtypeStruct):
    """A ``jax.ShapeDtypeStruct`` of an uncommitted array, which the compiler may shard."""

    __slots__ = ()


def unplaced(leaf: Any) -> Any:
    """Return the spec of an uncommitted array; return everything else unchanged.

    ``jax.jit`` lets the compiler shard such arguments if others are sharded: NumPy arrays, and JAX
    arrays created without a device. Random keys and scalars are not sharded.

    Example:
        >>> unplaced(jax.numpy.ones((4, 2)))
        UnplacedSpec(shape=(4, 2), dtype=float32)
    """
    if not isinstance(leaf, (np.ndarray, jax.Array)):
        return leaf
    key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    if not leaf.shape or key or getattr(leaf, "committed", False):
        return leaf
    weak = getattr(leaf, "weak_type", False)
    return UnplacedSpec(leaf.shape, leaf.dtype, weak_type=weak)


def spec(
    shape: Sequence[int],
    dtype: Any = "float32",
    *,
    partition: Sequence[str | tuple[str, ...] | None] | None = None,
) -> jax.ShapeDtypeStruct:
    """Describe an array by shape and dtype, without allocating it.

    Args:
        shape: global shape.
        dtype: name or dtype of the elements.
        partition: for each leading array axis, the mesh axis that shards it, a tuple of mesh axes,
            or ``None``. By default the array is replicated. The mesh of a preflight has one axis,
            ``"data"``, unless ``mesh=`` is given.

    Raises:
        ShapeError: a size is negative or not an integer.
        ArgumentTypeError: the dtype is unknown, or the shape or the partition is not a sequence.

    Example:
        >>> nx.spec((4096, 128), "bfloat16")
        ShapeDtypeStruct(shape=(4096, 128), dtype=bfloat16)
    """
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ArgumentTypeError(
            f"nx.spec: a shape is a sequence of sizes, such as (8,) or (8, 128); got {shape!r}."
        )
    sizes = tuple(shape)
    if not all(isinstance(size, (int, np.integer)) and size >= 0 for size in sizes):
        raise ShapeError(f"A shape is a sequence of sizes of 0 or more; got {sizes!r}.")
    try:
        resolved = jax.numpy.dtype(dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"Unknown dtype {dtype!r}.") from error
    if partition is None:
        return jax.ShapeDtypeStruct(sizes, resolved)
    if isinstance(partition, str) or not isinstance(partition, Iterable):
        named = partition if isinstance(partition, str) else "data"
        raise ArgumentTypeError(
            "nx.spec: a partition names a mesh axis or None for each axis of the array, such as "
            f'partition=("{named}",); got {partition!r}.'
        )
    entries = tuple(partition)
    for entry in entries:
        names = entry if isinstance(entry, (tuple, list)) else (entry,)
        if entry is not None and not all(isinstance(name, str) for name in names):
            raise ArgumentTypeError(
                "nx.spec: an axis is divided by one mesh axis or a tuple of them, or by None; got "
                f"{entry!r} in partition={entries!r}."
            )
    return PartitionedSpec(sizes, resolved, PartitionSpec(*entries))


def abstract_mesh(
    axes: Mapping[str, int], device_kind: str = "", explicit: Iterable[str] = ()
) -> AbstractMesh:
    """Return a mesh of abstract devices, or of TPUs of a known kind.

    Axes in ``explicit`` have ``AxisType.Explicit``: the types of arrays carry their sharding.

    Example:
        >>> abstract_mesh({"data": 8}, "TPU v3").abstract_device.device_kind
        'TPU v3'
    """
    device = AbstractDevice(device_kind, None, "tpu") if device_kind else None
    named = frozenset(explicit)
    types = tuple(AxisType.Explicit if name in named else AxisType.Auto for name in axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types, abstract_device=device)


def place(leaf: Any, path: str, mesh: AbstractMesh) -> jax.ShapeDtypeStruct:
    """Return the abstract value to trace for an argument, sharded over ``mesh``.

    Arrays in host memory stay there. An ``UnplacedSpec`` gets no sharding.

    Raises:
        ArgumentTypeError: the argument is not an array, a ``spec`` or a number.
        ShapeError: the mesh lacks an axis of the partition, or does not divide the shape.
    """
    if isinstance(leaf, (bool, int, float, complex)):
        leaf = jax.typeof(leaf)
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise ArgumentTypeError(
            f"Argument {path} is a {type(leaf).__name__}; arguments are arrays or "
            "nx.spec(shape, dtype)."
        )
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, PartitionedSpec):
        partition = leaf.partition
    else:
        partition = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
    _check_divides(tuple(leaf.shape), partition, path, dict(mesh.shape))
    key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    laid = NamedSharding(mesh, partition, memory_kind=host_memory(sharding))
    return jax.ShapeDtypeStruct(
        tuple(leaf.shape),
        leaf.dtype if key else jax.dtypes.canonicalize_dtype(leaf.dtype),
        sharding=None if isinstance(leaf, UnplacedSpec) else laid,
        weak_type=getattr(leaf, "weak_type", False),
    )


def host_memory(sharding: Any) -> str | None:
    """Return the host memory kind that a sharding names, or ``None`` for device memory.

    Device memory has several names; that of a CPU array is one of them.

    Example:
        >>> mesh = abstract_mesh({"data": 1})
        >>> host_memory(NamedSharding(mesh, PartitionSpec(), memory_kind="pinned_host"))
        'pinned_host'
        >>> host_memory(NamedSharding(mesh, PartitionSpec(), memory_kind="device"))
    """
    kind = getattr(sharding, "memory_kind", None)
    return kind if kind in HOST_MEMORIES else None


def _check_divides(
    shape: tuple[int, ...], partition: PartitionSpec, path: str, axes: dict[str, int]
) -> None:
    if len(partition) > len(shape):
        raise ShapeError(
            f"Argument {path} of shape {shape} has a partition of {len(partition)} axes."
        )
    named = [name for names in partition for name in axis_names(names)]
    if twice := [name for name in named if named.count(name) > 1]:
        raise ShapeError(
            f"Argument {path} of shape {shape} is divided over the mesh axis {twice[0]!r} twice."
        )
    for size, names in zip(shape, partition, strict=False):
        for name in axis_names(names):
            if name not in axes:
                raise ShapeError(
                    f"Argument {path} is divided over the mesh axis {name!r}; the mesh has "
                    f"{', '.join(f'{k}={v}' for k, v in axes.items())}. Name another with the "
                    f"sizes of its axes: mesh={{{', '.join(f'{own!r}: …' for own in named)}}}, or "
                    f"--mesh {','.join(f'{own}=…' for own in named)} on the command line."
                )
        parts = math.prod(axes[name] for name in axis_names(names))
        if size % parts:
            near = max(parts, size - size % parts)
            raise ShapeError(
                f"Argument {path} of shape {shape} cannot be divided: {size} over {parts} devices "
                f"leaves {size % parts}. Use a multiple of {parts}, such as {near}."
            )


def axis_names(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes in one entry of a partition.

    Example:
        >>> axis_names(None), axis_names("data"), axis_names(("data", "fsdp"))
        ((), ('data',), ('data', 'fsdp'))
    """
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
