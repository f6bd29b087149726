"""Operators that draw random numbers. They are reproducible, and not those of PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix.interop.torch.registry import always, operator

Array = Any


def _drops(arguments: dict[str, Any]) -> bool:
    return arguments.get("train", True) is not False and arguments.get("p", 0.5) != 0


@operator("native_dropout", random=_drops)
def native_dropout(
    input: Array, p: float, train: bool | None = True, rng: Any = None
) -> tuple[Array, Array]:
    if train is False or p == 0:
        return input, jnp.ones(input.shape, bool)
    kept = jax.random.bernoulli(rng(), 1 - p, input.shape)
    return jnp.where(kept, input / max(1 - p, 1e-9), jnp.zeros((), input.dtype)), kept


@operator("dropout", random=_drops)
def dropout(input: Array, p: float, train: bool, rng: Any = None) -> Array:
    return native_dropout(input, p, train, rng)[0]


@operator("feature_dropout", random=_drops)
def feature_dropout(input: Array, p: float, train: bool, rng: Any = None) -> Array:
    """Drop whole channels of input (N, C, …): what ``nn.Dropout1d`` to ``nn.Dropout3d`` do."""
    if train is False or p == 0:
        return input
    shape = (*input.shape[:2], *[1] * (input.ndim - 2))
    kept = jax.random.bernoulli(rng(), 1 - p, shape)
    return jnp.where(kept, input / max(1 - p, 1e-9), jnp.zeros((), input.dtype))


@operator("rand", "rand.generator", random=always)
def rand(size: Any, dtype: Any = None, generator: Any = None, rng: Any = None) -> Array:
    return jax.random.uniform(rng(), tuple(size), dtype or jnp.float32)


@operator("randn", "randn.generator", random=always)
def randn(size: Any, dtype: Any = None, generator: Any = None, rng: Any = None) -> Array:
    return jax.random.normal(rng(), tuple(size), dtype or jnp.float32)


@operator("rand_like", random=always)
def rand_like(x: Array, dtype: Any = None, rng: Any = None, **_: Any) -> Array:
    return jax.random.uniform(rng(), x.shape, dtype or x.dtype)


@operator("randn_like", random=always)
def randn_like(x: Array, dtype: Any = None, rng: Any = None, **_: Any) -> Array:
    return jax.random.normal(rng(), x.shape, dtype or x.dtype)


@operator("randint", "randint.low", random=always)
def randint(
    high: int, size: Any, low: int = 0, dtype: Any = None, rng: Any = None, **_: Any
) -> Array:
    return jax.random.randint(rng(), tuple(size), low, high, dtype or jnp.int32)


@operator("randint_like", "randint_like.low_dtype", random=always)
def randint_like(
    x: Array, high: int, low: int = 0, dtype: Any = None, rng: Any = None, **_: Any
) -> Array:
    return jax.random.randint(rng(), x.shape, low, high, jnp.int32).astype(dtype or x.dtype)


@operator("randperm", random=always)
def randperm(n: int, dtype: Any = None, rng: Any = None, **_: Any) -> Array:
    return jax.random.permutation(rng(), n).astype(dtype or jnp.int32)


@operator("bernoulli", "bernoulli.p", random=always)
def bernoulli(x: Array, p: Any = None, generator: Any = None, rng: Any = None) -> Array:
    return jax.random.bernoulli(rng(), x if p is None else p, x.shape).astype(x.dtype)


@operator("normal_functional", random=always)
def normal(
    x: Array, mean: float = 0.0, std: float = 1.0, generator: Any = None, rng: Any = None
) -> Array:
    return mean + std * jax.random.normal(rng(), x.shape, x.dtype)


@operator("uniform", random=always)
def uniform(
    x: Array,
    from_: float = 0.0,
    to: float = 1.0,
    generator: Any = None,
    rng: Any = None,
    **more: Any,
) -> Array:
    low = more.get("from", from_)
    return jax.random.uniform(rng(), x.shape, x.dtype, low, to)


@operator("exponential", random=always)
def exponential(x: Array, lambd: float = 1.0, generator: Any = None, rng: Any = None) -> Array:
    return jax.random.exponential(rng(), x.shape, x.dtype) / lambd


@operator("multinomial", random=always)
def multinomial(
    x: Array, num_samples: int, replacement: bool = False, generator: Any = None, rng: Any = None
) -> Array:
    scores = jnp.log(x)
    if replacement:
        shape = (*x.shape[:-1], num_samples)
        drawn = jax.random.categorical(rng(), scores[..., None, :], -1, shape)
        return drawn.astype(jnp.int32)
    noise = jax.random.gumbel(rng(), x.shape, scores.dtype)
    return jax.lax.top_k(scores + noise, num_samples)[1]


@operator("rrelu_with_noise_functional", random=lambda a: bool(a.get("training", False)))
def rrelu(
    x: Array, noise: Array, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: Any = None, rng: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    slope: Any = (lower + upper) / 2
    if training:
        slope = jax.random.uniform(rng(), x.shape, x.dtype, lower, upper)
    return jnp.where(x > 0, x, slope * x), jnp.where(x > 0, 1.0, slope) * jnp.ones_like(x)
