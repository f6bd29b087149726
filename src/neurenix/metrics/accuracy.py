"""Accuracy of integer classes, one-hot rows and binary targets, and top-k accuracy.

Classes are the last axis. Logits and probabilities give the same accuracy, except for the threshold
of binary predictions: 0.5 for probabilities, 0.0 for logits. A NaN prediction counts as wrong.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.core import Tracer

from neurenix._core.errors import DataError, ShapeError
from neurenix._core.number_checks import whole_number
from neurenix.metrics.base import MeanMetric, checked_label, without_ignored

_ORDER = " The order of arguments is (y_true, y_pred): targets first."


class _OfClasses(MeanMetric):
    """A mean over positions with one class each, without those of class ``ignore_index``."""

    direction = "max"

    def __init__(self, name: str | None = None, *, ignore_index: int | None = None) -> None:
        super().__init__(name)
        self.ignore_index = checked_label(ignore_index)

    def update(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Add a batch; see :meth:`MeanMetric.update`."""
        y_true, y_pred = self._input("y_true", y_true), self._input("y_pred", y_pred)
        values = self.values(y_true, y_pred)
        self._add(values, without_ignored(y_true, values.shape, sample_weight, self.ignore_index))


class SparseCategoricalAccuracy(_OfClasses):
    """The share of positions whose largest score is that of the right class.

    ``y_true``: (N, ...) integers, or (N, ..., 1); ``y_pred``: (N, ..., C).

    Args:
        name: name in logs.
        ignore_index: label of positions to ignore, such as padding. If None, ``compile`` and
            ``Trainer`` use that of the loss.
    """

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return 1 where right, 0 where wrong, shape (N, ...)."""
        return is_largest(sparse_labels(self.name, y_true, y_pred), y_pred)


class CategoricalAccuracy(MeanMetric):
    """The share of positions whose largest score and largest target coincide; both (N, ..., C)."""

    direction = "max"

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return 1 where right, 0 where wrong, shape (N, ...)."""
        if y_true.shape != y_pred.shape:
            raise ShapeError(
                f"The metric {self.name} takes targets of the shape of `y_pred`, {y_pred.shape}; "
                f"`y_true` has {y_true.shape}. For integer classes use SparseCategoricalAccuracy."
            )
        return is_largest(jnp.argmax(y_true, axis=-1), y_pred)


class BinaryAccuracy(MeanMetric):
    """The share of elements where ``y_pred > threshold`` agrees with ``y_true`` (0 or 1).

    Args:
        name: name in logs.
        threshold: 0.5 for probabilities, 0.0 for logits. None means 0.5, or 0.0 if the loss of
            ``compile`` or ``Trainer`` is ``BinaryCrossentropy(from_logits=True)``. (Keras uses 0.5
            there too.)
    """

    direction = "max"

    def __init__(self, name: str | None = None, *, threshold: float | None = None) -> None:
        super().__init__(name)
        self.threshold = threshold

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return 1 where right, 0 where wrong, the shape of ``y_pred``."""
        return is_said(binary_targets(self.name, y_true, y_pred), y_pred, self.threshold)


class Accuracy(_OfClasses):
    """Accuracy whose kind follows from the shapes, by Keras's rule.

    ``y_pred`` (N, ..., C) with ``y_true`` (N, ...) or (N, ..., 1): integer classes. Both of the
    same shape with C > 1: one-hot rows. Last axis of size 1, or both of the same shape with one
    axis: binary with a threshold.

    Args:
        name: name in logs.
        threshold: for binary targets; see ``BinaryAccuracy``.
        ignore_index: for integer classes; see ``SparseCategoricalAccuracy``.

    Example:
        >>> accuracy = nx.metrics.Accuracy()
        >>> accuracy.update(nx.tensor([0, 1]), nx.tensor([[2.0, 1.0], [3.0, 1.0]]))
        >>> print(f"{accuracy.result():.1%}")
        50.0%
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        threshold: float | None = None,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(name, ignore_index=ignore_index)
        self.threshold = threshold

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return 1 where right, 0 where wrong, shape (N, ...)."""
        if is_yes_or_no(y_true, y_pred):
            return is_said(binary_targets(self.name, y_true, y_pred), y_pred, self.threshold)
        if y_true.shape == y_pred.shape:
            return is_largest(jnp.argmax(y_true, axis=-1), y_pred)
        return is_largest(sparse_labels(self.name, y_true, y_pred), y_pred)


class TopKCategoricalAccuracy(_OfClasses):
    """The share of positions whose right class is among the ``k`` largest scores.

    ``y_true``: integer classes (N, ...) or one-hot rows (N, ..., C). As in Keras, classes with the
    same score as the right class do not rank above it; a non-finite score of the right class counts
    as wrong.

    Args:
        k: number of scores; at least 1.
        name: name in logs.
        ignore_index: for integer classes; see ``SparseCategoricalAccuracy``.
    """

    def __init__(
        self, k: int = 5, *, name: str | None = None, ignore_index: int | None = None
    ) -> None:
        super().__init__(name, ignore_index=ignore_index)
        self.k = whole_number("The argument `k`", k, least=1)

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return 1 where right, 0 where wrong, shape (N, ...)."""
        if y_true.shape == y_pred.shape:
            labels = jnp.argmax(y_true, axis=-1)
        else:
            labels = sparse_labels(self.name, y_true, y_pred)
        right = jnp.take_along_axis(y_pred, labels[..., None], axis=-1)
        inside = (labels >= 0) & (labels < y_pred.shape[-1])
        # Not `y_pred > right`: it is False for NaN, which would count as a lower score.
        before = jnp.sum(~(y_pred <= right), axis=-1)
        return inside & jnp.isfinite(right[..., 0]) & (before < self.k)


