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

from neurenix.distribute.mesh import batch_sharded, replicated
from neurenix.distribute.state_sharding import Placement
from neurenix.train.batch import Batch, num_examples
from neurenix.train.step import StepDefinition
from neurenix.train.step_call import StepCall, in_place
from neurenix.train.train_state import TrainState, leaf_roles


@dataclass(frozen=True)
class StepProgram:
    """A pure training step and its arguments, described.

    Attributes:
        function: ``(state, *arguments) -> (state, logs)``.
        state: tree of ``jax.ShapeDtypeStruct`` with shardings.
        arguments: the same of one global batch, or of K stacked ones and, where the host says how
            many of them count, of that number.
        call: what makes the program one of these.
        leaf_roles: ``"parameters"``, ``"optimizer"``, ``"model_state"``, ``"metrics"``,
            ``"other"`` or ``"batch"`` for each leaf of ``(state, *arguments)``.
        donate_argnums: the state's memory is given to the result.
    """

    function: Callable[..., tuple[Any, Any]]
    state: Any
    arguments: tuple[Any, ...]
    call: StepCall
    leaf_roles: tuple[str, ...]
    donate_argnums: tuple[int, ...] = (0,)

    @property
    def batch(self) -> Any:
        """The batch, or K stacked ones."""
        return self.arguments[0]


def describe_step(
    definition: StepDefinition, batch: Batch, placement: Placement, call: StepCall
) -> StepProgram:
    """Return a call of the step of ``definition``, placed on a mesh.

    Args:
        definition: what is computed.
        batch: shapes of one global batch, with weights where ``fit`` gives it weights.
        placement: of the state.
        call: which program.
    """
    definition.expect_whole_parts(num_examples(batch))
    mesh = placement.mesh
    state: TrainState = jax.eval_shape(definition.initial, *definition.model.read())
    keys = jax.tree.map(lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key), state)
    raw = jax.eval_shape(lambda tree: _unwrapped(tree, keys), state)
    implementations = jax.tree.map(_implementation, state, keys)
    # On one device as ``fit``, which has no mesh there.
    around = replicated(mesh) if mesh.size > 1 else None
    step = in_place(call.function(definition), around, placement.shardings(state))

    def function(state: Any, *arguments: Any) -> tuple[Any, Any]:
        wrapped = jax.tree.map(
            lambda leaf, is_key, impl: (
                jax.random.wrap_key_data(leaf, impl=impl) if is_key else leaf
            ),
            state, keys, implementations,
        )  # fmt: skip
        after, logs = step(wrapped, *arguments)
        return _unwrapped(after, keys), logs

    batches, *count = call.arguments(batch)
    batches = _on(batches, batch_sharded(mesh, leading=int(call.steps > 1)))
    arguments = (batches, *_on(count, replicated(mesh)))
    roles = (
        *leaf_roles(state),
        *["batch"] * len(jax.tree.leaves(batches)),
        *["other"] * len(count),
    )
    return StepProgram(function, _on(raw, placement.shardings(raw)), arguments, call, roles)


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
