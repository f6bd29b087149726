"""The parts of one transformer layer, with the parameters of all layers stacked.

Owns projections, norms, attention and MLP. Every parameter has leading axes (L,), which ``Stack``
indexes before a layer is called. The loop over layers is in ``stacked``; see also ``experts`` and
``rope``.

Letters are those of ``stack``. Kernels are two-dimensional, (E, H·D) instead of (E, H, D), because
a TPU pads the last axis to 128.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from neurenix import _cpu
from neurenix._nnx import nnx
from neurenix.distribute.rules import constrain
from neurenix.hardware.allocation import allocated
from neurenix.models.rope import rotate
from neurenix.models.stack import Reach, StackConfig
from neurenix.nn.dot_product import dot_product_attention

BATCH = ("data", "fsdp")  # the mesh axes that shard a batch
# Between layers, positions are sharded over the tensor axis. This shards what is stored for the
# backward pass, and turns each all-reduce over that axis into a reduce-scatter and an all-gather.
SEQUENCE = "tensor"

SEES_ALL = Reach()

KeysValues = tuple[jax.Array, jax.Array]  # of one layer, (N, T, K, D) each

_SWIGLU_LIMIT, _SWIGLU_ALPHA = 7.0, 1.702
_TEMPERATURE_SLOPE = 0.1  # ``attn_scale`` of Llama 4's published config.json
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


def activate(name: str, x: jax.Array) -> jax.Array:
    """Return the activation ``name`` of ``x``."""
    return _ACTIVATIONS[name](x)


def gated(mlp: str, activation: str, gate: jax.Array, up: jax.Array) -> jax.Array:
    """Return the combination of an MLP's gate and up products.

    ``"clamped"`` is the SwiGLU of GPT-OSS (its model card, section 2.3, and ``swiglu`` of its
    published code): both are clipped to 7, the gate is multiplied by the sigmoid of 1.702 times
    itself, and 1 is added to the other.
    """
    if mlp != "clamped":
        return activate(activation, gate) * up
    gate = jnp.minimum(gate, _SWIGLU_LIMIT)
    up = jnp.clip(up, -_SWIGLU_LIMIT, _SWIGLU_LIMIT)
    return gate * jax.nn.sigmoid(_SWIGLU_ALPHA * gate) * (up + 1)


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], deviation: float) -> nnx.Param:
    """Return a float32 parameter drawn from a normal distribution."""
    key = rngs.params()

    def sample(sizes: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(key, sizes, jnp.float32) * deviation

    return nnx.Param(allocated(lambda: _cpu.drawn(sample, key, shape), shape, "float32"))


class Projection(nnx.Module):
    """``x @ kernel + bias`` in the dtype of ``x``: (…, inputs) → (…, outputs).

    Initial values: the kernel from a normal distribution of deviation ``scale / √inputs``, bias 0.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        lead: tuple[int, ...] = (),
        bias: bool = False,
        scale: float = 1.0,
        rngs: nnx.Rngs,
    ) -> None:
        self.kernel = normal(rngs, (*lead, inputs, outputs), scale / math.sqrt(inputs))
        self.bias = nnx.Param(jnp.zeros((*lead, outputs))) if bias else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the projection of ``x``."""
        y = x @ self.kernel[...].astype(x.dtype)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class Norm(nnx.Module):
    """RMSNorm or LayerNorm over the last axis, of size E or ``width``, computed in float32."""

    def __init__(
        self,
        config: StackConfig,
        width: int | None = None,
        *,
        lead: tuple[int, ...] = (),
        scaled: bool = True,
    ) -> None:
        shape = (*lead, config.embed_dim if width is None else width)
        self.centred, self.eps = config.norm == "layer", config.norm_eps
        self.scale = nnx.Param(jnp.ones(shape)) if scaled else nnx.data(None)
        biased = scaled and self.centred
        self.bias = nnx.Param(jnp.zeros(shape)) if biased else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x`` normalised, in its own dtype."""
        wide = x.astype(jnp.float32)
        if self.centred:
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        y = wide * jax.lax.rsqrt(square + self.eps)
        if self.scale is not None:
            y = y * self.scale[...]
        if self.bias is not None:
            y = y + self.bias[...]
        return y.astype(x.dtype)


