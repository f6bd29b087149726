"""Models in NumPy, float64, one position and one head at a time; for one sequence or image."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

import nn_reference as nn_ref


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


def attention(q, k, v, *, factor=1.0, window=0, sinks=None, softcap=0.0):
    """(T, H, D), (T, K, D) and (T, K, C) to (T, H, C), causal."""
    length, heads, size = q.shape
    out = np.zeros((length, heads, v.shape[-1]))
    for t in range(length):
        first = max(0, t - window + 1) if window else 0
        for head in range(heads):
            group = head * k.shape[1] // heads
            scores = k[first : t + 1, group] @ q[t, head] * factor / math.sqrt(size)
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
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


def heads_of(part, x, layer, size):
    """Queries, keys and values of one layer, (T, H, D) and twice (T, K, D)."""
    return (
        linear(one, x, layer).reshape(len(x), -1, size)
        for one in (part.query, part.key, part.value)
    )


def gemma_2(model, ids):
    """Logits (T, V): sandwiched norms, scores and logits bounded, every other layer local."""
    config, stack = model.config, model.layers
    x = array(model.embedding)[ids] * math.sqrt(config.embed_dim)
    frequency = waves(config.head_dim, config.rope_theta)
    for layer in range(config.num_layers):
        y = norm(stack.attention_norm, x, layer)
        q, k, v = heads_of(stack.attention, y, layer, config.head_dim)
        mixed = attention(
            rope(q, frequency),
            rope(k, frequency),
            v,
            factor=math.sqrt(config.head_dim / config.query_pre_attn_scalar),
            window=0 if layer % 2 else config.window,
            softcap=config.attention_softcap,
        )
        y = linear(stack.attention.out, mixed.reshape(len(ids), -1), layer)
        x = x + norm(stack.attention_post_norm, y, layer)
        y = norm(stack.mlp_norm, x, layer)
        wide = gelu(linear(stack.mlp.gate, y, layer)) * linear(stack.mlp.up, y, layer)
        x = x + norm(stack.mlp_post_norm, linear(stack.mlp.down, wide, layer), layer)
    logits = norm(model.norm, x) @ array(model.embedding).T
    return config.logits_softcap * np.tanh(logits / config.logits_softcap)


def plain_norm(x, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def gelu_gated(part, x, layer):
    return linear(part.down, gelu(linear(part.gate, x, layer)) * linear(part.up, x, layer), layer)


def mlp_beside_experts(part, x, layer, config):
    out = norm(
        part.mlp_post_norm, gelu_gated(part.mlp, norm(part.mlp_norm, x, layer), layer), layer
    )
    seen = norm(part.router_norm, x, layer) / math.sqrt(config.embed_dim)
    share = special.softmax(linear(part.experts.router, seen, layer), axis=-1)
    kernels = [array(getattr(part.experts.experts, of), layer) for of in ("gate", "up", "down")]
    scale, y = array(part.experts.expert_scale, layer), norm(part.experts_norm, x, layer)
    mixed = np.zeros_like(x)
    for t in range(len(x)):
        chosen = np.argsort(-share[t])[: config.experts_per_token]
        for one in chosen:
            gate, up, down = (kernel[one] for kernel in kernels)
            weight = scale[one] * share[t, one] / share[t, chosen].sum()
            mixed[t] += weight * ((gelu(y[t] @ gate) * (y[t] @ up)) @ down)
    return out + norm(part.experts_post_norm, mixed, layer)


def gemma_4(model, ids):
    """Logits (T, V): full layers with heads of their own, inputs of each layer, shared keys."""
    config = model.config
    full, eps = config.full_attention, config.norm_eps
    x = first = array(model.embedding)[ids] * math.sqrt(config.embed_dim)
    own = config.num_layers - config.num_kv_shared_layers
    kept = {}
    for number in range(config.num_layers):
        stack = model.layers if number < own else model.sharing_layers
        is_full = (number + 1) % config.global_every == 0
        part, layer = stack, number if number < own else number - own
        if full:
            part = stack.kinds[int(is_full)]
            before = sum((n + 1) % config.global_every == 0 for n in range(layer))
            layer = before if is_full else layer - before
        size = full.head_dim if full and is_full else config.head_dim
        frequency = waves(size, config.rope_theta if is_full else config.rope_local_theta)
        if full and is_full:
            frequency[int(full.rope_proportion * size / 2) :] = 0
        y, attend = norm(part.attention_norm, x, layer), part.attention
        q = linear(attend.query, y, layer).reshape(len(ids), -1, size)
        q = rope(norm(attend.query_norm, q, layer), frequency)
        if number < own:
            raw = linear(attend.key, y, layer).reshape(len(ids), -1, size)
            v = raw
            if not (full and is_full and full.key_is_value):
                v = linear(attend.value, y, layer).reshape(len(ids), -1, size)
            k = rope(norm(attend.key_norm, raw, layer), frequency)
            kept[is_full] = k, plain_norm(v, eps)
        window = 0 if is_full else config.window
        mixed = attention(q, *kept[is_full], factor=math.sqrt(size), window=window)
        y = linear(attend.out, mixed.reshape(len(ids), -1), layer)
        x = x + norm(part.attention_post_norm, y, layer)
        if config.num_experts:
            y = mlp_beside_experts(part.mlp, x, layer, config)
        else:
            y = gelu_gated(part.mlp, norm(part.mlp_norm, x, layer), layer)
        x = x + norm(part.mlp_post_norm, y, layer)
        if config.per_layer_input_dim:
            told, size = model.per_layer_embedding, config.per_layer_input_dim
            of_layer = slice(number * size, (number + 1) * size)
            seen = linear(told.projection, first, None)[:, of_layer] / math.sqrt(config.embed_dim)
            of_token = array(told.table)[ids][:, of_layer] * math.sqrt(size)
            inputs = (norm(told.norm, seen) + of_token) / math.sqrt(2)
            gate = gelu(linear(part.per_layer.gate, x, layer))
            y = linear(part.per_layer.out, gate * inputs, layer)
            x = x + norm(part.per_layer.norm, y, layer)
        x = x * array(part.output_scale, layer)
    logits = norm(model.norm, x) @ array(model.embedding).T
    return config.logits_softcap * np.tanh(logits / config.logits_softcap)


def qwen_3(model, ids):
    """Logits (T, V): queries and keys normed, then rotated; one MLP or the best experts."""
    config, stack = model.config, model.layers
    x = array(model.embedding)[ids]
    frequency = waves(config.head_dim, config.rope_theta)
    for layer in range(config.num_layers):
        part = stack.attention
        q, k, v = heads_of(part, norm(stack.attention_norm, x, layer), layer, config.head_dim)
        q, k = norm(part.query_norm, q, layer), norm(part.key_norm, k, layer)
        mixed = attention(rope(q, frequency), rope(k, frequency), v)
        x = x + linear(part.out, mixed.reshape(len(ids), -1), layer)
        y = norm(stack.mlp_norm, x, layer)
        if not config.num_experts:
            x = x + dense(stack.mlp, y, layer)
            continue
        share = special.softmax(linear(stack.mlp.router, y, layer), axis=-1)
        experts = [array(getattr(stack.mlp.experts, of), layer) for of in ("gate", "up", "down")]
        for t in range(len(ids)):
            chosen = np.argsort(-share[t])[: config.experts_per_token]
            for one in chosen:
                gate, up, down = (kernel[one] for kernel in experts)
                weight = share[t, one] / share[t, chosen].sum()
                x[t] += weight * ((silu(y[t] @ gate) * (y[t] @ up)) @ down)
    return norm(model.norm, x) @ array(model.embedding).T


def yarn(size, theta, scaling):
    """Frequencies by YaRN, wave by wave."""
    found = waves(size, theta)
    turns = scaling.original_length * found / (2 * math.pi)

    def pair_of(count):
        """Where a wave makes so many turns, between the pairs."""
        return np.interp(-math.log(count), -np.log(turns), np.arange(len(turns)))

    first, last = pair_of(scaling.fast), pair_of(scaling.slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    for i in range(len(found)):
        slow = min(max((i - first) / (last - first), 0), 1)
        found[i] *= (1 - slow) + slow / scaling.factor
    return found


def silu(x):
    return x * special.expit(x)


def gpt_oss(model, ids):
    """Logits (T, V): sinks, biases everywhere, experts with a clamped SwiGLU."""
    config, stack = model.config, model.layers
    x = array(model.embedding)[ids]
    length, size = len(ids), config.head_dim
    frequency = yarn(size, config.rope_theta, config.rope_scaling)
    factor = (0.1 * math.log(config.rope_scaling.factor) + 1) ** 2
    for layer in range(config.num_layers):
        part = stack.attention
        y = norm(stack.attention_norm, x, layer)
        q, k, v = (
            linear(one, y, layer).reshape(length, -1, size)
            for one in (part.query, part.key, part.value)
        )
        window = config.window if layer % 2 == 0 else 0
        q, k = rope(q, frequency), rope(k, frequency)
        sinks = array(part.sinks, layer)
        mixed = attention(q, k, v, factor=factor, window=window, sinks=sinks)
        x = x + linear(part.out, mixed.reshape(length, -1), layer)
        y = norm(stack.mlp_norm, x, layer)
        scores = linear(stack.mlp.router, y, layer)
        experts = stack.mlp.experts
        for t in range(length):
            chosen = np.argsort(-scores[t])[: config.experts_per_token]
            for weight, one in zip(special.softmax(scores[t, chosen]), chosen, strict=True):
                gate, up = (
                    y[t] @ array(kernel, layer)[one] + array(bias, layer)[one]
                    for kernel, bias in (
                        (experts.gate, experts.gate_bias),
                        (experts.up, experts.up_bias),
                    )
                )
                gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
                wide = (up + 1) * gate * special.expit(1.702 * gate)
                down = wide @ array(experts.down, layer)[one]
                x[t] += weight * (down + array(experts.down_bias, layer)[one])
    return norm(model.norm, x) @ array(model.unembedding.kernel)


def latent_attention(part, x, layer, config):
    """Attention of DeepSeek, its heads built one by one."""
    latent, heads = config.latent, config.num_heads
    still, moved, wide = latent.qk_nope_head_dim, latent.qk_rope_head_dim, latent.v_head_dim
    frequency = yarn(moved, config.rope_theta, config.rope_scaling)
    q = linear(
        part.query_up, norm(part.query_norm, linear(part.query_down, x, layer), layer), layer
    )
    q = q.reshape(len(x), heads, still + moved)
    both = linear(part.key_value_down, x, layer)
    short, key = both[:, : latent.kv_lora_rank], both[:, latent.kv_lora_rank :]
    both = linear(part.key_value_up, norm(part.key_value_norm, short, layer), layer)
    both = both.reshape(len(x), heads, still + wide)
    key = rope(key[:, None], frequency)[:, 0]
    k = np.stack([np.concatenate([both[:, h, :still], key], -1) for h in range(heads)], 1)
    q = np.concatenate([q[..., :still], rope(q[..., still:], frequency)], -1)
    factor = (0.1 * math.log(config.rope_scaling.factor) + 1) ** 2
    mixed = attention(q, k, both[..., still:], factor=factor)
    return linear(part.out, mixed.reshape(len(x), -1), layer)


def dense(part, x, layer):
    wide = silu(linear(part.gate, x, layer)) * linear(part.up, x, layer)
    return linear(part.down, wide, layer)


def deepseek_experts(part, x, layer, config):
    """The shared expert and those of the best groups."""
    share = special.expit(linear(part.router, x, layer))
    wanted = share + array(part.choice_bias, layer)
    out = dense(part.shared, x, layer)
    size = config.num_experts // config.expert_groups
    for t in range(len(x)):
        groups = wanted[t].reshape(-1, size)
        best = np.argsort(-np.sort(groups, -1)[:, -2:].sum(-1))[: config.groups_per_token]
        allowed = [one for one in range(config.num_experts) if one // size in best]
        chosen = sorted(allowed, key=lambda one: -wanted[t, one])[: config.experts_per_token]
        total = sum(share[t, one] for one in chosen)
        for one in chosen:
            up, gate, down = (
                array(kernel, layer)[one]
                for kernel in (part.experts.up, part.experts.gate, part.experts.down)
            )
            weight = config.routed_scaling * share[t, one] / total
            out[t] += weight * ((silu(x[t] @ gate) * (x[t] @ up)) @ down)
    return out


def deepseek_3(model, ids):
    """Logits (T, V): latent attention; the first layers dense, experts in the others."""
    config = model.config
    x = array(model.embedding)[ids]
    places = [(model.dense_layers, i) for i in range(config.num_dense_layers)]
    places += [(model.layers, i) for i in range(config.num_layers - config.num_dense_layers)]
    for stack, layer in places:
        y = norm(stack.attention_norm, x, layer)
        x = x + latent_attention(stack.attention, y, layer, config)
        y = norm(stack.mlp_norm, x, layer)
        if stack is model.layers:
            x = x + deepseek_experts(stack.mlp, y, layer, config)
        else:
            x = x + dense(stack.mlp, y, layer)
    return norm(model.norm, x) @ array(model.unembedding.kernel)


def llama_4_experts(part, x, layer, config):
    """The shared expert, and the best ones, each given its share of the input."""
    scores = linear(part.router, x, layer)
    out = dense(part.shared, x, layer)
    for t in range(len(x)):
        for one in np.argsort(-scores[t])[: config.experts_per_token]:
            up, gate, down = (
                array(kernel, layer)[one]
                for kernel in (part.experts.up, part.experts.gate, part.experts.down)
            )
            given = special.expit(scores[t, one]) * x[t]
            out[t] += (silu(given @ gate) * (given @ up)) @ down
    return out


def llama_4(model, ids):
    """Logits (T, V): chunks; full layers without positions; experts in every n-th layer."""
    config = model.config
    x, size, eps = array(model.embedding)[ids], config.head_dim, config.norm_eps
    frequency = waves(size, config.rope_theta)
    if config.rope_scaling:
        long = 2 * np.pi / frequency > config.rope_scaling.original_length
        frequency = np.where(long, frequency / config.rope_scaling.factor, frequency)
    seen = [0, 0]
    for number in range(1, config.num_layers + 1):
        has_experts = number % config.experts_every == 0
        kind = int(has_experts) if config.experts_every > 1 else 0
        stack, layer = (
            model.layers.kinds[kind] if config.experts_every > 1 else model.layers,
            seen[kind],
        )
        seen[kind] += 1
        part = stack.attention
        q, k, v = heads_of(part, norm(stack.attention_norm, x, layer), layer, size)
        if number % config.global_every:
            q, k = rope(q, frequency), rope(k, frequency)
            if config.rotated_qk_norm:
                q, k = plain_norm(q, eps), plain_norm(k, eps)
            parts = range(0, len(ids), config.attention_chunk)
            chunks = [slice(first, first + config.attention_chunk) for first in parts]
            mixed = np.concatenate([attention(q[one], k[one], v[one]) for one in chunks])
        else:
            turn = np.floor(np.arange(1, len(ids) + 1) / config.temperature_length)
            mixed = attention(q * (1 + 0.1 * np.log(1 + turn))[:, None, None], k, v)
        x = x + linear(part.out, mixed.reshape(len(ids), -1), layer)
        y = norm(stack.mlp_norm, x, layer)
        of_mlp = stack.mlp
        x = x + (
            llama_4_experts(of_mlp, y, layer, config) if has_experts else dense(of_mlp, y, layer)
        )
    return norm(model.norm, x) @ array(model.unembedding.kernel)


def exact_gelu(x):
    return x * special.ndtr(x)


def centred(part, x, layer=None):
    """LayerNorm."""
    scale, bias = array(part.scale, layer), array(part.bias, layer)
    return nn_ref.layer_norm(x, scale, bias, eps=part.eps)


def plain_layers(model, x, activation, *, causal=False):
    """The layers of GPT-2, BERT and ViT: LayerNorm before each part or after the sum, one MLP."""
    config, stack = model.config, model.layers

    def attend(y, layer):
        part = stack.attention
        q, k, v = (
            linear(one, y, layer).reshape(1, len(y), config.num_heads, -1)
            for one in (part.query, part.key, part.value)
        )
        mixed = nn_ref.attention(q, k, v, causal=causal)[0]
        return linear(part.out, mixed.reshape(len(y), -1), layer)

    def mlp(y, layer):
        return linear(stack.mlp.down, activation(linear(stack.mlp.up, y, layer)), layer)

    for layer in range(config.num_layers):
        for norm_of, part in ((stack.attention_norm, attend), (stack.mlp_norm, mlp)):
            if config.norm_first:
                x = x + part(centred(norm_of, x, layer), layer)
            else:
                x = centred(norm_of, x + part(x, layer), layer)
    return x


def gpt2(model, ids):
    """Logits (T, V)."""
    x = array(model.embedding)[ids] + array(model.positions)[: len(ids)]
    x = plain_layers(model, x, gelu, causal=True)
    return centred(model.norm, x) @ array(model.embedding).T


def bert(model, ids, kinds):
    """Logits (T, V) of tokens in segments."""
    x = array(model.embedding)[ids] + array(model.positions)[: len(ids)]
    x = centred(model.embedding_norm, x + array(model.segments)[kinds])
    x = plain_layers(model, x, exact_gelu)
    x = centred(model.transform_norm, exact_gelu(linear(model.transform, x, None)))
    return x @ array(model.embedding).T + array(model.unembedding_bias)


def vit(model, image):
    """Logits of the classes of one image (S, S, C)."""
    size = model.config.patch_size
    places = range(0, len(image), size)
    patches = [image[r : r + size, c : c + size].reshape(-1) for r in places for c in places]
    x = np.concatenate([array(model.class_token), linear(model.patch, np.stack(patches), None)])
    x = plain_layers(model, x + array(model.positions), exact_gelu)
    return linear(model.head, centred(model.norm, x)[0], None)


def resnet(model, images, strides):
    """Logits of the classes of images (N, H, W, C), in evaluation; a stride for each block."""

    def part(layers, x, stride=1, pads=0):
        kernel, norm_of = layers[0], layers[1]
        y = nn_ref.conv(x, array(kernel.kernel), stride=stride, pads=pads)
        mean, variance = array(norm_of.mean), array(norm_of.var)
        y = (y - mean) / np.sqrt(variance + norm_of.eps)
        return y * array(norm_of.scale) + array(norm_of.bias)

    def relu(x):
        return np.maximum(x, 0)

    y = relu(part(model.stem, images, 2, 3))
    y = nn_ref.pool(y, 3, 2, 1, reduce=np.max, fill=-np.inf)
    for block, stride in zip(model.blocks, strides, strict=True):
        inner = relu(part(block.middle, relu(part(block.reduce, y)), stride, 1))
        same = y if block.shortcut is None else part(block.shortcut, y, stride)
        y = relu(part(block.expand, inner) + same)
    return linear(model.head, y.mean((1, 2)), None)


def llama_3(frequency, scaling):
    """Frequencies as Llama 3.1 has them, by wavelengths as its published code."""
    length = 2 * np.pi / frequency
    short, long = (scaling.original_length / turns for turns in (scaling.high, scaling.low))
    smooth = (scaling.original_length / length - scaling.low) / (scaling.high - scaling.low)
    between = (1 - smooth) * frequency / scaling.factor + smooth * frequency
    slowed = np.where(length > long, frequency / scaling.factor, between)
    return np.where(length < short, frequency, slowed)
