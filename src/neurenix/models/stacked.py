"""The layers of a transformer as one loop over stacked parameters.

Owns the layer (norms, residuals) and the loop with its rematerialization; the parts of a layer are
in ``layers`` and ``experts``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from neurenix._nnx import nnx
from neurenix.distribute.rules import constrain
from neurenix.models.experts import Experts, ParallelExperts
from neurenix.models.latent import LatentAttention
from neurenix.models.layers import (
    BATCH,
    MLP,
    SEES_ALL,
    SEQUENCE,
    Attention,
    KeysValues,
    Norm,
    Projection,
    activate,
    residual_scale,
)
from neurenix.models.remat import checkpointed
from neurenix.models.stack import Reach, StackConfig

Kept = tuple[KeysValues, ...] | None  # one per reach of a pattern

# For all transformers: FSDP on the residual stream's axis of matrices, tensor parallelism on heads
# and hidden axes, so that each layer needs two all-reduces over the tensor axis.
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
    """One layer: attention, then MLP or experts, each with norm and residual.

    Args:
        config: the configuration.
        causal: whether a position attends only to itself and earlier positions.
        lead: leading axes of every parameter.
        rngs: random streams.
        own_keys: whether it has keys and values; if not, it uses those of another layer.
        per_layer_input_dim: P, size of the per-layer input of each token (Gemma 3n); 0 for none.
    """

    def __init__(
        self,
        config: StackConfig,
        *,
        causal: bool,
        lead: tuple[int, ...],
        rngs: nnx.Rngs,
        own_keys: bool = True,
        per_layer_input_dim: int = 0,
    ) -> None:
        self.norm_first = config.norm_first
        self.attention_norm = Norm(config, lead=lead)
        self.attention = (
            LatentAttention(config, causal=causal, lead=lead, rngs=rngs)
            if config.latent
            else Attention(config, causal=causal, lead=lead, rngs=rngs, own_keys=own_keys)
        )
        # With a parallel MLP, the experts have their own norms.
        beside = config.parallel_mlp_dim > 0
        self.mlp_norm = nnx.data(None) if beside else Norm(config, lead=lead)
        make = ParallelExperts if beside else Experts if config.num_experts else MLP
        self.mlp = make(config, config.mlp_dim, lead=lead, rngs=rngs)
        self.attention_post_norm, self.mlp_post_norm = (
            Norm(config, lead=lead) if config.post_norm else nnx.data(None) for _ in range(2)
        )
        self.per_layer = (
            PerLayerInput(config, per_layer_input_dim, lead=lead, rngs=rngs)
            if per_layer_input_dim
            else nnx.data(None)
        )
        self.output_scale = nnx.Param(jnp.ones(lead)) if config.output_scale else nnx.data(None)

    def __call__(
        self,
        x: jax.Array,
        angles: jax.Array | None = None,
        reach: Reach = SEES_ALL,
        shared_kv: KeysValues | None = None,
        per_layer_input: jax.Array | None = None,
    ) -> tuple[jax.Array, KeysValues | None]:
        """Return the residual stream after this layer, and its keys and values.

        Args:
            x: (N, T, E).
            angles: from ``rope.angles``, or None for no rotation.
            reach: which positions a position attends to.
            shared_kv: keys and values of another layer, if it has none.
            per_layer_input: (N, T, P), the per-layer input of each token.
        """
        if not self.norm_first:
            more, kept = self.attention(x, angles, reach, shared_kv)
            x = self.attention_norm(x + more)
            x = cast(Norm, self.mlp_norm)(x + self.mlp(x))
            return self._ended(x, per_layer_input), kept
        more, kept = self.attention(self.attention_norm(x), angles, reach, shared_kv)
        x = x + (more if self.attention_post_norm is None else self.attention_post_norm(more))
        more = self.mlp(x if self.mlp_norm is None else self.mlp_norm(x))
        x = x + (more if self.mlp_post_norm is None else self.mlp_post_norm(more))
        return self._ended(x, per_layer_input), kept

    def _ended(self, x: jax.Array, per_layer_input: jax.Array | None) -> jax.Array:
        if self.per_layer is not None:
            x = x + self.per_layer(x, per_layer_input)
        return x if self.output_scale is None else x * self.output_scale[...].astype(x.dtype)


class PerLayerInput(nnx.Module):
    """The contribution of the per-layer input to a layer: (N, T, E) → (N, T, E)."""

    def __init__(
        self, config: StackConfig, size: int, *, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        self.activation = config.activation
        self.gate = Projection(config.embed_dim, size, lead=lead, rngs=rngs)
        scale = residual_scale(config)
        self.out = Projection(size, config.embed_dim, lead=lead, scale=scale, rngs=rngs)
        self.norm = Norm(config, lead=lead)

    def __call__(self, x: jax.Array, per_layer_input: Any) -> jax.Array:
        """Return what is added to ``x`` for the per-layer input (N, T, P)."""
        return self.norm(self.out(activate(self.activation, self.gate(x)) * per_layer_input))


class Stack(Layer):
    """``count`` layers of one kind: (N, T, E) → (N, T, E), with stacked parameters.

    If the reach differs between layers, one iteration of the loop runs a whole pattern, so that the
    reach of each layer is static. Layers of an incomplete last pattern run after the loop.
    """

    def __init__(
        self,
        config: StackConfig,
        count: int,
        *,
        causal: bool,
        rngs: nnx.Rngs,
        own_keys: bool = True,
        per_layer_input_dim: int = 0,
    ) -> None:
        super().__init__(
            config,
            causal=causal,
            lead=(count,),
            rngs=rngs,
            own_keys=own_keys,
            per_layer_input_dim=per_layer_input_dim,
        )
        self.config, self.count = config, count

    def __call__(
        self, x: jax.Array, *angles: jax.Array | None, **more: Any
    ) -> tuple[jax.Array, Kept]:
        """Return the residual stream after the last layer, and ``Kept``; see ``through``."""
        return through(self.config, self.count, [self], x, *angles, **more)


class MixedStack(nnx.Module):
    """``count`` layers in a pattern of several kinds: (N, T, E) → (N, T, E).

    Attributes:
        kinds: one ``Stack`` per set of layers with the same parameter shapes, in order of first
            appearance in the pattern.
    """

    def __init__(self, config: StackConfig, count: int, *, rngs: nnx.Rngs, **options: Any) -> None:
        self.config, self.count = config, count
        kinds, numbers = kinds_of(config)
        self.kinds = nnx.List(
            Stack(kind, count_of(numbers, number, count), rngs=rngs, **options)
            for number, kind in enumerate(kinds)
        )

    def __call__(
        self, x: jax.Array, *angles: jax.Array | None, **more: Any
    ) -> tuple[jax.Array, Kept]:
        """Return the residual stream after the last layer, and ``Kept``; see ``through``."""
        return through(self.config, self.count, self.kinds, x, *angles, **more)


def stack_of(config: StackConfig, count: int, **options: Any) -> Stack | MixedStack:
    """Return ``count`` layers of a configuration; options as for ``Stack``."""
    make = Stack if len(kinds_of(config)[0]) == 1 else MixedStack
    return make(config, count, **options)


def kinds_of(config: StackConfig) -> tuple[list[StackConfig], list[int]]:
    """Return the kinds of layers with different parameters, and the kind at each pattern index."""
    kinds: list[StackConfig] = []
    numbers = []
    for layer in config.pattern:
        kind = layer.replace(window=0, attention_chunk=0)
        if kind not in kinds:
            kinds.append(kind)
        numbers.append(kinds.index(kind))
    return kinds, numbers


def count_of(numbers: Sequence[int], number: int, count: int) -> int:
    """Return how many of ``count`` layers are of one kind, in a repeating pattern of kinds."""
    groups, rest = divmod(count, len(numbers))
    return groups * list(numbers).count(number) + list(numbers[:rest]).count(number)


def through(
    config: StackConfig,
    count: int,
    stacks: Sequence[Stack],
    x: jax.Array,
    angles: jax.Array | None = None,
    local_angles: jax.Array | None = None,
    *,
    shared_kv: Kept = None,
    per_layer_input: jax.Array | None = None,
    return_kv: bool = False,
) -> tuple[jax.Array, Kept]:
    """Return the residual stream after ``count`` layers, and keys and values if requested.

    Args:
        config: the options of all layers.
        count: number of layers.
        stacks: the parameters of the layers of each kind.
        x: (N, T, E).
        angles: from ``rope.angles``, or None for no rotation.
        local_angles: the same for layers with a window or chunks.
        shared_kv: per reach of the pattern, the keys and values of another layer, if these layers
            have none.
        per_layer_input: (L, N, T, P), the per-layer input of each layer and token.
        return_kv: whether to return, per reach of the pattern, the keys and values of the last
            layer with that reach.
    """
    pattern, (_, numbers) = config.pattern, kinds_of(config)
    of_reach = {layer.reach: layer for layer in pattern}
    reaches = [*of_reach]
    structures, parameters = zip(*(nnx.split(stack) for stack in stacks), strict=True)

    def layer_of(place: int) -> Callable[..., Any]:
        structure, reach = structures[numbers[place]], pattern[place].reach

        def layer(x: jax.Array, parameters: nnx.State, shared_kv: Any, per_layer_input: Any) -> Any:
            x = checkpoint_name(constrain(x, BATCH, SEQUENCE, None), "decoder_layer_input")
            turns = local_angles if any(reach) else angles
            merged = nnx.merge(structure, parameters)
            x, kept = Layer.__call__(merged, x, turns, reach, shared_kv, per_layer_input)
            return x, kept if return_kv else None

        return checkpointed(layer, config.remat, in_scan=config.scan_layers)

    layers = [layer_of(place) for place in range(len(pattern))]
    sizes = [numbers.count(number) for number in range(len(stacks))]
    groups, rest = divmod(count, len(pattern))

    def next_layer(carry: Any, place: int, parameters: nnx.State, per_layer_input: Any) -> Any:
        (x, kept), number = carry, reaches.index(pattern[place].reach)
        of_others = None if shared_kv is None else shared_kv[number]
        x, new = layers[place](x, parameters, of_others, per_layer_input)
        return x, (*kept[:number], new, *kept[number + 1 :]) if return_kv else ()

    def whole_pattern(carry: Any, own: Any) -> tuple[Any, None]:
        parameters, per_layer_input = own
        for place, number in enumerate(numbers):
            of_layer = _at(parameters[number], numbers[:place].count(number), sizes[number])
            carry = next_layer(carry, place, of_layer, _at(per_layer_input, place, len(pattern)))
        return carry, None

    own = [_grouped(leaves, groups, n) for leaves, n in zip(parameters, sizes, strict=True)]
    carry = x, tuple(_no_keys(layer, x) for layer in of_reach.values()) if return_kv else ()
    unroll = 1 if config.scan_layers else max(1, groups)
    inputs = _grouped(per_layer_input, groups, len(pattern))
    carry, _ = jax.lax.scan(whole_pattern, carry, (own, inputs), unroll=unroll)
    for place, number in enumerate(numbers[:rest]):
        of_layer = _part(parameters[number], groups * sizes[number] + numbers[:place].count(number))
        carry = next_layer(
            carry, place, of_layer, _part(per_layer_input, groups * len(pattern) + place)
        )
    x, kept = carry
    return constrain(x, BATCH, SEQUENCE, None), kept if return_kv else None


def _no_keys(layer: StackConfig, x: jax.Array) -> KeysValues:
    shape = (*x.shape[:-1], layer.num_kv_heads, layer.head_dim)
    empty = constrain(jnp.zeros(shape, x.dtype), BATCH, None, "tensor", None)
    return empty, empty


def _part(tree: Any, place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)


def _at(tree: Any, place: int, size: int) -> Any:
    """Return one layer of the result of ``_grouped``."""
    return tree if size == 1 else _part(tree, place)


def _grouped(tree: Any, groups: int, size: int) -> Any:
    """Return the first ``groups * size`` layers as (groups, size, …), or (groups, …) for size 1."""

    def grouped(leaf: jax.Array) -> jax.Array:
        if size == 1:
            return leaf if len(leaf) == groups else leaf[:groups]
        return leaf[: groups * size].reshape(groups, size, *leaf.shape[1:])

    return jax.tree.map(grouped, tree)
