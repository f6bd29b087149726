"""The training step as something to be compiled elsewhere.

Owns ``StepProgram``, what preflight takes: the very function that ``fit`` runs, and the shapes and
shardings of its arguments on a mesh that need not exist. It compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from neurenix.distribute.mesh import batch_sharded, known_mesh, replicated
from neurenix.distribute.placement import Placement
from neurenix.train.batch import Batch
from neurenix.train.state import TrainState, leaf_roles
from neurenix.train.step import StepDefinition


@dataclass(frozen=True)
class StepProgram:
    """A pure training step and its arguments, described.

    Attributes:
        function: ``(state, batch) -> (state, logs)``.
        state: tree of ``jax.ShapeDtypeStruct`` with shardings.
        batch: the same of one global batch.
        leaf_roles: ``"parameters"``, ``"optimizer"``, ``"model_state"``, ``"metrics"``,
            ``"other"`` or ``"batch"`` for each leaf of ``(state, batch)``.
        donate_argnums: the state's memory is given to the result.
    """

    function: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    batch: Any
    leaf_roles: tuple[str, ...]
    donate_argnums: tuple[int, ...] = (0,)


def describe_step(definition: StepDefinition, batch: Batch, placement: Placement) -> StepProgram:
    """Return the step of ``definition`` for ``batch`` (of shapes), placed on a mesh."""
    mesh = placement.mesh
    state: TrainState = jax.eval_shape(definition.initial, *definition.model.read())
    keys = jax.tree.map(lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key), state)
    raw = jax.eval_shape(lambda tree: _unwrapped(tree, keys), state)
    implementations = jax.tree.map(_implementation, state, keys)
    shardings = placement.shardings(raw)

    def function(state: Any, batch: Batch) -> tuple[Any, Any]:
        wrapped = jax.tree.map(
            lambda leaf, is_key, impl: (
                jax.random.wrap_key_data(leaf, impl=impl) if is_key else leaf
            ),
            state, keys, implementations,
        )  # fmt: skip
        with known_mesh(replicated(mesh)):
            after, logs = definition.train(wrapped, batch)
            return jax.lax.with_sharding_constraint(_unwrapped(after, keys), shardings), logs

    roles = leaf_roles(state) + ("batch",) * len(jax.tree.leaves(batch))
    return StepProgram(function, _on(raw, shardings), _on(batch, batch_sharded(mesh)), roles)


def _unwrapped(tree: Any, keys: Any) -> Any:
    return jax.tree.map(
        lambda leaf, is_key: jax.random.key_data(leaf) if is_key else leaf, tree, keys
    )


def _implementation(leaf: Any, is_key: bool) -> str:
    return str(jax.random.key_impl(jax.random.key(0))) if is_key else ""


def _on(tree: Any, shardings: Any) -> Any:
    if isinstance(shardings, jax.sharding.Sharding):
        shardings = jax.tree.map(lambda leaf: shardings, tree)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )
