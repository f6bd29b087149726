"""Reading and writing elements at positions, sorting, and one-hot rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import canonical, expect_size, namespace
from neurenix.interop.onnx.registry import operator


@operator("Gather", folds=True)
def gather(x, indices, *, axis=0):
    if namespace(x, indices) is np:
        return np.take(x, indices, axis)
    size = x.shape[axis]
    return jnp.take(x, jnp.where(indices < 0, indices + size, indices), axis, mode="clip")


@operator("GatherElements", folds=True)
def gather_elements(x, indices, *, axis=0):
    if namespace(x, indices) is np:
        return np.take_along_axis(x, _within(x, indices, axis), axis)
    index = list(jnp.meshgrid(*map(jnp.arange, indices.shape), indexing="ij"))
    index[axis] = jnp.where(indices < 0, indices + x.shape[axis], indices)
    return x[tuple(index)]


def _within(x: Any, indices: Any, axis: int) -> Any:
    if x.ndim != indices.ndim:
        raise ConversionError(f"it has indices of rank {indices.ndim} for an array of {x.ndim}.")
    return indices


@operator("GatherND")
def gather_nd(x, indices, *, batch_dims=0):
    def take(x: Any, indices: Any) -> Any:
        return x[tuple(jnp.moveaxis(indices, -1, 0))]

    for _ in range(batch_dims):
        take = jax.vmap(take)
    return take(x, indices)


@operator("ScatterElements", "Scatter")
def scatter_elements(x, indices, updates, *, axis=0, reduction="none"):
    index = list(jnp.meshgrid(*map(jnp.arange, indices.shape), indexing="ij"))
    index[axis] = jnp.where(indices < 0, indices + x.shape[axis], indices)
    return _update(x, tuple(index), updates, reduction)


@operator("ScatterND")
def scatter_nd(x, indices, updates, *, reduction="none"):
    return _update(x, tuple(jnp.moveaxis(indices, -1, 0)), updates, reduction)


def _update(x: Any, index: Any, updates: Any, reduction: str) -> Any:
    at = x.at[index]
    how = {"none": at.set, "add": at.add, "mul": at.multiply, "max": at.max, "min": at.min}
    if reduction not in how:
        raise ConversionError(f"the reduction {reduction!r} is not one of {', '.join(how)}.")
    return how[reduction](updates.astype(x.dtype))


@operator("TensorScatter")
def tensor_scatter(past, update, write_indices=None, *, axis=-2, mode="linear"):
    axis %= past.ndim
    length, added = past.shape[axis], update.shape[axis]
    start = jnp.zeros(past.shape[0], jnp.int32) if write_indices is None else write_indices
    positions = start[:, None] + jnp.arange(added)
    positions = positions % length if mode == "circular" else positions

    def one(row: Any, values: Any, at: Any) -> Any:
        moved = jnp.moveaxis(row, axis - 1, 0).at[at].set(jnp.moveaxis(values, axis - 1, 0))
        return jnp.moveaxis(moved, 0, axis - 1)

    return jax.vmap(one)(past, update, positions)


@operator("TopK", since=10, known=(1,))
def top_k(x, k, *, axis=-1, largest=1, sorted=1):
    return _top_k(x, int(np.ravel(k)[0]), axis, largest)


@operator("TopK", since=1)
def top_k_1(x, *, k, axis=-1):
    return _top_k(x, k, axis, 1)


def _top_k(x: Any, k: int, axis: int, largest: int) -> list[Any]:
    if not 0 <= k <= x.shape[axis]:
        raise ConversionError(f"it asks for {k} of {x.shape[axis]} elements.")
    order = jnp.argsort(x, axis, stable=True, descending=bool(largest))
    order = jnp.take(order, jnp.arange(k), axis)
    return [jnp.take_along_axis(x, order, axis), order.astype(canonical(np.int64))]


@operator("OneHot", known=(1,))
def one_hot(indices, depth, values, *, axis=-1):
    (size,) = expect_size((np.ravel(depth)[0],), "OneHot")
    indices = indices.astype(jnp.int32)
    wrapped = jnp.where(indices < 0, indices + size, indices)
    rows = jax.nn.one_hot(wrapped, size, dtype=bool, axis=axis)
    return jnp.where(rows, values[1], values[0])


@operator("Compress", known=(1,), folds=True)
def compress(x, condition, *, axis=None):
    positions = np.flatnonzero(condition)
    if axis is None:
        return x.reshape(-1)[positions]
    return namespace(x).take(x, positions, axis)


@operator("NonZero", known=(0,), folds=True)
def non_zero(x):
    return np.stack(np.nonzero(x)).astype(np.int64) if x.ndim else np.nonzero(x.reshape(1))[0][None]


@operator("Unique", known=(0,), folds=True)
def unique(x, *, axis=None, sorted=1):
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, 0 if axis is None else axis)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        first, inverse, counts = first[order], place[inverse], counts[order]
    return [values, *(each.astype(np.int64) for each in (first, inverse, counts))]
