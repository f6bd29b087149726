"""Shares of right answers.

Owns accuracy for integer classes, one-hot rows, yes/no answers, and among the best k.
Classes are the last axis. Logits and probabilities give the same accuracy, but for the threshold
of yes/no answers: 0.5 for probabilities, 0.0 for logits. A prediction that is NaN is wrong,
whatever the answer.
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
    """A mean over positions with one right class each, but for those of class ``ignore_index``."""

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
    """How often the largest score is that of the right class.

    ``y_true``: (N, ...) integers, or (N, ..., 1); ``y_pred``: (N, ..., C).

    Args:
        name: what logs call it.
        ignore_index: the label of positions to leave out, such as padding; None for none.
            ``compile`` and ``Trainer`` take that of the loss where a metric has none.
    """

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return 1 where right, 0 where wrong, shape (N, ...)."""
        return is_largest(sparse_labels(self.name, y_true, y_pred), y_pred)


class CategoricalAccuracy(MeanMetric):
    """How often the largest score is where the largest target is; both (N, ..., C)."""

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
    """How often ``y_pred > threshold`` says what ``y_true`` (0 or 1) says.

    Args:
        name: what logs call it.
        threshold: 0.5 for probabilities, 0.0 for logits. None is 0.5, and 0.0 where ``compile``
            or ``Trainer`` has a ``BinaryCrossentropy(from_logits=True)`` as its loss. (Keras takes
            0.5 there, too.)
    """

    direction = "max"

    def __init__(self, name: str | None = None, *, threshold: float | None = None) -> None:
        super().__init__(name)
        self.threshold = threshold

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return 1 where right, 0 where wrong, the shape of ``y_pred``."""
        return is_said(binary_targets(self.name, y_true, y_pred), y_pred, self.threshold)


class Accuracy(_OfClasses):
    """Accuracy of whichever kind the shapes say, by Keras' rule.

    ``y_pred`` (N, ..., C) with ``y_true`` (N, ...) or (N, ..., 1): integer classes. Both of one
    shape with C > 1: one-hot rows. Last axis of size 1, or both of one shape and one axis:
    yes/no with a threshold.

    Args:
        name: what logs call it.
        threshold: of yes/no answers; see ``BinaryAccuracy``.
        ignore_index: of integer classes; see ``SparseCategoricalAccuracy``.

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
    """How often the right class is among the ``k`` largest scores.

    ``y_true`` is integer classes (N, ...) or one-hot rows (N, ..., C). A class as large as the
    right one does not push it out, as in Keras; a right one that is not finite is not among them.

    Args:
        k: how many scores count; at least 1.
        name: what logs call it.
        ignore_index: of integer classes; see ``SparseCategoricalAccuracy``.
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
        # Not `y_pred > right`: of a NaN that is false, and would leave every place free.
        before = jnp.sum(~(y_pred <= right), axis=-1)
        return inside & jnp.isfinite(right[..., 0]) & (before < self.k)


def sparse_labels(name: str, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return integer classes of shape (N, ...) for predictions (N, ..., C).

    Raises:
        ShapeError: the shapes do not go together.
    """
    if not y_pred.ndim or y_true.shape not in (y_pred.shape[:-1], (*y_pred.shape[:-1], 1)):
        raise ShapeError(
            f"The metric {name} takes one integer class per row of `y_pred`, whose shape is "
            f"{y_pred.shape} (classes last); `y_true` has shape {y_true.shape}."
            f"{_ORDER if y_true.shape[:-1] == y_pred.shape else ''}"
        )
    return y_true.reshape(y_pred.shape[:-1]).astype(jnp.int32)


def is_yes_or_no(y_true: jax.Array, y_pred: jax.Array) -> bool:
    """Return whether there is one answer per number of ``y_pred``, and no axis of classes."""
    return y_pred.ndim <= 1 and y_true.shape == y_pred.shape or y_pred.shape[-1:] == (1,)


def is_said(answers: bool | jax.Array, y_pred: jax.Array, threshold: float | None) -> jax.Array:
    """Return where the scores say an answer: above the threshold yes, else no, and NaN neither.

    Args:
        answers: booleans of the shape of ``y_pred``, or one for all.
        y_pred: scores of any shape.
        threshold: that of probabilities, 0.5, if None.
    """
    said_yes = y_pred > (0.5 if threshold is None else threshold)
    return (answers == said_yes) & ~jnp.isnan(y_pred)


def is_largest(labels: int | jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return where the largest score (N, ..., C) is that of the class (N, ...); NaN is of none."""
    return (labels == jnp.argmax(y_pred, axis=-1)) & ~jnp.isnan(jnp.max(y_pred, axis=-1))


def binary_targets(name: str, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    """Return yes/no targets as booleans of the shape of ``y_pred``; (N,) goes with (N, 1).

    Raises:
        ShapeError: the shapes do not go together.
        DataError: the targets are fractions, and the predictions whole numbers.
    """
    shape = y_pred.shape
    if not (y_true.shape == shape or y_true.shape + (1,) == shape or y_true.shape == shape + (1,)):
        raise ShapeError(
            f"The metric {name} takes one answer per number of `y_pred`, whose shape is {shape}; "
            f"`y_true` has shape {y_true.shape}."
        )
    whole = y_pred.dtype.kind in "biu" and jnp.issubdtype(y_true.dtype, jnp.floating)
    if whole and not isinstance(y_true, Tracer) and bool((y_true != jnp.round(y_true)).any()):
        raise DataError(
            f"The metric {name} takes answers as targets, 0 or 1; `y_true` are fractions and "
            f"`y_pred` whole numbers.{_ORDER}"
        )
    return y_true.reshape(shape) > 0.5
