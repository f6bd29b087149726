"""Binary metrics built from counts: precision, recall, F1, AUC."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError
from neurenix._core.number_checks import whole_number
from neurenix.metrics.accuracy import (
    binary_targets,
    is_largest,
    is_said,
    is_yes_or_no,
    sparse_labels,
)
from neurenix.metrics.base import (
    Metric,
    checked_label,
    match_weight,
    safe_ratio,
    without_ignored,
)


class _Counts(Metric):
    """Counts of true positives, false positives and false negatives.

    Args:
        threshold: scores above it are positive; see ``BinaryAccuracy``.
        class_id: class to count against all others: ``y_pred`` (N, ..., C) is positive where this
            class has the largest score; ``y_true`` are integer classes or one-hot rows. For binary
            predictions, (N,) or (N, ..., 1), 1 counts positives and 0 negatives, by the threshold.
            None counts positives of binary predictions. A NaN score is neither.
        name: name in logs.
        ignore_index: label of positions to ignore; see ``SparseCategoricalAccuracy``.
    """

    direction = "max"

    def __init__(
        self,
        threshold: float | None = None,
        *,
        class_id: int | None = None,
        name: str | None = None,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(name)
        self.ignore_index = checked_label(ignore_index)
        self.threshold = threshold
        self.class_id = (
            None if class_id is None else whole_number("The argument `class_id`", class_id, least=0)
        )
        self.true_positives = self._sum()
        self.false_positives = self._sum()
        self.false_negatives = self._sum()

    def update(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Add a batch.

        Args:
            y_true: targets 0 or 1, of the shape of ``y_pred`` or without a last axis of size 1; or
                classes, with ``class_id``.
            y_pred: scores.
            sample_weight: (N,), one weight per example.

        Raises:
            ShapeError: the shapes are incompatible.
            ArgumentError: ``class_id`` is not a class of ``y_pred``.
        """
        y_true, y_pred = self._input("y_true", y_true), self._input("y_pred", y_pred)
        actual, said = self._answers(y_true, y_pred)
        given = without_ignored(y_true, actual.shape, sample_weight, self.ignore_index)
        weight = jnp.ones(actual.shape) if given is None else match_weight(given, actual.shape)
        self.true_positives[...] += jnp.sum(weight * (actual & said))
        self.false_positives[...] += jnp.sum(weight * (~actual & said))
        self.false_negatives[...] += jnp.sum(weight * (actual & ~said))

    def _answers(self, y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
        binary = is_yes_or_no(y_true, y_pred)
        classes = 2 if binary else y_pred.shape[-1]
        if self.class_id is not None and self.class_id >= classes:
            raise ArgumentError(
                f"The metric {self.name} counts class {self.class_id}, and `y_pred` of shape "
                f"{y_pred.shape} has the classes 0 to {classes - 1}."
            )
        if self.class_id is None or binary:
            actual = binary_targets(self.name, y_true, y_pred)
            counted = self.class_id != 0
            return actual == counted, is_said(counted, y_pred, self.threshold)
        if y_true.shape == y_pred.shape:
            labels = jnp.argmax(y_true, axis=-1)
        else:
            labels = sparse_labels(self.name, y_true, y_pred)
        return labels == self.class_id, is_largest(self.class_id, y_pred)


class Precision(_Counts):
    """The share of predicted positives that are positive.

    Example:
        >>> metric = nx.metrics.Precision()
        >>> metric.update(nx.tensor([1, 0, 1]), nx.tensor([0.9, 0.8, 0.1]))
        >>> print(metric.result())
        0.5
    """

    def result(self) -> jax.Array:
        """Return TP / (TP + FP), or 0 without predicted positives."""
        found = self.true_positives[...]
        return safe_ratio(found, found + self.false_positives[...])


class Recall(_Counts):
    """The share of positives that are predicted as positive."""

    def result(self) -> jax.Array:
        """Return TP / (TP + FN), or 0 without positives."""
        found = self.true_positives[...]
        return safe_ratio(found, found + self.false_negatives[...])


class F1Score(_Counts):
    """The harmonic mean of precision and recall."""

    def result(self) -> jax.Array:
        """Return 2 TP / (2 TP + FP + FN), or 0 without true or predicted positives."""
        found = 2 * self.true_positives[...]
        wrong = self.false_positives[...] + self.false_negatives[...]
        return safe_ratio(found, found + wrong)


class AUC(Metric):
    """Area under the ROC curve of binary targets, from a histogram of scores.

    Only the order of the scores matters, so they may be probabilities or logits. They are counted
    in ``bins`` equal bins over [0, 1] and as many bins below and above it, which widen with the
    distance. Ties within a bin count one half, so the error is at most the share of pairs within
    one bin. A NaN score ranks wrongly in every pair.

    Args:
        bins: number of bins over [0, 1], at least 2.
        from_logits: apply a sigmoid first, so that logits fall into the equal bins.
        name: name in logs.
    """

    direction = "max"

    def __init__(
        self, bins: int = 1000, *, from_logits: bool = False, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.bins = whole_number("The argument `bins`", bins, least=2)
        self.from_logits = from_logits
        self.positives = self._sum(3 * self.bins)
        self.negatives = self._sum(3 * self.bins)

    def update(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Add a batch; shapes as for :class:`Precision`."""
        y_true, y_pred = self._input("y_true", y_true), self._input("y_pred", y_pred)
        actual = binary_targets(self.name, y_true, y_pred)
        score = y_pred.astype(jnp.float32)
        score = jax.nn.sigmoid(score) if self.from_logits else score
        inside = jnp.clip(score, 0, 1)
        beyond = score - inside
        place = inside + jnp.sign(beyond) * (1 - 1 / (1 + jnp.abs(beyond)))  # from -1 to 2
        bin_index = jnp.floor(place * self.bins).astype(jnp.int32) + self.bins
        last = 3 * self.bins - 1
        worst = jnp.where(actual, 0, last)
        bin_index = jnp.where(jnp.isnan(score), worst, jnp.clip(bin_index, 0, last))
        ones = jnp.ones(actual.shape)
        weight = ones if sample_weight is None else match_weight(sample_weight, actual.shape)
        self.positives[...] = self.positives[...].at[bin_index].add(weight * actual)
        self.negatives[...] = self.negatives[...].at[bin_index].add(weight * ~actual)

    def result(self) -> jax.Array:
        """Return the area, or 0 until both positives and negatives have been seen."""
        positives, negatives = self.positives[...], self.negatives[...]
        below = jnp.cumsum(negatives) - negatives
        won = jnp.sum(positives * (below + 0.5 * negatives))
        return safe_ratio(won, jnp.sum(positives) * jnp.sum(negatives))
