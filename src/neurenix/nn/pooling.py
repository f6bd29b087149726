"""Pooling over channels-last inputs: maximum and mean, by windows or over all spatial axes.

The windows of an adaptive layer follow PyTorch's rule: of n windows over an axis, window i starts
at floor(i · size / n) and ends before ceil((i + 1) · size / n).

Letters: ``N`` batch, ``D H W L`` spatial axes, ``C`` channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix._core.errors import ArgumentError, ShapeError
from neurenix.nn._checks import expect_array, expect_channels, per_axis
from neurenix.nn.conv import SpatialLayer, one_stride

Reduction = Callable[..., jax.Array]


class _Pool(SpatialLayer):
    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        *,
        strides: int | Sequence[int] | None = None,
    ) -> None:
        self.kernel_size = per_axis("kernel_size", kernel_size, self._spatial, low=1)
        if stride is None:
            stride = 1 if strides is not None else self.kernel_size
        self.stride = one_stride(stride, strides, self._spatial)
        self.padding = per_axis("padding", padding, self._spatial, low=0)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            raise ArgumentError(
                f"`padding` = {self.padding} must be at most half of `kernel_size` = "
                f"{self.kernel_size}."
            )

    def _reduce(self, x: jax.Array, start, operation) -> jax.Array:
        name = type(self).__name__
        expect_channels(name, x, spatial=self._spatial, channels=None)
        padded = [n + 2 * p for n, p in zip(x.shape[1:-1], self.padding, strict=True)]
        if any(n < k for n, k in zip(padded, self.kernel_size, strict=True)):
            raise ShapeError(
                f"{name} has windows of {self.kernel_size}, larger than its input: shape "
                f"{x.shape}, padding {self.padding}."
            )
        return lax.reduce_window(
            x,
            start,
            operation,
            (1, *self.kernel_size, 1),
            (1, *self.stride, 1),
            ((0, 0), *((p, p) for p in self.padding), (0, 0)),
        )


class _MaxPool(_Pool):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the maximum of every window per channel; for booleans, whether any is True."""
        expect_array(type(self).__name__, x)
        if x.dtype == jnp.bool_:
            lowest: float | bool = False
        else:
            lowest = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
        return self._reduce(x, np.asarray(lowest, x.dtype)[()], lax.max)


class _AvgPool(_Pool):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the mean of every window per channel, summed in float32."""
        expect_array(type(self).__name__, x)
        wide, dtype = _widened(x)
        total = self._reduce(wide, np.zeros((), wide.dtype)[()], lax.add)
        return (total / math.prod(self.kernel_size)).astype(dtype)


class MaxPool1d(_MaxPool, spatial=1):
    """Maximum of windows over (N, L, C); arguments as for :class:`MaxPool2d`."""


class MaxPool2d(_MaxPool, spatial=2):
    """Maximum of windows over images (N, H, W, C).

    Args:
        kernel_size: one number, or (height, width).
        stride: step between windows; ``kernel_size`` by default.
        padding: rows and columns of minus infinity on both sides; at most half of ``kernel_size``.
        strides: TensorFlow's name for ``stride``.

    Raises:
        ShapeError: the input has another rank, or is smaller than a window.

    Example:
        >>> nn.MaxPool2d(2)(nx.ones((4, 8, 8, 3))).shape
        (4, 4, 4, 3)
    """


class MaxPool3d(_MaxPool, spatial=3):
    """Maximum of windows over (N, D, H, W, C); arguments as for :class:`MaxPool2d`."""


class AvgPool1d(_AvgPool, spatial=1):
    """Mean of windows over (N, L, C); arguments as for :class:`AvgPool2d`."""


class AvgPool2d(_AvgPool, spatial=2):
    """Mean of windows over images (N, H, W, C).

    Padding counts as zeros, as in PyTorch (``count_include_pad=True``).

    Args:
        kernel_size: one number, or (height, width).
        stride: step between windows; ``kernel_size`` by default.
        padding: rows and columns of zeros on both sides; at most half of ``kernel_size``.
        strides: TensorFlow's name for ``stride``.

    Example:
        >>> nn.AvgPool2d(2)(nx.ones((4, 8, 8, 3))).shape
        (4, 4, 4, 3)
    """


class AvgPool3d(_AvgPool, spatial=3):
    """Mean of windows over (N, D, H, W, C); arguments as for :class:`AvgPool2d`."""


class _GlobalPool(SpatialLayer):
    def __init__(self, *, keepdims: bool = False) -> None:
        self.keepdims = keepdims

    def _axes(self, x: jax.Array) -> tuple[int, ...]:
        expect_channels(type(self).__name__, x, spatial=self._spatial, channels=None)
        return tuple(range(1, self._spatial + 1))


class _GlobalAvgPool(_GlobalPool):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the mean over the spatial axes, (N, C); summed in float32."""
        axes = self._axes(x)
        wide, dtype = _widened(x)
        return jnp.mean(wide, axis=axes, keepdims=self.keepdims).astype(dtype)


