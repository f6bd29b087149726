"""What one call of ``fit``, ``evaluate`` or ``predict`` works with, on the devices of a strategy.

Owns the state that training begins with, where its arrays are put, and that the module holds them
afterwards. It does not own the order of things in a call (``fit.py``, ``evaluation.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._jit.flat_modules import apart
from neurenix.distribute import Strategy
from neurenix.distribute.state_sharding import Placement
from neurenix.train.batch_check import BatchCheck
from neurenix.train.compiled_steps import CompiledEvaluation, CompiledStep
from neurenix.train.ema import EMA
from neurenix.train.ema_rule import AverageRule
from neurenix.train.padding_check import Filling
from neurenix.train.step import StepDefinition
from neurenix.train.step_call import StepCall
from neurenix.train.train_state import TrainState, counters
from neurenix.train.trainer_state import Prepared, Standing


@dataclass(frozen=True, eq=False)
class Session:
    """What was made for the module, where training stands, and the devices.

    Attributes:
        prepared: what was made for the module.
        standing: where the trainer's training stands.
        strategy: the devices.
        placement: how they divide the state; None when all of it is whole everywhere.
    """

    prepared: Prepared
    standing: Standing
    strategy: Strategy
    placement: Placement | None

    @property
    def definition(self) -> StepDefinition:
        """The step."""
        return self.prepared.definition

    @property
    def check(self) -> BatchCheck:
        """The checks of batches."""
        return self.prepared.check

    @property
    def filling(self) -> Filling:
        """What is known of rows that are added to batches."""
        return self.prepared.filling

    def step(
        self, per_call: int, steps: int | None, averages: tuple[AverageRule, ...] = ()
    ) -> CompiledStep:
        """Return the compiled step.

        Args:
            per_call: optimizer steps in one call.
            steps: optimizer steps of an epoch, where that is certain.
            averages: rules of the moving averages of the weights.
        """
        call = StepCall.of(per_call, steps)
        return self.prepared.compiled.step(call, self.strategy.state_sharding, averages)

    def evaluation(self) -> CompiledEvaluation:
        """Return the compiled functions of ``evaluate`` and ``predict``."""
        return self.prepared.compiled.evaluation(self.strategy.state_sharding)

    def put(self, tree: Any) -> Any:
        """Put a tree of arrays where the strategy keeps state."""
        if self.placement is not None:
            return jax.device_put(tree, self.placement.shardings(tree))
        return jax.device_put(tree, self.strategy.state_sharding)

    def model(self) -> Any:
        """Return the module's parameters and other state, on the devices."""
        return self.put(self.definition.model.read())

    def initial_state(self, emas: Sequence[EMA] = ()) -> TrainState:
        """Return the state to train on, in buffers that nobody else holds.

        Args:
            emas: what averages the weights.
        """
        model, optimizer = self.definition.model, self.standing.optimizer_state
        own = self.put(_copied(model.read()))
        model.write(*own)  # the old arrays can go before the optimizer's are made
        if optimizer is None:
            optimizer = jax.jit(self.definition.optimizer.init)(own[0])
        else:
            optimizer = self._as_for(own[0], optimizer)
        self.standing.dtypes = _dtypes(own[0])
        # An optimizer may keep the parameters themselves, which then would be given away twice.
        leaves, treedef = jax.tree.flatten((own, self.put(optimizer)))
        (parameters, model_state), optimizer = jax.tree.unflatten(treedef, apart(leaves))
        return TrainState(
            parameters=parameters,
            model_state=model_state,
            optimizer=optimizer,
            **self.epoch_start(),
            step=self.put(np.int32(self.standing.steps_made)),
            diverged=self.put(counters()["diverged"]),
            averages=self.put(_copied(tuple(ema.begin(own) for ema in emas))),
        )

    def _as_for(self, parameters: Any, optimizer: Any) -> Any:
        """Return the optimizer's state in the dtypes that it has for these parameters.

        Those may have become others, by ``model.to(dtype=…)``.
        """
        if self.standing.dtypes == _dtypes(parameters):
            return optimizer
        made = jax.eval_shape(self.definition.optimizer.init, parameters)
        if jax.tree.structure(made) != jax.tree.structure(optimizer):
            return optimizer  # somebody has set it
        return jax.tree.map(
            lambda leaf, like: leaf if leaf.dtype == like.dtype else leaf.astype(like.dtype),
            optimizer, made,
        )  # fmt: skip

    def epoch_start(self) -> dict[str, Any]:
        """Return the fields of the state that begin anew with every epoch."""
        return self.put(
            {
                "metrics": _copied(self.definition.first_metrics),
                "totals": self.definition.first_totals,
                "learning_rate_scale": np.float32(self.standing.learning_rate_scale),
            }
        )

    def keep(self, state: TrainState, emas: Sequence[EMA] = ()) -> None:
        """Make the module, the trainer and what averages the weights hold the state's arrays."""
        self.definition.model.write(state.parameters, state.model_state)
        self.standing.optimizer_state = state.optimizer
        for ema, average in zip(emas, state.averages, strict=True):
            ema.average = average


def _dtypes(tree: Any) -> tuple[Any, ...]:
    return tuple(leaf.dtype for leaf in jax.tree.leaves(tree))


@jax.jit
def _copied(tree: Any) -> Any:
    """Copy every array in one compiled call; one by one, each shape is compiled by itself."""
    return jax.tree.map(jnp.copy, tree)
