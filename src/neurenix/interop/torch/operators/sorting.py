"""Operators that order, count and search."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from neurenix.interop.torch.registry import operator

Array = Any


@operator("sort")
def sort(
    x: Array, dim: int = -1, descending: bool = False, stable: Any = None
) -> tuple[Array, Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    order = jnp.argsort(x, dim, descending=descending, stable=True)
    return jnp.take_along_axis(x, order, dim), order


@operator("argsort")
def argsort(x: Array, dim: int = -1, descending: bool = False, stable: Any = None) -> Array:
    return jnp.argsort(x, dim, descending=descending, stable=True)


@operator("topk")
def topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    moved = jnp.moveaxis(x, dim, -1)
    if largest:
        values, order = lax.top_k(moved, k)
    else:
        order = jnp.argsort(moved, -1)[..., :k]
        values = jnp.take_along_axis(moved, order, -1)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(order, -1, dim)


@operator("kthvalue")
def kthvalue(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    order = lax.slice_in_dim(jnp.argsort(x, dim), k - 1, k, axis=dim)
    value = jnp.take_along_axis(x, order, dim)
    return (value, order) if keepdim else (jnp.squeeze(value, dim), jnp.squeeze(order, dim))


@operator("searchsorted")
def searchsorted(
    sorted_sequence: Array, x: Array, right: bool = False, side: str | None = None, **_: Any
) -> Array:
    side = side or ("right" if right else "left")
    before = jnp.less_equal if side == "right" else jnp.less
    if sorted_sequence.ndim == 1:
        return jnp.searchsorted(sorted_sequence, x, side=side)
    return before(sorted_sequence[..., None, :], jnp.asarray(x)[..., None]).sum(-1)


@operator("bucketize")
def bucketize(x: Array, boundaries: Array, right: bool = False, **_: Any) -> Array:
    return jnp.searchsorted(boundaries, x, side="right" if right else "left")


@operator("histc")
def histc(x: Array, bins: int = 100, min: Any = 0, max: Any = 0) -> Array:
    low, high = (min, max) if min != max else (x.min(), x.max())
    return jnp.histogram(x, bins, (low, high))[0].astype(x.dtype)


@operator("isin")
def isin(elements: Array, test_elements: Array, invert: bool = False, **_: Any) -> Array:
    return jnp.isin(elements, test_elements, invert=invert)
