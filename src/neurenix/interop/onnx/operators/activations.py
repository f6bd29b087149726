"""Activation functions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.interop.onnx.arrays import namespace
from neurenix.interop.onnx.registry import operator


@operator("Relu", folds=True)
def relu(x):
    return namespace(x).maximum(x, np.zeros((), x.dtype))


@operator("LeakyRelu")
def leaky_relu(x, *, alpha=0.01):
    return jnp.where(x < 0, alpha * x, x)


@operator("PRelu")
def prelu(x, slope):
    return jnp.where(x < 0, slope * x, x)


@operator("Elu")
def elu(x, *, alpha=1.0):
    return jnp.where(x < 0, alpha * jnp.expm1(jnp.minimum(x, 0)), x)


@operator("Celu")
def celu(x, *, alpha=1.0):
    return jax.nn.celu(x, alpha)


@operator("Selu")
def selu(x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    return gamma * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


@operator("Sigmoid")
def sigmoid(x):
    return jax.nn.sigmoid(x)


@operator("HardSigmoid")
def hard_sigmoid(x, *, alpha=0.2, beta=0.5):
    return jnp.clip(alpha * x + beta, 0, 1)


@operator("HardSwish")
def hard_swish(x):
    return x * jnp.clip(x / 6 + 0.5, 0, 1)


@operator("Swish")
def swish(x, *, alpha=1.0):
    return x * jax.nn.sigmoid(alpha * x)


@operator("Mish")
def mish(x):
    return x * jnp.tanh(jax.nn.softplus(x))


@operator("Gelu")
def gelu(x, *, approximate="none"):
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@operator("com.microsoft::Gelu")
def microsoft_gelu(x):
    return gelu(x)


@operator("com.microsoft::FastGelu")
def fast_gelu(x, bias=None):
    return gelu(x if bias is None else x + bias, approximate="tanh")


@operator("com.microsoft::QuickGelu")
def quick_gelu(x, *, alpha=1.702):
    return swish(x, alpha=alpha)


@operator("Softplus")
def softplus(x):
    return jax.nn.softplus(x)


@operator("Softsign")
def softsign(x):
    return x / (1 + jnp.abs(x))


@operator("ThresholdedRelu")
def thresholded_relu(x, *, alpha=1.0):
    return jnp.where(x > alpha, x, 0)


@operator("Shrink")
def shrink(x, *, bias=0.0, lambd=0.5):
    # Integers are shrunk as integers.
    bias = jnp.asarray(bias, jnp.float32)
    found = jnp.where(x < -lambd, x + bias, jnp.where(x > lambd, x - bias, 0))
    return found.astype(x.dtype)


@operator("Softmax", since=13)
def softmax(x, *, axis=-1):
    return jax.nn.softmax(x, axis)


@operator("LogSoftmax", since=13)
def log_softmax(x, *, axis=-1):
    return jax.nn.log_softmax(x, axis)


@operator("Hardmax", since=13)
def hardmax(x, *, axis=-1):
    return jax.nn.one_hot(jnp.argmax(x, axis), x.shape[axis], dtype=x.dtype, axis=axis)


# Until version 13 the axes from ``axis`` on are one.


def _as_rows(x, axis):
    return x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)


@operator("Softmax", since=1)
def softmax_1(x, *, axis=1):
    return softmax(_as_rows(x, axis)).reshape(x.shape)


@operator("LogSoftmax", since=1)
def log_softmax_1(x, *, axis=1):
    return log_softmax(_as_rows(x, axis)).reshape(x.shape)


@operator("Hardmax", since=1)
def hardmax_1(x, *, axis=1):
    return hardmax(_as_rows(x, axis)).reshape(x.shape)
