"""Arithmetic, comparisons, rounding, bits and casts, element by element."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import canonical, is_known, namespace
from neurenix.interop.onnx.files import dtype_of
from neurenix.interop.onnx.registry import operator


def _is_integer(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.integer)


@operator("Identity", folds=True)
def identity(x):
    return x


@operator("Add", folds=True)
def add(x, y, *, axis=None, broadcast=0):
    return x + _aligned(y, x, axis)


@operator("Sub", folds=True)
def sub(x, y, *, axis=None, broadcast=0):
    return x - _aligned(y, x, axis)


@operator("Mul", folds=True)
def mul(x, y, *, axis=None, broadcast=0):
    return x * _aligned(y, x, axis)


@operator("Div", folds=True)
def div(x, y, *, axis=None, broadcast=0):
    y = _aligned(y, x, axis)
    if not _is_integer(x):
        return x / y
    if namespace(x, y) is jnp:
        return jax.lax.div(*jnp.broadcast_arrays(x, y))
    # C's division rounds towards zero, NumPy's down.
    quotient = x // y
    return quotient + ((quotient < 0) & (quotient * y != x)).astype(x.dtype)


def _aligned(y: Any, x: Any, axis: int | None) -> Any:
    """Return ``y`` with axes behind it, as opsets before 7 broadcast from ``axis`` on."""
    if axis is None:
        return y
    return y.reshape(y.shape + (1,) * (x.ndim - axis % x.ndim - y.ndim))


@operator("Mod", folds=True)
def mod(x, y, *, fmod=0):
    np_like = namespace(x, y)
    if not fmod and _is_integer(x):
        return np_like.mod(x, y)
    rest = np_like.fmod(x, y)
    if fmod:
        return rest
    # As Python's: the sign is that of the divisor.
    moved = np_like.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    return np_like.where(rest == 0, np_like.copysign(rest, y), moved).astype(x.dtype)


@operator("Pow", folds=True)
def power(x, y):
    if jnp.issubdtype(x.dtype, jnp.inexact) or not jnp.issubdtype(y.dtype, jnp.inexact):
        return namespace(x, y).power(x, y.astype(x.dtype)).astype(x.dtype)
    return namespace(x, y).power(x.astype(y.dtype), y).astype(x.dtype)


@operator("Neg", folds=True)
def negative(x):
    return -x


@operator("Abs", folds=True)
def absolute(x):
    return abs(x)


@operator("Sign", folds=True)
def sign(x):
    return namespace(x).sign(x)


@operator("Reciprocal")
def reciprocal(x):
    return 1 / x


@operator("Sqrt", folds=True)
def sqrt(x):
    return namespace(x).sqrt(x)


@operator("Exp")
def exp(x):
    return jnp.exp(x)


@operator("Log", folds=True)
def log(x):
    return namespace(x).log(x)


@operator("Erf")
def erf(x):
    return jax.lax.erf(x)


for _name, _function in {
    "Sin": jnp.sin, "Cos": jnp.cos, "Tan": jnp.tan, "Asin": jnp.arcsin, "Acos": jnp.arccos,
    "Atan": jnp.arctan, "Sinh": jnp.sinh, "Cosh": jnp.cosh, "Tanh": jnp.tanh,
    "Asinh": jnp.arcsinh, "Acosh": jnp.arccosh, "Atanh": jnp.arctanh,
}.items():  # fmt: skip
    operator(_name)(_function)


@operator("Ceil", folds=True)
def ceil(x):
    return namespace(x).ceil(x)


@operator("Floor", folds=True)
def floor(x):
    return namespace(x).floor(x)


@operator("Round", folds=True)
def round_half_even(x):
    return namespace(x).round(x)


@operator("IsNaN", folds=True)
def is_nan(x):
    return namespace(x).isnan(x)


@operator("IsInf")
def is_inf(x, *, detect_negative=1, detect_positive=1):
    infinite = jnp.isinf(x)
    return (infinite & (x < 0) & bool(detect_negative)) | (
        infinite & (x > 0) & bool(detect_positive)
    )


@operator("Min", folds=True)
def minimum(*xs):
    return _over(xs, namespace(*xs).minimum)


@operator("Max", folds=True)
def maximum(*xs):
    return _over(xs, namespace(*xs).maximum)


@operator("Sum", folds=True)
def sum_of(*xs):
    return _over(xs, namespace(*xs).add)


@operator("Mean")
def mean_of(*xs):
    return _over(xs, jnp.add) / len(xs)


def _over(xs: Any, function: Any) -> Any:
    result = xs[0]
    for x in xs[1:]:
        result = function(result, x)
    return result


@operator("Clip", since=11, folds=True)
def clip(x, low=None, high=None):
    np_like = namespace(x, low, high)
    if low is not None:
        x = np_like.maximum(x, low)
    return x if high is None else np_like.minimum(x, high)


@operator("Clip", since=1)
def clip_1(x, *, min=-3.4028234663852886e38, max=3.4028234663852886e38):
    return jnp.clip(x, jnp.asarray(min, x.dtype), jnp.asarray(max, x.dtype))


@operator("Equal", folds=True)
def equal(x, y):
    return x == y


@operator("Greater", folds=True)
def greater(x, y):
    return x > y


@operator("GreaterOrEqual", folds=True)
def greater_or_equal(x, y):
    return x >= y


@operator("Less", folds=True)
def less(x, y):
    return x < y


@operator("LessOrEqual", folds=True)
def less_or_equal(x, y):
    return x <= y


@operator("And", "BitwiseAnd", folds=True)
def logical_and(x, y):
    return x & y


@operator("Or", "BitwiseOr", folds=True)
def logical_or(x, y):
    return x | y


@operator("Xor", "BitwiseXor", folds=True)
def logical_xor(x, y):
    return x ^ y


@operator("Not", "BitwiseNot", folds=True)
def logical_not(x):
    return ~x


@operator("BitShift", folds=True)
def bit_shift(x, y, *, direction):
    np_like = namespace(x, y)
    return np_like.left_shift(x, y) if direction == "LEFT" else np_like.right_shift(x, y)


@operator("Where", folds=True)
def where(condition, x, y):
    return namespace(condition, x, y).where(condition, x, y)


@operator("Cast", folds=True)
def cast(x, *, to, saturate=1, round_mode="up"):
    return converted(x, dtype_of(to, "The result of a Cast"), saturate, round_mode)


@operator("CastLike", folds=True)
def cast_like(x, like, *, saturate=1, round_mode="up"):
    return converted(x, like.dtype, saturate, round_mode)


@operator("BitCast")
def bit_cast(x, *, to):
    dtype = dtype_of(to, "The result of a BitCast")
    if canonical(dtype) != dtype:
        raise ConversionError(f"it makes {dtype}, which JAX has with jax_enable_x64 only.")
    return x.astype(dtype) if x.dtype.kind == "b" else jax.lax.bitcast_convert_type(x, dtype)


def converted(x: Any, dtype: np.dtype, saturate: int = 1, round_mode: str = "up") -> Any:
    """Return values in another dtype, as ``Cast`` converts them.

    Numbers too large for a float8 become its largest one, or NaN or infinity without ``saturate``.
    ``round_mode`` is that of float8_e8m0fnu, whose numbers are powers of two.
    """
    if is_known(x):
        if dtype.kind in "OSU" or x.dtype.kind in "OSU":
            return _text(x, dtype)
    else:
        dtype = canonical(dtype)
    np_like = namespace(x)
    if x.dtype == dtype:
        return x
    if dtype.name == "float8_e8m0fnu" and jnp.issubdtype(x.dtype, jnp.inexact):
        return _power_of_two(x, dtype, saturate, round_mode)
    small = dtype.name.startswith(("float8", "float4"))
    if small and jnp.issubdtype(x.dtype, jnp.inexact):
        info = jnp.finfo(dtype)
        low, high = float(info.min), float(info.max)
        if saturate or dtype.name.startswith("float4"):
            infinite = np_like.isnan(x) if dtype.name.startswith("float8") else False
            limited = np_like.clip(x.astype(np.float32), low, high)
            x = np_like.where(infinite, x.astype(np.float32), limited)
    if jnp.issubdtype(x.dtype, jnp.floating) and dtype.name in ("int4", "uint4", "int2", "uint2"):
        x = x.astype(np.int32)
    with np.errstate(invalid="ignore", over="ignore"):
        return x.astype(dtype)


def _power_of_two(x: Any, dtype: np.dtype, saturate: int, round_mode: str) -> Any:
    np_like = namespace(x)
    bits = np_like.abs(x.astype(np.float32)).view(np.uint32)
    exponent, rest = (bits >> 23).astype(np.int32), bits & 0x7FFFFF
    more = {
        "up": rest > 0,
        "down": np_like.zeros_like(rest, bool),
        "nearest": rest >= 0x400000,
    }[round_mode]
    code = exponent + more.astype(np.int32)
    code = np_like.where(code > 254, 254 if saturate else 255, code)
    code = np_like.where(np_like.isnan(x), 255, code)
    return code.astype(np.uint8).view(dtype)


def _text(x: Any, dtype: np.dtype) -> Any:
    if dtype.kind in "OSU":
        return np.vectorize(str, otypes=[object])(x)
    return x.astype(str).astype(dtype)
