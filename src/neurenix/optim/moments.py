"""Store optimizer state in a smaller dtype than it is computed in."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from neurenix._core.errors import ArgumentError


def held_in(dtype: jax.typing.DTypeLike, optimizer: Any) -> Any:
    """Return ``optimizer`` with its floating-point state stored in ``dtype`` between steps.

    A step computes in float32 and rounds the new state. Scalars (counts, rates) keep their dtype.

    Args:
        dtype: such as ``"bfloat16"``. Its 8-bit mantissa rounds away changes below 1/256 of a
            moment, so a second moment with a decay above 0.996 can stop changing; compare with a
            run in float32.
        optimizer: any optax transformation, or an optimizer of ``nx.optim``, for which this sets
            ``moment_dtype``.

    Returns:
        An optax transformation, or an optimizer of ``nx.optim``.

    Raises:
        ArgumentError: the dtype is not floating-point.

    Example:
        >>> import optax
        >>> state = nx.optim.held_in("bfloat16", optax.adam(1e-3)).init({"w": nx.ones(4)})
        >>> state[0].mu["w"].dtype
        dtype(bfloat16)
        >>> nx.optim.held_in("bfloat16", nx.optim.AdamW(3e-4)).moment_dtype
        'bfloat16'
    """
    check_floating("dtype", dtype)
    if hasattr(optimizer, "moment_dtype"):
        return dataclasses.replace(optimizer, moment_dtype=dtype)
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        return _cast(inner.init(params), dtype)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        wide, params = jax.tree.map(_wide, (updates, params))
        after, state = inner.update(wide, _cast(state, jnp.float32), params, **extra)
        after = jax.tree.map(lambda new, old: new.astype(jnp.result_type(old)), after, updates)
        return after, _cast(state, dtype)

    return optax.GradientTransformationExtraArgs(init, update)


def check_floating(name: str, dtype: Any) -> None:
    """Raise ArgumentError unless ``dtype`` is floating-point."""
    try:
        fits = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        fits = False
    if not fits:
        raise ArgumentError(
            f'The argument `{name}` must be a floating-point dtype such as "bfloat16"; got '
            f"{dtype!r}."
        )


def _wide(leaf: Any) -> jax.Array:
    """Cast floating-point arrays to float32 or wider; return others unchanged."""
    kind = jnp.result_type(leaf)
    floating = jnp.issubdtype(kind, jnp.floating)
    return jnp.asarray(leaf, jnp.promote_types(kind, jnp.float32) if floating else kind)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(
        lambda leaf: (
            leaf.astype(dtype) if leaf.ndim and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
        ),
        tree,
    )
