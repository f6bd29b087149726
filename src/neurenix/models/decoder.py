"""The decoder-only transformer: token ids to next-token logits.

Owns the configuration, embeddings, positions and the unembedding; the layers are in ``stacked``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._nnx import nnx
from neurenix.distribute.rules import constrain
from neurenix.models.base import Model, Rules
from neurenix.models.layers import BATCH, SEQUENCE, Norm, Projection, normal
from neurenix.models.rope import Scaling, YarnScaling, angles
from neurenix.models.stack import DTYPES, StackConfig, at_least, number_from_0, one_of, positive
from neurenix.models.stacked import STACK_RULES, stack_of
from neurenix.nn._checks import expect_array
from neurenix.nn._parameters import rngs_or_default
from neurenix.nn.embedding import rows_of

_EMBEDDING_DEVIATION = 0.02  # initial value of GPT-2 and Llama


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
    """Options of a decoder-only transformer; see ``StackConfig`` for those of its layers.

    Attributes:
        vocab_size: V.
        positions: ``"rope"``, ``"learned"`` or ``"none"``.
        rope_theta: base of the rotary frequencies.
        rope_scaling: scaling of the rotary frequencies, or None.
        rope_local_theta: base in layers with a window or chunks, which are then not scaled; 0 for
            the same rotation in all layers.
        scale_embeddings: whether embeddings are multiplied by √E.
        tie_embeddings: whether the unembedding is the embedding table.
        max_length: maximum T, and the number of rows of the learned position table.
        logits_softcap: soft cap: logits z become logits_softcap · tanh(z / logits_softcap), in
            float32, as in Gemma 2; 0 for none.
        logits_dtype: of the logits. ``"bfloat16"`` halves the largest array of most models; the
            loss is computed in float32 in both cases.
        per_layer_input_dim: P, size of the per-layer input of each token (per-layer embeddings of
            Gemma 3n and 4), computed from a table and the token's embedding; 0 for none.
        num_kv_shared_layers: number of last layers without keys and values. They use those of the
            last earlier layer with the same reach.
        kv_shared_mlp_dim: F of these layers; ``mlp_dim`` by default.
        loss_tiles: number of parts of T in which ``TokenLosses`` computes the loss, in sequence.

    Example:
        >>> small = {"num_layers": 2, "mlp_dim": 128, "vocab_size": 100, "max_length": 32}
        >>> nx.models.DecoderConfig(embed_dim=64, num_heads=4, **small).head_dim
        16
    """

    vocab_size: int
    max_length: int
    positions: str = "rope"
    rope_theta: float = 10000.0
    rope_scaling: Scaling | None = None
    rope_local_theta: float = 0.0
    scale_embeddings: bool = False
    tie_embeddings: bool = False
    per_layer_input_dim: int = 0
    num_kv_shared_layers: int = 0
    kv_shared_mlp_dim: int = 0
    logits_softcap: float = 0.0
    logits_dtype: str = "float32"
    loss_tiles: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "vocab_size", "max_length", "loss_tiles")
        one_of(self, "positions", ("rope", "learned", "none"))
        one_of(self, "logits_dtype", DTYPES)
        number_from_0(self, "logits_softcap")
        self._check_shared_layers()
        if not isinstance(self.rope_scaling, Scaling | None):
            raise ArgumentTypeError(
                f"{self.name}: rope_scaling is one of models.LinearScaling, RopeScaling and "
                f"YarnScaling, or None; got {self.rope_scaling!r}."
            )
        if self.positions == "rope":
            self._check_rotation()

    def _check_shared_layers(self) -> None:
        at_least(self, 0, "per_layer_input_dim", "num_kv_shared_layers", "kv_shared_mlp_dim")
        if not self.num_kv_shared_layers:
            return
        own, size = self.num_layers - self.num_kv_shared_layers, self.pattern_length
        if own < 1 or own % size:
            raise ArgumentError(
                f"{self.name}: num_kv_shared_layers={self.num_kv_shared_layers} must leave some of "
                f"num_layers={self.num_layers}, a multiple of the {size} layers of its pattern."
            )
        if self.latent or self.num_dense_layers:
            raise ArgumentError(
                f"{self.name}: num_kv_shared_layers={self.num_kv_shared_layers} cannot be "
                "combined with latent attention or num_dense_layers."
            )

    def _check_rotation(self) -> None:
        name = "latent.qk_rope_head_dim" if self.latent else "head_dim"
        sizes = {name: self.rotary_dim}
        if self.full_attention and self.full_attention.head_dim:
            sizes["full_attention.head_dim"] = self.full_attention.head_dim
        for label, size in sizes.items():
            if size % 2:
                raise ArgumentError(f"{self.name}: rope needs an even {label}; got {size}.")
        if isinstance(self.rope_scaling, YarnScaling) and self.rotary_dim < 4:
            raise ArgumentError(
                f"{self.name}: YarnScaling needs two waves, a {name} of 4 or more; got "
                f"{self.rotary_dim}."
            )

    @property
    def rotary_dim(self) -> int:
        """Size of the part of each head's queries and keys that is rotated."""
        return self.latent.qk_rope_head_dim if self.latent else self.head_dim

    @property
    def query_factor(self) -> float:
        """Factor on queries, in addition to 1 / √D of attention."""
        return super().query_factor * getattr(self.rope_scaling, "score_factor", 1.0)


