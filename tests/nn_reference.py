"""Layers in plain NumPy loops, written from their definitions and sharing no code with JAX.

Channels last everywhere; kernels as ``neurenix.nn`` keeps them.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy import special


def per_axis(value, count):
    return (value,) * count if isinstance(value, int) else tuple(value)


def pad_space(x, pads, value=0.0):
    return np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=value)


def conv(x, kernel, bias=None, *, stride=1, pads=0, dilation=1, groups=1):
    n = kernel.ndim - 2
    stride, dilation = per_axis(stride, n), per_axis(dilation, n)
    pads = [(p, p) if isinstance(p, int) else p for p in per_axis(pads, n)]
    x = pad_space(x, pads)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel.shape, strict=False)]
    sizes = [(s - w) // t + 1 for s, w, t in zip(x.shape[1:-1], spans, stride, strict=True)]
    inputs, outputs = kernel.shape[-2], kernel.shape[-1] // groups
    y = np.zeros((x.shape[0], *sizes, kernel.shape[-1]))
    for place in itertools.product(*map(range, sizes)):
        for tap in itertools.product(*map(range, kernel.shape[:n])):
            at = tuple(
                p * s + t * d for p, s, t, d in zip(place, stride, tap, dilation, strict=True)
            )
            for g in range(groups):
                value = x[(slice(None), *at)][:, g * inputs : (g + 1) * inputs]
                part = slice(g * outputs, (g + 1) * outputs)
                y[(slice(None), *place, part)] += value @ kernel[tap][:, part]
    return y if bias is None else y + bias


def conv_transpose(
    x, kernel, bias=None, *, stride=1, padding=0, output_padding=0, dilation=1, groups=1
):
    n = kernel.ndim - 2
    stride, padding, extra, dilation = (
        per_axis(v, n) for v in (stride, padding, output_padding, dilation)
    )
    full = [
        (s - 1) * t + d * (k - 1) + 1 + e
        for s, t, d, k, e in zip(
            x.shape[1:-1], stride, dilation, kernel.shape[:n], extra, strict=True
        )
    ]
    inputs, outputs = kernel.shape[-2], kernel.shape[-1] // groups
    y = np.zeros((x.shape[0], *full, kernel.shape[-1]))
    for place in itertools.product(*map(range, x.shape[1:-1])):
        for tap in itertools.product(*map(range, kernel.shape[:n])):
            at = tuple(
                p * s + t * d for p, s, t, d in zip(place, stride, tap, dilation, strict=True)
            )
            for g in range(groups):
                value = x[(slice(None), *place)][:, g * inputs : (g + 1) * inputs]
                part = slice(g * outputs, (g + 1) * outputs)
                y[(slice(None), *at, part)] += value @ kernel[tap][:, part]
    keep = tuple(slice(p, size - p) for p, size in zip(padding, full, strict=True))
    y = y[(slice(None), *keep)]
    return y if bias is None else y + bias


def pool(x, kernel_size, stride=None, padding=0, *, reduce, fill):
    n = x.ndim - 2
    kernel = per_axis(kernel_size, n)
    stride = kernel if stride is None else per_axis(stride, n)
    x = pad_space(x, [(p, p) for p in per_axis(padding, n)], fill)
    sizes = [(s - k) // t + 1 for s, k, t in zip(x.shape[1:-1], kernel, stride, strict=True)]
    y = np.zeros((x.shape[0], *sizes, x.shape[-1]))
    for place in itertools.product(*map(range, sizes)):
        window = tuple(
            slice(p * t, p * t + k) for p, t, k in zip(place, stride, kernel, strict=True)
        )
        y[(slice(None), *place)] = reduce(x[(slice(None), *window)], axis=tuple(range(1, n + 1)))
    return y


def adaptive(x, output_size, *, reduce):
    n = x.ndim - 2
    sizes = per_axis(output_size, n)
    y = np.zeros((x.shape[0], *sizes, x.shape[-1]))
    for place in itertools.product(*map(range, sizes)):
        window = tuple(
            slice(int(np.floor(i * s / o)), int(np.ceil((i + 1) * s / o)))
            for i, s, o in zip(place, x.shape[1:-1], sizes, strict=True)
        )
        y[(slice(None), *place)] = reduce(x[(slice(None), *window)], axis=tuple(range(1, n + 1)))
    return y


def layer_norm(x, scale=1.0, bias=0.0, *, axes=(-1,), eps=1e-5):
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * scale + bias


def group_norm(x, scale, bias, groups, eps=1e-5):
    parts = np.split(x, groups, axis=-1)
    axes = tuple(range(1, x.ndim))
    return np.concatenate([layer_norm(p, axes=axes, eps=eps) for p in parts], -1) * scale + bias


def attention(q, k, v, mask=None, causal=False):
    """(N, T, H, D) each; a boolean mask that broadcasts to (N, H, T, S)."""
    out = np.zeros(q.shape)
    repeat = q.shape[2] // k.shape[2]
    for n, h in itertools.product(range(q.shape[0]), range(q.shape[2])):
        scores = q[n, :, h] @ k[n, :, h // repeat].T / np.sqrt(q.shape[-1])
        if mask is not None:
            full = np.broadcast_to(mask, (q.shape[0], q.shape[2], *scores.shape))
            scores = np.where(full[n, h], scores, -np.inf)
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape)) > 0, scores, -np.inf)
        out[n, :, h] = special.softmax(scores, axis=-1) @ v[n, :, h // repeat]
    return out


def multi_head(layer, query, key=None, value=None, mask=None):
    key = query if key is None else key
    value = key if value is None else value

    def heads(part, x, count):
        y = x @ array(part.kernel) + (0 if part.bias is None else array(part.bias))
        return y.reshape(*y.shape[:2], count, layer.head_dim)

    mixed = attention(
        heads(layer.query, query, layer.num_heads),
        heads(layer.key, key, layer.num_kv_heads),
        heads(layer.value, value, layer.num_kv_heads),
        mask,
        layer.causal,
    )
    flat = mixed.reshape(*query.shape[:2], -1)
    return flat @ array(layer.out.kernel) + (0 if layer.out.bias is None else array(layer.out.bias))


def lstm(layer, x, state=None):
    size = layer.hidden_size
    h, c = (np.zeros((x.shape[0], size)),) * 2 if state is None else state
    outputs = np.zeros((*x.shape[:2], size))
    order = range(x.shape[1])
    for t in reversed(order) if layer.reverse else order:
        gates = x[:, t] @ array(layer.input_kernel) + h @ array(layer.recurrent_kernel)
        if layer.input_bias is not None:
            gates = gates + array(layer.input_bias) + array(layer.recurrent_bias)
        i, f, g, o = (gates[:, j * size : (j + 1) * size] for j in range(4))
        c = special.expit(f) * c + special.expit(i) * np.tanh(g)
        h = special.expit(o) * np.tanh(c)
        outputs[:, t] = h
    return outputs, h, c


def gru(layer, x, h=None):
    size = layer.hidden_size
    h = np.zeros((x.shape[0], size)) if h is None else h
    outputs = np.zeros((*x.shape[:2], size))
    order = range(x.shape[1])
    for t in reversed(order) if layer.reverse else order:
        a = x[:, t] @ array(layer.input_kernel) + array(layer.input_bias)
        b = h @ array(layer.recurrent_kernel) + array(layer.recurrent_bias)
        r = special.expit(a[:, :size] + b[:, :size])
        z = special.expit(a[:, size : 2 * size] + b[:, size : 2 * size])
        n = np.tanh(a[:, 2 * size :] + r * b[:, 2 * size :])
        h = (1 - z) * n + z * h
        outputs[:, t] = h
    return outputs, h


def array(variable):
    """The values of a variable in float64."""
    return np.asarray(variable[...]).astype(np.float64)
