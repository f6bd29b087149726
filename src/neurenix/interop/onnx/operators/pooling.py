"""Pooling over channels-first inputs of any rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix.interop.onnx.arrays import canonical
from neurenix.interop.onnx.operators.convolution import padding
from neurenix.interop.onnx.registry import operator


class _Windows:
    """The windows of a pooling: where they are, and how much lies beyond the pads."""

    def __init__(
        self, x: Any, kernel: Sequence[int], strides: Any, dilations: Any, pads: Any, auto_pad: str,
        ceil_mode: int,
    ) -> None:  # fmt: skip
        rank = len(kernel)
        self.rank, self.kernel = rank, tuple(kernel)
        self.strides, self.dilations = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
        sizes = x.shape[-rank:]
        self.pads = padding(sizes, kernel, self.strides, self.dilations, pads, auto_pad)
        self.beyond = []
        for size, k, stride, dilation, (low, high) in zip(
            sizes, self.kernel, self.strides, self.dilations, self.pads, strict=True
        ):
            free = size + low + high - dilation * (k - 1) - 1
            count = (-(-free // stride) if ceil_mode else free // stride) + 1
            # A window that begins behind the input and its first pad is left out.
            if ceil_mode and (count - 1) * stride >= size + low:
                count -= 1
            self.beyond.append(
                max((count - 1) * stride + dilation * (k - 1) - size - low - high + 1, 0)
            )

    def options(self, x: Any) -> dict[str, Any]:
        lead = x.ndim - self.rank
        widths = [
            (low, high + more) for (low, high), more in zip(self.pads, self.beyond, strict=True)
        ]
        return {
            "window_dimensions": (1,) * lead + self.kernel,
            "window_strides": (1,) * lead + self.strides,
            "window_dilation": (1,) * lead + self.dilations,
            "padding": [(0, 0)] * lead + widths,
        }

    def counts(self, x: Any, include_pad: bool) -> np.ndarray:
        """Return how many elements each window has: of the input, or of it and its pads."""
        found = np.ones((), np.float64)
        for axis, size in enumerate(x.shape[-self.rank :]):
            low, high = self.pads[axis]
            reach = self.dilations[axis] * (self.kernel[axis] - 1)
            last = low + size + high + self.beyond[axis] - reach
            starts = np.arange(0, max(last, 0), self.strides[axis]) - low
            places = starts[:, None] + self.dilations[axis] * np.arange(self.kernel[axis])
            first, end = (-low, size + high) if include_pad else (0, size)
            inside = ((places >= first) & (places < end)).sum(1)
            found = found[..., None] * inside
        return found


@operator("MaxPool", counts=True)
def max_pool(
    x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, pads=None, storage_order=0,
    strides=None, num_results=1,
):  # fmt: skip
    windows = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if num_results == 1:
        return lax.reduce_window(x, _least(x.dtype), lax.max, **windows.options(x))
    sizes = x.shape[-windows.rank :]
    order = "F" if storage_order else "C"
    plane = np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes, order=order)
    start = math.prod(sizes) * np.arange(math.prod(x.shape[: -windows.rank]), dtype=np.int32)
    places = jnp.asarray(start.reshape(*x.shape[: -windows.rank], *(1,) * windows.rank) + plane)

    def larger(a, b):
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    least = (jnp.asarray(_least(x.dtype), x.dtype), jnp.asarray(np.iinfo(np.int32).max))
    value, index = lax.reduce_window(
        (x, places), (least[0], least[1].astype(jnp.int32)), larger, **windows.options(x)
    )
    return [value, index.astype(canonical(np.int64))]


def _least(dtype: Any) -> Any:
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    return np.asarray(-np.inf if inexact else jnp.iinfo(dtype).min, dtype)


@operator("AveragePool")
def average_pool(
    x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, count_include_pad=0, dilations=None,
    pads=None, strides=None,
):  # fmt: skip
    windows = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    total = lax.reduce_window(x, np.zeros((), x.dtype), lax.add, **windows.options(x))
    counts = jnp.asarray(windows.counts(x, bool(count_include_pad)), x.dtype)
    return total / counts


@operator("LpPool")
def lp_pool(
    x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, p=2, pads=None, strides=None
):
    windows = _Windows(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    powers = jnp.abs(x) ** p
    total = lax.reduce_window(powers, np.zeros((), x.dtype), lax.add, **windows.options(x))
    return total ** (1 / p)


@operator("GlobalAveragePool")
def global_average_pool(x):
    return jnp.mean(x, tuple(range(2, x.ndim)), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(x):
    return jnp.max(x, tuple(range(2, x.ndim)), keepdims=True)


@operator("GlobalLpPool")
def global_lp_pool(x, *, p=2):
    return jnp.sum(jnp.abs(x) ** p, tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)


@operator("MaxUnpool", known=(2,))
def max_unpool(x, indices, sizes=None, *, kernel_shape, pads=None, strides=None):
    rank = len(kernel_shape)
    strides, pads = strides or [1] * rank, pads or [0] * (2 * rank)
    inner = [
        (size - 1) * stride - pads[axis] - pads[axis + rank] + kernel_shape[axis]
        for axis, (size, stride) in enumerate(zip(x.shape[2:], strides, strict=True))
    ]
    # Indices count in the array without ``output_shape``.
    flat = jnp.zeros(math.prod((*x.shape[:2], *inner)), x.dtype)
    found = flat.at[indices.reshape(-1)].set(x.reshape(-1)).reshape(*x.shape[:2], *inner)
    if sizes is None:
        return found
    wanted = [int(size) for size in sizes]
    return jnp.pad(found, [(0, w - s) for w, s in zip(wanted, found.shape, strict=True)])
