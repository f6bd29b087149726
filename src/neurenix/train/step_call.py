"""Which program a call of the step is: the one place where it is chosen.

``fit`` compiles what is chosen here, and preflight describes it. Owns the choice, the shapes that
it takes, and what is said of meshes around it. It does not own what a step computes (``step.py``),
nor whether batches have weights (``epoch_iterator.py``): those are part of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from neurenix.distribute.mesh import known_mesh
from neurenix.train.batch import Batch
from neurenix.train.step import StepDefinition


@dataclass(frozen=True)
class StepCall:
    """One compiled call of a step.

    Attributes:
        steps: K, optimizer steps that it makes at most; with more than 1 its batches are stacked,
            (K, N, …).
        exact: it makes all of them. Otherwise an argument says how many.
    """

    steps: int = 1
    exact: bool = True

    @classmethod
    def of(cls, steps: int, of_epoch: int | None) -> StepCall:
        """Return the call for ``steps_per_execution=steps``.

        Args:
            steps: K.
            of_epoch: optimizer steps of an epoch; None where they are not certain.

        Example:
            >>> StepCall.of(4, 8), StepCall.of(4, 10).exact, StepCall.of(1, None).exact
            (StepCall(steps=4, exact=True), False, True)
        """
        return cls(steps, steps == 1 or (of_epoch is not None and of_epoch % steps == 0))

    def function(self, definition: StepDefinition) -> Callable[..., tuple[Any, Any]]:
        """Return ``(state, batch) -> (state, logs)``, or ``(state, batches, count) -> …``."""
        if self.steps == 1:
            return definition.train
        return definition.train_many if self.exact else definition.train_up_to

    def arguments(self, batch: Batch) -> tuple[Any, ...]:
        """Return shapes and dtypes of all arguments but the state, from those of one batch."""
        if self.steps == 1:
            return (batch,)

        def stacked(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self.steps, *leaf.shape), leaf.dtype)

        batches = jax.tree.map(stacked, batch)
        return (batches,) if self.exact else (batches, jax.ShapeDtypeStruct((), jnp.int32))


def in_place(
    function: Callable[..., tuple[Any, Any]], sharding: NamedSharding | None, lie: Any
) -> Callable[..., tuple[Any, Any]]:
    """Return ``function(state, *rest) -> (state, out)`` with a state that stays where it lies.

    Args:
        function: what is compiled.
        sharding: over the mesh of the call; None on one device, where nothing is said.
        lie: the shardings of the state's leaves, a tree like it.
    """

    def placed(state: Any, *rest: Any) -> tuple[Any, Any]:
        with known_mesh(sharding):
            state, out = function(state, *rest)
            if sharding is not None:
                state = jax.lax.with_sharding_constraint(state, lie)
        return state, out

    return placed
