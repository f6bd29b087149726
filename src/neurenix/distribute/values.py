"""``PerReplica``: one value for each replica, stored as one sharded array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError, unknown_name

_REDUCTIONS = {"sum": jnp.sum, "mean": jnp.mean, "max": jnp.max, "min": jnp.min}


class PerReplica:
    """One value, an array or a tree of arrays, for each replica.

    ``stacked`` holds the values with a leading axis of one entry per replica, sharded so that each
    device holds its own entry. Indexing returns the array on that device without a copy.

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
        """Return the value of one replica.

        Raises:
            IndexError: no such replica.
            ArgumentError: the replica belongs to another process.
        """
        if not -len(self) <= replica < len(self):
            raise IndexError(f"replica {replica} of {len(self)}")
        return jax.tree.map(lambda leaf: _entry(leaf, replica % len(self)), self.stacked)

    def __iter__(self) -> Iterator[Any]:
        return (self[replica] for replica in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Refuse conversion to one array.

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
        """The values of this process's replicas, in order."""
        return tuple(self[replica] for replica in range(len(self)) if self._is_here(replica))

    def _is_here(self, replica: int) -> bool:
        return all(
            getattr(leaf, "is_fully_addressable", True) or _shard(leaf, replica) is not None
            for leaf in jax.tree.leaves(self.stacked)
        )

    def __repr__(self) -> str:
        def text(replica: int) -> str:
            if not self._is_here(replica):
                return "of another process"
            return _text(
                jax.tree.map(
                    lambda leaf: np.array2string(np.asarray(leaf), separator=", "), self[replica]
                )
            )

        return "PerReplica{" + ", ".join(f"{i}: {text(i)}" for i in range(len(self))) + "}"


def stack_replicas(values: Sequence[Any], sharding: Sharding) -> PerReplica:
    """Return a ``PerReplica`` from one host value per replica of this process.

    Raises:
        ArgumentError: ``values`` is empty.
        ShapeError: the values have different shapes.
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
        if sharding.is_fully_addressable:
            return jax.device_put(np.stack(leaves), sharding)
        return jax.make_array_from_process_local_data(sharding, np.stack(leaves))

    return PerReplica(jax.tree.map(stack, *values))


def _entry(leaf: Any, replica: int) -> Any:
    shard = _shard(leaf, replica)
    if shard is not None:
        return shard
    if not getattr(leaf, "is_fully_addressable", True):
        raise ArgumentError(
            f"Replica {replica} runs in another process, and its value is there. strategy.reduce "
            "brings the values of all replicas together; value.values are those of this process."
        )
    return leaf[replica]


def _shard(leaf: Any, replica: int) -> jax.Array | None:
    """Return a replica's entry if a device of this process holds it, else None."""
    for shard in getattr(leaf, "addressable_shards", ()):
        first = shard.index[0]
        if (first.start, first.stop) == (replica, replica + 1):
            return shard.data[0]
    return None


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


def reduced(op: str, value: Any, axis: int | None) -> Any:
    """Reduce a tree of ``PerReplica`` values; see ``Strategy.reduce``."""
    if op not in _REDUCTIONS:
        raise unknown_name("reduction", op, _REDUCTIONS)

    def reduce_one(item: Any) -> Any:
        if not isinstance(item, PerReplica):
            raise ArgumentTypeError(
                f"strategy.reduce: expected PerReplica values, got {type(item).__name__}."
            )
        return jax.tree.map(
            lambda x: _REDUCTIONS[op](x, axis=_reduced_axes(axis, np.ndim(x))), item.stacked
        )

    return jax.tree.map(reduce_one, value, is_leaf=lambda item: isinstance(item, PerReplica))


def _reduced_axes(axis: int | None, ndim: int) -> tuple[int, ...]:
    """Return the axes of the stacked array, of rank ``ndim``, that ``reduced`` reduces."""
    if axis is None:
        return (0,)
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise ArgumentTypeError(f"strategy.reduce: axis is {axis!r}, expected a whole number.")
    own = ndim - 1
    if not -own <= axis < own:
        has = f"the axes 0 to {own - 1}" if own else "no axes; leave axis out"
        raise ArgumentError(f"strategy.reduce: axis is {axis}; each replica's value has {has}.")
    return (0, int(axis) % own + 1)
