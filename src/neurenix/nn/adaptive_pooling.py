"""Pooling to a given output size; fixed windows are in ``pooling``.

PyTorch's rule: of n windows over an axis, window i starts at floor(i · size / n) and ends before
ceil((i + 1) · size / n).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import jax
import jax.numpy as jnp

from neurenix.nn._checks import expect_array, expect_channels, per_axis
from neurenix.nn.module import Module

Reduction = Callable[..., jax.Array]


class _Adaptive(Module):
    _spatial: ClassVar[int]

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
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32
        wide = x.astype(jnp.promote_types(dtype, jnp.float32))
        return self._pool(wide, jnp.mean).astype(dtype)


class _AdaptiveMaxPool(_Adaptive):
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the maximum of every window."""
        return self._pool(x, jnp.max)


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Mean pooling of (N, L, C) to (N, output_size, C)."""

    _spatial = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Mean pooling of images (N, H, W, C) to (N, *output_size, C).

    Args:
        output_size: one number, or (height, width); None keeps the size of that axis.

    Example:
        >>> nn.AdaptiveAvgPool2d(3)(nx.ones((2, 7, 5, 4))).shape
        (2, 3, 3, 4)
        >>> nn.AdaptiveAvgPool2d((None, 1))(nx.ones((2, 7, 5, 4))).shape
        (2, 7, 1, 4)
    """

    _spatial = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Mean pooling of volumes (N, D, H, W, C) to (N, *output_size, C)."""

    _spatial = 3


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Maximum pooling of (N, L, C) to (N, output_size, C)."""

    _spatial = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Maximum pooling of images (N, H, W, C) to (N, *output_size, C).

    Args:
        output_size: one number, or (height, width); None keeps the size of that axis.

    Example:
        >>> nn.AdaptiveMaxPool2d((1, 2))(nx.ones((2, 7, 5, 4))).shape
        (2, 1, 2, 4)
    """

    _spatial = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Maximum pooling of volumes (N, D, H, W, C) to (N, *output_size, C)."""

    _spatial = 3


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
