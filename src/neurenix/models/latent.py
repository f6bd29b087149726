"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1).

Queries, and keys with values, are projected from short, normalised latent vectors. Only a part of
each head is rotated; for keys, that part is shared by all heads. The sizes are in ``stack.Latent``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from neurenix._nnx import nnx
from neurenix.models.layers import (
    SEES_ALL,
    KeysValues,
    Norm,
    Projection,
    named_heads,
    residual_scale,
)
from neurenix.models.rope import rotate
from neurenix.models.stack import Latent, Reach, StackConfig
from neurenix.nn.dot_product import dot_product_attention


class LatentAttention(nnx.Module):
    """Self-attention through latent vectors: (N, T, E) → (N, T, E)."""

    def __init__(
        self, config: StackConfig, *, causal: bool, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        latent = config.latent or Latent()
        self.latent, self.causal, self.query_factor = latent, causal, config.query_factor
        embed, heads, ranks = config.embed_dim, config.num_heads, latent.q_lora_rank
        self.query_down = Projection(embed, ranks, lead=lead, bias=config.bias, rngs=rngs)
        self.query_norm = Norm(config, ranks, lead=lead)
        self.query_up = Projection(ranks, heads * latent.head_dim, lead=lead, rngs=rngs)
        ranks = latent.kv_lora_rank
        width = ranks + latent.qk_rope_head_dim
        self.key_value_down = Projection(embed, width, lead=lead, bias=config.bias, rngs=rngs)
        self.key_value_norm = Norm(config, ranks, lead=lead)
        width = latent.qk_nope_head_dim + latent.v_head_dim
        self.key_value_up = Projection(ranks, heads * width, lead=lead, rngs=rngs)
        self.out = Projection(
            heads * latent.v_head_dim,
            embed,
            lead=lead,
            bias=config.bias,
            scale=residual_scale(config),
            rngs=rngs,
        )

    def __call__(
        self,
        x: jax.Array,
        angles: jax.Array | None,
        reach: Reach = SEES_ALL,
        shared_kv: KeysValues | None = None,
    ) -> tuple[jax.Array, None]:
        """Return the output, to be added to ``x``, and None; arguments as ``layers.Attention``.

        Keys and values are never shared with other layers.
        """
        del shared_kv
        latent = self.latent

        def turned(x: jax.Array) -> jax.Array:
            return x if angles is None else rotate(x, angles)

        query = self.query_up(self.query_norm(self.query_down(x)))
        query = query.reshape(*x.shape[:-1], -1, latent.head_dim)
        still, moved = jnp.split(query, [latent.qk_nope_head_dim], axis=-1)
        query = jnp.concatenate([still, turned(moved)], axis=-1)
        if self.query_factor != 1:
            query = query * self.query_factor
        short, moved = jnp.split(self.key_value_down(x), [latent.kv_lora_rank], axis=-1)
        both = self.key_value_up(self.key_value_norm(short))
        both = both.reshape(*x.shape[:-1], -1, latent.qk_nope_head_dim + latent.v_head_dim)
        still, value = jnp.split(both, [latent.qk_nope_head_dim], axis=-1)
        moved = jnp.broadcast_to(
            turned(moved[..., None, :]), (*still.shape[:-1], latent.qk_rope_head_dim)
        )
        mixed = dot_product_attention(
            named_heads(query, "query_proj"),
            named_heads(jnp.concatenate([still, moved], axis=-1), "key_proj"),
            named_heads(value, "value_proj"),
            causal=self.causal,
            window=reach.window or None,
            checkpoint_name="context",
        )
        return checkpoint_name(self.out(mixed.reshape(*x.shape[:-1], -1)), "out_proj"), None
