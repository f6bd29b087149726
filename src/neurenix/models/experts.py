"""A mixture of experts: each position is processed by a few of many MLPs.

Owns the router, load balancing, and the products of the experts. No position is dropped: positions
are sorted by expert, and each expert multiplies its own rows (``grouped_dot``).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from neurenix._nnx import nnx
from neurenix.distribute import get_replica_context
from neurenix.models.grouped import grouped_dot
from neurenix.models.layers import (
    BATCH,
    MLP,
    Norm,
    Projection,
    activate,
    gated,
    normal,
    residual_scale,
)
from neurenix.models.stack import StackConfig


class ExpertKernels(nnx.Module):
    """The matrices of all experts: ``up`` and ``gate`` (X, E, F), ``down`` (X, F, E); biases."""

    def __init__(
        self, config: StackConfig, width: int, *, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        embed, lead = config.embed_dim, (*lead, config.num_experts)
        inner, gated = (*lead, embed, width), config.mlp != "plain"
        self.up = normal(rngs, inner, 1 / math.sqrt(embed))
        self.gate = normal(rngs, inner, 1 / math.sqrt(embed)) if gated else nnx.data(None)
        self.down = normal(rngs, (*lead, width, embed), residual_scale(config) / math.sqrt(width))

        def bias(size: int, wanted: bool) -> Any:
            return nnx.Param(jnp.zeros((*lead, size))) if wanted else nnx.data(None)

        self.up_bias = bias(width, config.bias)
        self.gate_bias = bias(width, config.bias and gated)
        self.down_bias = bias(embed, config.bias)

    def cast(self, dtype: Any) -> dict[str, jax.Array]:
        """Return the existing kernels and biases by name, cast to ``dtype``."""
        names = ("up", "gate", "down", "up_bias", "gate_bias", "down_bias")
        found = {name: getattr(self, name) for name in names}
        return {name: p[...].astype(dtype) for name, p in found.items() if p is not None}


class Experts(nnx.Module):
    """Router, experts and shared experts: (N, T, E) → (N, T, E).

    The router computes in float32.

    - ``"softmax"``: over all experts; the weights of the chosen experts are divided by their sum,
      as in Mixtral (Jiang et al. 2024). This equals GPT-OSS's softmax over the chosen experts.
    - ``"sigmoid"``: of each score. The experts with the greatest score plus bias are chosen, within
      the groups whose two greatest have the largest sum. The weights are without bias and divided
      by their sum (DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2).
    - ``"sigmoid_input"``: the sigmoid of a score multiplies the input of an expert, not its output
      (``Llama4TextMoe`` of Transformers).

    The gradient is that of the loss plus ``config.balance`` times ``imbalance``, in any training
    loop; the reported loss excludes this term. The term does not follow a factor on the loss: if
    the loss is scaled before differentiation, the balance term is not. Inside ``strategy.run`` the
    positions of all replicas are balanced together, and each replica adds its part of the gradient,
    as with ``compute_average_loss``.

    With ``"sigmoid"``, only the bias is balanced: its gradient is ``config.balance`` times the
    expert's load above its share, so that the optimizer lowers the bias of busy experts, where
    DeepSeek subtracts a constant.
    """

    def __init__(
        self, config: StackConfig, width: int, *, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        self.activation, self.kind = config.activation, config.mlp
        self.count, self.balance = config.experts_per_token, config.balance
        self.groups, self.groups_taken = config.expert_groups, config.groups_per_token
        self.scaling, self.weighs_input = config.routed_scaling, config.router == "sigmoid_input"
        self.router = Projection(
            config.embed_dim, config.num_experts, lead=lead, bias=config.bias, rngs=rngs
        )
        self.choice_bias = (
            nnx.Param(jnp.zeros((*lead, config.num_experts)))
            if config.router == "sigmoid"
            else nnx.data(None)
        )
        self.experts = ExpertKernels(config, width, lead=lead, rngs=rngs)
        self.expert_scale = (
            nnx.Param(jnp.ones((*lead, config.num_experts)))
            if config.parallel_mlp_dim
            else nnx.data(None)
        )
        shared = config.num_shared_experts * width
        self.shared = MLP(config, shared, lead=lead, rngs=rngs) if shared else nnx.data(None)

    def __call__(self, x: jax.Array, seen: jax.Array | None = None) -> jax.Array:
        """Return the output of the chosen experts, to be added to ``x``.

        Args:
            x: (N, T, E), input of the experts.
            seen: (N, T, E), input of the router; ``x`` by default.
        """
        weights, chosen = self.route(x if seen is None else seen)
        weights, kernels = weights.astype(x.dtype), self.experts.cast(x.dtype)
        last = kernels.pop("down_bias", None)
        combine = functools.partial(gated, self.kind, self.activation)
        y = _on_each_share(
            functools.partial(
                _chosen_experts,
                activation=self.activation,
                combine=combine,
                weighs_input=self.weighs_input,
            ),
            x, weights, chosen, kernels,
        )  # fmt: skip
        if last is not None:
            of_all = jax.nn.one_hot(chosen, len(last), dtype=x.dtype)
            weights = jnp.ones_like(weights) if self.weighs_input else weights
            y = y + jnp.einsum("ntk,ntkx->ntx", weights, of_all) @ last
        return y if self.shared is None else y + self.shared(x)

    def route(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return weights (float32) and indices (int32) of each position's experts, (N, T, k)."""
        scores = self.router(x.astype(jnp.float32))
        if self.choice_bias is not None:
            return self._by_sigmoid(jax.nn.sigmoid(scores), self.choice_bias[...])
        share = jax.nn.softmax(scores, axis=-1)
        weights, chosen = jax.lax.top_k(scores if self.weighs_input else share, self.count)
        if self.balance:
            weights = _also_minimised(weights, self.balance * imbalance(share, chosen))
        weights = jax.nn.sigmoid(weights) if self.weighs_input else self._scaled(weights)
        if self.expert_scale is not None:  # as a product: the gradient of a gather is a scatter
            of_all = jax.nn.one_hot(chosen, share.shape[-1], dtype=share.dtype)
            weights = weights * (of_all @ self.expert_scale[...])
        return weights, chosen

    def _by_sigmoid(self, share: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, chosen = jax.lax.top_k(self._in_best_groups(share + bias), self.count)
        weights = jnp.take_along_axis(share, chosen, axis=-1)
        if self.balance:
            beyond = fell_on(chosen, len(bias)) - 1 / len(bias)
            weights = _also_minimised(weights, self.balance * jnp.sum(bias * beyond))
        return self._scaled(weights), chosen

    def _in_best_groups(self, share: jax.Array) -> jax.Array:
        if self.groups == 1:
            return share
        grouped = share.reshape(*share.shape[:-1], self.groups, -1)
        best = jnp.sum(jax.lax.top_k(grouped, min(2, grouped.shape[-1]))[0], axis=-1)
        _, taken = jax.lax.top_k(best, self.groups_taken)
        inside = jnp.any(jax.nn.one_hot(taken, self.groups, dtype=jnp.bool_), axis=-2)
        return jnp.where(inside[..., None], grouped, -jnp.inf).reshape(share.shape)

    def _scaled(self, weights: jax.Array) -> jax.Array:
        return self.scaling * weights / jnp.sum(weights, axis=-1, keepdims=True)


class ParallelExperts(nnx.Module):
    """An MLP in parallel with experts, each with its own norms: (N, T, E) → (N, T, E).

    As in Gemma 4's mixture (``Gemma4TextDecoderLayer`` of Transformers). Its input is the residual
    stream without norm; the router uses a norm of it divided by √E.
    """

    def __init__(
        self, config: StackConfig, width: int, *, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        self.mlp = MLP(config, config.parallel_mlp_dim, lead=lead, rngs=rngs)
        self.experts = Experts(config, width, lead=lead, rngs=rngs)
        self.mlp_norm, self.mlp_post_norm = (Norm(config, lead=lead) for _ in range(2))
        self.experts_norm, self.experts_post_norm = (Norm(config, lead=lead) for _ in range(2))
        self.router_norm = Norm(config, lead=lead)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the sum of both outputs, to be added to ``x``."""
        dense = self.mlp_post_norm(self.mlp(self.mlp_norm(x)))
        seen = self.router_norm(x.astype(jnp.float32)) / math.sqrt(x.shape[-1])
        return dense + self.experts_post_norm(self.experts(self.experts_norm(x), seen))


def imbalance(share: jax.Array, chosen: jax.Array) -> jax.Array:
    """Return the imbalance of the experts: 1 if evenly used, X if one of X experts takes all.

    X times the sum over experts of its share of the choices times its mean router probability:
    equation 4 of Fedus, Zoph and Shazeer 2021 (Switch Transformers), for several choices.

    Args:
        share: softmax of the router, (N, T, X) float32.
        chosen: indices of the chosen experts, (N, T, k) integers.
    """
    count = share.shape[-1]
    return count * jnp.sum(fell_on(chosen, count) * jnp.mean(share, axis=(0, 1)))


def fell_on(chosen: jax.Array, count: int) -> jax.Array:
    """Return each expert's share of the choices (N, T, k) of all replicas, (X,)."""
    own = jnp.mean(jax.nn.one_hot(chosen, count), axis=(0, 1, 2))
    return get_replica_context().all_reduce("mean", own)


@jax.custom_vjp
def _also_minimised(x: jax.Array, penalty: jax.Array) -> jax.Array:
    """Return ``x``, with a gradient as if ``penalty``, a scalar, were added to the loss.

    With several replicas, whose gradients are summed, each adds its part.
    """
    del penalty
    return x


def _also_minimised_forward(x: jax.Array, penalty: jax.Array) -> tuple[jax.Array, float]:
    del penalty
    return x, 1 / get_replica_context().num_replicas_in_sync


def _also_minimised_backward(part: float, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gradient, jnp.float32(part)


_also_minimised.defvjp(_also_minimised_forward, _also_minimised_backward)


def _chosen_experts(
    x, weights, chosen, kernels, *, activation: str, combine, weighs_input: bool
) -> jax.Array:
    """Return the weighted sum of the chosen experts' outputs for (N, T, E).

    With ``weighs_input``, the inputs are weighted instead of the outputs.
    """
    rows, count = x.reshape(-1, x.shape[-1]), chosen.shape[-1]
    experts = kernels["up"].shape[0]
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    sizes = jnp.bincount(chosen.reshape(-1), length=experts).astype(jnp.int32)
    if weighs_input:
        sorted_rows = (x[:, :, None] * weights[..., None]).reshape(-1, x.shape[-1])[order]
    else:
        sorted_rows = rows[order // count]

    def product(name: str) -> jax.Array:
        y = grouped_dot(sorted_rows, kernels[name], sizes)
        if f"{name}_bias" in kernels:  # as a product: the gradient of a gather is a scatter
            of_rows = jax.nn.one_hot(chosen.reshape(-1)[order], experts, dtype=x.dtype)
            y = y + of_rows @ kernels[f"{name}_bias"]
        return checkpoint_name(y, f"mlp_{name}")

    wide = product("up")
    if "gate" in kernels:
        wide = combine(product("gate"), wide)
    else:
        wide = activate(activation, wide)
    out = checkpoint_name(grouped_dot(wide, kernels["down"], sizes), "mlp_down")
    back = jnp.argsort(order)
    out = out[back].reshape(*chosen.shape, -1)
    return jnp.sum(out, axis=2) if weighs_input else jnp.einsum("ntk,ntke->nte", weights, out)


def _on_each_share(function, x, weights, chosen, kernels) -> jax.Array:
    """Call ``function`` on each device's share of the batch, if the mesh is known.

    XLA cannot partition the sort of positions or a kernel, and would gather the whole batch.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(name for name in BATCH if mesh.shape.get(name, 1) > 1)
    parts = math.prod(mesh.shape[name] for name in axes)
    if mesh.empty or mesh.manual_axes or mesh.size == 1 or x.shape[0] % parts:
        return function(x, weights, chosen, kernels)
    hidden = kernels["up"].shape[-1]
    tensor = mesh.shape.get("tensor", 1)
    split = "tensor" if tensor > 1 and hidden % tensor == 0 else None
    batch, inner = PartitionSpec(axes or None), PartitionSpec(None, None, split)
    of_all = {"up": inner, "gate": inner, "down": PartitionSpec(None, split, None)}
    specs = {name: of_all.get(name, PartitionSpec(None, split)) for name in kernels}

    def share(*arguments):
        y = function(*arguments)
        return jax.lax.psum(y, "tensor") if split else y

    return jax.shard_map(
        share, in_specs=(batch, batch, batch, specs), out_specs=batch, check_vma=False
    )(x, weights, chosen, kernels)
