"""Operators that make tensors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix.interop.torch.registry import operator

Array = Any


def _default(value: Any) -> Any:
    return jnp.asarray(value).dtype


@operator("full")
def full(size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.full(tuple(size), fill_value, dtype or _default(fill_value))


@operator("zeros", "empty", "empty_strided")
def zeros(size: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.zeros(tuple(size), dtype or jnp.float32)


@operator("empty_permuted")
def empty_permuted(size: Any, physical_layout: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.zeros(tuple(size), dtype or jnp.float32)


@operator("ones")
def ones(size: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.ones(tuple(size), dtype or jnp.float32)


@operator("new_zeros", "new_empty", "new_empty_strided")
def new_zeros(x: Array, size: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.zeros(tuple(size), dtype or x.dtype)


@operator("new_ones")
def new_ones(x: Array, size: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.ones(tuple(size), dtype or x.dtype)


@operator("new_full")
def new_full(x: Array, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.full(tuple(size), fill_value, dtype or x.dtype)


@operator("full_like")
def full_like(x: Array, fill_value: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.full(x.shape, fill_value, dtype or x.dtype)


@operator("zeros_like", "empty_like")
def zeros_like(x: Array, dtype: Any = None, **_: Any) -> Array:
    return jnp.zeros(x.shape, dtype or x.dtype)


@operator("ones_like")
def ones_like(x: Array, dtype: Any = None, **_: Any) -> Array:
    return jnp.ones(x.shape, dtype or x.dtype)


@operator("scalar_tensor")
def scalar_tensor(s: Any, dtype: Any = None, **_: Any) -> Array:
    return jnp.asarray(s, dtype)


@operator("arange")
def arange(end: Any, dtype: Any = None, start: Any = 0, step: Any = 1, **_: Any) -> Array:
    return jnp.arange(start, end, step, dtype)


@operator("linspace")
def linspace(start: Any, end: Any, steps: int, dtype: Any = None, **_: Any) -> Array:
    return jnp.linspace(start, end, steps, dtype=dtype or jnp.float32)


@operator("logspace")
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, dtype: Any = None) -> Array:
    return jnp.logspace(start, end, steps, base=base, dtype=dtype or jnp.float32)


@operator("eye")
def eye(n: int, m: int | None = None, dtype: Any = None, **_: Any) -> Array:
    return jnp.eye(n, m, dtype=dtype or jnp.float32)


@operator("tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, dtype: Any = None, **_: Any) -> Array:
    return jnp.stack(jnp.tril_indices(row, offset, col)).astype(dtype or jnp.int32)


@operator("triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, dtype: Any = None, **_: Any) -> Array:
    return jnp.stack(jnp.triu_indices(row, offset, col)).astype(dtype or jnp.int32)


@operator("_local_scalar_dense", "item")
def item(x: Array) -> Array:
    return jax.lax.stop_gradient(x)  # a number of Python has no gradient


@operator("sym_size")
def sym_size(x: Array, dim: int) -> Any:
    return x.shape[dim]


@operator("sym_numel")
def sym_numel(x: Array) -> Any:
    return x.size
