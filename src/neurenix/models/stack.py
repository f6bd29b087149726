"""What all transformers here have in common: the options of a stack of layers.

Owns the fields, their defaults and their checks. Decoder, encoder and vision model add their own.

Letters: ``N`` batch, ``T`` positions, ``L`` layers, ``E`` embed_dim, ``H`` heads, ``K`` heads of
keys and values, ``D`` head_dim, ``F`` mlp_dim, ``X`` experts, ``V`` vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ArgumentTypeError, unknown_name
from neurenix.models.remat import Remat, check_remat

DTYPES = ("float32", "bfloat16")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
_NOT_LATENT = (
    "sinks", "qk_norm", "attention_softcap", "value_norm", "key_is_value", "full_attention",
    "rotated_qk_norm", "temperature_length", "attention_chunk",
)  # fmt: skip


class Replaceable:
    """A frozen dataclass of options, from which others are made."""

    def replace(self, **changes: Any) -> Self:
        """Return the same with other values.

        Raises:
            UnknownNameError: there is no such option.
        """
        options: Any = self
        fields = [field.name for field in dataclasses.fields(options)]
        for name in changes:
            if name not in fields:
                raise unknown_name(f"option of {type(self).__name__}", name, fields)
        return dataclasses.replace(options, **changes)


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Sizes of multi-head latent attention (DeepSeek-AI 2024, section 2.1), as ``latent`` has it.

    Attributes:
        q_lora_rank: of what queries are made from.
        kv_lora_rank: of what keys and values are made from.
        qk_nope_head_dim: the part of a head's queries and keys that is not rotated.
        qk_rope_head_dim: the part that is; all heads have one key of it.
        v_head_dim: of a head's values.

    Raises:
        ArgumentError: a size is no whole number of at least 1.
    """

    name: ClassVar[str] = "Latent"
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128

    def __post_init__(self) -> None:
        positive(self, "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
        positive(self, "v_head_dim")

    @property
    def head_dim(self) -> int:
        """D, the size of a head's queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class Reach(NamedTuple):
    """How far a position of a layer sees; see ``StackConfig``."""

    window: int = 0
    chunk: int = 0


@dataclass(frozen=True, kw_only=True)
class FullAttention:
    """Attention of layers that see all keys beside others that do not (Gemma 4, Llama 4).

    Attributes:
        head_dim: D; 0 for that of the other layers.
        num_kv_heads: K; 0 for as many as the other layers have.
        key_is_value: whether these layers have no projection of values, see ``StackConfig``.
        rope_proportion: part of a head's pairs that positions rotate, the shortest waves; 0 for
            layers without positions (Llama 4).

    Raises:
        ArgumentError: a size is no whole number, or ``rope_proportion`` does not lie in 0 … 1.
    """

    name: ClassVar[str] = "FullAttention"
    head_dim: int = 0
    num_kv_heads: int = 0
    key_is_value: bool = False
    rope_proportion: float = 1.0

    def __post_init__(self) -> None:
        at_least(self, 0, "head_dim", "num_kv_heads")
        part = self.rope_proportion
        number = isinstance(part, numbers.Real) and not isinstance(part, bool)
        if not (number and 0 <= float(part) <= 1):
            raise ArgumentError(f"FullAttention: rope_proportion lies in 0 … 1; got {part!r}.")


@dataclass(frozen=True, kw_only=True)
class StackConfig(Replaceable):
    """Options of a stack of transformer layers.

    Attributes:
        name: for reports.
        num_layers: L.
        embed_dim: E.
        num_heads: H.
        num_kv_heads: K, which divides H; H by default.
        head_dim: D; E / H by default.
        mlp_dim: F, of one expert when there are several.
        mlp: ``"gated"`` (three matrices: activation(gate) times up, then down), ``"plain"``, or
            ``"clamped"``, GPT-OSS's gated one (``layers.gated``), whose activation is its own.
        activation: ``"silu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"relu"``.
        norm: ``"rms"`` or ``"layer"``.
        norm_eps: added to the mean square or variance.
        norm_first: norm before each part, not after the sum.
        post_norm: with ``norm_first``, another norm on what each part adds, as in Gemma.
        qk_norm: norm of each head's queries and keys, before they are rotated.
        rotated_qk_norm: the same after they are rotated, one that has no scale, in layers that
            rotate them (Llama 4).
        query_pre_attn_scalar: by whose root the scores are divided; D by default.
        temperature_length: positions from which on queries grow in layers that rotate none: the
            query of position t is multiplied by 1 + 0.1 ln(1 + ⌊(t + 1) / temperature_length⌋)
            (Llama 4, after Nakanishi 2025); 0 for no growth.
        window: keys that a position sees, its own the last; 0 for all.
        attention_chunk: positions of a chunk, which sees no other chunk (Llama 4); 0 for none. Not
            beside ``window``.
        global_every: of so many layers the last sees all keys, whatever the window or the chunk;
            0 for none.
        full_attention: how layers that see all keys differ from the others, or None.
        value_norm: norm of each head's values, one that has no scale.
        key_is_value: whether a head's values are its keys as they are before norm and rotation, so
            that there is no projection of values.
        output_scale: whether a number of each layer multiplies what leaves it.
        sinks: whether each head can look at nothing, see ``nn.dot_product_attention``.
        attention_softcap: what no score of attention may reach, see there; 0 for no such bound.
        latent: sizes of multi-head latent attention, or None for the ordinary one.
        bias: whether the projections, router and experts have biases.
        num_experts: X; 0 for a dense MLP.
        experts_per_token: experts that each position takes.
        num_shared_experts: experts of the same size that every position takes besides.
        parallel_mlp_dim: F of an MLP beside the experts, both with norms of their own (Gemma 4); 0
            for none.
        num_dense_layers: first layers of a decoder that have an MLP in place of experts.
        experts_every: of so many layers the last has experts, the others an MLP.
        dense_mlp_dim: F of layers that have no experts where others have some.
        router: how a position weighs its experts, ``"softmax"``, ``"sigmoid"`` or
            ``"sigmoid_input"``; see ``experts``.
        expert_groups: groups of which a position takes only the ``groups_per_token`` best; more
            than one with ``"sigmoid"`` only.
        groups_per_token: see there.
        routed_scaling: what the weights of a position's experts add up to.
        balance: weight of what keeps the experts evenly used; 0.01 as in Switch Transformers
            (Fedus et al. 2021), 0 for none.
        dtype: of the computation; parameters are float32 and cast where they are used.
        remat: ``"none"``, ``"minimal"``, ``"full"`` or a ``Remat``.
        scan_layers: one loop over the layers, compiled once; False writes them out one by one.
            The parameters are the same: stacked, the layers first.

    Raises:
        ArgumentError: a size is not positive, or does not divide what it must.
        UnknownNameError: a choice that does not exist.
    """

    name: str = "custom"
    num_layers: int
    embed_dim: int
    num_heads: int
    num_kv_heads: int = 0
    head_dim: int = 0
    mlp_dim: int
    mlp: str = "gated"
    activation: str = "silu"
    norm: str = "rms"
    norm_eps: float = 1e-5
    norm_first: bool = True
    post_norm: bool = False
    qk_norm: bool = False
    rotated_qk_norm: bool = False
    query_pre_attn_scalar: int = 0
    temperature_length: int = 0
    window: int = 0
    attention_chunk: int = 0
    global_every: int = 0
    full_attention: FullAttention | None = None
    value_norm: bool = False
    key_is_value: bool = False
    output_scale: bool = False
    sinks: bool = False
    attention_softcap: float = 0.0
    latent: Latent | None = None
    bias: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    num_shared_experts: int = 0
    parallel_mlp_dim: int = 0
    num_dense_layers: int = 0
    experts_every: int = 1
    dense_mlp_dim: int = 0
    router: str = "softmax"
    expert_groups: int = 1
    groups_per_token: int = 1
    routed_scaling: float = 1.0
    balance: float = 0.01
    dtype: str = "bfloat16"
    remat: str | Remat = "none"
    scan_layers: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_kv_heads", self.num_kv_heads or self.num_heads)
        positive(self, "num_layers", "embed_dim", "num_heads", "num_kv_heads", "mlp_dim")
        if self.latent is not None:
            if not isinstance(self.latent, Latent):
                raise ArgumentTypeError(
                    f"{self.name}: latent is a models.Latent(…) or None; got {self.latent!r}."
                )
            for name in _NOT_LATENT:
                if getattr(self, name):
                    raise ArgumentError(f"{self.name}: latent attention has no {name}.")
            object.__setattr__(self, "head_dim", self.latent.head_dim)
        if not self.head_dim:
            if self.embed_dim % self.num_heads:
                raise ArgumentError(
                    f"{self.name}: num_heads={self.num_heads} does not divide "
                    f"embed_dim={self.embed_dim}; give head_dim."
                )
            object.__setattr__(self, "head_dim", self.embed_dim // self.num_heads)
        positive(self, "head_dim")
        if self.num_heads % self.num_kv_heads:
            raise ArgumentError(
                f"{self.name}: num_kv_heads={self.num_kv_heads} does not divide "
                f"num_heads={self.num_heads}."
            )
        at_least(self, 0, "query_pre_attn_scalar", "window", "global_every")
        at_least(self, 0, "attention_chunk", "temperature_length")
        at_least(self, 0, "num_experts", "experts_per_token")
        one_of(self, "mlp", ("gated", "plain", "clamped"))
        one_of(self, "activation", ACTIVATIONS)
        one_of(self, "norm", ("rms", "layer"))
        one_of(self, "dtype", DTYPES)
        one_of(self, "router", ("softmax", "sigmoid", "sigmoid_input"))
        check_remat(self.remat)
        if self.window and self.attention_chunk:
            raise ArgumentError(
                f"{self.name}: a layer has a window or chunks; got window={self.window} and "
                f"attention_chunk={self.attention_chunk}."
            )
        self._check_full_attention()
        self._check_experts()
        self._check_dense_layers()
        number_from_0(self, "balance", "attention_softcap")

    def _check_full_attention(self) -> None:
        full = self.full_attention
        if full is None:
            return
        if not isinstance(full, FullAttention):
            raise ArgumentTypeError(
                f"{self.name}: full_attention is a models.FullAttention(…) or None; got {full!r}."
            )
        if self._full_every < 2:
            raise ArgumentError(
                f"{self.name}: full_attention is that of layers that see all keys beside others "
                "that do not; give window or attention_chunk, and global_every of 2 or more."
            )
        if full.num_kv_heads and self.num_heads % full.num_kv_heads:
            raise ArgumentError(
                f"{self.name}: full_attention.num_kv_heads={full.num_kv_heads} does not divide "
                f"num_heads={self.num_heads}."
            )

    def _check_experts(self) -> None:
        positive(self, "expert_groups", "groups_per_token")
        if self.num_experts % self.expert_groups or self.groups_per_token > self.expert_groups:
            raise ArgumentError(
                f"{self.name}: expert_groups={self.expert_groups} must divide num_experts="
                f"{self.num_experts}, and groups_per_token={self.groups_per_token} be among them."
            )
        if self.expert_groups > 1 and self.router != "sigmoid":
            raise ArgumentError(
                f"{self.name}: expert_groups={self.expert_groups} needs router='sigmoid'; got "
                f"{self.router!r}."
            )
        for name in ("num_shared_experts", "parallel_mlp_dim"):
            at_least(self, 0, name)
            if getattr(self, name) and not self.num_experts:
                raise ArgumentError(
                    f"{self.name}: {name}={getattr(self, name)} stands beside experts, and "
                    "num_experts is 0."
                )
        if self.router == "sigmoid_input" and self.routed_scaling != 1:
            raise ArgumentError(
                f"{self.name}: routed_scaling={self.routed_scaling} is of weights that add up to "
                "it, and those of router='sigmoid_input' do not."
            )
        if self.parallel_mlp_dim and (self.router != "softmax" or not self.norm_first):
            raise ArgumentError(
                f"{self.name}: parallel_mlp_dim={self.parallel_mlp_dim} needs router='softmax' "
                "and norm_first."
            )
        most = self.num_experts // self.expert_groups * self.groups_per_token
        if self.num_experts and not 1 <= self.experts_per_token <= most:
            taken = f" in groups_per_token={self.groups_per_token} of {self.expert_groups} groups"
            raise ArgumentError(
                f"{self.name}: experts_per_token={self.experts_per_token} must lie in 1 … {most}, "
                f"of num_experts={self.num_experts}{taken if self.expert_groups > 1 else ''}."
            )

    def _check_dense_layers(self) -> None:
        at_least(self, 0, "num_dense_layers")
        positive(self, "experts_every")
        if self.experts_every > 1 and not self.num_experts:
            raise ArgumentError(
                f"{self.name}: experts_every={self.experts_every} is of layers with experts, and "
                "num_experts is 0."
            )
        if self.num_dense_layers or self.experts_every > 1:
            positive(self, "dense_mlp_dim")
        if not self.num_dense_layers:
            return
        if self.num_dense_layers >= self.num_layers or self.global_every or self.experts_every > 1:
            raise ArgumentError(
                f"{self.name}: num_dense_layers={self.num_dense_layers} must leave some of "
                f"num_layers={self.num_layers}, and there can be neither global_every nor "
                "experts_every beside it."
            )

    @property
    def compute_dtype(self) -> Any:
        """``dtype`` as a dtype."""
        return jnp.dtype(self.dtype)

    @property
    def reach(self) -> Reach:
        """How far a position sees, in layers that do not see all."""
        return Reach(self.window, self.attention_chunk)

    @property
    def _full_every(self) -> int:
        """Of how many layers the last sees all keys beside others that do not; 0 for none."""
        return self.global_every if any(self.reach) else 0

    @property
    def pattern_length(self) -> int:
        """After how many layers their options repeat."""
        return math.lcm(self._full_every or 1, self.experts_every)

    @property
    def pattern(self) -> tuple[Self, ...]:
        """The options of each layer of the pattern that repeats; no window, all keys are seen.

        Example:
            >>> from neurenix import models
            >>> [layer.window for layer in models.get("gemma3-12b").pattern]
            [1024, 1024, 1024, 1024, 1024, 0]
        """
        own = self.replace(global_every=0, full_attention=None, experts_every=1)
        every, full = self._full_every, own.replace(window=0, attention_chunk=0)
        if self.full_attention is not None:
            full = full.replace(
                head_dim=self.full_attention.head_dim or self.head_dim,
                num_kv_heads=self.full_attention.num_kv_heads or self.num_kv_heads,
                key_is_value=self.full_attention.key_is_value,
            )
        layers = []
        for place in range(1, self.pattern_length + 1):
            layer = full if every and place % every == 0 else own
            layers.append(layer if place % self.experts_every == 0 else layer.without_experts())
        return tuple(layers)

    def without_experts(self) -> Self:
        """Return the options of layers that have an MLP in place of experts."""
        return self.replace(
            num_experts=0,
            num_shared_experts=0,
            parallel_mlp_dim=0,
            expert_groups=1,
            groups_per_token=1,
            experts_every=1,
            mlp_dim=self.dense_mlp_dim,
        )

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by, besides 1 / √D of attention itself."""
        return math.sqrt(self.head_dim / (self.query_pre_attn_scalar or self.head_dim))

    def replace(self, **changes: Any) -> Self:
        """Return the same with other values; sizes that follow from others follow them.

        Raises:
            UnknownNameError: there is no such option.
        """
        if {"embed_dim", "num_heads"} & {*changes}:
            if self.head_dim * self.num_heads == self.embed_dim:
                changes.setdefault("head_dim", 0)
            if self.num_kv_heads == self.num_heads:
                changes.setdefault("num_kv_heads", 0)
        return super().replace(**changes)


def positive(config: Any, *names: str) -> None:
    """Raise ArgumentError unless each of these fields is a whole number of at least 1."""
    at_least(config, 1, *names)


def at_least(config: Any, least: int, *names: str) -> None:
    """Raise ArgumentError unless each of these fields is a whole number of at least ``least``.

    One of NumPy becomes an int, so that configurations of the same sizes are equal and print alike.
    """
    for name in names:
        value = getattr(config, name)
        try:
            whole = least - 1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            whole = least - 1
        if whole < least:
            raise ArgumentError(
                f"{config.name}: {name} must be a whole number of at least {least}; got {value!r}."
            )
        object.__setattr__(config, name, whole)


def number_from_0(config: Any, *names: str) -> None:
    """Raise ArgumentError unless each of these fields is a finite number from 0."""
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not (number and 0 <= float(value) < math.inf):
            raise ArgumentError(f"{config.name}: {name} is a number from 0; got {value!r}.")


def one_of(config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise UnknownNameError unless the field is one of ``choices``."""
    if getattr(config, name) not in choices:
        raise unknown_name(name, str(getattr(config, name)), choices)
