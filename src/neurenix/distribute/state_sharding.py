"""The sharding of every array of a training state.

Applies the rules for parameters to any tree that holds parameters, or arrays of the same paths and
shapes such as an optimizer's moments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from neurenix.distribute.mesh import BATCH_AXES, replicated
from neurenix.distribute.rules import ShardingRules, shard_largest


class Placement:
    """The shardings of one model's state on one mesh.

    Args:
        mesh: concrete or abstract.
        parameters: tree of the model's parameters (arrays or shapes).
        rules: for parameters; by default ``"fsdp"`` shards the largest axis of each.

    Attributes:
        divides: whether any array may be sharded.

    Example:
        >>> import jax.numpy as jnp
        >>> weights = {"kernel": jnp.ones((16, 4)), "bias": jnp.ones(3)}
        >>> placed = Placement(jax.sharding.AbstractMesh((8,), ("fsdp",)), weights)
        >>> moment = placed.shardings({"mu": weights, "count": jnp.int32(0)})["mu"]["kernel"]
        >>> tuple(moment.spec)
        ('fsdp', None)
    """

    def __init__(
        self, mesh: Mesh | AbstractMesh, parameters: Any, rules: ShardingRules | None = None
    ) -> None:
        self.mesh = mesh
        axes = dict(mesh.shape)
        self.divides = any(size > 1 for name, size in axes.items() if name != BATCH_AXES[0])
        partition: Callable[..., PartitionSpec] = rules.partition if rules else shard_largest
        self._known: dict[tuple[str, ...], tuple[tuple[int, ...], PartitionSpec]] = {}
        if self.divides:
            for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
                names = _names(path)
                shape = tuple(leaf.shape)
                self._known[names] = (shape, partition(".".join(names), shape, axes))

    def shardings(self, tree: Any) -> Any:
        """Return a sharding for each leaf of ``tree``, or one for all if nothing is sharded.

        A leaf has the sharding of the parameter whose path is a suffix of the leaf's path, if their
        shapes are equal. Any other leaf is replicated.
        """
        whole = replicated(self.mesh)
        if not self.divides:
            return whole
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: self._of(_names(path), tuple(leaf.shape), whole), tree
        )

    def _of(
        self, names: tuple[str, ...], shape: tuple[int, ...], whole: NamedSharding
    ) -> NamedSharding:
        for begin in range(len(names)):
            known = self._known.get(names[begin:])
            if known is not None:
                return NamedSharding(self.mesh, known[1]) if known[0] == shape else whole
        return whole


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
