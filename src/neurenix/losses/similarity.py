"""Cosine similarity and Kullback-Leibler divergence over the last axis."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.losses.argument_order import check_probabilities
from neurenix.losses.base import (
    EPSILON,
    Loss,
    check_range,
    paired_rows,
    same_rows,
)


@dataclass(frozen=True)
class CosineSimilarity(Loss):
    """Minus the cosine between rows, as in Keras: -1 same direction, 1 opposite direction.

    ``y_true`` and ``y_pred``: (N, ..., C). A row of zeros has cosine 0.

    Example:
        >>> print(nx.losses.CosineSimilarity()(nx.tensor([[1.0, 0.0]]), nx.tensor([[2.0, 0.0]])))
        -1.0
    """

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return minus the cosine of every row, shape (N, ...)."""
        y_true, y_pred = paired_rows(self.name, y_true, y_pred)
        return -jnp.sum(_unit(y_true) * _unit(y_pred), axis=-1)

    def _validate_shape(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        same_rows(self.name, y_true, y_pred)


@dataclass(frozen=True)
class KLDivergence(Loss):
    """``sum(y_true · log(y_true / y_pred))`` over the last axis; both are probabilities.

    Both are clipped to [1e-7, 1], as in Keras. PyTorch's form, of log-probabilities, is
    :class:`~neurenix.losses.KLDivLoss`. A call raises for a gradient with respect to ``y_true``
    alone; where that is intended, as for a policy's divergence from a fixed reference, use
    ``elementwise``.
    """

    symmetric = False

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the divergence of every row, shape (N, ...)."""
        y_true, y_pred = paired_rows(self.name, y_true, y_pred)
        y_true, y_pred = jnp.clip(y_true, EPSILON, 1), jnp.clip(y_pred, EPSILON, 1)
        return jnp.sum(y_true * jnp.log(y_true / y_pred), axis=-1)

    def _validate_shape(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        same_rows(self.name, y_true, y_pred)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        check_range(y_true, 0, 1, "because they are probabilities")

    def _check_order(self, y_true: jax.Array | np.ndarray, y_pred: jax.Array) -> None:
        check_probabilities(y_true, self.order)


def _unit(x: jax.Array) -> jax.Array:
    # The square root has no derivative at 0: replace rows of zeros before it.
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return jnp.where(square > 0, x * jax.lax.rsqrt(jnp.where(square > 0, square, 1)), 0)


def cosine_similarity(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return minus the cosine per example, shape (N,)."""
    return CosineSimilarity().each(y_true, y_pred)


def kl_divergence(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return the Kullback-Leibler divergence per example, shape (N,)."""
    return KLDivergence().each(y_true, y_pred)
