"""Random numbers. A node with a seed draws the same numbers at every call, as in ONNX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.interop.onnx.arrays import canonical, expect_size
from neurenix.interop.onnx.files import dtype_of
from neurenix.interop.onnx.registry import operator


def _key(rng: Any, seed: float | None) -> jax.Array:
    if seed is None:
        return rng()
    return jax.random.key(int(np.float32(seed).view(np.uint32)))


def _dtype(number: int | None, like: Any = None) -> np.dtype:
    return canonical(like.dtype if number is None else dtype_of(number, "A random result"))


@operator("Dropout", since=12, random=True, counts=True, known=(2,))
def dropout(x, ratio=None, training_mode=None, *, seed=None, rng, num_results=1):
    if training_mode is None or not bool(training_mode):
        return [x, jnp.ones(x.shape, bool)][:num_results]
    rate = 0.5 if ratio is None else ratio
    kept = jax.random.uniform(_key(rng, seed), x.shape) >= rate
    return [jnp.where(kept, x / (1 - rate), 0).astype(x.dtype), kept][:num_results]


@operator("Dropout", since=1, counts=True)
def dropout_1(x, *, ratio=0.5, is_test=0, consumed_inputs=None, num_results=1):
    return [x, jnp.ones(x.shape, bool)][:num_results]


@operator("RandomUniform", random=True)
def random_uniform(*, shape, dtype=1, high=1.0, low=0.0, seed=None, rng):
    return jax.random.uniform(
        _key(rng, seed), expect_size(shape, "RandomUniform"), _dtype(dtype), low, high
    )


@operator("RandomUniformLike", random=True)
def random_uniform_like(x, *, dtype=None, high=1.0, low=0.0, seed=None, rng):
    return jax.random.uniform(_key(rng, seed), x.shape, _dtype(dtype, x), low, high)


@operator("RandomNormal", random=True)
def random_normal(*, shape, dtype=1, mean=0.0, scale=1.0, seed=None, rng):
    sizes = expect_size(shape, "RandomNormal")
    return mean + scale * jax.random.normal(_key(rng, seed), sizes, _dtype(dtype))


@operator("RandomNormalLike", random=True)
def random_normal_like(x, *, dtype=None, mean=0.0, scale=1.0, seed=None, rng):
    return mean + scale * jax.random.normal(_key(rng, seed), x.shape, _dtype(dtype, x))


@operator("Bernoulli", random=True)
def bernoulli(x, *, dtype=None, seed=None, rng):
    drawn = jax.random.uniform(_key(rng, seed), x.shape) < x
    return drawn.astype(_dtype(dtype, x))


@operator("Multinomial", random=True)
def multinomial(x, *, dtype=6, sample_size=1, seed=None, rng):
    key = _key(rng, seed)
    drawn = jax.random.categorical(key, x[:, None, :], axis=-1, shape=(x.shape[0], sample_size))
    return drawn.astype(_dtype(dtype))