def sparse_labels(name: str, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return integer classes of shape (N, ...) for predictions (N, ..., C).

    Raises:
        ShapeError: the shapes are incompatible.
    """
    if not y_pred.ndim or y_true.shape not in (y_pred.shape[:-1], (*y_pred.shape[:-1], 1)):
        raise ShapeError(
            f"The metric {name} takes one integer class per row of `y_pred`, whose shape is "
            f"{y_pred.shape} (classes last); `y_true` has shape {y_true.shape}."
            f"{_ORDER if y_true.shape[:-1] == y_pred.shape else ''}"
        )
    return y_true.reshape(y_pred.shape[:-1]).astype(jnp.int32)


def is_yes_or_no(y_true: jax.Array, y_pred: jax.Array) -> bool:
    """Return whether the shapes mean binary targets, one per element of ``y_pred``."""
    return y_pred.ndim <= 1 and y_true.shape == y_pred.shape or y_pred.shape[-1:] == (1,)


def is_said(answers: bool | jax.Array, y_pred: jax.Array, threshold: float | None) -> jax.Array:
    """Return where the predicted answer equals ``answers``: yes above the threshold; never for NaN.

    Args:
        answers: booleans of the shape of ``y_pred``, or one for all.
        y_pred: scores of any shape.
        threshold: None means 0.5.
    """
    said_yes = y_pred > (0.5 if threshold is None else threshold)
    return (answers == said_yes) & ~jnp.isnan(y_pred)


def is_largest(labels: int | jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return where the largest score (N, ..., C) is that of the class (N, ...); False for NaN."""
    return (labels == jnp.argmax(y_pred, axis=-1)) & ~jnp.isnan(jnp.max(y_pred, axis=-1))


def binary_targets(name: str, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return binary targets as booleans of the shape of ``y_pred``; (N,) matches (N, 1).

    Raises:
        ShapeError: the shapes are incompatible.
        DataError: the targets are fractions and the predictions integers.
    """
    shape = y_pred.shape
    if not (y_true.shape == shape or y_true.shape + (1,) == shape or y_true.shape == shape + (1,)):
        raise ShapeError(
            f"The metric {name} takes one target per number of `y_pred`, whose shape is {shape}; "
            f"`y_true` has shape {y_true.shape}."
        )
    whole = y_pred.dtype.kind in "biu" and jnp.issubdtype(y_true.dtype, jnp.floating)
    if whole and not isinstance(y_true, Tracer) and bool((y_true != jnp.round(y_true)).any()):
        raise DataError(
            f"The metric {name} takes targets 0 or 1; `y_true` are fractions and "
            f"`y_pred` whole numbers.{_ORDER}"
        )
    return y_true.reshape(shape) > 0.5
