"""The training step of a trainer, described for compilation on devices that may be absent.

Owns ``StepProgram``, which preflight compiles: the function that ``fit`` runs, with the shapes and
shardings of its arguments on a mesh. Compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from neurenix.distribute.mesh import batch_sharded, replicated
from neurenix.distribute.rules import ShardingRules
from neurenix.distribute.state_sharding import Placement
from neurenix.train.batch import Batch, num_examples
from neurenix.train.compiled_steps import StepCall, in_place
from neurenix.train.ema import averaging
from neurenix.train.step import StepDefinition, StepState, leaf_roles
from neurenix.train.trainer_state import TrainerState


@dataclass(frozen=True)
class StepProgram:
    """A pure training step, with the shapes and shardings of its arguments.

    Attributes:
        function: ``(state, *arguments) -> (state, logs)``.
        state: tree of ``jax.ShapeDtypeStruct`` with shardings.
        arguments: the same for one global batch; or for K stacked batches and, if a call can make
            fewer than K steps, their number.
        call: which program of the step it is.
        leaf_roles: ``"parameters"``, ``"optimizer"``, ``"model_state"``, ``"metrics"``,
            ``"other"`` or ``"batch"`` for each leaf of ``(state, *arguments)``.
        donate_argnums: arguments that are donated: the state.
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


def step_program(
    trainer_state: TrainerState, mesh: Any, batch: Batch, *, whole_calls: bool = True
) -> StepProgram:
    """Return the call of the step that ``fit`` makes, on a mesh; see ``Trainer.step_program``."""
    built, config = trainer_state.built(), trainer_state.config
    averages = tuple(ema.rule for ema in averaging(trainer_state.callbacks.callbacks))
    definition = replace(built.definition, averages=averages)
    definition.model.check_trainable()
    if batch.y is None:
        spec = built.check.loss.target_spec(built.check.output_spec(batch.x))
        batch = batch._replace(y=spec)
    rules = sharding_rules(trainer_state)
    placement = Placement(mesh, definition.model.weights(), rules)
    steps = config.options.steps_per_execution
    call = StepCall(steps, exact=steps == 1 or whole_calls)
    return describe_step(definition, batch, placement, call)


def sharding_rules(state: TrainerState) -> ShardingRules | None:
    """Return the rules that shard the parameters: the strategy's, or else the module's."""
    strategy = state.scoped_strategy()
    return (strategy.rules if strategy else None) or state.module_rules()


def describe_step(
    definition: StepDefinition, batch: Batch, placement: Placement, call: StepCall
) -> StepProgram:
    """Return the program of a call of the step, on a mesh.

    Args:
        definition: what the step computes.
        batch: shapes of one global batch, with weights if ``fit`` adds weights.
        placement: how the state is sharded.
        call: which program.
    """
    if definition.accumulate_steps > 1:
        definition.expect_whole_parts(num_examples(batch))
    mesh = placement.mesh
    state: StepState = jax.eval_shape(definition.initial, *definition.model.read())
    keys = jax.tree.map(lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key), state)
    raw = jax.eval_shape(lambda tree: _unwrapped(tree, keys), state)
    implementations = jax.tree.map(_implementation, state, keys)
    # As in ``fit``: without a mesh on one device.
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
