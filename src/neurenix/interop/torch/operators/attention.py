"""Scaled dot-product attention, kept whole so that the fused kernel of the device serves it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix.interop.torch.registry import operator
from neurenix.nn.dot_product import dot_product_attention

Array = Any


def _has_dropout(arguments: dict[str, Any]) -> bool:
    return bool(arguments.get("dropout_p", 0.0))


@operator("scaled_dot_product_attention", random=_has_dropout, product=True)
def attention(
    query: Array, key: Array, value: Array, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, rng: Any = None,
    window: int | None = None,
) -> Array:  # fmt: skip
    """Take queries (…, H, T, D), keys and values (…, K, S, D); with ``enable_gqa`` K divides H.

    ``window`` is ours: how many keys a query may look at, up to its own, with ``is_causal``.
    """
    if _fits_kernel(query, key, value, attn_mask, is_causal) and not dropout_p:
        return _by_kernel(query, key, value, is_causal, scale, window)
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = jnp.repeat(key, times, -3), jnp.repeat(value, times, -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.matmul(query, jnp.swapaxes(key, -1, -2), preferred_element_type=jnp.float32)
    scores = scores * factor
    if is_causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        seen = seen if window is None else jnp.triu(seen, 1 - window)
        scores = jnp.where(seen, scores, -jnp.inf)
    if attn_mask is not None and attn_mask.dtype == bool:
        scores = jnp.where(attn_mask, scores, -jnp.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = _softmax(scores).astype(query.dtype)
    if dropout_p:
        kept = jax.random.bernoulli(rng(), 1 - dropout_p, weights.shape)
        weights = jnp.where(kept, weights / (1 - dropout_p), 0)
    return jnp.matmul(weights, value)


def _softmax(scores: Array) -> Array:
    """Return a softmax that is zero where a query may look at nothing, as in PyTorch."""
    most = jnp.max(scores, -1, keepdims=True)
    nothing = jnp.isneginf(most)
    exponents = jnp.exp(scores - jax.lax.stop_gradient(jnp.where(nothing, 0, most)))
    total = exponents.sum(-1, keepdims=True)
    return exponents / jnp.where(nothing, 1, total)


def _fits_kernel(query: Array, key: Array, value: Array, mask: Any, is_causal: bool) -> bool:
    if query.ndim != 4 or not query.dtype == key.dtype == value.dtype:
        return False
    if query.shape[0] != key.shape[0] or query.shape[1] % key.shape[1]:
        return False
    if is_causal and query.shape[2] != key.shape[2]:
        return False
    return mask is None


def _by_kernel(
    query: Array, key: Array, value: Array, is_causal: bool, scale: float | None, window: int | None
) -> Array:
    usual = query.shape[-1] ** -0.5
    if scale is not None and scale != usual:
        query = query * jnp.asarray(scale / usual, query.dtype)
    heads_last = (jnp.swapaxes(each, 1, 2) for each in (query, key, value))
    out = dot_product_attention(*heads_last, causal=is_causal, window=window)
    return jnp.swapaxes(out, 1, 2)
