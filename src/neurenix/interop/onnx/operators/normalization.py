"""Normalisations. Statistics are computed in float32 at least."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix.interop.onnx.arrays import canonical
from neurenix.interop.onnx.files import dtype_of
from neurenix.interop.onnx.registry import operator


def _column(x: Any, like: Any) -> Any:
    """Return one number for each channel, to be multiplied with an array of channels."""
    return x.reshape(-1, *(1,) * (like.ndim - 2))


def _wide(x: Any) -> Any:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


@operator("BatchNormalization", since=14, counts=True)
def batch_normalization(
    x, scale, bias, mean, variance, *, epsilon=1e-5, momentum=0.9, training_mode=0, num_results=1
):
    if training_mode:
        axes = (0, *range(2, x.ndim))
        now, spread = jnp.mean(x, axes), jnp.var(x, axes)
        moved = momentum * mean + (1 - momentum) * now
        wider = momentum * variance + (1 - momentum) * spread
        return [_batch_norm(x, scale, bias, now, spread, epsilon), moved, wider][:num_results]
    return _batch_norm(x, scale, bias, mean, variance, epsilon)


def _batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    factor = scale * lax.rsqrt(variance + epsilon)
    return ((x - _column(mean, x)) * _column(factor, x) + _column(bias, x)).astype(x.dtype)


@operator("BatchNormalization", since=1)
def batch_normalization_1(
    x, scale, bias, mean, variance, *, epsilon=1e-5, momentum=0.9, spatial=1, is_test=0,
    consumed_inputs=None,
):  # fmt: skip
    if not spatial:
        factor = scale * lax.rsqrt(variance + epsilon)
        return (x - mean) * factor + bias
    return _batch_norm(x, scale, bias, mean, variance, epsilon)


@operator("InstanceNormalization")
def instance_normalization(x, scale, bias, *, epsilon=1e-5, consumed_inputs=None):
    axes = tuple(range(2, x.ndim))
    return _normalized(x, axes, epsilon) * _column(scale, x) + _column(bias, x)


def _normalized(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    wide = _wide(x)
    centred = wide - wide.mean(axes, keepdims=True)
    return (centred * lax.rsqrt((centred**2).mean(axes, keepdims=True) + epsilon)).astype(x.dtype)


@operator("GroupNormalization", since=21)
def group_normalization(x, scale, bias, *, num_groups, epsilon=1e-5, stash_type=1):
    grouped = x.reshape(x.shape[0], num_groups, -1)
    return _normalized(grouped, (2,), epsilon).reshape(x.shape) * _column(scale, x) + _column(
        bias, x
    )


@operator("GroupNormalization", since=18)
def group_normalization_18(x, scale, bias, *, num_groups, epsilon=1e-5):
    each = x.shape[1] // num_groups  # scale and bias are of the groups, not of the channels
    return group_normalization(
        x, jnp.repeat(scale, each), jnp.repeat(bias, each), num_groups=num_groups, epsilon=epsilon
    )


@operator("LayerNormalization", counts=True)
def layer_normalization(x, scale, bias=None, *, axis=-1, epsilon=1e-5, stash_type=1, num_results=1):
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(canonical(dtype_of(stash_type, "stash_type")))
    mean = wide.mean(axes, keepdims=True)
    inverse = lax.rsqrt(((wide - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    result = ((wide - mean) * inverse).astype(x.dtype) * scale
    result = result if bias is None else result + bias
    return [result, mean, inverse][:num_results]


@operator("com.microsoft::SkipLayerNormalization", counts=True)
def skip_layer_normalization(x, skip, gamma, beta=None, bias=None, *, epsilon=1e-5, num_results=1):
    total = x + skip if bias is None else x + skip + bias
    result = layer_normalization(total, gamma, beta, epsilon=epsilon)[0]
    return [result, None, None, total][:num_results]


@operator("RMSNormalization")
def rms_normalization(x, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(canonical(dtype_of(stash_type, "stash_type")))
    result = wide * lax.rsqrt((wide**2).mean(axes, keepdims=True) + epsilon)
    return result.astype(x.dtype) * scale


@operator("SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def simplified_layer_normalization(x, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    return rms_normalization(x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)


@operator("LpNormalization")
def lp_normalization(x, *, axis=-1, p=2):
    norm = jnp.sum(jnp.abs(x) ** p, axis, keepdims=True) ** (1 / p)
    return jnp.where(norm == 0, 0, x / jnp.where(norm == 0, 1, norm)).astype(x.dtype)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(x, *, axes=(0, 2, 3)):
    mean = x.mean(tuple(axes), keepdims=True)
    spread = jnp.sqrt((x**2).mean(tuple(axes), keepdims=True) - mean**2)
    return (x - mean) / (spread + 1e-9)


@operator("LRN")
def local_response_normalization(x, *, size, alpha=1e-4, beta=0.75, bias=1.0):
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    ones = (1,) * (x.ndim - 2)
    total = lax.reduce_window(
        x * x, np.zeros((), x.dtype), lax.add, (1, size, *ones), (1,) * x.ndim,
        [(0, 0), (low, high), *[(0, 0)] * len(ones)],
    )  # fmt: skip
    return x / (bias + alpha / size * total) ** beta
