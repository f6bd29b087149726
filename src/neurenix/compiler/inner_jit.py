"""Read the properties of a function that ``jax.jit`` or ``nnx.jit`` compiled, before it is traced.

Keeps what tracing it inside another function would lose: its donated arguments, and its results in
host memory. ``preflight.array_arguments`` owns its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from neurenix.compiler.abstract_placement import host_memory


def compiled_before(function: Any, placed: Sequence[Any], tree: Any) -> Any:
    """Return the traced form of a ``jax.jit`` or ``nnx.jit`` function, or None."""
    if not hasattr(function, "trace") or not hasattr(function, "lower"):
        return None
    try:
        traced = function.trace(*jax.tree.unflatten(tree, placed))
    except Exception:
        return None  # tracing the whole function raises it again
    return getattr(traced, "traced", traced)  # nnx.jit wraps jax.jit's


def donated_already(traced: Any) -> tuple[int, ...]:
    """Return the leaves that a jitted function donates."""
    told = getattr(traced, "args_info", ())
    infos = jax.tree.leaves(told, is_leaf=lambda info: hasattr(info, "donated"))
    return tuple(index for index, info in enumerate(infos) if info.donated)


def kept_on_host(leaves: list[Any], traced: Any) -> list[Any]:
    """Move those results to host memory that a jitted function leaves there.

    ``out_shardings`` of a function have no effect inside another function.
    """
    infos = jax.tree.leaves(getattr(traced, "out_info", ()))
    if len(infos) != len(leaves):  # nnx.jit also returns modules
        return leaves
    return [
        jax.device_put(leaf, jax.memory.Space.Host) if host_memory(info.sharding) else leaf
        for leaf, info in zip(leaves, infos, strict=True)
    ]
