"""The layers of a transformer as one loop over stacked parameters.

Owns the layer (norms, residuals) and the loop with its recomputation. It does not own the parts of
a layer (``layers``, ``experts``).
"""

from __future__ import annotations

import jax
from jax.ad_checkpoint import checkpoint_name

from neurenix._nnx import nnx
from neurenix.distribute.rules import constrain
from neurenix.models.experts import Experts
from neurenix.models.layers import BATCH, MLP, SEQUENCE, Attention, Norm
from neurenix.models.remat import checkpointed
from neurenix.models.stack import StackConfig

# Of all transformers here: matrices by FSDP on the residual stream's axis, by tensor parallelism
# on heads and hidden axes, so that each layer needs two sums over the tensor axis.
STACK_RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(query|key|value|up|gate)\.kernel$", (None, "fsdp", "tensor")),
    (r"(out|down)\.kernel$", (None, "tensor", "fsdp")),
    (r"(query|key|value|up|gate)\.bias$", (None, "tensor")),
    (r"router\.kernel$", (None, "fsdp", None)),
    (r"experts\.(up|gate)$", (None, "expert", "fsdp", "tensor")),
    (r"experts\.down$", (None, "expert", "tensor", "fsdp")),
)


class Layer(nnx.Module):
    """One layer: attention, then MLP or experts, each with norm and residual."""

    def __init__(
        self, config: StackConfig, *, causal: bool, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        self.norm_first = config.norm_first
        self.attention_norm = Norm(config, lead=lead)
        self.attention = Attention(config, causal=causal, lead=lead, rngs=rngs)
        self.mlp_norm = Norm(config, lead=lead)
        make = Experts if config.num_experts else MLP
        self.mlp = make(config, config.mlp_dim, lead=lead, rngs=rngs)

    def __call__(self, x: jax.Array, angles: jax.Array | None = None) -> jax.Array:
        """Return the residual stream after this layer."""
        if self.norm_first:
            x = x + self.attention(self.attention_norm(x), angles)
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.attention(x, angles))
        return self.mlp_norm(x + self.mlp(x))


class Stack(Layer):
    """L layers: (N, T, E) → (N, T, E). Each parameter is that of all layers, (L, …)."""

    def __init__(self, config: StackConfig, *, causal: bool, rngs: nnx.Rngs) -> None:
        super().__init__(config, causal=causal, lead=(config.num_layers,), rngs=rngs)
        self.config = config

    def __call__(self, x: jax.Array, angles: jax.Array | None = None) -> jax.Array:
        """Return the residual stream after the last layer; ``angles`` are those of ``rope``."""
        config = self.config
        structure, parameters = nnx.split(self)

        def one_layer(x: jax.Array, parameters: nnx.State) -> tuple[jax.Array, None]:
            x = checkpoint_name(constrain(x, BATCH, SEQUENCE, None), "decoder_layer_input")
            return Layer.__call__(nnx.merge(structure, parameters), x, angles), None

        body = checkpointed(one_layer, config.remat, in_scan=config.scan_layers)
        unroll = 1 if config.scan_layers else config.num_layers
        x, _ = jax.lax.scan(body, x, parameters, unroll=unroll)
        return constrain(x, BATCH, SEQUENCE, None)
