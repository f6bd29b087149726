"""Resize and Upsample: each axis by a matrix of weights, or by indices, made when it is traced.

Coordinates are computed in float32, as onnxruntime does: their rounding decides which pixel is the
nearest. Lengths of ``align_corners`` are whole numbers, as in ONNX's text, PyTorch and onnxruntime;
ONNX's reference implementation takes those before rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import expect_size
from neurenix.interop.onnx.registry import operator

Array = Any
_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}


@dataclass(frozen=True)
class _How:
    """How pixels are found and weighted: the attributes of Resize."""

    mode: str
    coordinates: str
    nearest: str = "floor"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


@dataclass(frozen=True)
class _Axis:
    """One axis: its lengths before and after, the scale, and the part that is taken."""

    number: int
    before: int
    after: int
    scale: float
    start: float = 0.0
    end: float = 1.0


@operator("Resize", since=11, known=(1, 2, 3))
def resize(
    x, roi=None, scales=None, sizes=None, *, antialias=0, axes=None,
    coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75, exclude_outside=0,
    extrapolation_value=0.0, keep_aspect_ratio_policy="stretch", mode="nearest",
    nearest_mode="round_prefer_floor",
):  # fmt: skip
    how = _How(
        _MODES.get(mode, mode), coordinate_transformation_mode, nearest_mode, cubic_coeff_a,
        bool(antialias), bool(exclude_outside),
    )  # fmt: skip
    named = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes)]
    plan = _plan(x.shape, named, scales, sizes, keep_aspect_ratio_policy)
    if how.coordinates == "tf_crop_and_resize":
        if roi is None or len(roi) != 2 * len(named):
            raise ConversionError("tf_crop_and_resize needs a start and an end for each axis.")
        ends = np.reshape(roi, (2, -1)).T
        plan = [
            replace(each, start=float(start), end=float(end))
            for each, (start, end) in zip(plan, ends, strict=True)
        ]
    return _resized(x, plan, how, extrapolation_value)


@operator("Resize", since=10, known=(1,))
def resize_10(x, scales, *, mode="nearest"):
    # Nearest pixels are those before where it grows, those after where it shrinks.
    plan = _plan(x.shape, range(x.ndim), scales, None, "stretch")
    how = _How(_MODES.get(mode, mode), "asymmetric")
    smaller = [each for each in plan if each.scale < 1]
    x = _resized(x, [each for each in plan if each.scale >= 1], how)
    return _resized(x, smaller, replace(how, nearest="ceil"))


@operator("Upsample", since=9, known=(1,))
def upsample(x, scales, *, mode="nearest"):
    how = _How(_MODES.get(mode, mode), "asymmetric")
    return _resized(x, _plan(x.shape, range(x.ndim), scales, None, "stretch"), how)


@operator("Upsample", since=7)
def upsample_7(x, *, scales, mode="nearest"):
    return upsample(x, np.asarray(scales, np.float32), mode=mode)


@operator("Upsample", since=1)
def upsample_1(x, *, width_scale, height_scale, mode="nearest"):
    return upsample_7(x, scales=[1, 1, height_scale, width_scale], mode=mode)


def _plan(
    shape: Sequence[int], axes: Sequence[int], scales: Any, sizes: Any, policy: str
) -> list[_Axis]:
    """Return what becomes of each named axis."""
    has_sizes = sizes is not None and np.size(sizes) > 0
    given = sizes if has_sizes else scales
    if given is None or np.size(given) != len(axes):
        raise ConversionError(f"it needs one scale or size for each of {len(axes)} axes.")
    if not has_sizes:
        factors = np.ravel(given).astype(np.float32)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ConversionError(f"its scales are {factors.tolist()}; they must be positive.")
        after = [math.floor(f * np.float32(shape[a])) for f, a in zip(factors, axes, strict=True)]
    else:
        after = [int(size) for size in np.ravel(given)]
        ratios = [size / shape[axis] for size, axis in zip(after, axes, strict=True)]
        if policy != "stretch":
            if policy not in ("not_larger", "not_smaller"):
                raise ConversionError(f"keep_aspect_ratio_policy is {policy!r}.")
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            after = [math.floor(ratio * shape[axis] + 0.5) for axis in axes]
            ratios = [ratio] * len(axes)
        factors = np.asarray(ratios, np.float32)
    whole = list(shape)
    for axis, size in zip(axes, after, strict=True):
        whole[axis] = size
    expect_size(whole, "A Resize")
    return [
        _Axis(axis, shape[axis], size, float(factor))
        for axis, size, factor in zip(axes, after, factors, strict=True)
    ]


def _resized(x: Array, plan: Sequence[_Axis], how: _How, outside: float = 0.0) -> Array:
    if how.mode not in _MODES:
        raise ConversionError(f"the mode {how.mode!r} is not one of nearest, linear, cubic.")
    dtype, extrapolated = x.dtype, None
    for axis in plan:
        if axis.before == axis.after and axis.scale == 1 and (axis.start, axis.end) == (0, 1):
            continue
        at = _coordinates(axis, how)
        if how.coordinates == "tf_crop_and_resize":
            beyond = (at < 0) | (at > axis.before - 1)
            beyond = beyond.reshape([-1 if n == axis.number else 1 for n in range(x.ndim)])
            extrapolated = beyond if extrapolated is None else extrapolated | beyond
        if how.mode == "nearest":
            x = jnp.take(x, _nearest(at, axis, how.nearest), axis.number)
            continue
        if jnp.issubdtype(x.dtype, jnp.integer):
            x = x.astype(jnp.float32)
        weights = _weights(at, axis, how).astype(x.dtype)
        moved = jnp.tensordot(x, weights, [[axis.number], [1]], precision=jax.lax.Precision.HIGHEST)
        x = jnp.moveaxis(moved, -1, axis.number)
    if extrapolated is not None and extrapolated.any():
        x = jnp.where(extrapolated, jnp.asarray(outside, x.dtype), x)
    if x.dtype != dtype:
        info = jnp.iinfo(dtype)
        # Rounding where neighbours overshoot, else towards zero, is what onnxruntime does.
        x = jnp.round(x) if how.antialias else jnp.trunc(x)
        x = jnp.clip(x, int(info.min), int(info.max)).astype(dtype)
    return x


def _coordinates(axis: _Axis, how: _How) -> np.ndarray:
    """Return where in the input each pixel of the output lies."""
    one = np.float32
    place, scale = np.arange(axis.after, dtype=np.float32), one(axis.scale)
    last = one(axis.before - 1)
    kind = how.coordinates
    if kind == "half_pixel":
        return (place + one(0.5)) / scale - one(0.5)
    if kind == "asymmetric":
        return place / scale
    if kind == "pytorch_half_pixel":
        return (place + one(0.5)) / scale - one(0.5) if axis.after > 1 else 0 * place
    if kind == "align_corners":
        return place * last / one(axis.after - 1) if axis.after > 1 else 0 * place
    if kind == "half_pixel_symmetric":
        adjustment = one(axis.after) / (scale * one(axis.before))
        offset = one(axis.before / 2) * (1 - adjustment)
        return offset + (place + one(0.5)) / scale - one(0.5)
    if kind == "tf_half_pixel_for_nn":
        return (place + one(0.5)) / scale
    if kind == "tf_crop_and_resize":
        start, extent = one(axis.start), one(axis.end - axis.start)
        if axis.after == 1:
            return one(0.5) * (one(axis.start + axis.end) * last) + 0 * place
        return start * last + place * extent * last / one(axis.after - 1)
    raise ConversionError(f"coordinate_transformation_mode is {kind!r}.")


def _nearest(at: np.ndarray, axis: _Axis, how: str) -> np.ndarray:
    found = {
        "round_prefer_floor": lambda: np.ceil(at - np.float32(0.5)),
        "round_prefer_ceil": lambda: np.floor(at + np.float32(0.5)),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }
    if how not in found:
        raise ConversionError(f"nearest_mode is {how!r}.")
    return np.clip(found[how](), 0, axis.before - 1).astype(np.int32)


def _weights(at: np.ndarray, axis: _Axis, how: _How) -> np.ndarray:
    """Return the weights (after, before) of an axis."""
    at = at.astype(np.float64)
    # A filter grows with what it shrinks.
    stretch = 1 / min(axis.scale, 1.0) if how.antialias else 1.0
    reach = (1 if how.mode == "linear" else 2) * stretch
    taps = np.arange(-math.ceil(reach) - 1, math.ceil(reach) + 2)
    places = np.floor(at)[:, None] + taps
    distance = np.abs(places - at[:, None]) / stretch
    kernel = np.maximum(1 - distance, 0)
    if how.mode == "cubic":
        kernel = _cubic(distance, how.cubic_a)
    inside = (places >= 0) & (places < axis.before)
    if how.exclude_outside:
        kernel = kernel * inside
    if how.antialias or how.exclude_outside:
        total = kernel.sum(1, keepdims=True)
        kernel = kernel / np.where(total == 0, 1, total)
    columns = np.clip(places, 0, axis.before - 1).astype(int)
    weights = np.zeros((axis.after, axis.before))
    np.add.at(weights, (np.arange(axis.after)[:, None], columns), kernel)
    return weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))
