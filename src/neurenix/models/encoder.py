"""The encoder of BERT (Devlin et al. 2019): token ids to logits of masked tokens.

Owns the configuration, embeddings and the head of masked language modelling; the layers are in
``stacked``. There is no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from neurenix._core.errors import ShapeError
from neurenix._nnx import nnx
from neurenix.distribute.rules import constrain
from neurenix.models.base import Model, Rules
from neurenix.models.decoder import check_tokens
from neurenix.models.layers import BATCH, SEQUENCE, Norm, Projection, activate, normal
from neurenix.models.stack import DTYPES, StackConfig, one_of, positive
from neurenix.models.stacked import STACK_RULES, stack_of
from neurenix.nn._parameters import rngs_or_default
from neurenix.nn.embedding import rows_of

_EMBEDDING_DEVIATION = 0.02  # BERT's initializer_range


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(StackConfig):
    """Options of an encoder; see ``StackConfig`` for those of its layers.

    Attributes:
        vocab_size: V.
        max_length: rows of the position table.
        num_segments: rows of the segment table.
        logits_dtype: of the logits.
    """

    vocab_size: int
    max_length: int = 512
    num_segments: int = 2
    logits_dtype: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "vocab_size", "max_length", "num_segments")
        one_of(self, "logits_dtype", DTYPES)


class Encoder(Model):
    """A masked language model: token ids (N, T) integers → logits (N, T, V).

    Attention is bidirectional. The head is BERT's: a projection, the activation, a norm, and the
    embedding table with a bias.

    Args:
        config: the configuration.
        rngs: random streams; those of the process by default.

    Raises:
        ArgumentTypeError: when called: the ids are not integers.
        DataError: when called outside a compiled function: an id is not in 0 … vocab_size - 1, or a
            segment not in 0 … num_segments - 1. A compiled call gives NaN, which ``fit`` and
            ``predict`` report.
        ShapeError: when called: the ids are not (N, T), T is above ``max_length``, or segments and
            tokens differ in shape.

    Example:
        >>> model = nx.models.build("bert-base", num_layers=1, embed_dim=64, num_heads=4)
        >>> model(nx.zeros((1, 8), nx.int32)).shape
        (1, 8, 30522)
    """

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs | None = None) -> None:
        super().__init__(config)
        rngs, embed, deviation = rngs_or_default(rngs), config.embed_dim, _EMBEDDING_DEVIATION
        self.embedding = normal(rngs, (config.vocab_size, embed), deviation)
        self.positions = normal(rngs, (config.max_length, embed), deviation)
        self.segments = normal(rngs, (config.num_segments, embed), deviation)
        self.embedding_norm = Norm(config)
        self.layers = stack_of(config, config.num_layers, causal=False, rngs=rngs)
        self.transform = Projection(embed, embed, bias=config.bias, rngs=rngs)
        self.transform_norm = Norm(config)
        self.unembedding_bias = nnx.Param(jnp.zeros(config.vocab_size))

    def __call__(self, tokens: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """Return the logits of the token at each position.

        Args:
            tokens: (N, T) integers.
            segments: (N, T) integers in 0 … num_segments - 1; all 0 by default.
        """
        config = self.config
        check_tokens(tokens, config)
        dtype = config.compute_dtype
        table, kinds = self.embedding[...].astype(dtype), self.segments[...].astype(dtype)
        x = rows_of(table, tokens, name=f"The embedding of {config.name}")
        x = x + self.positions[...][: tokens.shape[1]].astype(dtype)
        if segments is None:
            x = x + kinds[0]
        else:
            _check_segments(segments, tokens, config)
            x = x + rows_of(kinds, segments, name=f"The table of segments of {config.name}")
        x = constrain(self.embedding_norm(x), BATCH, SEQUENCE, None)
        x, _ = self.layers(x)
        x = self.transform_norm(activate(config.activation, self.transform(x)))
        logits = jnp.matmul(x, table.T, preferred_element_type=jnp.dtype(config.logits_dtype))
        logits = logits + self.unembedding_bias[...].astype(logits.dtype)
        return constrain(logits, BATCH, None, "tensor")

    def sharding_rules(self) -> Rules:
        """FSDP on the axis of the residual stream, tensor on heads, hidden axis and vocabulary."""
        return (
            *STACK_RULES,
            (r"^embedding$", ("tensor", "fsdp")),
            (r"^(positions|segments)$", (None, "fsdp")),
            (r"^transform\.kernel$", (None, "fsdp")),
            (r"^unembedding_bias$", ("tensor",)),
        )


def _check_segments(segments: jax.Array, tokens: jax.Array, config: EncoderConfig) -> None:
    check_tokens(segments, config, called="segments")
    if segments.shape != tokens.shape:
        raise ShapeError(
            f"{config.name} takes one segment for each token; got segments {segments.shape} and "
            f"tokens {tokens.shape}."
        )
