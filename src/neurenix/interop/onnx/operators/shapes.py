"""Shapes, and moving elements without changing them."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import MAX_KNOWN, as_jax, canonical, expect_size, namespace
from neurenix.interop.onnx.files import dtype_of
from neurenix.interop.onnx.registry import operator


@operator("Shape", folds=True)
def shape(x, *, start=0, end=None):
    return np.asarray(x.shape[start:end], np.int64)


@operator("Size", folds=True)
def size(x):
    return np.asarray(math.prod(x.shape), np.int64)


@operator("Reshape", since=5, known=(1,), folds=True)
def reshape(x, sizes, *, allowzero=0):
    wanted = [
        x.shape[axis] if size == 0 and not allowzero else int(size)
        for axis, size in enumerate(sizes)
    ]
    return x.reshape(wanted)


@operator("Reshape", since=1)
def reshape_1(x, *, shape, consumed_inputs=None):
    return reshape(x, shape)


@operator("Flatten", folds=True)
def flatten(x, *, axis=1):
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Squeeze", since=13, known=(1,), folds=True)
def squeeze(x, axes=None):
    return x.squeeze(None if axes is None else tuple(map(int, axes)))


@operator("Squeeze", since=1, folds=True)
def squeeze_1(x, *, axes=None):
    return squeeze(x, axes)


@operator("Unsqueeze", since=13, known=(1,), folds=True)
def unsqueeze(x, axes):
    return namespace(x).expand_dims(x, tuple(map(int, np.ravel(axes))))


@operator("Unsqueeze", since=1, folds=True)
def unsqueeze_1(x, *, axes):
    return unsqueeze(x, axes)


@operator("Transpose", folds=True)
def transpose(x, *, perm=None):
    return x.transpose(perm)


@operator("Concat", since=4, folds=True)
def concat(*xs, axis):
    return namespace(*xs).concatenate(xs, axis)


@operator("Concat", since=1, folds=True)
def concat_1(*xs, axis=1):
    return concat(*xs, axis=axis)


@operator("Split", since=13, known=(1,), folds=True, counts=True)
def split(x, sizes=None, *, axis=0, num_outputs=None, num_results):
    if sizes is None:
        count = num_outputs or num_results
        each = -(-x.shape[axis] // count)
        ends = [min(each * i, x.shape[axis]) for i in range(1, count)]
    else:
        if int(np.sum(sizes)) != x.shape[axis]:
            raise ConversionError(f"it splits {x.shape[axis]} elements into {list(sizes)}.")
        ends = np.cumsum(sizes)[:-1].tolist()
    return namespace(x).split(x, ends, axis)


@operator("Split", since=1, folds=True, counts=True)
def split_1(x, sizes=None, *, axis=0, split=None, num_results):
    sizes = split if split is not None else None if sizes is None else np.asarray(sizes)
    return globals()["split"](x, sizes, axis=axis, num_results=num_results)


@operator("Slice", since=10, known=(1, 2, 3, 4), folds=True)
def slice_(x, starts, ends, axes=None, steps=None):
    axes = range(len(starts)) if axes is None else [int(a) for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    index: list[Any] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = _slice(int(start), int(end), int(step), x.shape[axis])
    return x[tuple(index)]


@operator("Slice", since=1, folds=True)
def slice_1(x, *, starts, ends, axes=None):
    return slice_(x, starts, ends, axes)


def _slice(start: int, end: int, step: int, length: int) -> slice:
    # An end before the beginning means "to the first element" when the step is negative.
    if step < 0:
        start = min(start + length if start < 0 else start, length - 1)
        end = max(end + length if end < 0 else end, -1)
        return slice(start, None if end < 0 else end, step) if start >= 0 else slice(0, 0)
    return slice(start, end, step)


@operator("Expand", known=(1,), folds=True)
def expand(x, sizes):
    wanted = np.broadcast_shapes(x.shape, tuple(int(size) for size in sizes))
    expect_size(wanted, "Expand")
    return _place(x, wanted).broadcast_to(x, wanted)


@operator("Tile", since=6, known=(1,), folds=True)
def tile(x, repeats):
    wanted = [size * int(n) for size, n in zip(x.shape, repeats, strict=True)]
    return _place(x, expect_size(wanted, "Tile")).tile(x, tuple(int(n) for n in repeats))


def _place(x: Any, wanted: Any) -> Any:
    """Return NumPy for what stays known and small, else ``jax.numpy``."""
    return namespace(x) if math.prod(wanted) <= MAX_KNOWN else jnp


@operator("Pad", since=11, known=(1, 3), folds=True)
def pad(x, pads, value=None, axes=None, *, mode="constant"):
    axes = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    count = len(pads) // 2
    widths = [(0, 0)] * x.ndim
    for number, axis in enumerate(axes):
        widths[axis] = (int(pads[number]), int(pads[number + count]))
    expect_size(
        [n + max(a, 0) + max(b, 0) for n, (a, b) in zip(x.shape, widths, strict=True)], "Pad"
    )
    # Negative widths take away.
    x = x[tuple(
        slice(max(-low, 0), size - max(-high, 0))
        for size, (low, high) in zip(x.shape, widths, strict=True)
    )]  # fmt: skip
    widths = [(max(low, 0), max(high, 0)) for low, high in widths]
    np_like = namespace(x, value)
    if mode == "constant":
        fill = 0 if value is None else np_like.reshape(value, ())
        return np_like.pad(x, widths, constant_values=fill)
    return np_like.pad(x, widths, mode=mode)


@operator("Pad", since=2)
def pad_2(x, *, pads, mode="constant", value=0.0):
    return pad(x, pads, jnp.asarray(value, x.dtype), mode=mode)


@operator("Trilu", known=(1,), folds=True)
def trilu(x, k=None, *, upper=1):
    np_like, offset = namespace(x), 0 if k is None else int(k)
    return np_like.triu(x, offset) if upper else np_like.tril(x, offset)


@operator("DepthToSpace")
def depth_to_space(x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        x = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // b**2, h * b, w * b)


@operator("SpaceToDepth")
def space_to_depth(x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    b = blocksize
    x = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.transpose(order).reshape(n, c * b * b, h // b, w // b)


@operator("CenterCropPad", known=(1,))
def center_crop_pad(x, sizes, *, axes=None):
    axes = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
    for axis, size in zip(axes, expect_size(sizes, "CenterCropPad"), strict=True):
        extra = size - x.shape[axis]
        if extra < 0:
            start = -extra // 2
            x = jnp.take(x, jnp.arange(start, start + size), axis)
        else:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (extra // 2, extra - extra // 2)
            x = jnp.pad(x, widths)
    return x


@operator("ReverseSequence")
def reverse_sequence(x, lengths, *, batch_axis=1, time_axis=0):
    moved = jnp.moveaxis(x, (time_axis, batch_axis), (0, 1))
    steps = jnp.arange(moved.shape[0])[:, None]
    source = jnp.where(steps < lengths[None], lengths[None] - 1 - steps, steps)
    index = source.reshape(source.shape + (1,) * (moved.ndim - 2))
    return jnp.moveaxis(jnp.take_along_axis(moved, index, 0), (0, 1), (time_axis, batch_axis))


@operator("ConstantOfShape", known=(0,), folds=True)
def constant_of_shape(sizes, *, value=None):
    wanted = expect_size(sizes, "ConstantOfShape")
    fill = np.zeros(1, np.float32) if value is None else value
    if math.prod(wanted) <= MAX_KNOWN:
        return np.full(wanted, fill.reshape(()), fill.dtype)
    return jnp.broadcast_to(as_jax(fill).reshape(()), wanted)


@operator("Range", known=(0, 1, 2), folds=True)
def range_(start, limit, delta):
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    expect_size((count,), "Range")
    np_like = np if count <= MAX_KNOWN else jnp
    first = start if np_like is np else as_jax(start)
    return (
        first.reshape(()) + np_like.arange(count, dtype=first.dtype) * delta.reshape(())
    ).astype(first.dtype)


@operator("EyeLike")
def eye_like(x, *, dtype=None, k=0):
    from_type = x.dtype if dtype is None else canonical(dtype_of(dtype, "EyeLike"))
    return jnp.eye(*x.shape, k=k, dtype=from_type)


@operator("Constant", folds=True)
def constant(
    *, value=None, value_float=None, value_floats=None, value_int=None, value_ints=None,
    value_string=None, value_strings=None, sparse_value=None,
):  # fmt: skip
    if value is not None:
        return np.asarray(value)
    if sparse_value is not None:
        return sparse_value
    if value_float is not None or value_floats is not None:
        return np.asarray(value_floats if value_float is None else value_float, np.float32)
    if value_int is not None or value_ints is not None:
        return np.asarray(value_ints if value_int is None else value_int, np.int64)
    return np.asarray(value_strings if value_string is None else value_string, object)