class _GlobalMaxPool(_GlobalPool):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the maximum over the spatial axes, (N, C)."""
        return jnp.max(x, axis=self._axes(x), keepdims=self.keepdims)


class GlobalAvgPool1d(_GlobalAvgPool, spatial=1):
    """Mean over the sequence: (N, L, C) → (N, C)."""


class GlobalAvgPool2d(_GlobalAvgPool, spatial=2):
    """Mean over the image: (N, H, W, C) → (N, C).

    Args:
        keepdims: keep the spatial axes, with size 1.

    Example:
        >>> nn.GlobalAvgPool2d()(nx.ones((4, 7, 7, 8))).shape
        (4, 8)
    """


class GlobalAvgPool3d(_GlobalAvgPool, spatial=3):
    """Mean over the volume: (N, D, H, W, C) → (N, C)."""


class GlobalMaxPool1d(_GlobalMaxPool, spatial=1):
    """Maximum over the sequence: (N, L, C) → (N, C)."""


class GlobalMaxPool2d(_GlobalMaxPool, spatial=2):
    """Maximum over the image: (N, H, W, C) → (N, C); ``keepdims`` as for the mean."""


class GlobalMaxPool3d(_GlobalMaxPool, spatial=3):
    """Maximum over the volume: (N, D, H, W, C) → (N, C)."""


class _Adaptive(SpatialLayer):
    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        size, count = output_size, self._spatial
        if isinstance(size, Sequence) and len(size) == count and any(one is None for one in size):
            self.output_size = tuple(
                one if one is None else per_axis("output_size", one, count, low=1)[0]
                for one in size
            )
        else:
            whole = cast("int | Sequence[int]", size)
            self.output_size = per_axis("output_size", whole, count, low=1)

    def _pool(self, x: jax.Array, reduction: Reduction) -> jax.Array:
        expect_channels(type(self).__name__, x, spatial=self._spatial, channels=None)
        for axis, parts in enumerate(self.output_size, start=1):
            if parts is not None:
                x = _pool_axis(x, axis, parts, reduction)
        return x


class _AdaptiveAvgPool(_Adaptive):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the mean of every window; summed in float32."""
        expect_array(type(self).__name__, x)
        wide, dtype = _widened(x)
        return self._pool(wide, jnp.mean).astype(dtype)


class _AdaptiveMaxPool(_Adaptive):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the maximum of every window."""
        return self._pool(x, jnp.max)


class AdaptiveAvgPool1d(_AdaptiveAvgPool, spatial=1):
    """Mean pooling of (N, L, C) to (N, output_size, C)."""


class AdaptiveAvgPool2d(_AdaptiveAvgPool, spatial=2):
    """Mean pooling of images (N, H, W, C) to (N, *output_size, C).

    Args:
        output_size: one number, or (height, width); None keeps the size of that axis.

    Example:
        >>> nn.AdaptiveAvgPool2d(3)(nx.ones((2, 7, 5, 4))).shape
        (2, 3, 3, 4)
        >>> nn.AdaptiveAvgPool2d((None, 1))(nx.ones((2, 7, 5, 4))).shape
        (2, 7, 1, 4)
    """


class AdaptiveAvgPool3d(_AdaptiveAvgPool, spatial=3):
    """Mean pooling of volumes (N, D, H, W, C) to (N, *output_size, C)."""


class AdaptiveMaxPool1d(_AdaptiveMaxPool, spatial=1):
    """Maximum pooling of (N, L, C) to (N, output_size, C)."""


class AdaptiveMaxPool2d(_AdaptiveMaxPool, spatial=2):
    """Maximum pooling of images (N, H, W, C) to (N, *output_size, C).

    Args:
        output_size: one number, or (height, width); None keeps the size of that axis.

    Example:
        >>> nn.AdaptiveMaxPool2d((1, 2))(nx.ones((2, 7, 5, 4))).shape
        (2, 1, 2, 4)
    """


class AdaptiveMaxPool3d(_AdaptiveMaxPool, spatial=3):
    """Maximum pooling of volumes (N, D, H, W, C) to (N, *output_size, C)."""


def _widened(x: jax.Array) -> tuple[jax.Array, Any]:
    """Return ``x`` in float32 or wider, to sum in, and the dtype of its mean."""
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
    return x.astype(jnp.promote_types(dtype, jnp.float32)), dtype


def _pool_axis(x: jax.Array, axis: int, parts: int, reduction: Reduction) -> jax.Array:
    # Windows are products of intervals, so mean and maximum can be taken axis by axis.
    size = x.shape[axis]
    if size % parts == 0:
        split = x.reshape(*x.shape[:axis], parts, size // parts, *x.shape[axis + 1 :])
        return reduction(split, axis=axis + 1)
    windows = [
        jax.lax.slice_in_dim(x, i * size // parts, -(-(i + 1) * size // parts), axis=axis)
        for i in range(parts)
    ]
    return jnp.stack([reduction(window, axis=axis) for window in windows], axis=axis)
