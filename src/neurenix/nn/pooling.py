"""Pooling over channels-last inputs: maximum and mean, by windows or over all spatial axes.

Windows have a fixed size; adaptive windows are in ``adaptive_pooling``.

Letters: ``N`` batch, ``D H W L`` spatial axes, ``C`` channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix._core.errors import ArgumentError, ShapeError
from neurenix.nn._checks import expect_array, expect_channels, per_axis
from neurenix.nn.conv import one_stride
from neurenix.nn.module import Module


class _Pool(Module):
    _spatial: ClassVar[int]

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
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
        wide = x.astype(jnp.promote_types(dtype, jnp.float32))
        total = self._reduce(wide, np.zeros((), wide.dtype)[()], lax.add)
        return (total / math.prod(self.kernel_size)).astype(dtype)


class MaxPool1d(_MaxPool):
    """Maximum of windows over (N, L, C); arguments as for :class:`MaxPool2d`."""

    _spatial = 1


class MaxPool2d(_MaxPool):
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

    _spatial = 2


class MaxPool3d(_MaxPool):
    """Maximum of windows over (N, D, H, W, C); arguments as for :class:`MaxPool2d`."""

    _spatial = 3


class AvgPool1d(_AvgPool):
    """Mean of windows over (N, L, C); arguments as for :class:`AvgPool2d`."""

    _spatial = 1


class AvgPool2d(_AvgPool):
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

    _spatial = 2


class AvgPool3d(_AvgPool):
    """Mean of windows over (N, D, H, W, C); arguments as for :class:`AvgPool2d`."""

    _spatial = 3


class _GlobalPool(Module):
    _spatial: ClassVar[int]

    def __init__(self, *, keepdims: bool = False) -> None:
        self.keepdims = keepdims

    def _axes(self, x: jax.Array) -> tuple[int, ...]:
        expect_channels(type(self).__name__, x, spatial=self._spatial, channels=None)
        return tuple(range(1, self._spatial + 1))


class _GlobalAvgPool(_GlobalPool):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the mean over the spatial axes, (N, C); summed in float32."""
        axes = self._axes(x)
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
        wide = jnp.promote_types(dtype, jnp.float32)
        mean = jnp.mean(x, axis=axes, keepdims=self.keepdims, dtype=wide)
        return mean.astype(dtype)


class _GlobalMaxPool(_GlobalPool):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the maximum over the spatial axes, (N, C)."""
        return jnp.max(x, axis=self._axes(x), keepdims=self.keepdims)


class GlobalAvgPool1d(_GlobalAvgPool):
    """Mean over the sequence: (N, L, C) → (N, C)."""

    _spatial = 1


class GlobalAvgPool2d(_GlobalAvgPool):
    """Mean over the image: (N, H, W, C) → (N, C).

    Args:
        keepdims: keep the spatial axes, with size 1.

    Example:
        >>> nn.GlobalAvgPool2d()(nx.ones((4, 7, 7, 8))).shape
        (4, 8)
    """

    _spatial = 2


class GlobalAvgPool3d(_GlobalAvgPool):
    """Mean over the volume: (N, D, H, W, C) → (N, C)."""

    _spatial = 3


class GlobalMaxPool1d(_GlobalMaxPool):
    """Maximum over the sequence: (N, L, C) → (N, C)."""

    _spatial = 1


class GlobalMaxPool2d(_GlobalMaxPool):
    """Maximum over the image: (N, H, W, C) → (N, C); ``keepdims`` as for the mean."""

    _spatial = 2


class GlobalMaxPool3d(_GlobalMaxPool):
    """Maximum over the volume: (N, D, H, W, C) → (N, C)."""

    _spatial = 3
