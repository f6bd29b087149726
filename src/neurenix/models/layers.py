"""The parts of one transformer layer, with the parameters of all layers stacked.

Owns projections, norms, attention, MLP and the layer that joins them. Every parameter is made with
leading axes (L,), which ``Stack`` takes off before a layer is called. It does not own the
loop over layers (``stacked``), experts (``experts``) or positions (``rope``).

Letters are those of ``stack``. Kernels are two-dimensional, (E, H·D) and not (E, H, D), because a
TPU pads the last axis to 128.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from neurenix._nnx import nnx
from neurenix.distribute.rules import constrain
from neurenix.models.rope import rotate
from neurenix.models.stack import StackConfig
from neurenix.nn.dot_product import dot_product_attention

BATCH = ("data", "fsdp")  # the mesh axes that divide a batch
# Between layers the positions are divided over the tensor axis, which divides what is stored for
# the backward pass and turns each sum over that axis into a scatter of it and a gather.
SEQUENCE = "tensor"

_SWIGLU_LIMIT, _SWIGLU_ALPHA = 7.0, 1.702
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
    """Return what the two first products of an MLP make together.

    ``"clamped"`` is the SwiGLU of GPT-OSS (its model card, section 2.3, and ``swiglu`` of its
    published code): both clipped to 7, the gate times a sigmoid of 1.702 of itself, and the other
    with 1 added.
    """
    if mlp != "clamped":
        return activate(activation, gate) * up
    gate = jnp.minimum(gate, _SWIGLU_LIMIT)
    up = jnp.clip(up, -_SWIGLU_LIMIT, _SWIGLU_LIMIT)
    return gate * jax.nn.sigmoid(_SWIGLU_ALPHA * gate) * (up + 1)


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], deviation: float) -> nnx.Param:
    """Return a float32 parameter drawn from a normal distribution."""
    return nnx.Param(jax.random.normal(rngs.params(), shape, jnp.float32) * deviation)


class Projection(nnx.Module):
    """``x @ kernel + bias`` in the dtype of ``x``: (…, inputs) → (…, outputs).

    The kernel starts from a normal distribution of deviation ``scale / √inputs``, the bias from 0.
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
        """Return the map of ``x``."""
        y = x @ self.kernel[...].astype(x.dtype)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class Norm(nnx.Module):
    """RMSNorm or LayerNorm over the last axis, of size E or ``width``, computed in float32."""

    def __init__(
        self, config: StackConfig, width: int | None = None, *, lead: tuple[int, ...] = ()
    ) -> None:
        shape = (*lead, config.embed_dim if width is None else width)
        self.centred, self.eps = config.norm == "layer", config.norm_eps
        self.scale = nnx.Param(jnp.ones(shape))
        self.bias = nnx.Param(jnp.zeros(shape)) if self.centred else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x`` normalised, in its own dtype."""
        wide = x.astype(jnp.float32)
        if self.centred:
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        y = wide * jax.lax.rsqrt(square + self.eps) * self.scale[...]
        if self.bias is not None:
            y = y + self.bias[...]
        return y.astype(x.dtype)


class Attention(nnx.Module):
    """Self-attention of K groups of heads: (N, T, E) → (N, T, E)."""

    def __init__(
        self, config: StackConfig, *, causal: bool, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        self.head_dim, self.causal = config.head_dim, causal
        width, kv_width = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        embed, bias = config.embed_dim, config.bias
        self.query = Projection(embed, width, lead=lead, bias=bias, rngs=rngs)
        self.key = Projection(embed, kv_width, lead=lead, bias=bias, rngs=rngs)
        self.value = Projection(embed, kv_width, lead=lead, bias=bias, rngs=rngs)
        scale = residual_scale(config)
        self.out = Projection(width, embed, lead=lead, bias=bias, scale=scale, rngs=rngs)
        self.query_norm, self.key_norm = (
            Norm(config, config.head_dim, lead=lead) if config.qk_norm else nnx.data(None)
            for _ in range(2)
        )
        self.sinks = (
            nnx.Param(jnp.zeros((*lead, config.num_heads))) if config.sinks else nnx.data(None)
        )
        self.query_factor = config.query_factor
        self.softcap = config.attention_softcap or None

    def __call__(self, x: jax.Array, angles: jax.Array | None, window: int = 0) -> jax.Array:
        """Return what the layer adds to ``x``.

        Args:
            x: (N, T, E).
            angles: those of ``rope.angles``, or None where nothing is rotated.
            window: keys that a position sees, its own the last; 0 for all.
        """
        query = self._heads(self.query(x), self.query_norm, angles)
        if self.query_factor != 1:
            query = query * self.query_factor
        key = self._heads(self.key(x), self.key_norm, angles)
        mixed = dot_product_attention(
            named_heads(query, "query_proj"),
            named_heads(key, "key_proj"),
            named_heads(self._heads(self.value(x)), "value_proj"),
            causal=self.causal,
            window=window or None,
            sinks=None if self.sinks is None else self.sinks[...],
            softcap=self.softcap,
            checkpoint_name="context",
        )
        return checkpoint_name(self.out(mixed.reshape(*x.shape[:-1], -1)), "out_proj")

    def _heads(
        self, x: jax.Array, norm: Norm | None = None, angles: jax.Array | None = None
    ) -> jax.Array:
        x = x.reshape(*x.shape[:-1], -1, self.head_dim)
        x = x if norm is None else norm(x)
        return x if angles is None else rotate(x, angles)


def named_heads(x: jax.Array, name: str) -> jax.Array:
    """Return (N, T, H, D), its heads divided over the tensor axis, by a name for ``Remat``."""
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
        """Return what the layer adds to ``x``."""
        wide = checkpoint_name(constrain(self.up(x), BATCH, None, "tensor"), "mlp_up")
        if self.gate is None:
            wide = activate(self.activation, wide)
        else:
            gate = checkpoint_name(constrain(self.gate(x), BATCH, None, "tensor"), "mlp_gate")
            wide = gated(self.kind, self.activation, gate, wide)
        return checkpoint_name(self.down(wide), "mlp_down")


def residual_scale(config: StackConfig) -> float:
    """Return the factor on what is added to the residual stream at first: 1 / √(2 L).

    As in GPT-2 (Radford et al. 2019, section 2.3).
    """
    return 1 / math.sqrt(2 * config.num_layers)
