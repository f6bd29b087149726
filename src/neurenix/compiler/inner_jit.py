"""What a function says of itself that ``jax.jit`` or ``nnx.jit`` compiled before it is traced here.

Owns what would be lost where another function calls it: which of its arguments it donates, and
which of its results it leaves in the host's memory. Its arguments are ``preflight.arguments``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from neurenix.compiler.abstract_placement import host_memory


def compiled_before(function: Any, placed: Sequence[Any], tree: Any) -> Any:
    """Return what a function that ``jax.jit`` or ``nnx.jit`` compiled says of itself, or None."""
    if not hasattr(function, "trace") or not hasattr(function, "lower"):
        return None
    try:
        traced = function.trace(*jax.tree.unflatten(tree, placed))
    except Exception:
        return None  # it is told where the whole is traced
    return getattr(traced, "traced", traced)  # nnx.jit's stands around jax.jit's


def donated_already(traced: Any) -> tuple[int, ...]:
    """Return which leaves a function donates that was compiled before."""
    told = getattr(traced, "args_info", ())
    infos = jax.tree.leaves(told, is_leaf=lambda info: hasattr(info, "donated"))
    return tuple(index for index, info in enumerate(infos) if info.donated)


def kept_on_host(leaves: list[Any], traced: Any) -> list[Any]:
    """Put those results into the host's memory that a function compiled before leaves there.

    ``out_shardings`` of a function say nothing any more where another calls it.
    """
    infos = jax.tree.leaves(getattr(traced, "out_info", ()))
    if len(infos) != len(leaves):  # nnx.jit returns modules beside the results
        return leaves
    return [
        jax.device_put(leaf, jax.memory.Space.Host) if host_memory(info.sharding) else leaf
        for leaf, info in zip(leaves, infos, strict=True)
    ]
