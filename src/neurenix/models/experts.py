"""A mixture of experts: each position takes a few MLPs of many.

Owns the router, what keeps it from sending all positions to a few experts, and the experts'
products. No position is dropped: positions are sorted by expert and each expert multiplies its own
rows (``jax.lax.ragged_dot``).
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from neurenix._nnx import nnx
from neurenix.models.layers import BATCH, MLP, Projection, activate, normal, residual_scale
from neurenix.models.stack import StackConfig


class ExpertKernels(nnx.Module):
    """The matrices of all experts: ``up`` and ``gate`` (X, E, F), ``down`` (X, F, E)."""

    def __init__(
        self, config: StackConfig, width: int, *, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        embed, lead = config.embed_dim, (*lead, config.num_experts)
        inner, gated = (*lead, embed, width), config.mlp == "gated"
        self.up = normal(rngs, inner, 1 / math.sqrt(embed))
        self.gate = normal(rngs, inner, 1 / math.sqrt(embed)) if gated else nnx.data(None)
        self.down = normal(rngs, (*lead, width, embed), residual_scale(config) / math.sqrt(width))


class Experts(nnx.Module):
    """Router, experts and shared experts: (N, T, E) → (N, T, E).

    The router's softmax over all experts is in float32; the weights of the chosen ones are
    divided by their sum, as in Mixtral (Jiang et al. 2024).

    The gradient is that of the loss plus ``config.balance`` times ``imbalance``, in any training
    loop; the loss itself is shown without it. It takes the gradient to be that of the loss as it
    is: a loss that is multiplied before it is differentiated leaves the second part as it was.
    """

    def __init__(
        self, config: StackConfig, width: int, *, lead: tuple[int, ...], rngs: nnx.Rngs
    ) -> None:
        self.activation, self.count = config.activation, config.experts_per_token
        self.balance = config.balance
        self.router = Projection(config.embed_dim, config.num_experts, lead=lead, rngs=rngs)
        self.experts = ExpertKernels(config, width, lead=lead, rngs=rngs)
        shared = config.num_shared_experts * width
        self.shared = MLP(config, shared, lead=lead, rngs=rngs) if shared else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return what the chosen experts add to ``x``."""
        weights, chosen = self.route(x)
        kernels = [
            None if kernel is None else kernel[...].astype(x.dtype)
            for kernel in (self.experts.up, self.experts.gate, self.experts.down)
        ]
        y = _on_each_share(
            functools.partial(_chosen_experts, activation=self.activation),
            x, weights.astype(x.dtype), chosen, kernels,
        )  # fmt: skip
        y = checkpoint_name(y, "mlp_down")
        return y if self.shared is None else y + self.shared(x)

    def route(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return weights (float32) and numbers (int32) of each position's experts, (N, T, k)."""
        share = jax.nn.softmax(self.router(x.astype(jnp.float32)), axis=-1)
        weights, chosen = jax.lax.top_k(share, self.count)
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        if self.balance:
            weights = _also_minimised(weights, self.balance * imbalance(share, chosen))
        return weights, chosen


def imbalance(share: jax.Array, chosen: jax.Array) -> jax.Array:
    """Return how unevenly the experts are used: 1 when evenly, X when one of X takes all.

    The sum over experts of the part of the choices that fell on one, times its mean share, times
    X: equation 4 of Fedus, Zoph and Shazeer 2021 (Switch Transformers), with several choices.

    Args:
        share: the router's softmax, (N, T, X) float32.
        chosen: numbers of the experts that were chosen, (N, T, k) integers.
    """
    count = share.shape[-1]
    fell_on = jnp.mean(jax.nn.one_hot(chosen, count), axis=(0, 1, 2))
    return count * jnp.sum(fell_on * jnp.mean(share, axis=(0, 1)))


@jax.custom_vjp
def _also_minimised(x: jax.Array, penalty: jax.Array) -> jax.Array:
    """Return ``x``; the gradient is as if ``penalty``, a scalar, were added to the loss."""
    del penalty
    return x


def _also_minimised_forward(x: jax.Array, penalty: jax.Array) -> tuple[jax.Array, None]:
    del penalty
    return x, None


def _also_minimised_backward(_: None, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gradient, jnp.ones((), jnp.float32)


_also_minimised.defvjp(_also_minimised_forward, _also_minimised_backward)


def _chosen_experts(x, weights, chosen, kernels, *, activation: str) -> jax.Array:
    """Return the weighted sum of what the chosen experts make of (N, T, E)."""
    up, gate, down = kernels
    rows, count = x.reshape(-1, x.shape[-1]), chosen.shape[-1]
    order = jnp.argsort(chosen.reshape(-1), stable=True)
    sizes = jnp.bincount(chosen.reshape(-1), length=up.shape[0]).astype(jnp.int32)
    sorted_rows = rows[order // count]
    wide = checkpoint_name(jax.lax.ragged_dot(sorted_rows, up, sizes), "mlp_up")
    if gate is None:
        wide = activate(activation, wide)
    else:
        gates = checkpoint_name(jax.lax.ragged_dot(sorted_rows, gate, sizes), "mlp_gate")
        wide = activate(activation, gates) * wide
    out = jax.lax.ragged_dot(wide, down, sizes)
    back = jnp.argsort(order)
    out = out[back].reshape(*chosen.shape, -1)
    return jnp.einsum("ntk,ntke->nte", weights, out)


def _on_each_share(function, x, weights, chosen, kernels) -> jax.Array:
    """Call ``function`` on each device's share of the batch, where the mesh is known.

    Sorting positions is no product of matrices: XLA would gather the whole batch for it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(name for name in BATCH if mesh.shape.get(name, 1) > 1)
    parts = math.prod(mesh.shape[name] for name in axes)
    if mesh.empty or mesh.manual_axes or not axes or x.shape[0] % parts:
        return function(x, weights, chosen, kernels)
    hidden = kernels[0].shape[-1]
    tensor = mesh.shape.get("tensor", 1)
    split = "tensor" if tensor > 1 and hidden % tensor == 0 else None
    batch, inner = PartitionSpec(axes), PartitionSpec(None, None, split)
    specs = [inner, None if kernels[1] is None else inner, PartitionSpec(None, split, None)]

    def share(*arguments):
        y = function(*arguments)
        return jax.lax.psum(y, "tensor") if split else y

    return jax.shard_map(
        share, in_specs=(batch, batch, batch, specs), out_specs=batch, check_vma=False
    )(x, weights, chosen, kernels)
