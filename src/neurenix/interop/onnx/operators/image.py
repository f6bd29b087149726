"""Sampling between pixels, regions of images, and columns put back into images.

Letters: ``N`` batch, ``C`` channels, ``R`` regions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import expect_size
from neurenix.interop.onnx.registry import operator

Array = Any


@operator("AffineGrid", known=(1,))
def affine_grid(theta, size, *, align_corners=0):
    sizes = expect_size(size, "AffineGrid")[2:]
    lines = []
    for length in sizes:
        line = np.linspace(-1, 1, length) if align_corners else (2 * np.arange(length) + 1) / length
        lines.append(line if align_corners else line - 1)
    # The last coordinate is the first axis from behind.
    mesh = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(sizes)], -1)
    points = jnp.asarray(mesh, theta.dtype)
    return jnp.einsum("...j,nij->n...i", points, theta, precision=jax.lax.Precision.HIGHEST)


@operator("GridSample")
def grid_sample(x, grid, *, align_corners=0, mode="linear", padding_mode="zeros"):
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ConversionError(f"padding_mode is {padding_mode!r}.")
    at, of = [], jnp.promote_types(grid.dtype, jnp.float32)
    for axis, size in enumerate(x.shape[2:]):
        place = grid[..., x.ndim - 3 - axis].astype(of)
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        place = (place + 1) / 2 * (high - low) + low
        place = jnp.round(place) if mode == "nearest" else place
        outside = (place < low) | (place > high)
        # A cubic's four pixels are limited instead, one by one.
        if padding_mode == "border" and mode != "cubic":
            place = jnp.where(outside, jnp.clip(place, 0, size - 1), place)
        elif padding_mode == "reflection":
            place = jnp.where(outside, _reflected(place, low, high), place)
        at.append(place)
    return jax.vmap(lambda x, *at: _sampled(x, at, mode, padding_mode, align_corners))(x, *at)


def _reflected(place: Array, low: float, high: float) -> Array:
    """Return places folded into a range."""
    extent = high - low
    if not extent:
        return jnp.full_like(place, low)
    phase = jnp.mod(place - low, 2 * extent)
    return low + jnp.where(phase > extent, 2 * extent - phase, phase)


def _sampled(
    x: Array, at: Sequence[Array], mode: str = "linear", padding: str = "zeros", corners: Any = 0
) -> Array:
    """Return the values of an image (C, …) between its pixels: (C, *shape of the places).

    Args:
        x: the image.
        at: a coordinate in pixels for each axis behind the first.
        mode: ``"nearest"``, ``"linear"`` or ``"cubic"``.
        padding: what is outside: ``"zeros"``, ``"border"`` or ``"reflection"``.
        corners: whether a reflection is at the centres of the outermost pixels.
    """
    taps = []
    for size, place in zip(x.shape[1:], at, strict=True):
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        along = []
        for index, weight in _taps(place, mode):
            inside = (index >= 0) & (index < size)
            if padding == "reflection":
                folded = jnp.trunc(_reflected(index, low, high))
                index = jnp.where(inside, index, folded)
            elif padding == "zeros":
                weight = jnp.where(inside, weight, 0)
            along.append((jnp.clip(index, 0, size - 1).astype(jnp.int32), weight))
        taps.append(along)
    total = jnp.zeros((), jnp.promote_types(x.dtype, jnp.float32))
    for chosen in itertools.product(*taps):
        values = x[(slice(None), *(index for index, _ in chosen))]
        total = total + values * math.prod(weight for _, weight in chosen)
    if jnp.issubdtype(x.dtype, jnp.integer):
        total = jnp.trunc(total)
    return total.astype(x.dtype)


def _taps(place: Array, mode: str) -> list[tuple[Array, Array]]:
    """Return the pixels beside a place, each with its weight."""
    if mode == "nearest":
        return [(place, jnp.ones_like(place))]
    first = jnp.floor(place)
    t = place - first
    if mode == "linear":
        return [(first, 1 - t), (first + 1, t)]
    if mode != "cubic":
        raise ConversionError(f"the mode {mode!r} is not one of nearest, linear, cubic.")
    a = -0.75

    def near(t: Array) -> Array:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Array) -> Array:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    weights = [far(t + 1), near(t), near(1 - t), far(2 - t)]
    return [(first + offset - 1, weight) for offset, weight in enumerate(weights)]


@operator("DeformConv")
def deform_conv(
    x, w, offset, b=None, mask=None, *, dilations=None, group=1, kernel_shape=None, offset_group=1,
    pads=None, strides=None,
):  # fmt: skip
    rank = x.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads, kernel, out = pads or [0] * (2 * rank), w.shape[2:], offset.shape[2:]
    count, batch, groups = math.prod(kernel), x.shape[0], offset_group
    shifts = offset.reshape(batch, groups, *kernel, rank, *out)
    places = []
    for axis in range(rank):
        inner = np.arange(kernel[axis]) * dilations[axis]
        outer = np.arange(out[axis]) * strides[axis] - pads[axis]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = kernel[axis], out[axis]
        places.append((inner[:, None] + outer).reshape(shape) + jnp.take(shifts, axis, 2 + rank))
    image = x.reshape(batch, groups, -1, *x.shape[2:])
    columns = jax.vmap(jax.vmap(lambda x, *at: _sampled(x, at)))(image, *places)
    if mask is not None:
        columns = columns * mask.reshape(batch, groups, 1, *kernel, *out)
    columns = columns.reshape(batch, group, -1, count, math.prod(out))
    weights = w.reshape(group, -1, w.shape[1], count)
    y = jnp.einsum("ngckp,gock->ngop", columns, weights)
    y = y.reshape(batch, w.shape[0], *out)
    return y if b is None else y + b.reshape(-1, *(1,) * rank)


@operator("Col2Im", known=(1, 2))
def col2im(x, image_shape, block_shape, *, dilations=None, pads=None, strides=None):
    sizes, kernel = expect_size(image_shape, "Col2Im"), expect_size(block_shape, "Col2Im")
    rank = len(sizes)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads or [0] * (2 * rank)
    whole = [size + pads[n] + pads[n + rank] for n, size in enumerate(sizes)]
    index = []
    for axis in range(rank):
        blocks = (whole[axis] - dilations[axis] * (kernel[axis] - 1) - 1) // strides[axis] + 1
        place = np.arange(kernel[axis])[:, None] * dilations[axis]
        place = place + np.arange(blocks) * strides[axis]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = place.shape
        index.append(place.reshape(shape))
    columns = x.reshape(x.shape[0], -1, *np.broadcast_shapes(*(each.shape for each in index)))
    image = jnp.zeros((*columns.shape[:2], *whole), x.dtype)
    image = image.at[(slice(None), slice(None), *index)].add(columns)
    inner = [slice(pads[n], pads[n] + size) for n, size in enumerate(sizes)]
    return image[(slice(None), slice(None), *inner)]


@operator("NonMaxSuppression", known=(0, 1, 2, 3, 4), folds=True)
def non_max_suppression(
    boxes, scores, most=None, iou_threshold=None, score_threshold=None, *, center_point_box=0
):
    most = 0 if most is None else int(np.reshape(most, ()))
    overlap = 0.0 if iou_threshold is None else np.reshape(iou_threshold, ())
    if center_point_box:
        centres, halves = boxes[..., :2], boxes[..., 2:] / 2
        low, high = centres - halves, centres + halves
    else:
        low = np.minimum(boxes[..., :2], boxes[..., 2:])
        high = np.maximum(boxes[..., :2], boxes[..., 2:])
    found = []
    for batch, kind in np.ndindex(scores.shape[:2]):
        values = scores[batch, kind]
        order = np.argsort(-values, kind="stable")
        if score_threshold is not None:
            order = order[values[order] > np.reshape(score_threshold, ())]
        chosen: list[int] = []
        for box in order:
            if len(chosen) >= most:
                break
            if not (_overlaps(low[batch], high[batch], box, chosen) > overlap).any():
                chosen.append(int(box))
        found += [(batch, kind, box) for box in chosen]
    return np.asarray(found, np.int64).reshape(-1, 3)


def _overlaps(low: Any, high: Any, box: Any, others: list[int]) -> Any:
    """Return intersection over union of a box with others; 0 where one has no area."""
    shared = np.maximum(np.minimum(high[box], high[others]) - np.maximum(low[box], low[others]), 0)
    area, areas = np.prod(high[box] - low[box]), np.prod(high[others] - low[others], axis=-1)
    shared = np.prod(shared, axis=-1)
    union = area + areas - shared
    valid = (area > 0) & (areas > 0) & (union > 0)
    return np.where(valid, shared / np.where(valid, union, 1), 0)
