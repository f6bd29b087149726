"""Samples between elements: ``grid_sample``, and interpolation through a filter (``antialias``).

The letters of shapes: N examples, C channels, P places of the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix.interop.torch.operators.pooling import _resample
from neurenix.interop.torch.registry import operator

Array = Any
_LINEAR, _NEAREST, _CUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _inside(at: Array, size: int, padding: int, align_corners: bool) -> Array:
    """Return coordinates, those beyond the input at its border or reflected there."""
    if padding == _REFLECTION:
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return jnp.zeros_like(at)
        turns, rest = jnp.divmod(jnp.abs(at - low), span)
        at = jnp.where(turns % 2 == 0, rest, span - rest) + low
    if padding == _ZEROS:
        return at
    within = (at > 0) & (at < size - 1)  # at the border PyTorch's gradient is 0
    return jnp.where(within, at, lax.stop_gradient(jnp.clip(at, 0, size - 1)))


def _values(x: Array, places: list[Array]) -> Array:
    """Return x (N, C, …) at places (N, P) of each axis; zero where there is nothing."""
    sizes = x.shape[2:]
    within, flat = jnp.asarray(True), jnp.zeros(places[0].shape, jnp.int32)
    for at, size in zip(places, sizes, strict=True):
        within = within & (at >= 0) & (at < size)
        flat = flat * size + jnp.clip(at, 0, size - 1).astype(jnp.int32)
    found = jnp.take_along_axis(x.reshape(*x.shape[:2], -1), flat[:, None], 2)
    return jnp.where(within[:, None], found, 0)


def _cubic(part: Array) -> list[Array]:
    a = -0.75

    def near(t: Array) -> Array:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Array) -> Array:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


@operator("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Array:
    """Sample input (N, C, …) at grid (N, …, 2 or 3): from -1 to 1, the last axis first."""
    sizes = input.shape[2:]
    flat = grid.reshape(grid.shape[0], -1, len(sizes))
    coordinates = []
    for axis, size in enumerate(sizes):
        at = flat[..., len(sizes) - 1 - axis]
        at = (at + 1) / 2 * (size - 1) if align_corners else ((at + 1) * size - 1) / 2
        if interpolation_mode != _CUBIC:
            at = _inside(at, size, padding_mode, align_corners)
        coordinates.append(at)
    if interpolation_mode == _NEAREST:
        total = _values(input, [jnp.round(at) for at in coordinates])
    else:
        choices: list[list[tuple[Any, Any]]] = []
        for at, size in zip(coordinates, sizes, strict=True):
            low = lax.stop_gradient(jnp.floor(at))
            part = at - low
            if interpolation_mode == _CUBIC:
                places = [
                    _inside(low + step, size, padding_mode, align_corners)
                    for step in range(-1, 3)
                ]  # fmt: skip
                choices.append(list(zip(places, _cubic(part), strict=True)))
            else:
                choices.append([(low, 1 - part), (low + 1, part)])
        total: Any = 0.0
        for corner in itertools.product(*choices):
            weight: Any = math.prod((each for _, each in corner[1:]), start=corner[0][1])
            total = total + _values(input, [place for place, _ in corner]) * weight[:, None]
    return total.reshape(*input.shape[:2], *grid.shape[1:-1])


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _catmull_rom(x: np.ndarray) -> np.ndarray:
    x, a = np.abs(x), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _filtered(
    x: Array, output_size: Any, align_corners: bool, factors: Any, reach: float,
    kernel: Callable[[np.ndarray], np.ndarray],
) -> Array:  # fmt: skip
    """Resample the last two axes; going down, the filter grows with the step."""
    for axis, (wanted, factor) in enumerate(zip(output_size, factors, strict=True), start=2):
        size = x.shape[axis]
        if align_corners:
            step = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
        else:
            step = 1 / factor if factor else size / wanted
        wide = max(step, 1.0)
        centre = step * (np.arange(wanted) + 0.5)
        first = np.maximum((centre - reach * wide + 0.5).astype(int), 0)
        last = np.minimum((centre + reach * wide + 0.5).astype(int), size)
        places = first[:, None] + np.arange(max(int((last - first).max()), 1))
        weights = kernel((places - centre[:, None] + 0.5) / wide)
        weights = np.where(places < last[:, None], weights, 0)
        x = _resample(x, axis, places, weights / weights.sum(1, keepdims=True))
    return x


def _register_filters() -> None:
    filters = {
        "_upsample_bilinear2d_aa": (1.0, _triangle),
        "_upsample_bicubic2d_aa": (2.0, _catmull_rom),
        "_upsample_lanczos2d_aa": (3.0, _lanczos),
    }
    for name, (reach, kernel) in filters.items():

        def resize(
            x: Any = None, output_size: Any = None, align_corners: bool = False,
            scale_factors: Any = None, scales_h: Any = None, scales_w: Any = None,
            input: Any = None, reach: float = reach, kernel: Any = kernel,
        ) -> Array:  # fmt: skip
            x = input if x is None else x
            factors = scale_factors or (scales_h, scales_w)
            if output_size is None:
                output_size = [math.floor(x.shape[2 + i] * factors[i]) for i in range(2)]
            return _filtered(x, output_size, align_corners, factors, reach, kernel)

        operator(name)(resize)


_register_filters()


@operator("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(
    x: Array, kernel_size: Any, output_size: Any, random_samples: Array
) -> tuple[Array, Array]:
    """Take the largest of windows whose places depend on samples (N, C, rank) from [0, 1)."""
    rank = len(kernel_size)
    single = x.ndim == rank + 1
    x = x[None] if single else x
    sizes = x.shape[2:]
    samples = random_samples[..., ::-1] if rank == 2 else random_samples
    index = jnp.zeros((1,), jnp.int32)  # (N, C, out, …, kernel, …) into the flat input
    for axis, (size, kernel, wanted) in enumerate(
        zip(sizes, kernel_size, output_size, strict=True)
    ):
        sample = samples[..., axis, None]
        alpha = (size - kernel) / (wanted - 1) if wanted > 1 else 0.0
        steps = jnp.arange(wanted)
        start = jnp.floor((steps + sample) * alpha) - jnp.floor(sample * alpha)
        start = jnp.where(steps == wanted - 1, size - kernel, start).astype(jnp.int32)
        window = start[..., None] + jnp.arange(kernel)  # (N, C, out, kernel)
        shape = [*window.shape[:2], *[1] * (2 * rank)]
        shape[2 + axis], shape[2 + rank + axis] = wanted, kernel
        index = index * size + window.reshape(shape)
    count = x.shape[:2] + tuple(output_size)
    index = index.reshape(*count, -1)
    flat = x.reshape(*x.shape[:2], -1)
    found = jnp.take_along_axis(flat, index.reshape(*x.shape[:2], -1), 2).reshape(index.shape)
    most = jnp.argmax(found, -1, keepdims=True)
    value, place = (jnp.take_along_axis(each, most, -1)[..., 0] for each in (found, index))
    return (value[0], place[0]) if single else (value, place)
