"""Margin losses: hinge, squared hinge and categorical hinge."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.losses.base import Loss, check_range, paired, paired_rows, same_rows


@dataclass(frozen=True)
class Hinge(Loss):
    """``max(1 - y_true · y_pred, 0)`` with targets -1 and 1.

    A target 0 is read as -1, so {0, 1} works as well.

    Example:
        >>> print(nx.losses.Hinge()(nx.tensor([1, 0]), nx.tensor([2.0, 0.5])))
        0.75
    """

    symmetric = False

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the hinge loss of every element."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        return jnp.maximum(1 - _signs(y_true) * y_pred, 0)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        check_range(y_true, -1, 1, "because they are signs")


@dataclass(frozen=True)
class SquaredHinge(Hinge):
    """The square of :class:`Hinge`."""

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the squared hinge loss of every element."""
        return jnp.square(super().elementwise(y_true, y_pred))


@dataclass(frozen=True)
class CategoricalHinge(Loss):
    """``max(best wrong score - right score + 1, 0)`` with one-hot targets (N, ..., C)."""

    symmetric = False

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the hinge loss of every row, shape (N, ...)."""
        y_true, y_pred = paired_rows(self.name, y_true, y_pred)
        right = jnp.sum(y_true * y_pred, axis=-1)
        wrong = jnp.max((1 - y_true) * y_pred, axis=-1)
        return jnp.maximum(wrong - right + 1, 0)

    def _validate_shape(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        same_rows(self.name, y_true, y_pred)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        check_range(y_true, 0, 1, "because rows are one-hot")


def _signs(y_true: jax.Array) -> jax.Array:
    return jnp.where(y_true == 0, -1, y_true)


def hinge(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return the hinge loss per example, shape (N,)."""
    return Hinge().each(y_true, y_pred)
