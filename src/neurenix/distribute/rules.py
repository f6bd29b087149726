"""Sharding rules for parameters, and sharding constraints on values inside a model.

A rule maps ``(path, shape)`` to a ``PartitionSpec``. Axes that a mesh does not have are ignored, so
one set of rules serves data parallelism, FSDP and tensor parallelism.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from neurenix._core.errors import ArgumentError, ArgumentTypeError, unknown_name
from neurenix.distribute.mesh import MESH_AXES

Axes = str | tuple[str, ...] | None
Rule = tuple[str, Sequence[Axes]]


@dataclass(frozen=True)
class ShardingRules:
    """Ordered rules. The first rule whose pattern matches a path applies.

    Attributes:
        rules: pairs of a regular expression that searches the dotted path of a parameter
            (``"layers.attention.query.kernel"``) and, for each axis of the array, the mesh axis or
            axes that shard it, or None. A rule with fewer axes than the array applies to the
            array's *last* axes.

    Raises:
        ArgumentTypeError: a rule is not such a pair.
        UnknownNameError: unknown mesh axis.
        ArgumentError: a rule names a mesh axis twice, or its pattern is not a regular expression.

    Example:
        >>> rules = nx.distribute.ShardingRules((("kernel$", ("fsdp", "tensor")),))
        >>> tuple(rules.partition("layers.0.mlp.kernel", (512, 2048), {"fsdp": 8}))
        ('fsdp', None)
    """

    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        for rule in self.rules:
            _check(rule)

    def partition(
        self, path: str, shape: tuple[int, ...], axes: Mapping[str, int]
    ) -> PartitionSpec:
        """Return the partition of an array, replicated if no rule applies.

        An axis is not sharded if the mesh axes do not divide its size.

        Args:
            path: dotted path of the parameter.
            shape: its shape.
            axes: names and sizes of the mesh's axes.

        Raises:
            ArgumentError: a rule has more axes than the array.
        """
        for pattern, wanted in self.rules:
            if re.search(pattern, path) is None:
                continue
            if len(wanted) > len(shape):
                raise ArgumentError(
                    f"The sharding rule {pattern!r} has {len(wanted)} axes, and {path} has the "
                    f"shape {shape}."
                )
            padded = (None,) * (len(shape) - len(wanted)) + tuple(wanted)
            return PartitionSpec(
                *(_dividing(entry, size, axes) for entry, size in zip(padded, shape, strict=True))
            )
        return PartitionSpec()

    def __add__(self, other: ShardingRules) -> ShardingRules:
        return ShardingRules(self.rules + other.rules)


def _check(rule: Any) -> None:
    pair = rule if isinstance(rule, tuple | list) and len(rule) == 2 else (None, None)
    pattern, axes = pair
    if not isinstance(pattern, str) or not isinstance(axes, tuple | list):
        raise ArgumentTypeError(
            "A sharding rule is a pattern and the mesh axes of an array's axes, such as "
            f'("kernel$", ("fsdp", None)); got {rule!r}.'
        )
    for name in _named(axes, f"The sharding rule {pattern!r}"):
        if name not in MESH_AXES:
            raise unknown_name("mesh axis", str(name), MESH_AXES)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ArgumentError(
            f"The pattern {pattern!r} of a sharding rule is no regular expression: {error}."
        ) from error


def _named(axes: Sequence[Any], by: str) -> list[Any]:
    """Return the mesh axes in a partition.

    Raises:
        ArgumentError: a mesh axis occurs twice.
    """
    named: list[Any] = []
    for entry in axes:
        for name in entry if isinstance(entry, tuple | list) else (entry,):
            if name in named:
                raise ArgumentError(
                    f"{by} names the mesh axis {name!r} twice, and a mesh axis divides one axis of "
                    "an array. Name it once, with None for the others."
                )
            if name is not None:
                named.append(name)
    return named


def as_rules(rules: ShardingRules | Sequence[Rule]) -> ShardingRules:
    """Return rules as ``ShardingRules``.

    Raises:
        ArgumentTypeError: ``rules`` is not a sequence of rules.

    Example:
        >>> as_rules([("bias$", (None,))])
        ShardingRules(rules=(('bias$', (None,)),))
    """
    if isinstance(rules, ShardingRules):
        return rules
    if not isinstance(rules, Sequence):
        raise ArgumentTypeError(
            f"Sharding rules are a list of them, or ShardingRules; got {type(rules).__name__}."
        )
    return ShardingRules(tuple(rules))


def shard_largest(path: str, shape: tuple[int, ...], axes: Mapping[str, int]) -> PartitionSpec:
    """Shard the largest axis whose size ``"fsdp"`` divides: the default of FSDP.

    Example:
        >>> tuple(shard_largest("kernel", (3, 512), {"fsdp": 8}))
        (None, 'fsdp')
    """
    del path
    parts = axes.get("fsdp", 1)
    fitting = [i for i, size in enumerate(shape) if parts > 1 and size % parts == 0]
    if not fitting:
        return PartitionSpec()
    chosen = max(fitting, key=lambda i: shape[i])
    return PartitionSpec(*("fsdp" if i == chosen else None for i in range(len(shape))))


def constrain(value: jax.Array, *axes: Axes) -> jax.Array:
    """Constrain the sharding of a value inside a model.

    Args:
        value: an array.
        *axes: for each axis of ``value`` the mesh axis or axes, or None. Axes that the mesh does
            not have, or that do not divide the size, are ignored. Without a mesh, ``value`` is
            returned unchanged.

    Raises:
        ArgumentError: a mesh axis is named twice, or the number of axes is not the rank.

    Example:
        >>> nx.distribute.constrain(nx.ones((8, 4)), ("data", "fsdp"), None).shape
        (8, 4)
    """
    _named(axes, "constrain(value, …)")
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes:
        return value
    if len(axes) != value.ndim:
        raise ArgumentError(
            f"constrain(value, …) is told of {len(axes)} axes, and the value has the shape "
            f"{value.shape}. Name a mesh axis or None for each."
        )
    sizes = dict(mesh.shape)
    partition = PartitionSpec(
        *(_dividing(entry, size, sizes) for entry, size in zip(axes, value.shape, strict=True))
    )
    return jax.lax.with_sharding_constraint(value, partition)


def _dividing(entry: Axes, size: int, axes: Mapping[str, int]) -> Any:
    names = (entry,) if isinstance(entry, str) else entry or ()
    kept = tuple(name for name in names if axes.get(name, 1) > 1)
    if not kept or size % math.prod(axes[name] for name in kept):
        return None
    return kept[0] if len(kept) == 1 else kept
