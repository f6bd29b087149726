"""Everything that training changes, as one tree of arrays.

Owns the fields of the state, their roles for reports, and its making. It does not own the rule by
which it changes (``step.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Totals(NamedTuple):
    """Sums over the examples of an epoch, float32: scalars, or (K,) of losses of K outputs.

    Attributes:
        loss: sum of weight times loss.
        weight: sum of weights.
    """

    loss: Any
    weight: Any

    @classmethod
    def zero(cls, shape: tuple[int, ...] = ()) -> Totals:
        """Return the totals of no example."""
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def add(self, mean_loss: jax.Array, weight: jax.Array) -> Totals:
        """Return the totals with a batch more."""
        return Totals(self.loss + mean_loss * weight, self.weight + weight)

    @property
    def mean_loss(self) -> jax.Array:
        """Mean loss so far; 0 before the first example."""
        return jnp.sum(self.loss / jnp.maximum(self.weight, 1e-30))


class TrainState(NamedTuple):
    """The state between two optimizer steps.

    Attributes:
        parameters: nested dict of arrays, by the module's attributes.
        model_state: every other array of the module, an ``OtherState``.
        optimizer: the state of the optax transformation.
        metrics: the variables of the metrics.
        totals: sums of loss and weight in this epoch.
        step: optimizer steps made, int32.
        learning_rate_scale: factor on the optimizer's learning rate, float32.
        diverged: whether a step had a loss, gradient or learning rate that is not finite. From that
            step on nothing else changes: its number is ``step``.
        averages: moving averages of the weights, a tuple of ``Average``.
    """

    parameters: Any
    model_state: Any
    optimizer: Any
    metrics: list[Any]
    totals: Totals
    step: Any
    learning_rate_scale: Any
    diverged: Any
    averages: Any = ()


class Arrays(NamedTuple):
    """The fields of a ``TrainState`` that hold arrays of any size."""

    parameters: Any
    model_state: Any
    optimizer: Any
    metrics: list[Any]
    averages: Any

    @classmethod
    def of(cls, state: TrainState) -> Arrays:
        """Return these fields of ``state``."""
        return cls(*[getattr(state, name) for name in cls._fields])


ROLES = {
    "parameters": "parameters",
    "model_state": "model_state",
    "optimizer": "optimizer",
    "metrics": "metrics",
    "totals": "metrics",
    "step": "other",
    "learning_rate_scale": "other",
    "diverged": "other",
    "averages": "other",
}


def leaf_roles(state: TrainState) -> tuple[str, ...]:
    """Return the role of each leaf of ``state``, in flatten order."""
    fixed = {"model_state": len(jax.tree.leaves(state.model_state.fixed))}  # its first leaves
    return tuple(
        "parameters" if number < fixed.get(field, 0) else ROLES[field]
        for field, part in state._asdict().items()
        for number, _ in enumerate(jax.tree.leaves(part))
    )


def counters() -> dict[str, Any]:
    """Return the scalar fields of a fresh state; on the host, where they cost nothing to make."""
    return {
        "step": np.int32(0),
        "learning_rate_scale": np.float32(1),
        "diverged": np.bool_(False),
    }
