"""What a trainer says of its step to whoever compiles it elsewhere.

Owns the description for preflight: the step's program on a mesh, the mesh that the trainer's
strategy has in mind, and trainers with one thing changed. It trains nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

from neurenix import optim
from neurenix._nnx import nnx
from neurenix.distribute import Strategy, get_strategy
from neurenix.distribute.rules import ShardingRules, as_rules
from neurenix.distribute.state_sharding import Placement
from neurenix.distribute.strategy import made_in
from neurenix.train.batch import Batch
from neurenix.train.ema import averaging
from neurenix.train.options import TrainOptions
from neurenix.train.step_call import StepCall
from neurenix.train.step_program import StepProgram, describe_step
from neurenix.train.trainer_state import Kept


class Described:
    """The part of a ``Trainer`` that describes its step."""

    module: nnx.Module
    options: TrainOptions
    _kept: Kept

    def step_program(
        self, mesh: Any, x: Any, y: Any = None, weight: Any = None, *, whole_calls: bool = True
    ) -> StepProgram:
        """Return the call of the step that ``fit`` makes, for a mesh that need not exist.

        It has the moving averages (``EMA``) of the callbacks of the latest ``fit``.

        Args:
            mesh: with axes of a strategy's names; ``jax.sharding.AbstractMesh`` will do.
            x: ``jax.ShapeDtypeStruct`` (or a tree) of the inputs of one global batch.
            y: the same of the targets; by default what the loss takes.
            weight: the same of the weights, which ``fit`` gives every batch where the last one is
                filled up or the user gives some; None where it gives none.
            whole_calls: whether ``steps_per_execution`` divides the steps of an epoch.
        """
        prepared = self._kept.prepared()
        averages = tuple(ema.rule for ema in averaging(self._kept.callbacks.callbacks))
        definition = replace(prepared.definition, averages=averages)
        definition.model.check_trainable()
        if y is None:
            y = self._kept.recipe.needed_loss().target_spec(prepared.check.output_spec(x))
        placement = Placement(mesh, definition.model.weights(), self.rules())
        steps = self.options.steps_per_execution
        call = StepCall(steps, exact=steps == 1 or whole_calls)
        return describe_step(definition, Batch(x, y, weight), placement, call)

    def variant(self, *, moment_dtype: Any = None, **options: Any) -> Self:
        """Return a trainer of the same module with something changed, for comparisons.

        Args:
            moment_dtype: what the optimizer's state is held in (``nx.optim.held_in``).
            **options: fields of ``TrainOptions`` to change.
        """
        recipe = self._kept.recipe
        optimizer = recipe.optimizer
        if moment_dtype is not None:
            optimizer = optim.held_in(moment_dtype, optimizer)
        module: Any = self.module
        if "remat" in options and hasattr(module, "with_remat"):  # it has policies of its own
            module, options["remat"] = module.with_remat(options["remat"]), "none"
        same_kind: Any = type(self)
        return same_kind(
            module,
            optimizer=optimizer,
            loss=recipe.loss,
            metrics=list(recipe.metrics),
            options=replace(self.options, strategy=recipe.strategy, **options),
        )

    def _scoped_strategy(self) -> Strategy | None:
        """Return the strategy given, or that of the scope now, or of the module's making."""
        return self._kept.recipe.strategy or get_strategy() or made_in(self.module)

    def mesh_axes(self, num_devices: int) -> dict[str, int] | None:
        """Return the axes that the trainer's strategy gives a mesh of so many devices, if any."""
        strategy = self._scoped_strategy()
        return None if strategy is None else strategy.mesh_axes(num_devices)

    def rules(self) -> ShardingRules | None:
        """Return the rules that divide the parameters: the strategy's, or else the module's."""
        strategy = self._scoped_strategy()
        return (strategy.rules if strategy else None) or self.model_rules()

    def model_rules(self) -> ShardingRules | None:
        """Return how the module says that its parameters are divided, if it does."""
        rules: Any = getattr(self.module, "sharding_rules", None)
        return None if rules is None else as_rules(rules())
