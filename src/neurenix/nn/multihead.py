"""Multi-head attention: projections around ``dot_product.dot_product_attention``."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ShapeError
from neurenix._jit.training_mode import evaluates
from neurenix._nnx import nnx
from neurenix.nn._checks import as_inexact, as_mask, expect_array, expect_features, positive
from neurenix.nn._parameters import rngs_or_default, symmetric_uniform
from neurenix.nn.dot_product import dot_product_attention, four_axes
from neurenix.nn.dropout import Dropout
from neurenix.nn.linear import Linear
from neurenix.nn.module import Module

# The score of a masked key: finite, so that a row without keys gives no NaN.
_HIDDEN = float(jnp.finfo(jnp.float32).min)


class MultiHeadAttention(Module):
    """Attention of queries (N, T, embed_dim) over keys and values (N, S, embed_dim).

    Initial values as in PyTorch: query, key and value projections Xavier-uniform over the stack of
    the three, biases 0, the kernel of the output projection as in :class:`Linear`.

    Args:
        embed_dim: size of the last axis of all inputs and of the output.
        num_heads: number of heads; must divide ``embed_dim``.
        dropout: probability to drop an attention weight in training. Fused kernels have no
            dropout: above 0, training materializes T x S weights.
        bias: whether the four projections have biases.
        num_kv_heads: heads of keys and values, for grouped-query attention; must divide
            ``num_heads``, the default.
        causal: whether query t may attend only to keys 0 … t.
        dtype: of the parameters; float32 by default.
        rngs: random streams; those of the process by default.

    Attributes:
        query, key, value, out: :class:`Linear`. PyTorch's ``in_proj_weight`` is the first three
            kernels, transposed and stacked.

    Example:
        >>> nn.MultiHeadAttention(16, 4, causal=True)(nx.ones((2, 5, 16))).shape
        (2, 5, 16)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
        causal: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        embed_dim, num_heads, kv_heads = positive(
            embed_dim=embed_dim, num_heads=num_heads, num_kv_heads=kv_heads
        )
        if embed_dim % num_heads or num_heads % kv_heads:
            raise ArgumentError(
                f"`num_heads` = {num_heads} must divide `embed_dim` = {embed_dim}, and "
                f"`num_kv_heads` = {kv_heads} must divide `num_heads`."
            )
        rngs = rngs_or_default(rngs)
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv_heads
        self.head_dim, self.causal = embed_dim // num_heads, causal
        kv_dim = kv_heads * self.head_dim
        self.query = _projection(embed_dim, embed_dim, kv_dim, bias, dtype, rngs)
        self.key = _projection(embed_dim, kv_dim, kv_dim, bias, dtype, rngs)
        self.value = _projection(embed_dim, kv_dim, kv_dim, bias, dtype, rngs)
        self.out = Linear(embed_dim, embed_dim, bias, dtype=dtype, rngs=rngs)
        if self.out.bias is not None:
            self.out.bias[...] = jnp.zeros_like(self.out.bias[...])
        self.dropout = Dropout(dropout, rngs=rngs)

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        key_padding_mask: jax.Array | None = None,
    ) -> jax.Array:
        """Return (N, T, embed_dim), computed in the dtype of the queries.

        Args:
            query: (N, T, embed_dim).
            key: (N, S, embed_dim); the queries by default (self-attention).
            value: (N, S, embed_dim); the keys by default.
            mask: booleans, True where a query may attend to a key: (T, S), (N, T or 1, S) or
                (N, num_heads or 1, T or 1, S). Two axes always mean (T, S).
            key_padding_mask: (N, S), booleans, True where a key is padding and masked out, as in
                PyTorch: the opposite of ``mask``.

        Raises:
            ShapeError: the shapes are incompatible.
        """
        key = query if key is None else key
        value = key if value is None else value
        for name, x in (("query", query), ("key", key), ("value", value)):
            expect_array("MultiHeadAttention", x)
            if x.ndim != 3:
                raise ShapeError(
                    f"MultiHeadAttention takes a {name} (N, T, {self.embed_dim}); got {x.shape}."
                )
            expect_features("MultiHeadAttention", x, self.embed_dim, name=f"as {name}")
        query = as_inexact(self, query)
        q = self._heads(self.query(query), self.num_heads)
        k = self._heads(self.key(key.astype(query.dtype)), self.num_kv_heads)
        v = self._heads(self.value(value.astype(query.dtype)), self.num_kv_heads)
        if key_padding_mask is not None:
            mask = _without_padding(key_padding_mask, mask, q, k)
        if self.dropout.rate and not evaluates(self.dropout, self.dropout.deterministic):
            mixed = self._with_dropout(q, k, v, mask)
        else:
            mixed = dot_product_attention(q, k, v, mask=mask, causal=self.causal)
        return self.out(mixed.reshape(*query.shape[:2], self.embed_dim))

    def _heads(self, x: jax.Array, heads: int) -> jax.Array:
        return x.reshape(*x.shape[:2], heads, self.head_dim)

    def _with_dropout(
        self, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None
    ) -> jax.Array:
        groups = self.num_heads // self.num_kv_heads
        k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
        scores = jnp.einsum("nthd,nshd->nhts", q, k, preferred_element_type=jnp.float32)
        scores = scores / jnp.sqrt(jnp.float32(self.head_dim))
        if mask is not None:
            scores = jnp.where(four_axes(mask, q, k), scores, _HIDDEN)
        if self.causal:
            allowed = jnp.tril(jnp.ones(scores.shape[2:], jnp.bool_))
            scores = jnp.where(allowed, scores, _HIDDEN)
        weights = self.dropout(jax.nn.softmax(scores, axis=-1).astype(q.dtype))
        return jnp.einsum("nhts,nshd->nthd", weights, v)


def _without_padding(
    padding: jax.Array, mask: jax.Array | None, q: jax.Array, k: jax.Array
) -> jax.Array:
    """Return ``mask`` with padding keys masked out.

    Raises:
        ShapeError: ``padding`` is not boolean, or not (N, S).
    """
    padding = as_mask("key_padding_mask", padding)
    if padding.shape != k.shape[:2] or padding.dtype != jnp.bool_:
        raise ShapeError(
            f"`key_padding_mask` is boolean, {k.shape[:2]}, True for padding; got {padding.dtype}, "
            f"shape {padding.shape}."
        )
    seen = ~jnp.asarray(padding)[:, None, None, :]
    return seen if mask is None else four_axes(mask, q, k) & seen


def _projection(
    inputs: int, outputs: int, kv_dim: int, bias: bool, dtype, rngs: nnx.Rngs
) -> Linear:
    layer = Linear(inputs, outputs, bias, dtype=dtype, rngs=rngs)
    bound = (6 / (inputs + inputs + 2 * kv_dim)) ** 0.5
    shape, kind = layer.kernel.shape, layer.kernel.dtype
    layer.kernel[...] = symmetric_uniform(bound)(rngs.params(), shape, kind)
    if layer.bias is not None:
        layer.bias[...] = jnp.zeros_like(layer.bias[...])
    return layer
