"""Normalisations. Statistics are computed in float32 at least, as PyTorch does."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix.interop.torch.registry import operator
from neurenix.interop.torch.replacements import CROSS_MAP_LRN

Array = Any


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _affine(y: Array, weight: Array | None, bias: Array | None, shape: Any = None) -> Array:
    if weight is not None:
        y = y * (weight if shape is None else weight.reshape(shape))
    if bias is not None:
        y = y + (bias if shape is None else bias.reshape(shape))
    return y


@operator("native_layer_norm")
def native_layer_norm(
    input: Array, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    axes = tuple(range(-len(normalized_shape), 0))
    x = _wide(input)
    mean = x.mean(axes, keepdims=True)
    centred = x - mean
    scale = lax.rsqrt((centred * centred).mean(axes, keepdims=True) + eps)
    return _affine(centred * scale, weight, bias).astype(input.dtype), mean, scale


@operator("layer_norm")
def layer_norm(
    input: Array, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:  # fmt: skip
    return native_layer_norm(input, normalized_shape, weight, bias, eps)[0]


@operator("rms_norm")
def rms_norm(
    input: Array, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Array:
    axes = tuple(range(-len(normalized_shape), 0))
    x = _wide(input)
    small = float(jnp.finfo(input.dtype).eps) if eps is None else eps
    y = x * lax.rsqrt((x * x).mean(axes, keepdims=True) + small)
    return _affine(y, weight, None).astype(input.dtype)


@operator("group_norm")
def group_norm(
    input: Array, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Array:  # fmt: skip
    x = _wide(input).reshape(input.shape[0], num_groups, -1)
    centred = x - x.mean(-1, keepdims=True)
    y = centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + eps)
    shape = (-1,) + (1,) * (input.ndim - 2)
    return _affine(y.reshape(input.shape), weight, bias, shape).astype(input.dtype)


@operator("native_group_norm")
def native_group_norm(
    input: Array, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Array, Array, Array]:
    x = _wide(input).reshape(N, group, -1)
    mean, var = x.mean(-1), x.var(-1)
    return group_norm(input, group, weight, bias, eps), mean, lax.rsqrt(var + eps)


def _batch_norm(
    x: Array, weight: Any, bias: Any, mean: Array, var: Array, eps: float
) -> tuple[Array, Array]:
    shape = (-1,) + (1,) * (x.ndim - 2)
    scale = lax.rsqrt(var + eps)
    y = (_wide(x) - mean.reshape(shape)) * scale.reshape(shape)
    return _affine(y, weight, bias, shape).astype(x.dtype), scale


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _batch_norm_of(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Array, Array]:
    """Return normalised values, mean and variance of a batch.

    PyTorch sums in float64 on a CPU. Here a mean is taken twice, of the values and of what is left
    of it, forward and backward: where few values make a channel, most of a gradient cancels.
    """
    return _batch_norm_forward(x, weight, bias, eps)[0]


def _batch_norm_forward(
    x: Array, weight: Array, bias: Array, eps: float
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    axes, shape = (0, *range(2, x.ndim)), (-1,) + (1,) * (x.ndim - 2)
    wide = _wide(x)
    first = wide.mean(axes)
    centred = wide - first.reshape(shape)
    rest = centred.mean(axes)
    var = (centred * centred).mean(axes) - rest * rest
    scale = lax.rsqrt(var + eps)
    unit = (centred - rest.reshape(shape)) * scale.reshape(shape)
    y = _affine(unit, weight, bias, shape).astype(x.dtype)
    return (y, first + rest, var), (x, first + rest, scale, weight, bias)


def _batch_norm_backward(
    eps: float, saved: tuple[Array, ...], slopes: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    x, mean, scale, weight, bias = saved
    axes, shape = (0, *range(2, x.ndim)), (-1,) + (1,) * (x.ndim - 2)
    count = math.prod(x.shape) // x.shape[1]
    unit = (_wide(x) - mean.reshape(shape)) * scale.reshape(shape)
    slope = _wide(slopes[0])
    first = slope.mean(axes)
    centred = slope - first.reshape(shape)
    rest, along = centred.mean(axes), (centred * unit).mean(axes)
    left = centred - rest.reshape(shape) - unit * along.reshape(shape)
    inner = left * (scale * _wide(weight)).reshape(shape)
    return (
        inner.astype(x.dtype),
        (count * along).astype(weight.dtype),
        (count * (first + rest)).astype(bias.dtype),
    )


_batch_norm_of.defvjp(_batch_norm_forward, _batch_norm_backward)


def _of_batch(x: Array, weight: Any, bias: Any, eps: float) -> tuple[Array, Array, Array, Array]:
    """Return normalised values, mean, variance and 1 ÷ standard deviation of a batch."""
    ones = jnp.ones(x.shape[1], jnp.promote_types(x.dtype, jnp.float32))
    found: Any = _batch_norm_of(
        x, ones if weight is None else weight, 0 * ones if bias is None else bias, eps
    )
    y, mean, var = found
    return y, mean, var, lax.rsqrt(var + eps)


@operator("_native_batch_norm_legit_functional")
def batch_norm_training(
    input: Array, weight: Any, bias: Any, running_mean: Array, running_var: Array, training: bool,
    momentum: float, eps: float,
) -> tuple[Array, ...]:  # fmt: skip
    if not training:
        y, scale = _batch_norm(input, weight, bias, running_mean, running_var, eps)
        return y, running_mean, scale, running_mean, running_var
    y, mean, var, scale = _of_batch(input, weight, bias, eps)
    count = math.prod(input.shape) // input.shape[1]
    unbiased = lax.stop_gradient(var) * (count / max(count - 1, 1))
    moved = running_mean + momentum * (lax.stop_gradient(mean) - running_mean)
    return y, mean, scale, moved, running_var + momentum * (unbiased - running_var)


@operator("_native_batch_norm_legit_no_training")
def batch_norm_evaluation(
    input: Array, weight: Any, bias: Any, running_mean: Array, running_var: Array, momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:  # fmt: skip
    y, scale = _batch_norm(input, weight, bias, running_mean, running_var, eps)
    return y, running_mean, scale


@operator("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    input: Array, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    y, mean, _, scale = _of_batch(input, weight, bias, eps)
    return y, mean, scale


@operator("instance_norm")
def instance_norm(
    input: Array, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Array:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(input, weight, bias, running_mean, running_var, eps)[0]
    return group_norm(input, input.shape[1], weight, bias, eps)


@operator("local_response_norm")
def local_response_norm(
    input: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Array:
    pads = [(0, 0)] * input.ndim
    pads[1] = (size // 2, (size - 1) // 2)
    window = [1] * input.ndim
    window[1] = size
    total = lax.reduce_window(input * input, 0.0, lax.add, window, (1,) * input.ndim, pads)
    return input / (k + alpha * total / size) ** beta


@operator(CROSS_MAP_LRN)
def cross_map_lrn(input: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    return _cross_map_lrn(input, size, float(alpha), float(beta), float(k))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _cross_map_lrn(x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    """Divide by sums of squares over neighbouring channels, as ``nn.CrossMapLRN2d`` does.

    Its sums and its gradient (which is not that of the sums) are those of PyTorch 2.13.
    """
    return _cross_map_forward(x, size, alpha, beta, k)[0]


def _cross_map_forward(
    x: Array, size: int, alpha: float, beta: float, k: float
) -> tuple[Array, tuple[Array, Array]]:
    channels, reach = x.shape[1], (size - 1) // 2 + 1
    window = np.zeros((channels, channels), np.float32)
    window[0, :reach] = 1
    for c in range(1, channels):
        window[c] = window[c - 1]
        if c < channels - reach + 1:
            window[c, c + reach - 1] += 1
        if c > reach:
            window[c, c - reach] -= 1
    total = jnp.einsum("dc,nchw->ndhw", window, x * x)
    scale = k + alpha / size * total
    return x * scale**-beta, (x, scale)


def _cross_map_backward(
    size: int, alpha: float, beta: float, k: float, kept: tuple[Array, Array], slope: Array
) -> tuple[Array]:
    x, scale = kept
    channels, before = x.shape[1], int(size - (size - 1) / 2)
    numbers = np.arange(channels)
    shift = numbers[None] + before - numbers[:, None]  # of each channel in the window of another
    window = ((shift >= 0) & (shift < size)).astype(np.float32)
    total = jnp.einsum("dc,nchw->ndhw", window, slope * x * scale ** (-beta - 1))
    return (slope * scale**-beta - 2 * alpha * beta / size * x * total,)


_cross_map_lrn.defvjp(_cross_map_forward, _cross_map_backward)
