"""Operators that move elements: reshape, slice, join, pad."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix.interop.torch.registry import operator

Array = Any
_END = 2**31 - 1  # PyTorch writes 2⁶³ - 1 for the end of an axis


@operator("view", "reshape", "_unsafe_view", "view_copy")
def view(x: Array, size: Any = None, shape: Any = None, dtype: Any = None) -> Array:
    if dtype is not None:
        return lax.bitcast_convert_type(x, dtype)
    return jnp.reshape(x, tuple(size if size is not None else shape))


@operator("permute", "permute_copy")
def permute(x: Array, dims: Any) -> Array:
    return jnp.transpose(x, tuple(dims))


@operator("transpose", "transpose_copy", "swapaxes")
def transpose(x: Array, dim0: int, dim1: int) -> Array:
    return x if x.ndim == 0 else jnp.swapaxes(x, dim0, dim1)


@operator("t", "t_copy")
def t(x: Array) -> Array:
    return x.T


@operator("movedim")
def movedim(x: Array, source: Any, destination: Any) -> Array:
    return jnp.moveaxis(x, source, destination)


@operator("unsqueeze", "unsqueeze_copy")
def unsqueeze(x: Array, dim: int) -> Array:
    return jnp.expand_dims(x, dim)


@operator("squeeze", "squeeze_copy")
def squeeze(x: Array, dim: Any = None) -> Array:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(d for d in dims if x.ndim and x.shape[d] == 1))


@operator("expand", "expand_copy", "broadcast_to")
def expand(x: Array, size: Any, **_: Any) -> Array:
    more = len(size) - x.ndim
    kept = [
        x.shape[axis - more] if isinstance(wanted, int) and wanted == -1 else wanted
        for axis, wanted in enumerate(size)
    ]
    return jnp.broadcast_to(x, tuple(kept))


@operator("expand_as")
def expand_as(x: Array, other: Array) -> Array:
    return jnp.broadcast_to(x, other.shape)


@operator("repeat")
def repeat(x: Array, repeats: Any) -> Array:
    return jnp.tile(x, tuple(repeats))


@operator("repeat_interleave.self_int")
def repeat_interleave(x: Array, repeats: int, dim: int | None = None, **_: Any) -> Array:
    return jnp.repeat(x, repeats, dim)


@operator("flatten")
def flatten(x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


@operator("unflatten")
def unflatten(x: Array, dim: int, sizes: Any) -> Array:
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


@operator("cat")
def cat(tensors: Any, dim: int = 0) -> Array:
    return jnp.concatenate([each for each in tensors if each.shape != (0,)] or tensors[:1], dim)


@operator("stack")
def stack(tensors: Any, dim: int = 0) -> Array:
    return jnp.stack(tensors, dim)


@operator("select", "select_copy")
def select(x: Array, dim: int, index: Any) -> Array:
    if isinstance(index, int):
        return lax.index_in_dim(x, index, dim, keepdims=False)
    return jnp.take(x, index, dim)


def _slice(x: Array, dim: int, start: Any, end: Any, step: int) -> tuple[slice, ...]:
    if isinstance(start, int) and abs(start) >= _END:
        start = None if start < 0 else x.shape[dim]
    if isinstance(end, int) and end >= _END:
        end = None
    return (slice(None),) * (dim % x.ndim) + (slice(start, end, step),)


@operator("slice", "slice_copy")
def slice_(x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return x[_slice(x, dim, start, end, step)]


@operator("narrow", "narrow_copy")
def narrow(x: Array, dim: int, start: Any, length: int) -> Array:
    return lax.dynamic_slice_in_dim(x, start, length, dim)


@operator("slice_scatter")
def slice_scatter(
    x: Array, src: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    return x.at[_slice(x, dim, start, end, step)].set(src)


@operator("select_scatter")
def select_scatter(x: Array, src: Array, dim: int, index: Any) -> Array:
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(src)


@operator("diagonal", "diagonal_copy")
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return jnp.diagonal(x, offset, dim1, dim2)


@operator("diagonal_scatter")
def diagonal_scatter(x: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    count = src.shape[-1]
    rows = jnp.arange(count) + max(-offset, 0)
    columns = jnp.arange(count) + max(offset, 0)
    return jnp.moveaxis(moved.at[..., rows, columns].set(src), (-2, -1), (dim1, dim2))


@operator("diag_embed")
def diag_embed(x: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    size = x.shape[-1] + abs(offset)
    rows = jnp.arange(x.shape[-1]) + max(-offset, 0)
    columns = jnp.arange(x.shape[-1]) + max(offset, 0)
    whole = jnp.zeros((*x.shape[:-1], size, size), x.dtype).at[..., rows, columns].set(x)
    return jnp.moveaxis(whole, (-2, -1), (dim1, dim2))


@operator("split", "split_copy")
def split(x: Array, split_size: Any, dim: int = 0) -> list[Array]:
    if not isinstance(split_size, int):
        return split_with_sizes(x, split_size, dim)
    size = x.shape[dim]
    return [
        lax.slice_in_dim(x, at, min(at + split_size, size), axis=dim)
        for at in range(0, size, split_size)
    ]


@operator("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(x: Array, split_sizes: Any, dim: int = 0) -> list[Array]:
    ends = np.cumsum(split_sizes)
    return [
        lax.slice_in_dim(x, int(end - size), int(end), axis=dim)
        for end, size in zip(ends, split_sizes, strict=True)
    ]


@operator("chunk")
def chunk(x: Array, chunks: int, dim: int = 0) -> list[Array]:
    return split(x, -(-x.shape[dim] // chunks), dim)


@operator("tensor_split")
def tensor_split(x: Array, sections: Any = None, indices: Any = None, dim: int = 0) -> list[Array]:
    return jnp.array_split(x, sections if indices is None else list(indices), dim)


@operator("unbind", "unbind_copy")
def unbind(x: Array, dim: int = 0) -> list[Array]:
    return [lax.index_in_dim(x, at, dim, keepdims=False) for at in range(x.shape[dim])]


@operator("flip")
def flip(x: Array, dims: Any) -> Array:
    return jnp.flip(x, tuple(dims))


@operator("roll")
def roll(x: Array, shifts: Any, dims: Any = ()) -> Array:
    return jnp.roll(x, tuple(shifts), tuple(dims) or None)


@operator("rot90")
def rot90(x: Array, k: int = 1, dims: Any = (0, 1)) -> Array:
    return jnp.rot90(x, k, tuple(dims))


@operator("tril")
def tril(x: Array, diagonal: int = 0) -> Array:
    return jnp.tril(x, diagonal)


@operator("triu")
def triu(x: Array, diagonal: int = 0) -> Array:
    return jnp.triu(x, diagonal)


def _widths(x: Array, pad: Any) -> list[tuple[int, int]]:
    """Return the padding of each axis; PyTorch lists that of the last axis first."""
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)]
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]


@operator("constant_pad_nd")
def constant_pad(x: Array, pad: Any, value: Any = 0) -> Array:
    widths = [(before, after, 0) for before, after in _widths(x, pad)]
    return lax.pad(x, jnp.asarray(value or 0, x.dtype), widths)


@operator("pad")
def pad(x: Array, pad: Any, mode: str = "constant", value: Any = None) -> Array:
    if mode == "constant":
        return constant_pad(x, pad, value)
    names = {"replicate": "edge", "circular": "wrap", "reflect": "reflect"}
    return _grown(x, pad, names[mode])


def _grown(x: Array, pad: Any, mode: str) -> Array:
    """Pad by the edge; then a negative width takes away, as in PyTorch."""
    widths = _widths(x, pad)
    x = jnp.pad(x, [(max(a, 0), max(b, 0)) for a, b in widths], mode=mode)
    ends = [size - max(-b, 0) for size, (_, b) in zip(x.shape, widths, strict=True)]
    return x[tuple(slice(max(-a, 0), end) for (a, _), end in zip(widths, ends, strict=True))]


@operator("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(x: Array, padding: Any) -> Array:
    return _grown(x, padding, "reflect")


@operator("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(x: Array, padding: Any) -> Array:
    return _grown(x, padding, "edge")


@operator("pixel_shuffle")
def pixel_shuffle(x: Array, upscale_factor: int) -> Array:
    *lead, channels, height, width = x.shape
    r = upscale_factor
    split_ = x.reshape(*lead, channels // r**2, r, r, height, width)
    n = len(lead)
    moved = jnp.transpose(split_, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return moved.reshape(*lead, channels // r**2, height * r, width * r)


@operator("pixel_unshuffle")
def pixel_unshuffle(x: Array, downscale_factor: int) -> Array:
    *lead, channels, height, width = x.shape
    r, n = downscale_factor, len(x.shape) - 3
    split_ = x.reshape(*lead, channels, height // r, r, width // r, r)
    moved = jnp.transpose(split_, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return moved.reshape(*lead, channels * r**2, height // r, width // r)


@operator("channel_shuffle")
def channel_shuffle(x: Array, groups: int) -> Array:
    n, channels, *rest = x.shape
    return jnp.swapaxes(x.reshape(n, groups, channels // groups, *rest), 1, 2).reshape(x.shape)


@operator("unfold")
def unfold(x: Array, dimension: int, size: int, step: int) -> Array:
    starts = np.arange(0, x.shape[dimension] - size + 1, step)
    windows = jnp.take(x, starts[:, None] + np.arange(size)[None], axis=dimension)
    return jnp.moveaxis(windows, dimension % x.ndim + 1, -1)


@operator("as_strided")
def as_strided(x: Array, size: Any, stride: Any, storage_offset: int | None = None) -> Array:
    offsets = np.asarray(storage_offset or 0)
    for length, step in zip(size, stride, strict=True):
        offsets = offsets[..., None] + np.arange(length) * step
    return x.reshape(-1)[offsets]


@operator("meshgrid")
def meshgrid(tensors: Any, indexing: str = "ij") -> list[Array]:
    return list(jnp.meshgrid(*tensors, indexing=indexing))


@operator("block_diag")
def block_diag(tensors: Any) -> Array:
    return jax.scipy.linalg.block_diag(*tensors)
