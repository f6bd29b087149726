"""Mean errors of numbers, and the share of variance explained.

Owns regression metrics; the formulas of losses are in ``neurenix.losses``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neurenix._core.errors import ShapeError
from neurenix.metrics.base import MeanMetric, Metric, safe_ratio, weighted_sum


class MeanSquaredError(MeanMetric):
    """The mean of ``(y_true - y_pred)²``.

    Example:
        >>> metric = MeanSquaredError()
        >>> metric.update(jnp.array([0.0, 0.0]), jnp.array([1.0, 3.0]))
        >>> print(metric.result())
        5.0
    """

    direction = "min"

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the squared error of every number."""
        return jnp.square(_difference(self.name, y_true, y_pred))


class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean squared error."""

    def result(self) -> jax.Array:
        """Return the root of the mean so far."""
        return jnp.sqrt(super().result())


class MeanAbsoluteError(MeanMetric):
    """The mean of ``|y_true - y_pred|``."""

    direction = "min"

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the absolute error of every number."""
        return jnp.abs(_difference(self.name, y_true, y_pred))


class R2Score(Metric):
    """The share of the variance of ``y_true`` that is explained, over all numbers together.

    Sums of squares in float32: shift targets whose mean is large against their spread.
    """

    direction = "max"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.count = self._sum()
        self.total = self._sum()
        self.total_square = self._sum()
        self.residual_square = self._sum()

    def update(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Add a batch; shapes as for :class:`MeanSquaredError`."""
        y_true, y_pred = self._input("y_true", y_true), self._input("y_pred", y_pred)
        difference = _difference(self.name, y_true, y_pred)
        y_true = y_true.reshape(y_pred.shape).astype(jnp.float32)
        total, count = weighted_sum(y_true, sample_weight)
        self.count[...] += count
        self.total[...] += total
        self.total_square[...] += weighted_sum(jnp.square(y_true), sample_weight)[0]
        self.residual_square[...] += weighted_sum(jnp.square(difference), sample_weight)[0]

    def result(self) -> jax.Array:
        """Return 1 - residual / total variance, and 1 - 0 = 1 when there is no variance."""
        mean = safe_ratio(self.total[...], self.count[...])
        variance = self.total_square[...] - self.count[...] * jnp.square(mean)
        return 1 - safe_ratio(self.residual_square[...], variance)


def _difference(name: str, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    true, pred = y_true.shape, y_pred.shape
    if not (true == pred or true + (1,) == pred or true == pred + (1,)):
        raise ShapeError(
            f"The metric {name} compares number by number: `y_true` has shape {true} where "
            f"`y_pred` has shape {pred}."
        )
    return y_true.reshape(pred).astype(jnp.float32) - y_pred.astype(jnp.float32)