class Attention(nnx.Module):
    """Self-attention with K groups of heads: (N, T, E) → (N, T, E).

    Args:
        config: the configuration.
        causal: whether a position attends only to itself and earlier positions.
        lead: leading axes of every parameter.
        rngs: random streams.
        own_keys: whether it has keys and values; if not, it uses those of another layer.
    """

    def __init__(
        self,
        config: StackConfig,
        *,
        causal: bool,
        lead: tuple[int, ...],
        rngs: nnx.Rngs,
        own_keys: bool = True,
    ) -> None:
        self.head_dim, self.causal = config.head_dim, causal
        embed, size = config.embed_dim, config.head_dim

        def projection(inputs: int, outputs: int, scale: float = 1.0) -> Projection:
            return Projection(inputs, outputs, lead=lead, bias=config.bias, scale=scale, rngs=rngs)

        def norm(wanted: bool, *, scaled: bool = True) -> Any:
            return Norm(config, size, lead=lead, scaled=scaled) if wanted else nnx.data(None)

        width, kv_width = (n * size for n in (config.num_heads, config.num_kv_heads))
        own_values = own_keys and not config.key_is_value
        self.query = projection(embed, width)
        self.key = projection(embed, kv_width) if own_keys else nnx.data(None)
        self.value = projection(embed, kv_width) if own_values else nnx.data(None)
        self.out = projection(width, embed, residual_scale(config))
        self.query_norm, self.key_norm = norm(config.qk_norm), norm(config.qk_norm and own_keys)
        self.rotated_norm = norm(config.rotated_qk_norm, scaled=False)
        self.value_norm = norm(config.value_norm and own_keys, scaled=False)
        self.sinks = (
            nnx.Param(jnp.zeros((*lead, config.num_heads))) if config.sinks else nnx.data(None)
        )
        self.query_factor = config.query_factor
        self.temperature_length = config.temperature_length
        self.softcap = config.attention_softcap or None

    def __call__(
        self,
        x: jax.Array,
        angles: jax.Array | None,
        reach: Reach = SEES_ALL,
        shared_kv: KeysValues | None = None,
    ) -> tuple[jax.Array, KeysValues]:
        """Return the output, to be added to ``x``, and the keys and values.

        Args:
            x: (N, T, E).
            angles: from ``rope.angles``, or None for no rotation.
            reach: which positions a position attends to.
            shared_kv: keys and values of another layer, (N, T, K, D) each, if it has none.
        """
        query = self._heads(self.query(x), self.query_norm, angles)
        if self.query_factor != 1:
            query = query * self.query_factor
        if angles is None and self.temperature_length:
            query = growing(query, self.temperature_length)
        key, value = self._keys_values(x, angles) if shared_kv is None else shared_kv
        attend = functools.partial(
            dot_product_attention,
            causal=self.causal,
            window=reach.window or None,
            sinks=None if self.sinks is None else self.sinks[...],
            softcap=self.softcap,
            checkpoint_name="context",
        )
        query = named_heads(query, "query_proj")
        if reach.chunk:
            mixed = in_chunks(attend, reach.chunk, query, key, value, causal=self.causal)
        else:
            mixed = attend(query, key, value)
        out = checkpoint_name(self.out(mixed.reshape(*x.shape[:-1], -1)), "out_proj")
        return out, (key, value)

    def _keys_values(self, x: jax.Array, angles: jax.Array | None) -> KeysValues:
        projected = cast(Projection, self.key)(x)
        key = named_heads(self._heads(projected, self.key_norm, angles), "key_proj")
        value = projected if self.value is None else self.value(x)
        return key, named_heads(self._heads(value, self.value_norm), "value_proj")

    def _heads(
        self, x: jax.Array, norm: Norm | None = None, angles: jax.Array | None = None
    ) -> jax.Array:
        x = x.reshape(*x.shape[:-1], -1, self.head_dim)
        x = x if norm is None else norm(x)
        if angles is None:
            return x
        x = rotate(x, angles)
        return x if self.rotated_norm is None else self.rotated_norm(x)


def growing(query: jax.Array, length: int) -> jax.Array:
    """Return queries (N, T, H, D) scaled by position; see ``StackConfig.temperature_length``."""
    count = query.shape[1]
    if count < length:
        return query
    steps = jnp.floor(jnp.arange(1, count + 1, dtype=jnp.float32) / length)
    factor = 1 + _TEMPERATURE_SLOPE * jnp.log1p(steps)
    return (query * factor[:, None, None]).astype(query.dtype)


def in_chunks(
    attend: Callable[..., jax.Array], chunk: int, *heads: jax.Array, causal: bool
) -> jax.Array:
    """Return attention (N, T, H, D) in which a position attends only to its own chunk.

    Each chunk becomes a separate sequence, so any attention kernel can be used. An incomplete last
    chunk is padded with keys that are masked out.
    """
    size, length = heads[0].shape[:2]
    if length <= chunk:
        return attend(*heads)
    missing = -length % chunk

    def folded(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0))) if missing else x
        return constrain(x.reshape(-1, chunk, *x.shape[2:]), BATCH, None, "tensor", None)

    if missing and not causal:
        there = jnp.arange(length + missing).reshape(-1, 1, chunk) < length
        attend = functools.partial(attend, mask=jnp.tile(there, (size, 1, 1)))
    mixed = attend(*map(folded, heads))
    return mixed.reshape(size, length + missing, *mixed.shape[2:])[:, :length]


def named_heads(x: jax.Array, name: str) -> jax.Array:
    """Return (N, T, H, D), heads sharded over the tensor axis, named for ``Remat``."""
    return checkpoint_name(constrain(x, BATCH, None, "tensor", None), name)


class MLP(nnx.Module):
    """Two or three products: (…, E) → (…, E)."""

    def __init__(
        self, config: StackConfig, width: int, *, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        embed, bias = config.embed_dim, config.bias
        self.activation, self.kind = config.activation, config.mlp
        self.up = Projection(embed, width, lead=lead, bias=bias, rngs=rngs)
        self.gate = (
            Projection(embed, width, lead=lead, bias=bias, rngs=rngs)
            if config.mlp != "plain"
            else nnx.data(None)
        )
        scale = residual_scale(config)
        self.down = Projection(width, embed, lead=lead, bias=bias, scale=scale, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the output, to be added to ``x``."""
        wide = checkpoint_name(constrain(self.up(x), BATCH, None, "tensor"), "mlp_up")
        if self.gate is None:
            wide = activate(self.activation, wide)
        else:
            gate = checkpoint_name(constrain(self.gate(x), BATCH, None, "tensor"), "mlp_gate")
            wide = gated(self.kind, self.activation, gate, wide)
        return checkpoint_name(self.down(wide), "mlp_down")


def residual_scale(config: StackConfig) -> float:
    """Return the initial scale of projections into the residual stream: 1 / √(2 L).

    As in GPT-2 (Radford et al. 2019, section 2.3).
    """
    return 1 / math.sqrt(2 * config.num_layers)
