"""The layers of a transformer as one loop over stacked parameters.

Owns the layer (norms, residuals) and the loop with its recomputation. It does not own the parts of
a layer (``layers``, ``experts``).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.ad_checkpoint import checkpoint_name

from neurenix._nnx import nnx
from neurenix.distribute.rules import constrain
from neurenix.models.experts import Experts
from neurenix.models.latent import LatentAttention
from neurenix.models.layers import BATCH, MLP, SEQUENCE, Attention, Norm
from neurenix.models.remat import checkpointed
from neurenix.models.stack import StackConfig

# Of all transformers here: matrices by FSDP on the residual stream's axis, by tensor parallelism
# on heads and hidden axes, so that each layer needs two sums over the tensor axis.
STACK_RULES: tuple[tuple[str, tuple[str | tuple[str, ...] | None, ...]], ...] = (
    (r"(query|key_value)_down\.kernel$", (None, "fsdp", None)),
    (r"(query|key|value|up|gate)\.kernel$", (None, "fsdp", "tensor")),
    (r"(out|down)\.kernel$", (None, "tensor", "fsdp")),
    (r"(query|key|value|up|gate)\.bias$", (None, "tensor")),
    (r"router\.kernel$", (None, "fsdp", None)),
    (r"experts\.(up|gate)$", (None, None, "fsdp", "tensor")),
    (r"experts\.down$", (None, None, "tensor", "fsdp")),
    (r"experts\.(up|gate)_bias$", (None, None, ("fsdp", "tensor"))),
    (r"experts\.down_bias$", (None, None, "fsdp")),
)


class Layer(nnx.Module):
    """One layer: attention, then MLP or experts, each with norm and residual."""

    def __init__(
        self, config: StackConfig, *, causal: bool, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        self.norm_first = config.norm_first
        self.attention_norm = Norm(config, lead=lead)
        attend = LatentAttention if config.latent else Attention
        self.attention = attend(config, causal=causal, lead=lead, rngs=rngs)
        self.mlp_norm = Norm(config, lead=lead)
        make = Experts if config.num_experts else MLP
        self.mlp = make(config, config.mlp_dim, lead=lead, rngs=rngs)
        self.attention_post_norm, self.mlp_post_norm = (
            Norm(config, lead=lead) if config.post_norm else nnx.data(None) for _ in range(2)
        )

    def __call__(self, x: jax.Array, angles: jax.Array | None = None, window: int = 0) -> jax.Array:
        """Return the residual stream after this layer."""
        if not self.norm_first:
            x = self.attention_norm(x + self.attention(x, angles, window))
            return self.mlp_norm(x + self.mlp(x))
        more = self.attention(self.attention_norm(x), angles, window)
        x = x + (more if self.attention_post_norm is None else self.attention_post_norm(more))
        more = self.mlp(self.mlp_norm(x))
        return x + (more if self.mlp_post_norm is None else self.mlp_post_norm(more))


class Stack(Layer):
    """``count`` layers: (N, T, E) → (N, T, E). Each parameter is that of all of them.

    Layers of several windows go through the loop a pattern at a time, so that the window of each
    is known when the program is compiled; what is left of the last pattern follows after it.
    """

    def __init__(self, config: StackConfig, count: int, *, causal: bool, rngs: nnx.Rngs) -> None:
        super().__init__(config, causal=causal, lead=(count,), rngs=rngs)
        self.config, self.count = config, count

    def __call__(
        self,
        x: jax.Array,
        angles: jax.Array | None = None,
        local_angles: jax.Array | None = None,
    ) -> jax.Array:
        """Return the residual stream after the last layer.

        Args:
            x: (N, T, E).
            angles: those of ``rope.angles``.
            local_angles: the same for layers with a window; ``angles`` by default.
        """
        config = self.config
        structure, parameters = nnx.split(self)
        local_angles = angles if local_angles is None else local_angles

        def layer_of(window: int) -> Callable[[jax.Array, nnx.State], jax.Array]:
            def layer(x: jax.Array, parameters: nnx.State) -> jax.Array:
                x = checkpoint_name(constrain(x, BATCH, SEQUENCE, None), "decoder_layer_input")
                turns = local_angles if window else angles
                return Layer.__call__(nnx.merge(structure, parameters), x, turns, window)

            return checkpointed(layer, config.remat, in_scan=config.scan_layers)

        layers = [layer_of(window) for window in config.windows]
        groups, rest = divmod(self.count, len(layers))

        def pattern(x: jax.Array, parameters: nnx.State) -> tuple[jax.Array, None]:
            for place, layer in enumerate(layers):
                x = layer(x, _part(parameters, place) if len(layers) > 1 else parameters)
            return x, None

        whole = _grouped(parameters, groups, len(layers)) if len(layers) > 1 else parameters
        unroll = 1 if config.scan_layers else max(1, groups)
        x, _ = jax.lax.scan(pattern, x, whole, unroll=unroll)
        for place in range(rest):
            x = layers[place](x, _part(parameters, self.count - rest + place))
        return constrain(x, BATCH, SEQUENCE, None)


def _part(parameters: nnx.State, place: int) -> nnx.State:
    return jax.tree.map(lambda leaf: leaf[place], parameters)


def _grouped(parameters: nnx.State, groups: int, size: int) -> nnx.State:
    """Return the first ``groups * size`` layers (groups, size, …)."""
    return jax.tree.map(
        lambda leaf: leaf[: groups * size].reshape(groups, size, *leaf.shape[1:]), parameters
    )
