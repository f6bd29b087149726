"""One transformer block: attention, feed-forward network, norms and residuals."""

from __future__ import annotations

import jax

from neurenix._nnx import nnx
from neurenix.nn._parameters import rngs_or_default
from neurenix.nn.activations import activation as activation_layer
from neurenix.nn.containers import Sequential
from neurenix.nn.dropout import Dropout
from neurenix.nn.linear import Linear
from neurenix.nn.module import Module
from neurenix.nn.multihead import MultiHeadAttention
from neurenix.nn.norm import LayerNorm


class TransformerBlock(Module):
    """Self-attention and a feed-forward network, each with norm and residual: (N, T, C) → same.

    ``norm_first`` (the default): ``x + part(norm(x))``. Otherwise ``norm(x + part(x))``, the
    default of PyTorch's ``TransformerEncoderLayer``, whose other defaults are ``dropout=0.1``,
    ``activation="relu"`` and ``mlp_dim=2048``.

    Args:
        embed_dim: size C of the last axis.
        num_heads: heads of the attention; must divide ``embed_dim``.
        mlp_dim: width of the feed-forward network; 4 · embed_dim by default.
        dropout: probability of dropout on attention weights, on the hidden layer, and on the output
            of each part.
        activation: name of the hidden activation, such as ``"gelu"`` (exact) or ``"relu"``.
        norm_first: apply the norm before each part instead of after the sum.
        causal: whether position t may attend only to positions 0 … t.
        dtype: of the parameters; float32 by default.
        rngs: random streams; those of the process by default.

    Example:
        >>> nn.TransformerBlock(16, 4, causal=True)(nx.ones((2, 5, 16))).shape
        (2, 5, 16)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        mlp_dim: int | None = None,
        dropout: float = 0.0,
        activation: str = "gelu",
        norm_first: bool = True,
        causal: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        rngs = rngs_or_default(rngs)
        width = 4 * embed_dim if mlp_dim is None else mlp_dim
        self.norm_first = norm_first
        self.attention_norm = LayerNorm(embed_dim, dtype=dtype)
        self.attention = MultiHeadAttention(
            embed_dim, num_heads, dropout=dropout, causal=causal, dtype=dtype, rngs=rngs
        )
        self.attention_dropout = Dropout(dropout, rngs=rngs)
        self.mlp_norm = LayerNorm(embed_dim, dtype=dtype)
        self.mlp = Sequential(
            Linear(embed_dim, width, dtype=dtype, rngs=rngs),
            activation_layer(activation),
            Dropout(dropout, rngs=rngs),
            Linear(width, embed_dim, dtype=dtype, rngs=rngs),
            Dropout(dropout, rngs=rngs),
        )

    def __call__(
        self,
        x: jax.Array,
        *,
        mask: jax.Array | None = None,
        key_padding_mask: jax.Array | None = None,
    ) -> jax.Array:
        """Return (N, T, C); masks as for :class:`MultiHeadAttention`."""
        masks = {"mask": mask, "key_padding_mask": key_padding_mask}
        if self.norm_first:
            x = x + self._attend(self.attention_norm(x), masks)
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self._attend(x, masks))
        return self.mlp_norm(x + self.mlp(x))

    def _attend(self, x: jax.Array, masks: dict[str, jax.Array | None]) -> jax.Array:
        return self.attention_dropout(self.attention(x, **masks))
