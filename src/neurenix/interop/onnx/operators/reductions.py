"""Sums, means, extremes, positions of extremes, and running sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.interop.onnx.arrays import canonical, namespace
from neurenix.interop.onnx.registry import operator


def _reduction(name: str, axes_since: int, folds: bool = False) -> Any:
    """Register a reduction: axes are an attribute at first, an input since some version."""

    def register(function: Any) -> Any:
        def by_input(x, axes=None, *, keepdims=1, noop_with_empty_axes=0):
            if axes is None or not len(axes):
                if noop_with_empty_axes:
                    return function(x, (), False)
                axes = None
            return function(x, _axes(axes), bool(keepdims))

        def by_attribute(x, *, axes=None, keepdims=1):
            return function(x, _axes(axes), bool(keepdims))

        operator(name, since=axes_since, known=(1,), folds=folds)(by_input)
        operator(name, since=1, folds=folds)(by_attribute)
        return function

    return register


def _axes(axes: Any) -> tuple[int, ...] | None:
    return None if axes is None else tuple(int(axis) for axis in axes)


@_reduction("ReduceSum", 13, folds=True)
def reduce_sum(x, axes, keepdims):
    return namespace(x).sum(x, axes, keepdims=keepdims, dtype=x.dtype)


@_reduction("ReduceMean", 18)
def reduce_mean(x, axes, keepdims):
    return jnp.mean(x, axes, keepdims=keepdims).astype(x.dtype)


@_reduction("ReduceProd", 18, folds=True)
def reduce_prod(x, axes, keepdims):
    return namespace(x).prod(x, axes, keepdims=keepdims, dtype=x.dtype)


@_reduction("ReduceMax", 18, folds=True)
def reduce_max(x, axes, keepdims):
    return namespace(x).max(x, axes, keepdims=keepdims, initial=_least(x.dtype))


@_reduction("ReduceMin", 18, folds=True)
def reduce_min(x, axes, keepdims):
    return namespace(x).min(x, axes, keepdims=keepdims, initial=_greatest(x.dtype))


def _least(dtype: Any) -> Any:
    if np.dtype(dtype).kind == "b":
        return False
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    return np.array(-np.inf, dtype) if inexact else jnp.iinfo(dtype).min


def _greatest(dtype: Any) -> Any:
    if np.dtype(dtype).kind == "b":
        return True
    return np.array(np.inf, dtype) if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


@_reduction("ReduceL1", 18)
def reduce_l1(x, axes, keepdims):
    return jnp.sum(jnp.abs(x), axes, keepdims=keepdims).astype(x.dtype)


@_reduction("ReduceL2", 18)
def reduce_l2(x, axes, keepdims):
    return jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=keepdims)).astype(x.dtype)


@_reduction("ReduceSumSquare", 18)
def reduce_sum_square(x, axes, keepdims):
    return jnp.sum(jnp.square(x), axes, keepdims=keepdims).astype(x.dtype)


@_reduction("ReduceLogSum", 18)
def reduce_log_sum(x, axes, keepdims):
    return jnp.log(jnp.sum(x, axes, keepdims=keepdims)).astype(x.dtype)


@_reduction("ReduceLogSumExp", 18)
def reduce_log_sum_exp(x, axes, keepdims):
    if axes == ():
        return x
    return jax.nn.logsumexp(x, axes, keepdims=keepdims).astype(x.dtype)


@operator("ArgMax")
def argmax(x, *, axis=0, keepdims=1, select_last_index=0):
    return _position(x, jnp.argmax, axis, keepdims, select_last_index)


@operator("ArgMin")
def argmin(x, *, axis=0, keepdims=1, select_last_index=0):
    return _position(x, jnp.argmin, axis, keepdims, select_last_index)


def _position(x: Any, function: Any, axis: int, keepdims: int, last: int) -> Any:
    found = function(jnp.flip(x, axis) if last else x, axis, keepdims=bool(keepdims))
    found = x.shape[axis] - 1 - found if last else found
    return found.astype(canonical(np.int64))


@operator("CumSum", known=(1,), folds=True)
def cumsum(x, axis, *, exclusive=0, reverse=0):
    return _running(x, int(axis), exclusive, reverse, namespace(x).cumsum, 0)


@operator("CumProd", known=(1,), folds=True)
def cumprod(x, axis, *, exclusive=0, reverse=0):
    return _running(x, int(axis), exclusive, reverse, namespace(x).cumprod, 1)


def _running(x: Any, axis: int, exclusive: int, reverse: int, function: Any, first: int) -> Any:
    np_like = namespace(x)
    x = np_like.flip(x, axis) if reverse else x
    found = function(x, axis, dtype=x.dtype)
    if exclusive:
        start = np_like.full_like(np_like.take(x, np.array([0]), axis), first)
        kept = np_like.take(found, np.arange(x.shape[axis] - 1), axis)
        found = np_like.concatenate([start, kept], axis)
    return np_like.flip(found, axis) if reverse else found
