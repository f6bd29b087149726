"""Mean errors and R²; the formulas of losses are in ``neurenix.losses``."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neurenix._core.errors import ShapeError
from neurenix.metrics.base import MeanMetric, Metric, safe_ratio, weighted_sum


class MeanSquaredError(MeanMetric):
    """The mean of ``(y_true - y_pred)²``.

    Example:
        >>> metric = nx.metrics.MeanSquaredError()
        >>> metric.update(nx.tensor([0.0, 0.0]), nx.tensor([1.0, 3.0]))
        >>> print(metric.result())
        5.0
    """

    direction = "min"

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the squared error of every element."""
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
        """Return the absolute error of every element."""
        return jnp.abs(_difference(self.name, y_true, y_pred))


class R2Score(Metric):
    """R², the share of the variance of ``y_true`` that is explained, over all elements.

    If all targets are equal, the variance is 0: the result is 1 if all predictions match, else 0.

    ``y_true`` is summed as its distance from the mean of the first batch, which avoids cancellation
    when the mean is large compared to the spread. Replicas use the mean over the first batches of
    all, so their states can be added. States of independently started metrics can be added too;
    plain sums of squares are used then.

    Example:
        >>> metric = nx.metrics.R2Score()
        >>> metric.update(nx.tensor([1998.0, 2000.0]), nx.tensor([1998.0, 2001.0]))
        >>> print(metric.result())
        0.5
    """

    direction = "max"

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.count = self._sum()
        self.total = self._sum()
        self.total_square = self._sum()
        self.residual_square = self._sum()
        self.origins = self._sum()  # number of first-batch means summed in the next state
        self.origin = self._sum()
        self.shifted = self._sum()
        self.shifted_square = self._sum()

    def update(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Add a batch; shapes as for :class:`MeanSquaredError`."""
        y_true, y_pred = self._input("y_true", y_true), self._input("y_pred", y_pred)
        difference = _difference(self.name, y_true, y_pred)
        y_true = y_true.reshape(y_pred.shape).astype(jnp.float32)
        total, count = weighted_sum(y_true, sample_weight)
        self._begin(total, count)
        shifted = y_true - safe_ratio(self.origin[...], self.origins[...])
        self.count[...] += count
        self.total[...] += total
        self.total_square[...] += weighted_sum(jnp.square(y_true), sample_weight)[0]
        self.residual_square[...] += weighted_sum(jnp.square(difference), sample_weight)[0]
        self.shifted[...] += weighted_sum(shifted, sample_weight)[0]
        self.shifted_square[...] += weighted_sum(jnp.square(shifted), sample_weight)[0]

    def _begin(self, total: jax.Array, count: jax.Array) -> None:
        """Set the mean of the first batch; each shard adds its part of it."""
        shards, axes = 1, tuple(jax.sharding.get_abstract_mesh().manual_axes)
        if axes:
            shards, total, count = jax.lax.psum((1, total, count), axes)
        part = jnp.where((self.origins[...] == 0) & (count > 0), 1 / shards, 0)
        self.origins[...] += part
        self.origin[...] += part * safe_ratio(total, count)

    def result(self) -> jax.Array:
        """Return 1 - residual variance / total variance."""
        count, rounding = self.count[...], 4 * float(jnp.finfo(jnp.float32).eps)
        variance = self.shifted_square[...] - safe_ratio(jnp.square(self.shifted[...]), count)
        least = count * jnp.square(rounding * safe_ratio(self.origin[...], self.origins[...]))
        plain = self.total_square[...] - safe_ratio(jnp.square(self.total[...]), count)
        apart = self.origins[...] > 1.5
        variance = jnp.where(apart, plain, variance)
        least = jnp.where(apart, rounding * self.total_square[...], least)
        residual, varies = self.residual_square[...], variance > least
        explained = 1 - residual / jnp.where(varies, variance, 1)
        return jnp.where(varies, explained, jnp.where(residual == 0, 1.0, 0.0))


def _difference(name: str, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    true, pred = y_true.shape, y_pred.shape
    if not (true == pred or true + (1,) == pred or true == pred + (1,)):
        raise ShapeError(
            f"The metric {name} compares number by number: `y_true` has shape {true} where "
            f"`y_pred` has shape {pred}."
        )
    return y_true.reshape(pred).astype(jnp.float32) - y_pred.astype(jnp.float32)
