"""Pooling over regions of images: RoiAlign and MaxRoiPool.

Letters: ``R`` regions, ``C`` channels, ``H`` and ``W`` height and width.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.registry import operator

Array = Any
_EXACT = jax.lax.Precision.HIGHEST


@operator("RoiAlign", since=16)
def roi_align(
    x, rois, batch, *, coordinate_transformation_mode="half_pixel", mode="avg", output_height=1,
    output_width=1, sampling_ratio=0, spatial_scale=1.0,
):  # fmt: skip
    # Like torchvision's, the result has no gradient for the regions.
    rois = jax.lax.stop_gradient(rois) * spatial_scale
    is_half = coordinate_transformation_mode == "half_pixel"
    rois = rois - 0.5 if is_half else rois
    axes = []
    for size, parts, first in ((x.shape[2], output_height, 1), (x.shape[3], output_width, 0)):
        start, extent = rois[:, first], rois[:, first + 2] - rois[:, first]
        extent = extent if is_half else jnp.maximum(extent, 1)
        axes.append((size, parts, start, extent / parts))
    if mode == "max":
        return _aligned_max(x, batch, axes, sampling_ratio)
    if mode != "avg":
        raise ConversionError(f"the mode {mode!r} is not one of avg, max.")
    rows, columns = (_mean_weights(axis, sampling_ratio) for axis in axes)

    def region(given: Any) -> Array:
        image, rows, columns = given
        return jnp.einsum("chw,ph,qw->cpq", x[image], rows, columns, precision=_EXACT)

    return jax.lax.map(region, (batch, rows, columns)).astype(x.dtype)


@operator("RoiAlign", since=10)
def roi_align_10(x, rois, batch, **options):
    options.setdefault("coordinate_transformation_mode", "output_half_pixel")
    return roi_align(x, rois, batch, **options)


def _sides(at: Array, size: int) -> tuple[Array, Array, Array, Array]:
    """Return two pixels and their weights, for places along an axis; 0 outside of it."""
    inside = (at >= -1) & (at <= size)
    at = jnp.clip(at, 0, size - 1)
    low = jnp.floor(at)
    high = jnp.minimum(low + 1, size - 1)
    share = at - low
    return low, high, jnp.where(inside, 1 - share, 0), jnp.where(inside, share, 0)


def _mean_weights(axis: tuple[int, int, Array, Array], ratio: int) -> Array:
    """Return how much of each pixel is in the mean of each part: (R, parts, size)."""
    size, parts, start, step = axis
    # Without a ratio, larger regions take more samples: their number depends on the data.
    counts = jnp.full(step.shape, ratio) if ratio > 0 else jnp.ceil(step).astype(jnp.int32)
    begins = start[:, None] + jnp.arange(parts) * step[:, None]

    def add(number: Any, total: Array) -> Array:
        at = begins + ((number + 0.5) * step / jnp.maximum(counts, 1))[:, None]
        low, high, less, more = _sides(at, size)
        pixels = jnp.arange(size)
        weights = jnp.where(pixels == low[..., None], less[..., None], 0)
        weights = weights + jnp.where(pixels == high[..., None], more[..., None], 0)
        return total + jnp.where((number < counts)[:, None, None], weights, 0)

    total = jnp.zeros((*begins.shape, size), step.dtype)
    total = jax.lax.fori_loop(0, ratio if ratio > 0 else jnp.max(counts, initial=0), add, total)
    return total / jnp.maximum(counts, 1)[:, None, None]


def _aligned_max(x: Array, batch: Array, axes: Any, ratio: int) -> Array:
    """Return the largest weighted pixel beside each part's samples."""
    if ratio < 1:
        raise ConversionError(
            "the largest of samples whose number depends on the data is not computed here. Export "
            "the model with a sampling_ratio of at least 1."
        )
    sides = []
    for size, parts, start, step in axes:
        samples = jnp.arange(parts)[:, None] + (jnp.arange(ratio) + 0.5) / ratio
        at = start[:, None, None] + samples * step[:, None, None]
        sides.append([each.reshape(len(start), -1) for each in _sides(at, size)])
    index = [[side[0].astype(jnp.int32), side[1].astype(jnp.int32)] for side in sides]
    most = None
    for row in (0, 1):
        for column in (0, 1):
            images = batch[:, None, None]
            rows, columns = index[0][row][:, :, None], index[1][column][:, None]
            pixels = x[images, :, rows, columns]
            weights = sides[0][2 + row][:, :, None] * sides[1][2 + column][:, None]
            values = pixels * weights[..., None]
            most = values if most is None else jnp.maximum(most, values)
    height, width = axes[0][1], axes[1][1]
    grouped = most.reshape(len(batch), height, ratio, width, ratio, -1)
    return jnp.moveaxis(grouped.max((2, 4)), -1, 1).astype(x.dtype)


@operator("MaxRoiPool")
def max_roi_pool(x, rois, *, pooled_shape, spatial_scale=1.0):
    batch = rois[:, 0].astype(jnp.int32)
    corners = jnp.floor(rois[:, 1:] * spatial_scale + 0.5)
    inside = []
    for size, parts, first in ((x.shape[2], pooled_shape[0], 1), (x.shape[3], pooled_shape[1], 0)):
        start = corners[:, first, None]
        extent = jnp.maximum(corners[:, first + 2, None] - start + 1, 1) / parts
        low = jnp.clip(jnp.floor(jnp.arange(parts) * extent) + start, 0, size)
        high = jnp.clip(jnp.ceil((jnp.arange(parts) + 1) * extent) + start, 0, size)
        pixels = np.arange(size)
        inside.append((pixels >= low[..., None]) & (pixels < high[..., None]))
    least = jnp.asarray(-math.inf, x.dtype)

    def region(given: Any) -> Array:
        image, rows, columns = given
        by_row = jnp.where(rows[None, :, :, None], x[image][:, None], least).max(2)
        found = jnp.where(columns[None, None], by_row[:, :, None], least).max(-1)
        return jnp.where(jnp.isneginf(found), 0, found)

    return jax.lax.map(region, (batch, *inside))
