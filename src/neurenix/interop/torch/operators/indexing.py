"""Operators that read and write elements by their numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neurenix._core.errors import ConversionError
from neurenix.interop.torch.registry import operator

Array = Any


@operator("embedding")
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:  # fmt: skip
    rows = jnp.take(weight, indices, 0)
    if scale_grad_by_freq:
        rows = _by_frequency(rows, indices, weight.shape[0])
    if padding_idx < 0:
        return rows
    return jnp.where((indices == padding_idx)[..., None], lax.stop_gradient(rows), rows)


def _by_frequency(rows: Array, indices: Array, size: int) -> Array:
    """Return rows whose gradient is divided by how often their index is there."""
    counts = jnp.zeros(size, rows.dtype).at[indices.reshape(-1)].add(1)
    part = rows / counts[indices][..., None]
    return part + lax.stop_gradient(rows - part)


@operator("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Array, indices: Array, offsets: Array, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    padding_idx = -1 if padding_idx is None else padding_idx
    bags = offsets.shape[0] - int(include_last_offset)
    bag = jnp.searchsorted(offsets[:bags], jnp.arange(indices.shape[0]), side="right") - 1
    rows = jnp.take(weight, indices, 0)
    counts = jnp.ones(indices.shape[0]) if padding_idx < 0 else (indices != padding_idx) * 1.0
    if mode == 2:
        rows = jnp.where(counts[:, None] > 0, rows, -jnp.inf)
        most = jax.ops.segment_max(rows, bag, bags)
        result = jnp.where(jnp.isfinite(most), most, 0)
    else:
        scale = counts if per_sample_weights is None else counts * per_sample_weights
        result = jax.ops.segment_sum(rows * scale[:, None].astype(rows.dtype), bag, bags)
        if mode == 1:
            size = jax.ops.segment_sum(counts, bag, bags)
            result = result / jnp.maximum(size, 1)[:, None].astype(rows.dtype)
    nothing = jnp.zeros((0,), jnp.int32)
    return result, bag, nothing, nothing


@operator("one_hot")
def one_hot(x: Array, num_classes: int = -1) -> Array:
    return jax.nn.one_hot(x, num_classes, dtype=jnp.int32)


def _cut(x: Array, dim: int, index: Array) -> Array:
    """Leave out of ``x`` what no index can reach on the other axes."""
    sizes = [None if axis == dim % x.ndim else size for axis, size in enumerate(index.shape)]
    return x[tuple(slice(0, size) for size in sizes)]


@operator("gather")
def gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if x.ndim == 0:
        return jnp.broadcast_to(x, index.shape)
    return jnp.take_along_axis(_cut(x, dim, index), index, dim)


def _grid(x: Array, dim: int, index: Array) -> tuple[Array, ...]:
    grid = [lax.broadcasted_iota(jnp.int32, index.shape, axis) for axis in range(index.ndim)]
    grid[dim % x.ndim] = index
    return tuple(grid)


@operator("scatter")
def scatter(
    x: Array, dim: int, index: Array, src: Any = None, value: Any = None, reduce: str | None = None
) -> Array:
    new = value if src is None else _cut_to(src, index)
    at = x.at[_grid(x, dim, index)]
    if reduce is None:
        return at.set(new)
    return at.add(new) if reduce == "add" else at.multiply(new)


@operator("scatter_add")
def scatter_add(x: Array, dim: int, index: Array, src: Array) -> Array:
    return x.at[_grid(x, dim, index)].add(_cut_to(src, index))


def _cut_to(src: Array, index: Array) -> Array:
    return src[tuple(slice(0, size) for size in index.shape)]


@operator("scatter_reduce")
def scatter_reduce(
    x: Array, dim: int, index: Array, src: Array, reduce: str, include_self: bool = True
) -> Array:
    grid, new = _grid(x, dim, index), _cut_to(src, index)
    if not include_self:
        start = {"sum": 0, "mean": 0, "prod": 1, "amax": -jnp.inf, "amin": jnp.inf}[reduce]
        if jnp.issubdtype(x.dtype, jnp.integer) and reduce in ("amax", "amin"):
            info = jnp.iinfo(x.dtype)
            start = info.min if reduce == "amax" else info.max
        x = x.at[grid].set(jnp.asarray(start, x.dtype))
    at = x.at[grid]
    if reduce == "sum":
        return at.add(new)
    if reduce == "mean":
        count = jnp.full(x.shape, int(include_self)).at[grid].add(1)
        return at.add(new) / jnp.maximum(count, 1).astype(x.dtype)
    if reduce == "prod":
        return at.multiply(new)
    return at.max(new) if reduce == "amax" else at.min(new)


@operator("index_select", "index_select_copy")
def index_select(x: Array, dim: int, index: Array) -> Array:
    return jnp.take(x, index, dim)


@operator("take_along_dim")
def take_along_dim(x: Array, indices: Array, dim: int | None = None) -> Array:
    return jnp.take_along_axis(x, indices, dim)


@operator("take")
def take(x: Array, index: Array) -> Array:
    return x.reshape(-1)[index]


def _places(indices: Any) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


@operator("index", "_unsafe_index")
def index(x: Array, indices: Any) -> Array:
    if any(each is not None and each.dtype == bool for each in indices):
        raise ConversionError(
            "The model indexes with a boolean mask, x[mask], whose result has as many elements as "
            "the mask has true ones; a compiled program has fixed sizes. Write torch.where(mask, "
            "x, 0), or multiply by the mask."
        )
    return x[_places(indices)]


@operator("index_put", "_unsafe_index_put")
def index_put(x: Array, indices: Any, values: Array, accumulate: bool = False) -> Array:
    masks = [index for index in indices if index is not None and index.dtype == bool]
    if masks and len(masks) == len([i for i in indices if i is not None]) == 1 and not accumulate:
        lead = len(indices) - 1  # axes before the mask
        (mask,) = masks
        if values.size == 1 or values.ndim <= x.ndim - mask.ndim - lead:
            shape = (1,) * lead + mask.shape + (1,) * (x.ndim - mask.ndim - lead)
            return jnp.where(mask.reshape(shape), values.astype(x.dtype), x)
    at = x.at[_places(indices)]
    return at.add(values) if accumulate else at.set(values)


@operator("index_add")
def index_add(x: Array, dim: int, index: Array, source: Array, alpha: Any = 1) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].add(alpha * source)


@operator("index_copy")
def index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(source)


@operator("index_fill")
def index_fill(x: Array, dim: int, index: Array, value: Any) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(value)


@operator("masked_scatter")
def masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    mask = jnp.broadcast_to(mask, x.shape)
    number = jnp.cumsum(mask.reshape(-1)).reshape(x.shape) - 1
    taken = source.reshape(-1)[jnp.clip(number, 0, source.size - 1)]
    return jnp.where(mask, taken.astype(x.dtype), x)
