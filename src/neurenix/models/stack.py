"""The options shared by all transformers: fields, defaults and checks of a stack of layers.

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
    """A frozen dataclass of options with ``replace``."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values.

        Raises:
            UnknownNameError: unknown option.
        """
        options: Any = self
        fields = [field.name for field in dataclasses.fields(options)]
        for name in changes:
            if name not in fields:
                raise unknown_name(f"option of {type(self).__name__}", name, fields)
        return dataclasses.replace(options, **changes)


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Sizes of multi-head latent attention (DeepSeek-AI 2024, section 2.1).

    Attributes:
        q_lora_rank: size of the latent vector of queries.
        kv_lora_rank: size of the latent vector of keys and values.
        qk_nope_head_dim: size of the part of a head's queries and keys that is not rotated.
        qk_rope_head_dim: size of the rotated part; for keys, it is shared by all heads.
        v_head_dim: size of a head's values.

    Raises:
        ArgumentError: a size is not an integer of at least 1.
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
    """Which positions a position of a layer attends to; see ``StackConfig``."""

    window: int = 0
    chunk: int = 0


@dataclass(frozen=True, kw_only=True)
class FullAttention:
    """Options of the global layers among layers with a window or chunks (Gemma 4, Llama 4).

    Attributes:
        head_dim: D; 0 for that of the other layers.
        num_kv_heads: K; 0 for that of the other layers.
        key_is_value: whether these layers have no projection of values, see ``StackConfig``.
        rope_proportion: share of a head's pairs that is rotated, highest frequencies first; 0 for
            layers without positions (Llama 4).

    Raises:
        ArgumentError: a size is not an integer, or ``rope_proportion`` is outside 0 … 1.
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
            raise ArgumentError(f"FullAttention: rope_proportion must be in 0 … 1; got {part!r}.")


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
        mlp_dim: F, of each expert if there are experts.
        mlp: ``"gated"`` (three matrices: activation(gate) times up, then down), ``"plain"``, or
            ``"clamped"``, GPT-OSS's gated MLP with its own activation (``layers.gated``).
        activation: ``"silu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"relu"``.
        norm: ``"rms"`` or ``"layer"``.
        norm_eps: added to the mean square or variance.
        norm_first: apply the norm before each part instead of after the sum.
        post_norm: with ``norm_first``, another norm on the output of each part, as in Gemma.
        qk_norm: norm of each head's queries and keys, before rotation.
        rotated_qk_norm: norm without scale of each head's queries and keys after rotation, in
            layers with rotation (Llama 4).
        query_pre_attn_scalar: scores are divided by its square root; D by default.
        temperature_length: in layers without rotation, the query of position t is multiplied by
            1 + 0.1 ln(1 + ⌊(t + 1) / temperature_length⌋) (Llama 4, after Nakanishi 2025); 0 for
            no scaling.
        window: number of keys a position attends to, its own the last; 0 for all.
        attention_chunk: size of chunks; a position attends only to its own chunk (Llama 4). 0 for
            none; not together with ``window``.
        global_every: the last of every ``global_every`` layers attends to all keys, without window
            or chunks; 0 for none.
        full_attention: how global layers differ from the others, or None.
        value_norm: norm without scale of each head's values.
        key_is_value: use a head's keys, before norm and rotation, as its values, without a
            projection of values.
        output_scale: whether the output of each layer is multiplied by a learned scalar.
        sinks: whether each head has an attention sink, see ``nn.dot_product_attention``.
        attention_softcap: soft cap of attention scores, see ``nn.dot_product_attention``; 0 for
            none.
        latent: sizes of multi-head latent attention, or None for standard attention.
        bias: whether the projections, router and experts have biases.
        num_experts: X; 0 for a dense MLP.
        experts_per_token: number of experts chosen per position.
        num_shared_experts: experts of the same size applied to every position.
        parallel_mlp_dim: F of an MLP in parallel with the experts, both with their own norms (Gemma
            4); 0 for none.
        num_dense_layers: number of first layers of a decoder with an MLP instead of experts.
        experts_every: the last of every ``experts_every`` layers has experts, the others an MLP.
        dense_mlp_dim: F of the layers without experts.
        router: weighting of experts, ``"softmax"``, ``"sigmoid"`` or ``"sigmoid_input"``; see
            ``experts``.
        expert_groups: number of groups of experts; a position uses only the ``groups_per_token``
            best. Above 1 only with ``"sigmoid"``.
        groups_per_token: see ``expert_groups``.
        routed_scaling: the sum of the weights of a position's experts.
        balance: weight of the load-balancing term; 0.01 as in Switch Transformers (Fedus et al.
            2021), 0 for none.
        dtype: of the computation; parameters are float32 and cast where they are used.
        remat: ``"none"``, ``"minimal"``, ``"full"`` or a ``Remat``.
        scan_layers: one loop over the layers, compiled once; False unrolls it. The parameters are
            the same in both cases: stacked, layers first.

    Raises:
        ArgumentError: a size is not positive, or does not divide another as required.
        UnknownNameError: unknown choice of an option.
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
                f"{self.name}: full_attention needs global layers among layers with a window or "
                "chunks: give window or attention_chunk, and global_every of 2 or more."
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
                    f"{self.name}: {name}={getattr(self, name)} needs experts, and "
                    "num_experts is 0."
                )
        if self.router == "sigmoid_input" and self.routed_scaling != 1:
            raise ArgumentError(
                f"{self.name}: routed_scaling={self.routed_scaling} is the sum of the "
                "weights of a position's experts, which router='sigmoid_input' does not fix."
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
                f"{self.name}: experts_per_token={self.experts_per_token} must be in 1 … {most}, "
                f"of num_experts={self.num_experts}{taken if self.expert_groups > 1 else ''}."
            )

    def _check_dense_layers(self) -> None:
        at_least(self, 0, "num_dense_layers")
        positive(self, "experts_every")
        if self.experts_every > 1 and not self.num_experts:
            raise ArgumentError(
                f"{self.name}: experts_every={self.experts_every} needs layers with experts, and "
                "num_experts is 0."
            )
        if self.num_dense_layers or self.experts_every > 1:
            positive(self, "dense_mlp_dim")
        if not self.num_dense_layers:
            return
        if self.num_dense_layers >= self.num_layers or self.global_every or self.experts_every > 1:
            raise ArgumentError(
                f"{self.name}: num_dense_layers={self.num_dense_layers} must leave some of "
                f"num_layers={self.num_layers}, and cannot be combined with global_every or "
                "experts_every."
            )

    @property
    def compute_dtype(self) -> Any:
        """``dtype`` as a NumPy dtype."""
        return jnp.dtype(self.dtype)

    @property
    def reach(self) -> Reach:
        """Which positions a position attends to, in layers that are not global."""
        return Reach(self.window, self.attention_chunk)

    @property
    def _full_every(self) -> int:
        """Number of layers per global layer among layers with a window or chunks; 0 for none."""
        return self.global_every if any(self.reach) else 0

    @property
    def pattern_length(self) -> int:
        """Number of layers after which their options repeat."""
        return math.lcm(self._full_every or 1, self.experts_every)

    @property
    def pattern(self) -> tuple[Self, ...]:
        """The options of each layer of the repeating pattern; ``window`` is 0 in global layers.

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
        """Return the options of layers with an MLP instead of experts."""
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
        """Factor on queries, in addition to 1 / √D of attention."""
        return math.sqrt(self.head_dim / (self.query_pre_attn_scalar or self.head_dim))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values; sizes derived from changed ones are recomputed.

        Raises:
            UnknownNameError: unknown option.
        """
        if {"embed_dim", "num_heads"} & {*changes}:
            if self.head_dim * self.num_heads == self.embed_dim:
                changes.setdefault("head_dim", 0)
            if self.num_kv_heads == self.num_heads:
                changes.setdefault("num_kv_heads", 0)
        return super().replace(**changes)


def positive(config: Any, *names: str) -> None:
    """Raise ArgumentError unless each of these fields is an integer of at least 1."""
    at_least(config, 1, *names)


def at_least(config: Any, least: int, *names: str) -> None:
    """Raise ArgumentError unless each of these fields is an integer of at least ``least``.

    NumPy integers become ints, so that equal configurations compare and print alike.
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
    """Raise ArgumentError unless each of these fields is a finite number of at least 0."""
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not (number and 0 <= float(value) < math.inf):
            raise ArgumentError(
                f"{config.name}: {name} must be a number of at least 0; got {value!r}."
            )


def one_of(config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise UnknownNameError unless the field is one of ``choices``."""
    if getattr(config, name) not in choices:
        raise unknown_name(name, str(getattr(config, name)), choices)
