"""``PerReplica``: one value for each replica, as one sharded array.

Owns the container and how it prints. It does not own how replicas compute (``run.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError


class PerReplica:
    """The values that the replicas hold of one quantity, an array or a tree of arrays.

    Behind it stands one array with a leading axis of one entry per replica, laid out so that each
    device holds its own entry; indexing gives the array on that device, without a copy.

    Example:
        >>> values = nx.distribute.PerReplica(nx.arange(2.0))
        >>> values
        PerReplica{0: 0., 1: 1.}
        >>> float(values[1])
        1.0
    """

    def __init__(self, stacked: Any) -> None:
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(stacked)}
        if len(sizes) != 1 or () in sizes:
            raise ShapeError(
                "PerReplica: every array needs one leading axis with an entry per replica, "
                f"found leading sizes {sorted(sizes)}."
            )
        self.stacked = stacked

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.stacked)[0])

    def __getitem__(self, replica: int) -> Any:
        if not -len(self) <= replica < len(self):
            raise IndexError(f"replica {replica} of {len(self)}")
        return jax.tree.map(lambda leaf: _entry(leaf, replica % len(self)), self.stacked)

    def __iter__(self) -> Iterator[Any]:
        return (self[replica] for replica in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Refuse to be one array: NumPy would stack some of the values, or take them apart.

        Raises:
            ArgumentTypeError: always.
        """
        raise ArgumentTypeError(
            "A PerReplica is one value for each replica, not one array. strategy.reduce(op, value) "
            "makes one of them; value[i] is that of replica i, and value.stacked holds all of "
            f"them, with a leading axis of {len(self)}."
        )

    @property
    def values(self) -> tuple[Any, ...]:
        """The value of each replica, in order."""
        return tuple(self)

    def __repr__(self) -> str:
        host = jax.tree.map(np.asarray, self.stacked)
        rows = (
            jax.tree.map(lambda leaf, i=i: np.array2string(leaf[i], separator=", "), host)
            for i in range(len(self))
        )
        return "PerReplica{" + ", ".join(f"{i}: {_text(row)}" for i, row in enumerate(rows)) + "}"


def stack_replicas(values: Sequence[Any], sharding: Sharding) -> PerReplica:
    """Return ``PerReplica`` of one host value per replica, each on its replica's device.

    Raises:
        ShapeError: the replicas' values have different shapes.
    """
    if not values:
        raise ArgumentError("PerReplica needs one value for each replica, got none.")

    def stack(*leaves: Any) -> jax.Array:
        shapes = {np.shape(leaf) for leaf in leaves}
        if len(shapes) > 1:
            raise ShapeError(
                f"The replicas' batches have different shapes: {sorted(shapes)}. Every replica "
                "needs the same one: batch with drop_remainder=True, or pad the last batch."
            )
        return jax.device_put(np.stack(leaves), sharding)

    return PerReplica(jax.tree.map(stack, *values))


def _entry(leaf: Any, replica: int) -> Any:
    for shard in getattr(leaf, "addressable_shards", ()):
        first = shard.index[0]
        if (first.start, first.stop) == (replica, replica + 1):
            return shard.data[0]
    return leaf[replica]


def _text(row: Any) -> str:
    return row if isinstance(row, str) else repr(row).replace("'", "")


jax.tree_util.register_pytree_node(
    PerReplica,
    lambda value: ((value.stacked,), None),
    lambda _, children: _unflatten(children[0]),
)


def _unflatten(stacked: Any) -> PerReplica:
    value = object.__new__(PerReplica)
    value.stacked = stacked
    return value
