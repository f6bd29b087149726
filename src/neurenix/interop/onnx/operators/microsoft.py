"""Operators of ``com.microsoft`` on quantised numbers, which onnxruntime's quantiser writes.

Each computes with the numbers that its inputs stand for, and quantises the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.interop.onnx.operators.pooling import average_pool
from neurenix.interop.onnx.operators.quantization import dequantized, requantized
from neurenix.interop.onnx.registry import operator

Array = Any


def _binary(name: str, function: Callable[[Array, Array], Array]) -> None:
    def compute(
        a: Array, a_scale: Array, a_zero: Array | None, b: Array, b_scale: Array,
        b_zero: Array | None, y_scale: Array, y_zero: Array | None = None,
    ) -> Array:  # fmt: skip
        result = function(dequantized(a, a_scale, a_zero), dequantized(b, b_scale, b_zero))
        return requantized(result, y_scale, y_zero, np.dtype(a.dtype))

    operator(f"com.microsoft::{name}")(compute)


_binary("QLinearAdd", jnp.add)
_binary("QLinearMul", jnp.multiply)


@operator("com.microsoft::QLinearSigmoid")
def qlinear_sigmoid(x, x_scale, x_zero, y_scale, y_zero=None):
    result = jax.nn.sigmoid(dequantized(x, x_scale, x_zero))
    return requantized(result, y_scale, y_zero, np.dtype(x.dtype))


@operator("com.microsoft::QLinearLeakyRelu")
def qlinear_leaky_relu(x, x_scale, x_zero, y_scale, y_zero=None, *, alpha=0.01):
    values = dequantized(x, x_scale, x_zero)
    result = jnp.where(values >= 0, values, alpha * values)
    return requantized(result, y_scale, y_zero, np.dtype(x.dtype))


@operator("com.microsoft::QLinearSoftmax")
def qlinear_softmax(x, x_scale, x_zero, y_scale, y_zero=None, *, opset, axis=-1):
    values = dequantized(x, x_scale, x_zero)
    if opset < 13:
        # Over all axes from this one on.
        axis = axis % x.ndim
        rows = values.reshape(*x.shape[:axis], math.prod(x.shape[axis:]))
        result = jax.nn.softmax(rows, axis=-1).reshape(x.shape)
    else:
        result = jax.nn.softmax(values, axis=axis)
    return requantized(result, y_scale, y_zero, np.dtype(x.dtype))


@operator("com.microsoft::QLinearWhere")
def qlinear_where(condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero):
    chosen = jnp.where(condition, dequantized(x, x_scale, x_zero), dequantized(y, y_scale, y_zero))
    return requantized(chosen, z_scale, z_zero, np.dtype(x.dtype))


@operator("com.microsoft::QLinearConcat")
def qlinear_concat(y_scale, y_zero, *parts, axis):
    values = [dequantized(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    result = jnp.concatenate(values, axis)
    return requantized(result, y_scale, y_zero, np.dtype(parts[0].dtype))


@operator("com.microsoft::QLinearGlobalAveragePool")
def qlinear_global_average_pool(x, x_scale, x_zero, y_scale, y_zero, *, channels_last=0):
    values = dequantized(x, x_scale, x_zero)
    axes = range(1, x.ndim - 1) if channels_last else range(2, x.ndim)
    result = values.mean(tuple(axes), keepdims=True)
    return requantized(result, y_scale, y_zero, np.dtype(x.dtype))


@operator("com.microsoft::QLinearAveragePool")
def qlinear_average_pool(x, x_scale, x_zero, y_scale, y_zero=None, *, channels_last=0, **windows):
    values = dequantized(x, x_scale, x_zero)
    if channels_last:
        result = jnp.moveaxis(average_pool(jnp.moveaxis(values, -1, 1), **windows), 1, -1)
    else:
        result = average_pool(values, **windows)
    return requantized(result, y_scale, y_zero, np.dtype(x.dtype))
