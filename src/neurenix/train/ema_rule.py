"""Moving averages of a model's weights, computed in a training step after the update.

Does not own when the averages are used (``ema.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Model = tuple[Any, Any]  # parameters, and an ``OtherState``


class Average(NamedTuple):
    """The arrays of one average.

    Attributes:
        parameters: as those of the model, at least float32.
        statistics: the floating-point arrays of the model that are not weights; empty if they are
            not averaged.
        count: optimizer steps averaged, int32.
    """

    parameters: Any
    statistics: list[Any]
    count: Any


@dataclass(frozen=True)
class AverageRule:
    """An exponential moving average; ``neurenix.train.ema.EMA`` has the formula.

    Attributes:
        decay: d.
        warmup: whether d starts smaller.
        start_step: s, the steps before averaging starts.
        batch_statistics: whether statistics are averaged, too.
    """

    decay: float
    warmup: bool
    start_step: int
    batch_statistics: bool

    def first(self, model: Model) -> Average:
        """Return the average before the first step: a copy of the weights."""
        parameters, statistics = jax.tree.map(_wide, self._averaged(model))
        return Average(parameters, statistics, jnp.zeros((), jnp.int32))

    def updated(self, average: Average, model: Model) -> Average:
        """Return the average after a step with the result ``model``."""
        count = average.count + 1
        number = (count - self.start_step).astype(jnp.float32)
        share = jnp.float32(1 - self.decay)
        if self.warmup:
            share = jnp.maximum(share, 9 / (10 + number))
        share = jnp.where(number > 0, share, 1)

        def towards(old: jax.Array, new: jax.Array) -> jax.Array:
            if not jnp.issubdtype(old.dtype, jnp.inexact):
                return new
            new = new.astype(old.dtype)
            moved = old + share.astype(old.dtype) * (new - old)
            return jnp.where(number > 0, moved, new)  # exactly: the weights may not be finite

        held = (average.parameters, average.statistics)
        parameters, statistics = jax.tree.map(towards, held, self._averaged(model))
        return Average(parameters, statistics, count)

    def put_into(self, average: Average, model: Model) -> Model:
        """Return ``model`` with the averages in place of its own arrays, in their dtypes."""
        parameters, other = model
        narrow = jax.tree.map(
            lambda mean, own: mean.astype(own.dtype),
            (average.parameters, average.statistics), self._averaged(model),
        )  # fmt: skip
        means = iter(narrow[1])
        rest = [next(means) if self._counts(leaf) else leaf for leaf in other.rest]
        return narrow[0], other._replace(rest=rest)

    def _averaged(self, model: Model) -> tuple[Any, list[Any]]:
        parameters, other = model
        return parameters, [leaf for leaf in other.rest if self._counts(leaf)]

    def _counts(self, leaf: Any) -> bool:
        return self.batch_statistics and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _wide(leaf: Any) -> jax.Array:
    """Return a copy in float32 or wider; bfloat16 would lose small updates."""
    inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
    return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32) if inexact else None)
