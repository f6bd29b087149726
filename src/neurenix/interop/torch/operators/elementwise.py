"""Operators that work element by element."""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neurenix.interop.torch.registry import operator

Array = Any

_OF_ONE: dict[str, Callable[[Array], Array]] = {
    "abs": jnp.abs,
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "angle": jnp.angle,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "bitwise_not": jnp.invert,
    "ceil": jnp.ceil,
    "conj": jnp.conj,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "deg2rad": jnp.deg2rad,
    "digamma": jax.scipy.special.digamma,
    "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc,
    "erfinv": jax.scipy.special.erfinv,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "frac": lambda x: x - jnp.trunc(x),
    "hardsigmoid": jax.nn.hard_sigmoid,
    "hardswish": jax.nn.hard_swish,
    "imag": jnp.imag,
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "lgamma": jax.scipy.special.gammaln,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "log_sigmoid": jax.nn.log_sigmoid,
    "log_sigmoid_forward": lambda x: (jax.nn.log_sigmoid(x), jnp.zeros((0,), x.dtype)),
    "logical_not": jnp.logical_not,
    "mish": jax.nn.mish,
    "neg": jnp.negative,
    "rad2deg": jnp.rad2deg,
    "real": jnp.real,
    "reciprocal": jnp.reciprocal,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "rsqrt": lambda x: lax.rsqrt(_floating(x)),
    "selu": jax.nn.selu,
    "sgn": jnp.sign,
    "sigmoid": lambda x: jax.nn.sigmoid(_floating(x)),
    "sign": jnp.sign,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sinc": jnp.sinc,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "trunc": jnp.trunc,
}

_OF_TWO: dict[str, Callable[[Array, Array], Array]] = {
    "__and__": python.and_,
    "__or__": python.or_,
    "__xor__": python.xor,
    "atan2": jnp.arctan2,
    "bitwise_and": python.and_,
    "bitwise_left_shift": jnp.left_shift,
    "bitwise_or": python.or_,
    "bitwise_right_shift": jnp.right_shift,
    "bitwise_xor": python.xor,
    "copysign": jnp.copysign,
    "eq": python.eq,
    "floor_divide": jnp.floor_divide,
    "fmax": jnp.fmax,
    "fmin": jnp.fmin,
    "fmod": jnp.fmod,
    "ge": python.ge,
    "gt": python.gt,
    "heaviside": jnp.heaviside,
    "hypot": jnp.hypot,
    "le": python.le,
    "logaddexp": jnp.logaddexp,
    "logaddexp2": jnp.logaddexp2,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": python.lt,
    "max.other": jnp.maximum,
    "maximum": jnp.maximum,
    "min.other": jnp.minimum,
    "minimum": jnp.minimum,
    "mul": python.mul,
    "ne": python.ne,
    "nextafter": jnp.nextafter,
    "remainder": jnp.remainder,
    "xlogy": jax.scipy.special.xlogy,
}


def _floating(x: Array) -> Array:
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def _register_tables() -> None:
    for name, function in _OF_ONE.items():
        operator(name)(lambda x, function=function: function(x))
    for name, function in _OF_TWO.items():
        operator(name)(
            lambda x, other, function=function: (
                function(*map(jnp.asarray, (x, other)))
                if not hasattr(x, "dtype") and not hasattr(other, "dtype")
                else function(x, other)
            )
        )


_register_tables()


@operator("add")
def add(x: Array, other: Array, alpha: Any = 1) -> Array:
    return x + (other if alpha == 1 else alpha * other)


@operator("sub")
def sub(x: Array, other: Array, alpha: Any = 1) -> Array:
    return x - (other if alpha == 1 else alpha * other)


@operator("rsub")
def rsub(x: Array, other: Array, alpha: Any = 1) -> Array:
    return other - (x if alpha == 1 else alpha * x)


@operator("div")
def div(x: Array, other: Array, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    if rounding_mode == "trunc":
        if jnp.issubdtype(jnp.result_type(x, other), jnp.integer):
            dtype = jnp.result_type(x, other)
            return lax.div(*jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(other, dtype)))
        return jnp.trunc(x / other)
    return x / other


@operator("pow")
def power(x: Array, exponent: Array) -> Array:
    if isinstance(exponent, (int, float)) and float(exponent).is_integer() and abs(exponent) <= 8:
        return x ** int(exponent)
    return jnp.power(x, exponent)


@operator("float_power")
def float_power(x: Array, exponent: Array) -> Array:
    return jnp.float_power(x, exponent)


@operator("round")
def round_(x: Array, decimals: int = 0) -> Array:
    return jnp.round(x, decimals)


