"""Describe the arrays among a program's arguments: their roles and per-device shapes.

Owns the list before and after compiling, because the compiler shards uncommitted arrays.
``abstract_placement`` places arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from neurenix.compiler.abstract_placement import UnplacedSpec, axis_names, host_memory
from neurenix.compiler.hlo import Module


@dataclass(frozen=True)
class Leaf:
    """One array among the arguments: path, role, global shape and per-device shape.

    ``device_shape`` of random keys is that of their data, 32-bit integers. ``host_memory`` is JAX's
    name of the host memory that holds the array; it is empty for device memory. If ``is_unplaced``,
    the compiler shards the array. Until then ``device_shape`` is that of a placed argument of the
    same shape, or the global shape.
    """

    path: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    partition: tuple[Any, ...]
    device_shape: tuple[int, ...]
    host_memory: str = ""
    is_unplaced: bool = False

    @property
    def device_bytes(self) -> int:
        """Bytes of one device's shard in device memory, without padding."""
        return 0 if self.host_memory else self._share_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of one device's shard in host memory."""
        return self._share_bytes if self.host_memory else 0

    @property
    def _share_bytes(self) -> int:
        return math.ceil(math.prod(self.device_shape) * _bits(self.dtype) / 8)


def _bits(dtype: str) -> int:
    """Return the bits of a number; NumPy rounds smaller dtypes up to a byte.

    Example:
        >>> _bits("int4"), _bits("bfloat16"), _bits("key<fry>")
        (4, 16, 32)
    """
    if dtype.startswith("key<"):
        return 32
    narrow = re.match(r"u?int([24])$|float(4)", dtype)
    return int(narrow[1] or narrow[2]) if narrow else jax.numpy.dtype(dtype).itemsize * 8


def may_be_divided(args: Any, mesh: AbstractMesh) -> bool:
    """Return whether XLA may shard an uncommitted argument over the mesh.

    With explicit axes in the mesh of the trace, its type says that it is replicated.
    """
    explicit = any(kind == AxisType.Explicit for kind in mesh.axis_types)
    undecided = any(isinstance(leaf, UnplacedSpec) for leaf in jax.tree.leaves(args))
    return undecided and mesh.size > 1 and not explicit


def is_placed(leaf: Any) -> bool:
    """Return whether an argument is a committed array other than a scalar."""
    return bool(getattr(leaf, "shape", ())) and not isinstance(leaf, UnplacedSpec)


def whole(leaf: Any) -> Any:
    """Return the spec of an uncommitted array as that of a replicated one."""
    if not isinstance(leaf, UnplacedSpec):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)


def shard_shape(
    shape: Sequence[int], partition: Iterable[Any], axes: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the shape of one device's shard of an array.

    Example:
        >>> shard_shape((8, 12, 4), (None, ("a", "b")), {"a": 2, "b": 3})
        (8, 2, 4)
    """
    sizes = list(shape)
    for axis, names in enumerate(partition):
        sizes[axis] = -(-sizes[axis] // math.prod(axes[name] for name in axis_names(names)))
    return tuple(sizes)


def as_their_like(leaves: Iterable[Leaf]) -> tuple[Leaf, ...]:
    """Return the leaves, with each unplaced one sharded like a placed one of its shape.

    That is XLA's likely choice. Parameters take precedence, because state is built from them.
    """
    found = list(leaves)
    likes: dict[tuple[int, ...], tuple[int, ...]] = {}
    for leaf in sorted(found, key=lambda leaf: leaf.role != "parameters"):
        if not leaf.is_unplaced:
            likes.setdefault(leaf.shape, leaf.device_shape)
    return tuple(
        replace(leaf, device_shape=likes.get(leaf.shape, leaf.shape)) if leaf.is_unplaced else leaf
        for leaf in found
    )


def as_compiled(leaves: tuple[Leaf, ...], module: Module) -> tuple[Leaf, ...]:
    """Return the leaves, with the shardings that the compiler chose for unplaced ones."""
    entry = module.entry.parameters
    shapes = [entry[number].shapes for number in sorted(entry)]
    if len(shapes) == 1:  # many parameters become one tuple
        shapes = [(shape,) for shape in shapes[0]]
    if len(shapes) != len(leaves):
        return leaves
    return tuple(
        replace(leaf, device_shape=tuple(own[0].sizes)) if leaf.is_unplaced else leaf
        for leaf, own in zip(leaves, shapes, strict=True)
    )


def leaf_of(path: str, role: str, placed: jax.ShapeDtypeStruct, mesh: AbstractMesh) -> Leaf:
    """Describe an argument as it is traced."""
    if placed.sharding is None:
        sizes = tuple(placed.shape)
        return Leaf(path, role, sizes, str(placed.dtype), (), sizes, is_unplaced=True)
    partition = placed.sharding.spec
    held = tuple(placed.shape)
    if jax.numpy.issubdtype(placed.dtype, jax.dtypes.prng_key):
        held = tuple(jax.eval_shape(jax.random.key_data, placed).shape)
    return Leaf(
        path=path,
        role=role,
        shape=tuple(placed.shape),
        dtype=str(placed.dtype),
        partition=tuple(partition),
        device_shape=shard_shape(held, partition, mesh.shape),
        host_memory=host_memory(placed.sharding) or "",
    )
