"""Pooling and interpolation over channels-first inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix.interop.torch.operators.convolution import _each
from neurenix.interop.torch.registry import operator

Array = Any


def _windows(
    x: Array, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Return the arguments of ``lax.reduce_window``, and the padding of the spatial axes."""
    size = _each(kernel, rank)
    step = _each(stride, rank) if stride not in (None, [], ()) else size
    spread, pads = _each(dilation, rank), []
    for axis, (k, s, p, d) in enumerate(zip(size, step, _each(padding, rank), spread, strict=True)):
        length = x.shape[axis - rank]
        reach = d * (k - 1) + 1
        count = -(-(length + 2 * p - reach) // s) if ceil_mode else (length + 2 * p - reach) // s
        if ceil_mode and count * s >= length + p:
            count -= 1  # a window that begins beyond the input is left out
        pads.append((p, max(count * s + reach - length - p, p if not ceil_mode else 0)))
    lead = (1,) * (x.ndim - rank)
    options = {
        "window_dimensions": lead + size,
        "window_strides": lead + step,
        "padding": [(0, 0)] * len(lead) + pads,
        "window_dilation": lead + spread,
    }
    return options, pads


@operator("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    x: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Array:  # fmt: skip
    rank = len(kernel_size)
    if any(step != 1 for step in _each(dilation, rank)):  # JAX has no gradient for that
        return max_pool_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)[0]
    options, _ = _windows(x, rank, kernel_size, stride, padding, 1, ceil_mode)
    return lax.reduce_window(x, -jnp.inf, lax.max, **options)


@operator("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d_with_indices")
def max_pool_with_indices(
    x: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    rank = len(kernel_size)
    options, _ = _windows(x, rank, kernel_size, stride, padding, dilation, ceil_mode)
    places = jnp.arange(math.prod(x.shape[-rank:]), dtype=jnp.int32).reshape(x.shape[-rank:])
    places = jnp.broadcast_to(places, x.shape)

    def larger(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    start = (jnp.asarray(-jnp.inf, x.dtype), jnp.asarray(np.iinfo(np.int32).max, jnp.int32))
    _, index = lax.reduce_window((lax.stop_gradient(x), places), start, larger, **options)
    flat = x.reshape(*x.shape[: x.ndim - rank], -1)
    value = jnp.take_along_axis(flat, index.reshape(*index.shape[: x.ndim - rank], -1), -1)
    return value.reshape(index.shape), index


@operator("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    x: Array, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Array:  # fmt: skip
    rank = len(kernel_size)
    options, pads = _windows(x, rank, kernel_size, stride, padding, 1, ceil_mode)
    total = lax.reduce_window(x, 0.0, lax.add, **options)
    if divisor_override is not None:
        return total / divisor_override
    sizes = x.shape[-rank:]
    if count_include_pad:
        given = list(zip(sizes, _each(padding, rank), pads, strict=True))
        inside = jnp.ones([size + 2 * p for size, p, _ in given], x.dtype)
        options["padding"] = [(0, after - p) for _, p, (_, after) in given]
    else:
        inside, options["padding"] = jnp.ones(sizes, x.dtype), pads
    for name in ("window_dimensions", "window_strides", "window_dilation"):
        options[name] = options[name][-rank:]
    return total / lax.reduce_window(inside, 0.0, lax.add, **options)


@operator("lp_pool1d", "lp_pool2d", "lp_pool3d")
def lp_pool(
    x: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Array:
    rank = len(kernel_size)
    options, _ = _windows(x, rank, kernel_size, stride, 0, 1, ceil_mode)
    return lax.reduce_window(x**norm_type, 0.0, lax.add, **options) ** (1 / norm_type)


def _parts(size: int, wanted: int) -> list[tuple[int, int]]:
    return [(i * size // wanted, -(-(i + 1) * size // wanted)) for i in range(wanted)]


@operator("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
          "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")  # fmt: skip
def adaptive_avg_pool(x: Array, output_size: Any) -> Array:
    for axis, wanted in zip(range(-len(output_size), 0), output_size, strict=True):
        size = x.shape[axis]
        if size == wanted:
            continue
        if size % wanted == 0:
            shape = list(x.shape)
            shape[x.ndim + axis : x.ndim + axis + 1] = [wanted, size // wanted]
            x = x.reshape(shape).mean(x.ndim + axis + 1)
        else:
            means = [
                lax.slice_in_dim(x, a, b, axis=axis).mean(axis) for a, b in _parts(size, wanted)
            ]
            x = jnp.stack(means, axis)
    return x


@operator("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(x: Array, output_size: Any) -> tuple[Array, Array]:
    rank = len(output_size)
    places = jnp.arange(math.prod(x.shape[-rank:]), dtype=jnp.int32).reshape(x.shape[-rank:])
    index = jnp.broadcast_to(places, x.shape)
    value = x
    for axis, wanted in zip(range(-rank, 0), output_size, strict=True):
        found = []
        for start, end in _parts(value.shape[axis], wanted):
            part = lax.slice_in_dim(value, start, end, axis=axis)
            most = jnp.argmax(part, axis, keepdims=True)
            numbers = lax.slice_in_dim(index, start, end, axis=axis)
            found.append(tuple(jnp.take_along_axis(each, most, axis) for each in (part, numbers)))
        value, index = (jnp.concatenate(each, axis) for each in zip(*found, strict=True))
    return value, index


def _positions(size: int, wanted: int, scale: float | None, align_corners: bool) -> np.ndarray:
    """Return where each output element lies among the input's, as PyTorch computes it."""
    numbers = np.arange(wanted, dtype=np.float64)
    if align_corners:
        return numbers * ((size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    step = 1 / scale if scale else size / wanted
    return (numbers + 0.5) * step - 0.5


def _sizes(x: Array, output_size: Any, scales: Any) -> tuple[list[int], list[float | None]]:
    rank = x.ndim - 2
    if output_size is not None:
        given = list(scales) if scales is not None else [None] * rank
        return list(output_size), given
    return [math.floor(x.shape[2 + i] * scales[i]) for i in range(rank)], list(scales)


def _resample(x: Array, axis: int, places: np.ndarray, weights: np.ndarray) -> Array:
    """Return sums of weighted elements along an axis; ``places`` and ``weights`` are (out, k)."""
    size = x.shape[axis]
    matrix = np.zeros((places.shape[0], size), np.float32)
    rows = np.repeat(np.arange(places.shape[0]), places.shape[1])
    np.add.at(matrix, (rows, np.clip(places, 0, size - 1).reshape(-1)), weights.reshape(-1))
    moved = jnp.tensordot(x, jnp.asarray(matrix, x.dtype), ((axis,), (1,)))
    return jnp.moveaxis(moved, -1, axis)


def _linear(x: Array, output_size: Any, align_corners: bool, scales: Any) -> Array:
    sizes, factors = _sizes(x, output_size, scales)
    for axis, (wanted, factor) in enumerate(zip(sizes, factors, strict=True), start=2):
        at = np.maximum(_positions(x.shape[axis], wanted, factor, align_corners), 0)
        low = np.minimum(np.floor(at).astype(int), x.shape[axis] - 1)
        part = at - low
        places = np.stack([low, np.minimum(low + 1, x.shape[axis] - 1)], 1)
        x = _resample(x, axis, places, np.stack([1 - part, part], 1))
    return x


@operator("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def upsample_linear(
    x: Any = None, output_size: Any = None, align_corners: bool = False, scale_factors: Any = None,
    scales: Any = None, scales_d: Any = None, scales_h: Any = None, scales_w: Any = None,
    input: Any = None,
) -> Array:  # fmt: skip
    given = [s for s in (scales, scales_d, scales_h, scales_w) if s is not None]
    return _linear(
        input if x is None else x, output_size, align_corners, scale_factors or given or None
    )


def _cubic_weights(part: np.ndarray) -> np.ndarray:
    a = -0.75

    def near(t: np.ndarray) -> np.ndarray:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: np.ndarray) -> np.ndarray:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return np.stack([far(part + 1), near(part), near(1 - part), far(2 - part)], 1)


@operator("upsample_bicubic2d")
def upsample_bicubic(
    x: Any = None, output_size: Any = None, align_corners: bool = False, scale_factors: Any = None,
    scales_h: Any = None, scales_w: Any = None, input: Any = None,
) -> Array:  # fmt: skip
    x = input if x is None else x
    given = [s for s in (scales_h, scales_w) if s is not None]
    sizes, factors = _sizes(x, output_size, scale_factors or given or None)
    for axis, (wanted, factor) in enumerate(zip(sizes, factors, strict=True), start=2):
        at = _positions(x.shape[axis], wanted, factor, align_corners)
        low = np.floor(at).astype(int)
        x = _resample(x, axis, low[:, None] + np.arange(-1, 3), _cubic_weights(at - low))
    return x


def _nearest(
    shift: float, x: Array, output_size: Any, scale_factors: Any, factors: Sequence[Any]
) -> Array:
    """Return the elements at ``floor((number + shift) · step)``."""
    given = [s for s in factors if s is not None]
    sizes, scales = _sizes(x, output_size, scale_factors or given or None)
    for axis, (wanted, factor) in enumerate(zip(sizes, scales, strict=True), start=2):
        size = x.shape[axis]
        step = np.float32(1 / factor if factor else size / wanted)
        numbers = np.arange(wanted, dtype=np.float32) + np.float32(shift)
        x = jnp.take(x, np.minimum(np.floor(numbers * step).astype(int), size - 1), axis)
    return x


@operator("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def upsample_nearest(
    x: Any = None, output_size: Any = None, scale_factors: Any = None, scales: Any = None,
    scales_d: Any = None, scales_h: Any = None, scales_w: Any = None, input: Any = None,
) -> Array:  # fmt: skip
    factors = (scales, scales_d, scales_h, scales_w)
    return _nearest(0.0, input if x is None else x, output_size, scale_factors, factors)


@operator("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def upsample_nearest_exact(
    x: Any = None, output_size: Any = None, scale_factors: Any = None, scales: Any = None,
    scales_d: Any = None, scales_h: Any = None, scales_w: Any = None, input: Any = None,
) -> Array:  # fmt: skip
    factors = (scales, scales_d, scales_h, scales_w)
    return _nearest(0.5, input if x is None else x, output_size, scale_factors, factors)
