"""The shardings of a function's arguments, available while the function is traced.

A tracer has no sharding, but ``strategy.run`` treats a sharded batch differently from a replicated
array. ``nx.jit`` and preflight therefore record the shardings of the arguments that they trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

ArgShardings = tuple[NamedSharding | None, ...]

_Known = dict[int, tuple[Any, NamedSharding | None]]
_KNOWN: ContextVar[_Known | None] = ContextVar("known_arg_shardings", default=None)


def arg_shardings_of(tree: Any) -> ArgShardings:
    """Return the sharding of each array of a tree, None if it is replicated or unknown.

    Example:
        >>> arg_shardings_of([jax.numpy.ones(2), 3])
        (None, None)
    """
    return tuple([sharding_of(leaf) for leaf in jax.tree.leaves(tree)])


def of_each_step(shardings: Sequence[NamedSharding | None]) -> ArgShardings:
    """Return the shardings of the arrays' slices along the first axis."""
    return tuple(
        NamedSharding(s.mesh, PartitionSpec(*s.spec[1:])) if s and any(s.spec[1:]) else None
        for s in shardings
    )


@contextmanager
def known_arg_shardings(tree: Any, shardings: Sequence[NamedSharding | None]) -> Iterator[None]:
    """Record the shardings of the tracers in a tree, inside a ``with`` block."""
    known = dict(_KNOWN.get() or {})
    for leaf, sharding in zip(jax.tree.leaves(tree), shardings, strict=True):
        if isinstance(leaf, Tracer):
            known[id(leaf)] = leaf, sharding
    token = _KNOWN.set(known)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def sharding_of(leaf: Any) -> NamedSharding | None:
    """Return the sharding of an array or a tracer, None if it is replicated or unknown."""
    known = _KNOWN.get() or {}
    if id(leaf) in known:
        return known[id(leaf)][1]
    leaf = _array_of(leaf)
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not any(sharding.spec):
        return None
    if sharding.spec[-1] is not None:
        return sharding
    axes = list(sharding.spec)
    while axes[-1] is None:  # so that equivalent shardings are equal
        axes.pop()
    return NamedSharding(sharding.mesh, PartitionSpec(*axes))


def is_known(leaf: Any) -> bool:
    """Return whether the sharding of an array is known.

    That of a traced value is known if the value is an argument, or if no argument is sharded.
    """
    known = _KNOWN.get()
    if not isinstance(_array_of(leaf), Tracer) or id(leaf) in (known or {}):
        return True
    return known is not None and all(sharding is None for _, sharding in known.values())


def _array_of(leaf: Any) -> Any:
    """Return the concrete array of a tracer of ``jax.grad`` outside compiled functions."""
    value = leaf.to_concrete_value() if isinstance(leaf, Tracer) else None
    return leaf if value is None else value
