"""Where the arguments of a function lie, for what asks while the function is traced.

Owns what a trace does not say: JAX leaves the sharding of an argument to the compiler, and
``strategy.run`` gives a batch that is divided over the replicas another meaning than a whole array.
``nx.jit`` says how its arguments lie, and so does preflight of what it traces.
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
_KNOWN: ContextVar[_Known | None] = ContextVar("laid", default=None)


def arg_shardings_of(tree: Any) -> ArgShardings:
    """Return how each array of a tree lies that is divided over a mesh, as far as that is known.

    Example:
        >>> arg_shardings_of([jax.numpy.ones(2), 3])
        (None, None)
    """
    return tuple([sharding_of(leaf) for leaf in jax.tree.leaves(tree)])


def of_each_step(shardings: Sequence[NamedSharding | None]) -> ArgShardings:
    """Return how slices of such arrays lie, without the first axis."""
    return tuple(
        NamedSharding(s.mesh, PartitionSpec(*s.spec[1:])) if s and any(s.spec[1:]) else None
        for s in shardings
    )


@contextmanager
def known_arg_shardings(tree: Any, shardings: Sequence[NamedSharding | None]) -> Iterator[None]:
    """Say, while entered, how the arrays of a tree lie that stand for arguments in a trace."""
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
    """Return how an array lies, or what stands for it in a trace; None if that is not known."""
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
    while axes[-1] is None:  # so that what lies alike is equal
        axes.pop()
    return NamedSharding(sharding.mesh, PartitionSpec(*axes))


def is_known(leaf: Any) -> bool:
    """Tell whether it is known how an array lies; of what a trace computes it seldom is.

    It is where nothing is divided that the trace was given.
    """
    known = _KNOWN.get()
    if not isinstance(_array_of(leaf), Tracer) or id(leaf) in (known or {}):
        return True
    return known is not None and all(sharding is None for _, sharding in known.values())


def _array_of(leaf: Any) -> Any:
    """Return the array behind what ``jax.grad`` hands on outside of any compiled function."""
    value = leaf.to_concrete_value() if isinstance(leaf, Tracer) else None
    return leaf if value is None else value
