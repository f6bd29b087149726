"""Metrics of plain values, such as losses: mean and sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neurenix.metrics.base import MeanMetric, Metric, weighted_sum


class Mean(MeanMetric):
    """The weighted mean of all values seen.

    Example:
        >>> mean = nx.metrics.Mean("loss")
        >>> mean.update(nx.tensor([1.0, 3.0]))
        >>> mean.update(5.0)
        >>> print(f"{mean.result():.4f}")
        3.0000
    """

    def update(self, values: jax.Array | float, sample_weight: jax.Array | None = None) -> None:
        """Add values of any shape; ``sample_weight`` has their leading axes."""
        self._add(jnp.asarray(values), sample_weight)


class Sum(Metric):
    """The weighted sum of all values seen."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.total = self._sum()

    def update(self, values: jax.Array | float, sample_weight: jax.Array | None = None) -> None:
        """Add values of any shape; ``sample_weight`` has their leading axes."""
        self.total[...] += weighted_sum(jnp.asarray(values), sample_weight)[0]

    def result(self) -> jax.Array:
        """Return the sum so far."""
        return self.total[...]
