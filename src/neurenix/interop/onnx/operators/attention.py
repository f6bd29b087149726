"""Attention whole, rotary positions, linear attention, and the causal convolution before it.

Letters: ``N`` batch, ``T`` queries, ``S`` keys, ``H`` heads of queries, ``K`` heads of keys, which
divides H, ``D`` width of a head, ``C`` width of a value.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import as_jax, canonical
from neurenix.interop.onnx.files import dtype_of
from neurenix.interop.onnx.registry import operator
from neurenix.nn.dot_product import dot_product_attention

Array = Any


@operator("Attention", counts=True)
def attention(
    q, k, v, mask=None, past_key=None, past_value=None, lengths=None, *, is_causal=0,
    q_num_heads=None, kv_num_heads=None, qk_matmul_output_mode=0, scale=None, softcap=0.0,
    softmax_precision=None, left_window_size=-1, right_window_size=-1, num_results,
):  # fmt: skip
    flat = q.ndim == 3
    if flat:
        q = _heads(q, q_num_heads)
        k, v = _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    if (past_key is None) != (past_value is None):
        raise ConversionError("it has one of past_key and past_value; it takes both.")
    if past_key is not None and past_value is not None:
        k, v = jnp.concatenate([past_key, k], 2), jnp.concatenate([past_value, v], 2)
    present = [k, v]
    causal = bool(is_causal)
    plain = mask is None and lengths is None and left_window_size == right_window_size == -1
    plain = plain and not softcap and num_results < 4
    # XLA has no such product of float16 for CPUs.
    if plain and (not causal or q.shape[2] == k.shape[2]) and q.dtype != jnp.float16:
        y, scores = _fused(q, k, v, causal, scale), None
    else:
        offset = 0 if past_key is None else past_key.shape[2]
        if lengths is not None:
            offset = lengths.reshape(-1, 1, 1, 1) - q.shape[2]
        windows = left_window_size, 0 if causal else right_window_size
        bias = _bias(q, k, mask, lengths, offset, windows)
        precision = None if softmax_precision is None else _float(softmax_precision)
        y, scores = _attend(q, k, v, bias, scale, softcap, precision, qk_matmul_output_mode)
    if flat:
        y = jnp.swapaxes(y, 1, 2).reshape(y.shape[0], y.shape[2], -1)
    return [y, *present, scores][: max(num_results, 1)]


def _heads(x: Array, count: int | None) -> Array:
    """Return (N, T, H · D) as (N, H, T, D)."""
    if not count:
        raise ConversionError("its inputs have three axes, and it does not say how many heads.")
    return jnp.swapaxes(x.reshape(*x.shape[:2], count, -1), 1, 2)


def _float(number: int) -> np.dtype:
    return canonical(dtype_of(number, "The softmax of an attention"))


def _fused(q: Array, k: Array, v: Array, causal: bool, scale: float | None) -> Array:
    usual = q.shape[-1] ** -0.5
    if scale is not None and scale != usual:
        q = q * jnp.asarray(scale / usual, q.dtype)
    heads_last = (jnp.swapaxes(each, 1, 2) for each in (q, k, v))
    return jnp.swapaxes(dot_product_attention(*heads_last, causal=causal), 1, 2)


def _bias(
    q: Array, k: Array, mask: Array | None, lengths: Array | None, offset: Any,
    windows: tuple[int, int],
) -> Array:  # fmt: skip
    """Return what is added to the scores: minus infinity where a query may not look.

    A window says how many keys before and behind its own a query sees; -1 is all.
    """
    queries, keys = q.shape[2], k.shape[2]
    bias = jnp.zeros((queries, keys), q.dtype)
    if mask is not None:
        missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        fill = False if mask.dtype == bool else -jnp.inf
        mask = jnp.pad(mask, missing, constant_values=fill)
        bias = bias + (jnp.where(mask, 0, -jnp.inf).astype(q.dtype) if mask.dtype == bool else mask)
    allowed = jnp.ones((queries, keys), bool)
    ahead = jnp.arange(queries)[:, None] + offset - jnp.arange(keys)
    if windows[0] >= 0:
        allowed = allowed & (ahead <= windows[0])
    if windows[1] >= 0:
        allowed = allowed & (-ahead <= windows[1])
    if lengths is not None:
        allowed = allowed & (jnp.arange(keys) < lengths.reshape(-1, 1, 1, 1))
    return jnp.where(allowed, bias, jnp.asarray(-jnp.inf, bias.dtype))


def _attend(
    q: Array, k: Array, v: Array, bias: Array, scale: float | None, softcap: float,
    precision: Any, mode: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the result and the scores as the mode asks for them."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = jnp.repeat(k, groups, 1), jnp.repeat(v, groups, 1)
    factor = jnp.asarray(np.sqrt(q.shape[-1] ** -0.5 if scale is None else scale), q.dtype)
    scores = jnp.matmul(q * factor, jnp.swapaxes(k * factor, -1, -2))
    kept = scores
    if softcap > 0:
        scores = softcap * jnp.tanh(scores / softcap)
    kept = scores if mode == 1 else kept
    scores = scores + bias
    kept = scores if mode == 2 else kept
    nothing = jnp.isneginf(bias.max(-1, keepdims=True))
    scores = scores if precision is None else scores.astype(precision)
    weights = jnp.where(nothing, 0, jax.nn.softmax(jnp.where(nothing, 0, scores), axis=-1))
    weights = weights.astype(q.dtype)
    return jnp.matmul(weights, v), weights if mode == 3 else kept


@operator("ai.onnx.preview::FlexAttention", nested=True)
def flex_attention(
    q, k, v, *, scale=None, softmax_precision=None, score_mod=None, prob_mod=None, run
):
    groups = q.shape[1] // k.shape[1]
    dtype, k, v = q.dtype, jnp.repeat(k, groups, 1), jnp.repeat(v, groups, 1)
    usual = jnp.promote_types(dtype, jnp.float32)
    precision = usual if softmax_precision is None else _float(softmax_precision)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.matmul(q, jnp.swapaxes(k, -1, -2), preferred_element_type=usual) * factor
    scores = scores.astype(precision)
    if score_mod is not None:
        (scores,) = run(score_mod, [scores])
    weights = jax.nn.softmax(scores, axis=-1)
    if prob_mod is not None:
        (weights,) = run(prob_mod, [weights])
    return jnp.matmul(as_jax(weights).astype(v.dtype), v)


@operator("RotaryEmbedding")
def rotary_embedding(
    x, cosines, sines, positions=None, *, interleaved=0, num_heads=0, rotary_embedding_dim=0
):
    flat = x.ndim == 3
    values = _heads(x, num_heads) if flat else x
    width = rotary_embedding_dim or values.shape[-1]
    if positions is not None:
        cosines, sines = cosines[positions], sines[positions]
    cosines, sines = cosines[:, None], sines[:, None]
    turned, rest = values[..., :width], values[..., width:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = jnp.split(turned, 2, axis=-1)
    pair = [cosines * a - sines * b, sines * a + cosines * b]
    if interleaved:
        turned = jnp.stack(pair, -1).reshape(turned.shape)
    else:
        turned = jnp.concatenate(pair, -1)
    y = jnp.concatenate([turned, rest], -1).astype(x.dtype)
    return jnp.swapaxes(y, 1, 2).reshape(x.shape) if flat else y


@operator("LinearAttention")
def linear_attention(
    q, k, v, past=None, decay=None, beta=None, *, q_num_heads, kv_num_heads, scale=0.0,
    update_rule="gated_delta", chunk_size=64,
):  # fmt: skip
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        raise ConversionError(f"the update rule {update_rule!r} is not known.")
    is_gated, is_delta = "gated" in update_rule, "delta" in update_rule
    needed = {"decay": decay if is_gated else 0, "beta": beta if is_delta else 0}
    for name, value in needed.items():
        if value is None:
            raise ConversionError(f"the update rule {update_rule!r} needs the input {name}.")
    dtype, batch = q.dtype, q.shape[0]
    of = jnp.promote_types(dtype, jnp.float32)

    def steps(x: Array, heads: int) -> Array:
        """Return (N, T, K · D) as (T, N, K, D)."""
        return x.astype(of).reshape(*x.shape[:2], heads, -1).swapaxes(0, 1)

    queries, keys, values = steps(q, q_num_heads), steps(k, kv_num_heads), steps(v, kv_num_heads)
    gates = jnp.exp(steps(decay, kv_num_heads)) if is_gated else jnp.ones((len(keys), 1, 1, 1), of)
    rates = jnp.ones((len(keys), 1, 1, 1), of)
    if is_delta and beta is not None:
        rates = steps(beta, beta.shape[-1])
    factor = scale or keys.shape[-1] ** -0.5
    state = jnp.zeros((batch, kv_num_heads, keys.shape[-1], values.shape[-1]), of)
    state = state if past is None else past.astype(of)
    groups = q_num_heads // kv_num_heads

    def step(state: Array, given: Any) -> Any:
        query, key, value, gate, rate = given
        state = state * gate[..., None]
        if is_delta:
            value = rate * (value - jnp.einsum("nkdc,nkd->nkc", state, key))
        state = state + key[..., None] * value[..., None, :]
        grouped = query.reshape(batch, kv_num_heads, groups, -1)
        return state, factor * jnp.einsum("nkdc,nkgd->nkgc", state, grouped)

    state, y = jax.lax.scan(step, state, (queries, keys, values, gates, rates))
    y = y.swapaxes(0, 1).reshape(batch, q.shape[1], -1)
    return [y.astype(dtype), state.astype(dtype if past is None else past.dtype)]


@operator("CausalConvWithState")
def causal_conv_with_state(x, w, bias=None, past=None, *, activation="none"):
    before, length = w.shape[-1] - 1, x.shape[-1]
    past = jnp.zeros((*x.shape[:2], before), x.dtype) if past is None else past
    whole = jnp.concatenate([past, x], -1)
    y = jax.lax.conv_general_dilated(whole, w, [1], [(0, 0)], feature_group_count=x.shape[1])
    y = y if bias is None else y + bias[:, None]
    if activation in ("silu", "swish"):
        y = jax.nn.silu(y)
    elif activation != "none":
        raise ConversionError(f"the activation {activation!r} is not known.")
    return [y, whole[..., length:]]
