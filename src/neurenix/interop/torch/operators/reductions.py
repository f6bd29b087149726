"""Operators that reduce axes: sums, means, extremes, norms, and running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neurenix.interop.torch.registry import operator

Array = Any


def _axes(dim: Any) -> Any:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return None
    return tuple(dim) if isinstance(dim, (list, tuple)) else dim


_OVER_AXES: dict[str, Callable[..., Array]] = {
    "all": jnp.all,
    "amax": jnp.max,
    "amin": jnp.min,
    "any": jnp.any,
    "logsumexp": jax.nn.logsumexp,
    "mean": jnp.mean,
    "nanmean": jnp.nanmean,
    "nansum": jnp.nansum,
    "prod": jnp.prod,
    "sum": jnp.sum,
}


def _register_tables() -> None:
    for name, function in _OVER_AXES.items():

        def reduce(
            x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None, f: Any = function
        ) -> Array:
            return f(x if dtype is None else x.astype(dtype), axis=_axes(dim), keepdims=keepdim)

        operator(name)(reduce)


_register_tables()


@operator("max.default")
def max_of_all(x: Array) -> Array:
    return jnp.max(x)


@operator("min.default")
def min_of_all(x: Array) -> Array:
    return jnp.min(x)


def _with_index(x: Array, index: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """Return the elements at an index along an axis, and the index; one gets the gradient."""
    kept = jnp.expand_dims(index, dim)
    value = jnp.take_along_axis(x, kept, dim)
    return (value, kept) if keepdim else (jnp.squeeze(value, dim), index)


@operator("max.dim")
def max_along(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _with_index(x, jnp.argmax(x, dim), dim, keepdim)


@operator("min.dim")
def min_along(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return _with_index(x, jnp.argmin(x, dim), dim, keepdim)


@operator("aminmax")
def aminmax(x: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    return jnp.min(x, dim, keepdims=keepdim), jnp.max(x, dim, keepdims=keepdim)


@operator("median.dim")
def median(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    order = jnp.argsort(x, dim)
    index = lax.index_in_dim(order, (x.shape[dim] - 1) // 2, dim, keepdims=False)
    return _with_index(x, index, dim, keepdim)


@operator("median.default")
def median_of_all(x: Array) -> Array:
    return jnp.sort(x.reshape(-1))[(x.size - 1) // 2]


@operator("argmax")
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return jnp.argmax(x, dim, keepdims=keepdim)


@operator("argmin")
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return jnp.argmin(x, dim, keepdims=keepdim)


def _ddof(correction: Any, unbiased: Any) -> Any:
    if unbiased is not None:
        return int(unbiased)
    return 1 if correction is None else correction


@operator("var")
def var(
    x: Array, dim: Any = None, correction: Any = None, keepdim: bool = False, unbiased: Any = None
) -> Array:
    return jnp.var(x, _axes(dim), ddof=_ddof(correction, unbiased), keepdims=keepdim)


@operator("std")
def std(
    x: Array, dim: Any = None, correction: Any = None, keepdim: bool = False, unbiased: Any = None
) -> Array:
    return jnp.std(x, _axes(dim), ddof=_ddof(correction, unbiased), keepdims=keepdim)


@operator("var_mean")
def var_mean(
    x: Array, dim: Any = None, correction: Any = None, keepdim: bool = False, unbiased: Any = None
) -> tuple[Array, Array]:
    mean = jnp.mean(x, _axes(dim), keepdims=keepdim)
    return var(x, dim, correction, keepdim, unbiased), mean


@operator("std_mean")
def std_mean(
    x: Array, dim: Any = None, correction: Any = None, keepdim: bool = False, unbiased: Any = None
) -> tuple[Array, Array]:
    mean = jnp.mean(x, _axes(dim), keepdims=keepdim)
    return std(x, dim, correction, keepdim, unbiased), mean


@operator("norm", "linalg_vector_norm")
def norm(
    x: Array, p: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None, ord: Any = 2
) -> Array:
    order = ord if p is None else p
    x = x if dtype is None else x.astype(dtype)
    size = jnp.abs(x)
    axes = _axes(dim)
    if order == float("inf"):
        return jnp.max(size, axes, keepdims=keepdim)
    if order == float("-inf"):
        return jnp.min(size, axes, keepdims=keepdim)
    if order == 0:
        return jnp.sum(size != 0, axes, keepdims=keepdim).astype(x.dtype)
    if order == 1:
        return jnp.sum(size, axes, keepdims=keepdim)
    if order == 2:
        return _root(jnp.sum(size * size, axes, keepdims=keepdim), 0.5)
    return _root(jnp.sum(size**order, axes, keepdims=keepdim), 1 / order)


def _root(total: Array, exponent: float) -> Array:
    """Return a root whose gradient at zero is zero, as in PyTorch."""
    safe = jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, safe**exponent, 0)


@operator("dist", "_cdist_forward", "cdist")
def cdist(x1: Array, x2: Array, p: float = 2.0, compute_mode: Any = None) -> Array:
    return norm(x1[..., :, None, :] - x2[..., None, :, :], p, -1)


@operator("_pdist_forward", "pdist")
def pdist(x: Array, p: float = 2.0) -> Array:
    rows, columns = jnp.triu_indices(x.shape[0], 1)
    return norm(x[rows] - x[columns], p, -1)


@operator("cumsum")
def cumsum(x: Array, dim: int, dtype: Any = None) -> Array:
    return jnp.cumsum(x, dim, dtype) if x.ndim else x


@operator("cumprod")
def cumprod(x: Array, dim: int, dtype: Any = None) -> Array:
    return jnp.cumprod(x, dim, dtype)


@operator("logcumsumexp")
def logcumsumexp(x: Array, dim: int) -> Array:
    return lax.cumlogsumexp(x, dim % x.ndim)


@operator("cummax")
def cummax(x: Array, dim: int) -> tuple[Array, Array]:
    value = lax.cummax(x, dim % x.ndim)
    numbers = lax.broadcasted_iota(jnp.int32, x.shape, dim % x.ndim)
    return value, lax.cummax(jnp.where(x == value, numbers, 0), dim % x.ndim)


@operator("cummin")
def cummin(x: Array, dim: int) -> tuple[Array, Array]:
    value = lax.cummin(x, dim % x.ndim)
    numbers = lax.broadcasted_iota(jnp.int32, x.shape, dim % x.ndim)
    return value, lax.cummax(jnp.where(x == value, numbers, 0), dim % x.ndim)


@operator("diff")
def diff(x: Array, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Array:
    return jnp.diff(x, n, dim, prepend, append)


@operator("count_nonzero")
def count_nonzero(x: Array, dim: Any = None) -> Array:
    return jnp.count_nonzero(x, _axes(dim))


@operator("softmax", "_softmax")
def softmax(x: Array, dim: int, dtype: Any = None, half_to_float: Any = False) -> Array:
    return jax.nn.softmax(x if dtype is None else x.astype(dtype), dim)


@operator("log_softmax", "_log_softmax")
def log_softmax(x: Array, dim: int, dtype: Any = None, half_to_float: Any = False) -> Array:
    return jax.nn.log_softmax(x if dtype is None else x.astype(dtype), dim)


@operator("trace")
def trace(x: Array) -> Array:
    return jnp.trace(x)
