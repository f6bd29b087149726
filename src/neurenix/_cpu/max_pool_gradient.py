"""Lower the gradient of max pooling for the CPU as a comparison, not as a scatter.

XLA's CPU compiler lowers ``select_and_scatter_add``, which is that gradient, to a search and a
scatter that take one element after another: a sixth of the digits CNN's step. Where windows do not
overlap, each input belongs to one window and is or is not its maximum, which is an elementwise
comparison. The results are the same, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from neurenix._jax import cpu_lowering, lowering_of, max_pool_gradient_primitive

_standard: Any = cpu_lowering(max_pool_gradient_primitive)
# Each element of a window is one comparison more in the compiled loop.
_MOST_IN_A_WINDOW = 64


def elementwise_gradient(ctx: Any, source: Any, operand: Any, **params: Any) -> Any:
    """Lower ``select_and_scatter_add``; JAX lowers windows that overlap or are padded."""
    window, strides = params["window_dimensions"], params["window_strides"]
    padded = any(map(any, params["padding"]))
    if tuple(window) != tuple(strides) or padded or math.prod(window) > _MOST_IN_A_WINDOW:
        return _standard(ctx, source, operand, **params)

    def spread(source: Any, operand: Any) -> Any:
        chosen = _chosen(operand, source.shape, window, params["select_prim"])
        return _to_windows(source, chosen, operand.shape, window)

    return lowering_of(spread)(ctx, source, operand)


LOWERING = max_pool_gradient_primitive, _standard, elementwise_gradient
"""The arguments of ``replace_cpu_lowering``."""


def _chosen(operand: Any, out: Sequence[int], window: Sequence[int], better: Any) -> Any:
    """Return which element of its window, counted in order, each result was taken from."""

    def element(begin: Sequence[int]) -> Any:
        ends = [b + (n - 1) * w + 1 for b, n, w in zip(begin, out, window, strict=True)]
        return lax.slice(operand, begin, ends, window)

    first, *others = np.ndindex(*window)
    best, number = element(first), lax.full(out, 0, np.int32)
    for index, begin in enumerate(others, 1):
        next_one = element(begin)
        stays = better.bind(best, next_one)
        best = lax.select(stays, best, next_one)
        number = lax.select(stays, number, lax.full_like(number, index))
    return number


def _to_windows(source: Any, chosen: Any, whole: Sequence[int], window: Sequence[int]) -> Any:
    """Return zeros of the shape ``whole``, with each of ``source`` where it was chosen from."""
    out = source.shape
    # Axes in pairs: the window, and the place in it.
    paired = [size for pair in zip(out, window, strict=True) for size in pair]
    windows, places = range(0, len(paired), 2), range(1, len(paired), 2)
    order = lax.iota(np.int32, math.prod(window)).reshape(window)
    hit = lax.eq(
        lax.broadcast_in_dim(chosen, paired, windows), lax.broadcast_in_dim(order, paired, places)
    )
    source = lax.broadcast_in_dim(source, paired, windows)
    spread = lax.select(hit, source, lax.full_like(source, 0))
    spread = spread.reshape([n * w for n, w in zip(out, window, strict=True)])
    # Rows at the end that fill no window got no gradient.
    rest = [(0, all_ - n * w, 0) for all_, n, w in zip(whole, out, window, strict=True)]
    return lax.pad(spread, np.zeros((), spread.dtype), rest)