@operator("clamp", "clip")
def clamp(x: Array, min: Any = None, max: Any = None) -> Array:
    if min is not None:
        x = jnp.maximum(x, min)
    return x if max is None else jnp.minimum(x, max)


@operator("clamp_min")
def clamp_min(x: Array, min: Any) -> Array:
    return jnp.maximum(x, min)


@operator("clamp_max")
def clamp_max(x: Array, max: Any) -> Array:
    return jnp.minimum(x, max)


@operator("where")
def where(condition: Array, x: Array, other: Array) -> Array:
    return jnp.where(condition, x, other)


@operator("masked_fill")
def masked_fill(x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


@operator("lerp")
def lerp(x: Array, end: Array, weight: Any) -> Array:
    return x + weight * (end - x)


@operator("addcmul")
def addcmul(x: Array, tensor1: Array, tensor2: Array, value: Any = 1) -> Array:
    return x + value * tensor1 * tensor2


@operator("addcdiv")
def addcdiv(x: Array, tensor1: Array, tensor2: Array, value: Any = 1) -> Array:
    return x + value * tensor1 / tensor2


@operator("nan_to_num")
def nan_to_num(x: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    return jnp.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


@operator("gelu")
def gelu(x: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@operator("leaky_relu")
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    return jnp.where(x > 0, x, negative_slope * x)


@operator("prelu", "_prelu_kernel")
def prelu(x: Array, weight: Array) -> Array:
    if weight.size > 1 and x.ndim > 1 and weight.ndim == 1:
        weight = weight.reshape((-1,) + (1,) * (x.ndim - 2))
    return jnp.where(x > 0, x, weight * x)


@operator("elu")
def elu(x: Array, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Array:
    negative = alpha * jnp.expm1(jnp.where(x > 0, 0.0, x) * input_scale)
    return scale * jnp.where(x > 0, x, negative)


@operator("celu")
def celu(x: Array, alpha: Any = 1.0) -> Array:
    return jax.nn.celu(x, alpha)


@operator("softplus")
def softplus(x: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    scaled = beta * x
    return jnp.where(scaled > threshold, x, jax.nn.softplus(scaled) / beta)


@operator("softshrink")
def softshrink(x: Array, lambd: Any = 0.5) -> Array:
    return jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, 0.0))


@operator("hardshrink")
def hardshrink(x: Array, lambd: Any = 0.5) -> Array:
    return jnp.where(jnp.abs(x) > lambd, x, 0.0)


@operator("threshold")
def threshold(x: Array, threshold: Any, value: Any) -> Array:
    return jnp.where(x > threshold, x, value)


@operator("hardtanh")
def hardtanh(x: Array, min_val: Any = -1, max_val: Any = 1) -> Array:
    inside = (x > min_val) & (x < max_val)  # at the bounds PyTorch's gradient is 0
    return jnp.where(inside, x, lax.stop_gradient(jnp.clip(x, min_val, max_val)))


@operator("glu")
def glu(x: Array, dim: int = -1) -> Array:
    value, gate = jnp.split(x, 2, dim)
    return value * jax.nn.sigmoid(gate)


@operator("logit")
def logit(x: Array, eps: float | None = None) -> Array:
    x = x if eps is None else jnp.clip(x, eps, 1 - eps)
    return jnp.log(x / (1 - x))


@operator("alias", "clone", "contiguous", "detach_copy", "lift_fresh_copy", "view_of",
          "resolve_conj", "resolve_neg", "lift_fresh", "positive")  # fmt: skip
def same(x: Array, **_: Any) -> Array:
    return x


@operator("detach")
def detach(x: Array) -> Array:
    return lax.stop_gradient(x)


@operator("_to_copy", "to", "type_as")
def to_dtype(x: Array, dtype: Any = None, other: Any = None, **_: Any) -> Array:
    wanted = other.dtype if other is not None else dtype
    return x if wanted is None else x.astype(wanted)


@operator("copy")
def copy(x: Array, src: Array, **_: Any) -> Array:
    return jnp.broadcast_to(src, x.shape).astype(x.dtype)


@operator("fill")
def fill(x: Array, value: Any) -> Array:
    return jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)


@operator("view_as_real")
def view_as_real(x: Array) -> Array:
    return jnp.stack([x.real, x.imag], -1)


@operator("view_as_complex")
def view_as_complex(x: Array) -> Array:
    return lax.complex(x[..., 0], x[..., 1])


@operator("complex")
def complex_(real: Array, imag: Array) -> Array:
    return lax.complex(real, imag)


@operator("polar")
def polar(abs: Array, angle: Array) -> Array:
    return lax.complex(abs * jnp.cos(angle), abs * jnp.sin(angle))
