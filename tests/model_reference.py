"""The decoder in NumPy, float64, one position and one head at a time; for one sequence (T,)."""

from __future__ import annotations

import math

import numpy as np
from scipy import special


def array(parameter, layer=None):
    value = np.asarray(parameter[...], np.float64)
    return value if layer is None else value[layer]


def linear(part, x, layer):
    y = x @ array(part.kernel, layer)
    return y if part.bias is None else y + array(part.bias, layer)


def norm(part, x, layer=None):
    """RMSNorm."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + part.eps) * array(part.scale, layer)


def rope(x, frequency):
    """Rotate (T, H, D) by complex numbers, pairs i and i + D/2."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * np.outer(np.arange(len(x)), frequency))
    turned = (x[..., :half] + 1j * x[..., half:]) * turn[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def waves(size, theta):
    return theta ** (-np.arange(size // 2) / (size // 2))


def attention(q, k, v, *, factor=1.0, window=0, sinks=None):
    """(T, H, D), (T, K, D) and (T, K, C) to (T, H, C), causal."""
    length, heads, size = q.shape
    out = np.zeros((length, heads, v.shape[-1]))
    for t in range(length):
        first = max(0, t - window + 1) if window else 0
        for head in range(heads):
            group = head * k.shape[1] // heads
            scores = k[first : t + 1, group] @ q[t, head] * factor / math.sqrt(size)
            sink = [] if sinks is None else [sinks[head]]
            share = special.softmax([*scores, *sink])[: len(scores)]
            out[t, head] = share @ v[first : t + 1, group]
    return out


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gemma_3(model, ids):
    """Logits (T, V): sandwiched norms, queries and keys normed, local layers and global ones."""
    config, stack = model.config, model.layers
    x = array(model.embedding)[ids] * math.sqrt(config.embed_dim)
    length, size = len(ids), config.head_dim
    for layer in range(config.num_layers):
        is_global = (layer + 1) % config.global_every == 0
        part = stack.attention
        y = norm(stack.attention_norm, x, layer)
        q, k, v = (
            linear(one, y, layer).reshape(length, -1, size)
            for one in (part.query, part.key, part.value)
        )
        theta = config.rope_theta if is_global else config.rope_local_theta
        slowed = waves(size, theta) / (config.rope_scaling.factor if is_global else 1)
        q = rope(norm(part.query_norm, q, layer), slowed)
        k = rope(norm(part.key_norm, k, layer), slowed)
        factor = math.sqrt(size / config.query_pre_attn_scalar)
        mixed = attention(q, k, v, factor=factor, window=0 if is_global else config.window)
        y = linear(part.out, mixed.reshape(length, -1), layer)
        x = x + norm(stack.attention_post_norm, y, layer)
        y = norm(stack.mlp_norm, x, layer)
        wide = gelu(linear(stack.mlp.gate, y, layer)) * linear(stack.mlp.up, y, layer)
        x = x + norm(stack.mlp_post_norm, linear(stack.mlp.down, wide, layer), layer)
    return norm(model.norm, x) @ array(model.embedding).T