class Decoder(Model):
    """A causal language model: token ids (N, T) integers → logits (N, T, V).

    Train it with ``SparseCategoricalCrossentropy(from_logits=True)`` and targets (N, T).

    Args:
        config: the configuration.
        rngs: random streams; those of the process by default.

    Raises:
        ArgumentTypeError: when called: the ids are not integers.
        DataError: when called outside a compiled function: an id is not in 0 … vocab_size - 1. A
            compiled call gives NaN, which ``fit`` and ``predict`` report.
        ShapeError: when called: the ids are not (N, T), are empty, or T is above ``max_length``.

    Example:
        >>> model = nx.models.Decoder(nx.models.get("tiny"))
        >>> model(nx.zeros((2, 16), nx.int32)).shape
        (2, 16, 256)
    """

    config: DecoderConfig

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs | None = None) -> None:
        super().__init__(config)
        rngs = rngs_or_default(rngs)
        shape = (config.vocab_size, config.embed_dim)
        self.embedding = normal(rngs, shape, _EMBEDDING_DEVIATION)
        self.positions = (
            normal(rngs, (config.max_length, config.embed_dim), _EMBEDDING_DEVIATION)
            if config.positions == "learned"
            else nnx.data(None)
        )
        dense, sharing = config.num_dense_layers, config.num_kv_shared_layers
        options = {"causal": True, "rngs": rngs, "per_layer_input_dim": config.per_layer_input_dim}
        self.per_layer_embedding = (
            PerLayerEmbedding(config, rngs=rngs) if config.per_layer_input_dim else nnx.data(None)
        )
        self.dense_layers = (
            stack_of(config.without_experts(), dense, **options) if dense else nnx.data(None)
        )
        self.layers = stack_of(config, config.num_layers - dense - sharing, **options)
        self.sharing_layers = (
            stack_of(_of_sharing(config), sharing, own_keys=False, **options)
            if sharing
            else nnx.data(None)
        )
        self.norm = Norm(config)
        self.unembedding = (
            nnx.data(None)
            if config.tie_embeddings
            else Projection(config.embed_dim, config.vocab_size, rngs=rngs)
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits of the next token at each position."""
        return constrain(
            logits(self.config, self.states(tokens), self.kernel()), BATCH, None, "tensor"
        )

    def states(self, tokens: jax.Array) -> jax.Array:
        """Return the states before the unembedding, (N, T, E)."""
        config = self.config
        check_tokens(tokens, config)
        length, dtype = tokens.shape[1], config.compute_dtype
        table = self.embedding[...].astype(dtype)
        x = rows_of(table, tokens, name=f"The embedding of {config.name}")
        if config.scale_embeddings:
            x = x * jnp.asarray(math.sqrt(config.embed_dim), dtype)
        if self.positions is not None:
            x = x + self.positions[...][:length].astype(dtype)
        x = constrain(x, BATCH, SEQUENCE, None)
        return self.norm(self._through(x, tokens))

    def _through(self, x: jax.Array, tokens: jax.Array) -> jax.Array:
        """Return the residual stream after the last layer, (N, T, E)."""
        first, turns = 0, self._turns(tokens.shape[1])
        inputs = None if self.per_layer_embedding is None else self.per_layer_embedding(x, tokens)

        def inputs_of(layers: Any) -> jax.Array | None:
            return None if inputs is None else inputs[first : first + layers.count]

        if self.dense_layers is not None:
            x, _ = self.dense_layers(x, *turns, per_layer_input=inputs_of(self.dense_layers))
            first += self.dense_layers.count
        sharing = self.sharing_layers
        x, kept = self.layers(
            x, *turns, per_layer_input=inputs_of(self.layers), return_kv=sharing is not None
        )
        if sharing is not None:
            first += self.layers.count
            x, _ = sharing(x, *turns, per_layer_input=inputs_of(sharing), shared_kv=kept)
        return x

    def kernel(self) -> jax.Array:
        """Return the unembedding, (E, V), in the compute dtype."""
        dtype = self.config.compute_dtype
        if self.unembedding is None:
            return self.embedding[...].astype(dtype).T
        return self.unembedding.kernel[...].astype(dtype)

    def _turns(self, length: int) -> tuple[jax.Array | None, jax.Array | None]:
        """Return the rotation angles of global layers and of layers with a window or chunks."""
        config = self.config
        if config.positions != "rope":
            return None, None
        size, full = config.rotary_dim, config.full_attention
        theta, scaling = config.rope_theta, config.rope_scaling
        if full is None:
            turns = angles(length, size, theta, scaling)
        elif full.rope_proportion:
            own = full.head_dim or size
            turns = angles(length, own, theta, scaling, full.rope_proportion)
        else:
            turns = None
        if any(config.reach) and config.rope_local_theta:
            return turns, angles(length, size, config.rope_local_theta, None)
        return turns, turns if full is None else angles(length, size, theta, scaling)

    def sharding_rules(self) -> Rules:
        """FSDP on the axis of the residual stream, tensor on heads, hidden axis and vocabulary."""
        return (
            *STACK_RULES,
            (r"^embedding$", ("tensor", "fsdp")),
            (r"^positions$", (None, "fsdp")),
            (r"^per_layer_embedding\.table$", ("tensor", "fsdp")),
            (r"^per_layer_embedding\.projection\.kernel$", ("fsdp", "tensor")),
            (r"^unembedding\.kernel$", ("fsdp", "tensor")),
        )


class PerLayerEmbedding(nnx.Module):
    """The per-layer input of each token: token ids (N, T) → (L, N, T, P).

    √2 times the mean of a table row per token and layer and a normalised projection of the token's
    embedding, as in Gemma 4 (``Gemma4TextModel`` of Transformers).
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.count, self.size, self.name = (
            config.num_layers,
            config.per_layer_input_dim,
            config.name,
        )
        width = self.count * self.size
        self.table = normal(rngs, (config.vocab_size, width), _EMBEDDING_DEVIATION)
        self.projection = Projection(config.embed_dim, width, rngs=rngs)
        self.norm = Norm(config, self.size)

    def __call__(self, x: jax.Array, tokens: jax.Array) -> jax.Array:
        """Return it for the embeddings (N, T, E) of tokens (N, T)."""
        of_token = rows_of(self.table[...].astype(x.dtype), tokens, name=f"A table of {self.name}")
        of_token = of_token * jnp.asarray(math.sqrt(self.size), x.dtype)
        projected = self.projection(x) * jnp.asarray(1 / math.sqrt(x.shape[-1]), x.dtype)
        shape = (*tokens.shape, self.count, self.size)
        both = self.norm(projected.reshape(shape)) + of_token.reshape(shape)
        each = jnp.moveaxis(both * jnp.asarray(math.sqrt(0.5), x.dtype), 2, 0)
        return constrain(each, None, BATCH, SEQUENCE, None)


def logits(config: DecoderConfig, states: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return the logits (…, V) of states (…, E), in ``config.logits_dtype``."""
    found = jnp.matmul(states, kernel, preferred_element_type=jnp.dtype(config.logits_dtype))
    if not config.logits_softcap:
        return found
    wide = found.astype(jnp.float32) / config.logits_softcap
    return (config.logits_softcap * jnp.tanh(wide)).astype(found.dtype)


def _of_sharing(config: DecoderConfig) -> DecoderConfig:
    mlp_dim = config.kv_shared_mlp_dim or config.mlp_dim
    return config.replace(num_kv_shared_layers=0, mlp_dim=mlp_dim)


def check_tokens(tokens: Any, config: Any, *, called: str = "token ids") -> None:
    """Raise unless ``tokens`` are integers (N, T), not empty, with T ≤ ``config.max_length``."""
    expect_array(config.name, tokens)
    if tokens.ndim != 2:
        raise ShapeError(f"{config.name} takes {called} (N, T); got the shape {tokens.shape}.")
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ArgumentTypeError(
            f"{config.name} takes {called} as integers; got {tokens.dtype}, shape {tokens.shape}."
        )
    if 0 in tokens.shape:
        raise ShapeError(f"{config.name} takes one token or more; got the shape {tokens.shape}.")
    if tokens.shape[1] > config.max_length:
        raise ShapeError(
            f"{config.name} has positions for {config.max_length} tokens; got {tokens.shape[1]}. "
            "Cut the sequences, or use config.replace(max_length=…)."
        )
