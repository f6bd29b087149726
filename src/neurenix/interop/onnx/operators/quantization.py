"""Quantised numbers, and products and convolutions that stay in integers.

Gradients are those of the arithmetic: rounding has none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.files import dtype_of
from neurenix.interop.onnx.operators.convolution import padding
from neurenix.interop.onnx.operators.elementwise import converted
from neurenix.interop.onnx.registry import operator

Array = Any


@operator("QuantizeLinear", "com.microsoft::QuantizeLinear")
def quantize_linear(
    x, scale, zero_point=None, *, axis=1, saturate=1, block_size=0, output_dtype=0, precision=0
):
    if zero_point is not None:
        dtype = np.dtype(zero_point.dtype)
    else:
        dtype = dtype_of(output_dtype or 2, "The result of a QuantizeLinear")
    of = _precision(x, scale, precision)
    spread = _spread(scale, x.shape, axis, block_size).astype(of)
    if zero_point is not None:
        zero_point = _spread(zero_point, x.shape, axis, block_size)
    return _quantized(x.astype(of) / spread, zero_point, dtype, saturate)


@operator("DequantizeLinear", "com.microsoft::DequantizeLinear")
def dequantize_linear(x, scale, zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    dtype = np.dtype(scale.dtype)
    if output_dtype:
        dtype = dtype_of(output_dtype, "The result of a DequantizeLinear")
    spread = _spread(scale, x.shape, axis, block_size)
    if zero_point is not None:
        zero_point = _spread(zero_point, x.shape, axis, block_size)
    return dequantized(x, spread, zero_point).astype(dtype)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x):
    low, high = jnp.minimum(x.min(initial=0), 0), jnp.maximum(x.max(initial=0), 0)
    scale = jnp.where(high > low, (high - low) / 255, 1).astype(x.dtype)
    zero_point = jnp.clip(jnp.round(-low / scale), 0, 255).astype(jnp.uint8)
    return [_quantized(x / scale, zero_point, np.dtype(np.uint8)), scale, zero_point]


@operator("MatMulInteger")
def matmul_integer(a, b, a_zero=None, b_zero=None):
    return _integer_matmul(a, b, a_zero, b_zero)


@operator("QLinearMatMul")
def qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    product = _integer_matmul(a, b, a_zero, b_zero)
    scale = _rows(a_scale) * b_scale / y_scale
    return _quantized(product * scale.astype(jnp.float32), y_zero, np.dtype(y_zero.dtype))


@operator("com.microsoft::MatMulIntegerToFloat")
def matmul_integer_to_float(a, b, a_scale, b_scale, a_zero=None, b_zero=None, bias=None):
    result = _integer_matmul(a, b, a_zero, b_zero) * (_rows(a_scale) * b_scale)
    return result if bias is None else result + bias


@operator("com.microsoft::DynamicQuantizeMatMul")
def dynamic_quantize_matmul(a, b, b_scale, b_zero=None, bias=None):
    values, scale, zero_point = dynamic_quantize_linear(a)
    return matmul_integer_to_float(values, b, scale, b_scale, zero_point, b_zero, bias)


@operator("com.microsoft::QGemm")
def qgemm(
    a, a_scale, a_zero, b, b_scale, b_zero, c=None, y_scale=None, y_zero=None,
    *, alpha=1.0, transA=0, transB=0,  # as ONNX names them
):  # fmt: skip
    whole = _whole(a.T if transA else a, a_zero), _whole(b.T if transB else b, b_zero)
    product = jnp.matmul(*whole, preferred_element_type=jnp.int32)
    product = product if c is None else product + c
    result = product * (alpha * a_scale * b_scale).astype(jnp.float32)
    return result if y_scale is None else requantized(result, y_scale, y_zero, np.dtype(a.dtype))


@operator("ConvInteger")
def conv_integer(
    x, w, x_zero=None, w_zero=None, *, auto_pad="NOTSET", dilations=None, group=1,
    kernel_shape=None, pads=None, strides=None,
):  # fmt: skip
    w_zero = _channels(w_zero, 0, w.ndim)
    return _convolve(
        _whole(x, x_zero), _whole(w, w_zero), auto_pad, dilations, group, pads, strides
    )


@operator("QLinearConv")
def qlinear_conv(
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias=None, *, auto_pad="NOTSET",
    dilations=None, group=1, kernel_shape=None, pads=None, strides=None,
):  # fmt: skip
    whole = _whole(x, x_zero), _whole(w, _channels(w_zero, 0, w.ndim))
    product = _convolve(*whole, auto_pad, dilations, group, pads, strides)
    if bias is not None:
        product = product + _channels(bias, 1, w.ndim)
    scale = x_scale * _channels(w_scale, 1, w.ndim) / y_scale
    return _quantized(product * scale, y_zero, np.dtype(y_zero.dtype))


def dequantized(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """Return the numbers that quantised values stand for, in the precision of the scale."""
    of = jnp.promote_types(jnp.float32, _wide(scale.dtype))
    if jnp.issubdtype(x.dtype, jnp.integer):
        return _whole(x, zero_point).astype(of) * scale.astype(of)
    values = x.astype(of)
    values = values if zero_point is None else values - zero_point.astype(of)
    return values * scale.astype(of)


def requantized(y: Array, scale: Array, zero_point: Array | None, dtype: np.dtype) -> Array:
    """Return the values of ``dtype`` that stand for numbers."""
    return _quantized(y / scale, zero_point, dtype)


def _quantized(y: Array, zero_point: Array | None, dtype: np.dtype, saturate: int = 1) -> Array:
    """Return numbers, divided by their scale already, as integers or short floats."""
    if not jnp.issubdtype(dtype, jnp.integer):
        y = y if zero_point is None else y + zero_point.astype(y.dtype)
        return converted(y.astype(jnp.float32), dtype, saturate)
    info = jnp.iinfo(dtype)
    offset = jnp.float32(0) if zero_point is None else zero_point.astype(jnp.float32)
    # Limited while they are floats, whose range is larger.
    rounded = jnp.round(y.astype(jnp.float32)) + offset
    return jnp.clip(rounded, int(info.min), int(info.max)).astype(jnp.int32).astype(dtype)


def _precision(x: Array, scale: Array, precision: int) -> Any:
    if precision:
        return dtype_of(precision, "The precision of a QuantizeLinear")
    if jnp.issubdtype(x.dtype, jnp.integer):
        return _wide(scale.dtype)
    return jnp.promote_types(x.dtype, _wide(scale.dtype))


def _wide(dtype: Any) -> Any:
    """Return a dtype that arithmetic knows: float32 for floats of a byte and less."""
    return jnp.dtype(jnp.float32 if jnp.dtype(dtype).itemsize < 2 else dtype)


def _spread(value: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Return a scale or zero point so that it broadcasts with an array of a shape."""
    if value.size == 1:
        return value.reshape(())
    if block:
        if value.ndim != len(shape) or value.shape[axis] != -(-shape[axis] // block):
            raise ConversionError(
                f"blocks of {block} along axis {axis} of {list(shape)} have no scales of shape "
                f"{list(value.shape)}."
            )
        repeated = jnp.repeat(value, block, axis)
        return jax.lax.slice_in_dim(repeated, 0, shape[axis], axis=axis)
    if value.ndim != 1 or value.size != shape[axis]:
        raise ConversionError(
            f"axis {axis} of {list(shape)} has no scales of shape {list(value.shape)}."
        )
    return value.reshape([-1 if each == axis % len(shape) else 1 for each in range(len(shape))])


def _whole(x: Array, zero_point: Any) -> Array:
    """Return the difference to the zero point, in 32 bits."""
    x = x.astype(jnp.int32)
    if zero_point is None:
        return x
    if zero_point.size == 1:
        zero_point = zero_point.reshape(())
    return x - zero_point.astype(jnp.int32)


def _rows(value: Any) -> Any:
    """Return what belongs to the rows of a matrix so that it broadcasts with it."""
    return value[:, None] if value is not None and value.ndim == 1 and value.size > 1 else value


def _integer_matmul(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    whole = _whole(a, _rows(a_zero)), _whole(b, b_zero)
    return jnp.matmul(*whole, preferred_element_type=jnp.int32)


def _channels(value: Any, axis: int, ndim: int) -> Any:
    """Return one value, or one for each channel, so that it broadcasts along an axis."""
    if value is None or value.size == 1:
        return value
    return value.reshape([-1 if each == axis else 1 for each in range(ndim)])


def _convolve(
    x: Array, w: Array, auto_pad: str, dilations: Any, group: int, pads: Any, strides: Any
) -> Array:
    """Return the convolution of integers, exact in 32 bits."""
    rank = x.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    return jax.lax.conv_general_dilated(
        x,
        w,
        strides,
        padding(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad),
        rhs_dilation=dilations,
        feature_group_count=group,
        preferred_element_type=jnp.int32,
    )
