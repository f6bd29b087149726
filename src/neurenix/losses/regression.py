"""Regression losses: squared, absolute, relative and robust errors.

Targets and predictions have the same shape (N, ...); (N,) and (N, 1) are matched, nothing else is
broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError
from neurenix._core.number_checks import check_number
from neurenix.losses.base import EPSILON, Loss, check_range, paired


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """``(y_true - y_pred)²``.

    Example:
        >>> print(nx.losses.MeanSquaredError()(nx.tensor([0.0, 0.0]), nx.tensor([1.0, 3.0])))
        5.0
    """

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the squared error of every element."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        return jnp.square(y_true - y_pred)


@dataclass(frozen=True)
class MeanAbsoluteError(Loss):
    """``|y_true - y_pred|``."""

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the absolute error of every element."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        return jnp.abs(y_true - y_pred)


@dataclass(frozen=True)
class MeanAbsolutePercentageError(Loss):
    """``100 · |y_true - y_pred| / max(|y_true|, 1e-7)``."""

    symmetric = False

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the relative error of every element, in per cent."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        return 100 * jnp.abs(y_true - y_pred) / jnp.maximum(jnp.abs(y_true), EPSILON)


@dataclass(frozen=True)
class MeanSquaredLogarithmicError(Loss):
    """``(log(1 + y_true) - log(1 + y_pred))²``; negative predictions are clipped to 0."""

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the squared logarithmic error of every element."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        predicted = jnp.log1p(jnp.maximum(y_pred, EPSILON))
        return jnp.square(jnp.log1p(jnp.maximum(y_true, EPSILON)) - predicted)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        check_range(y_true, 0, np.inf, "because their logarithm is taken")


@dataclass(frozen=True)
class Huber(Loss):
    """Squared error near zero, absolute error beyond ``delta``.

    ``d²/2`` if ``|d| ≤ delta``, else ``delta · (|d| - delta/2)``, with ``d = y_true - y_pred``.

    Args:
        delta: where the two meet, in the unit of the targets; above 0.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_number("The argument `delta`", self.delta)
        if not self.delta > 0:
            raise ArgumentError(f"The argument `delta` must be above 0; got {self.delta}.")

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the Huber loss of every element."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        distance = jnp.abs(y_true - y_pred)
        near = jnp.minimum(distance, self.delta)  # avoids a product with an infinite delta
        return near * (distance - 0.5 * near)


@dataclass(frozen=True)
class LogCosh(Loss):
    """``log(cosh(y_pred - y_true))``, computed without overflow."""

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the log-cosh error of every element."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        distance = y_pred - y_true
        return distance + jax.nn.softplus(-2 * distance) - jnp.log(2.0).astype(distance.dtype)


@dataclass(frozen=True)
class Poisson(Loss):
    """``y_pred - y_true · log(y_pred)``: the negative Poisson log-likelihood, for counts ≥ 0."""

    symmetric = False

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the Poisson loss of every element."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        return y_pred - y_true * jnp.log(y_pred + EPSILON)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        check_range(y_true, 0, np.inf, "because they are counts")


def mean_squared_error(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return the mean squared error per example, shape (N,)."""
    return MeanSquaredError().each(y_true, y_pred)


def mean_absolute_error(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return the mean absolute error per example, shape (N,)."""
    return MeanAbsoluteError().each(y_true, y_pred)


def huber(y_true: jax.Array, y_pred: jax.Array, *, delta: float = 1.0) -> jax.Array:
    """Return the Huber loss per example, shape (N,)."""
    return Huber(delta).each(y_true, y_pred)
