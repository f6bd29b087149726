"""Cross-entropies of integer classes, distributions and binary targets.

Classes are the **last** axis (in PyTorch, the second). The reduction is in ``base``.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError
from neurenix._core.number_checks import check_number
from neurenix.losses.argument_order import check_probabilities
from neurenix.losses.base import (
    EPSILON,
    Loss,
    at_least_float32,
    check_finite,
    check_range,
    mean_per_example,
    paired,
)


@dataclass(frozen=True)
class SparseCategoricalCrossentropy(Loss):
    """Cross-entropy of integer classes.

    ``y_true``: (N, ...) integers in 0 … C-1; ``y_pred``: (N, ..., C) logits or probabilities.
    ``fit`` raises for any other integer before training; in a compiled custom loop, which cannot
    raise, its loss is NaN.

    With ``ignore_index``, positions with that label have loss 0 and do not count: the loss of the
    batch is the mean over all other positions, as in Keras and PyTorch (0 if there are none), so
    examples with more valid positions weigh more. ``compile`` and ``Trainer`` pass the label on to
    metrics that support it and have none set.

    Args:
        from_logits: whether ``y_pred`` are logits. Otherwise they are probabilities, which are
            normalised to sum to 1 and clipped to [1e-7, 1 - 1e-7], as in Keras.
        label_smoothing: share of the target spread evenly over all classes, in [0, 1).
        ignore_index: label of positions to ignore, such as padding (Keras: ``ignore_class``).

    Raises:
        ArgumentError: ``label_smoothing`` is out of range.
        ArgumentTypeError: ``ignore_index`` is not an integer.

    Example:
        >>> loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> print(f"{loss(nx.tensor([0]), nx.tensor([[0.0, 0.0]])):.4f}")
        0.6931
        >>> padded = nx.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_index=-1)
        >>> print(f"{padded(nx.tensor([[0, -1]]), nx.zeros((1, 2, 2))):.4f}")
        0.6931
    """

    symmetric = False
    from_logits: bool = False
    label_smoothing: float = 0.0
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_smoothing(self.label_smoothing)
        if self.ignore_index is not None and not isinstance(self.ignore_index, (int, np.integer)):
            raise ArgumentTypeError(
                "The argument `ignore_index` must be a whole number or None; got "
                f"{self.ignore_index!r}."
            )

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of every position, shape (N, ...)."""
        y_true, y_pred = jnp.asarray(y_true), jnp.asarray(y_pred)
        self._validate_shape(y_true.shape, y_pred.shape)
        if jnp.issubdtype(y_pred.dtype, jnp.integer):
            raise DataError(f"The predictions `y_pred` are integers ({y_pred.dtype}). {self.order}")
        labels = y_true.reshape(y_pred.shape[:-1]).astype(jnp.int32)
        log_p = self._log_probabilities(y_pred)
        right = picked(log_p, labels)
        if self.label_smoothing:
            even = jnp.mean(log_p, axis=-1)
            right = (1 - self.label_smoothing) * right + self.label_smoothing * even
        return -right if self.ignore_index is None else self._without_ignored(labels, -right)

    def per_example(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return one loss per example, shape (N,): the mean over its valid positions."""
        losses, counts = self.elementwise(y_true, y_pred), self._counts(y_true, y_pred)
        if counts is None or losses.ndim <= 1:
            return mean_per_example(losses)
        axes = tuple(range(1, losses.ndim))
        return jnp.sum(losses, axes) / jnp.maximum(jnp.sum(counts, axes), 1)

    def counted(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> jax.Array | None:
        """Return the weights of the weighted mean; see :meth:`Loss.counted`."""
        weight = super().counted(y_true, y_pred, sample_weight)
        counts = self._counts(y_true, y_pred)
        if counts is None:
            return weight
        if weight is None or weight.ndim <= 1:  # per example: per_example averages its positions
            counts = jnp.sum(counts, axis=tuple(range(1, counts.ndim)), dtype=jnp.float32)
        if weight is None:
            return counts
        if weight.ndim and weight.shape != counts.shape:
            return weight  # weighted_mean raises for its shape
        return jnp.where(counts == 0, 0, weight * counts)

    def _log_probabilities(self, y_pred: jax.Array) -> jax.Array:
        return log_probabilities(y_pred, from_logits=self.from_logits)

    def _counts(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array | None:
        """Return the valid positions as booleans (N, ...); None for all."""
        if self.ignore_index is None:
            return None
        labels, shape = jnp.asarray(y_true), np.shape(y_pred)
        self._validate_shape(labels.shape, shape)
        return labels.reshape(shape[:-1]).astype(jnp.int32) != self.ignore_index

    def _without_ignored(self, labels: jax.Array, losses: jax.Array) -> jax.Array:
        return jnp.where(labels == self.ignore_index, 0, losses)

    def target_spec(self, y_pred: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return (N, ...) int32 for predictions (N, ..., C)."""
        return jax.ShapeDtypeStruct(y_pred.shape[:-1], jnp.int32)

    def _validate_shape(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        if y_pred and y_true in (y_pred[:-1], (*y_pred[:-1], 1)):
            return
        hint = (
            " These look like one-hot rows: use CategoricalCrossentropy, or `labels.argmax(-1)`."
            if y_true == y_pred
            else f" {self.order}"
            if y_true[:-1] == y_pred
            else ""
        )
        raise ShapeError(
            f"The loss {self.name} takes one integer class per row of `y_pred`, whose shape is "
            f"{y_pred} (classes last), so `y_true` must have shape {y_pred[:-1]}; it has "
            f"{y_true}.{hint}"
        )

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        if self.ignore_index is not None:
            y_true = np.where(y_true == self.ignore_index, 0, y_true)
        check_finite(y_true)
        if y_true.dtype.kind == "f" and not bool((y_true == np.round(y_true)).all()):
            raise DataError(
                f"The labels `y_true` are {y_true.dtype} with fractions; {self.name} takes whole "
                "class numbers. For distributions use CategoricalCrossentropy."
            )
        classes = y_pred_shape[-1]
        check_range(y_true, 0, classes - 1, f"because `y_pred` has {classes} classes")


@dataclass(frozen=True)
class CategoricalCrossentropy(Loss):
    """Cross-entropy of distributions: one-hot rows or soft labels.

    ``y_true``: (N, ..., C), rows that sum to 1; ``y_pred``: (N, ..., C).

    Args:
        from_logits: whether ``y_pred`` are logits rather than probabilities.
        label_smoothing: share of the target spread evenly over all classes, in [0, 1).

    Example:
        >>> loss = nx.losses.CategoricalCrossentropy(from_logits=True)
        >>> print(f"{loss(nx.tensor([[1.0, 0.0]]), nx.tensor([[0.0, 0.0]])):.4f}")
        0.6931
    """

    symmetric = False
    from_logits: bool = False
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_smoothing(self.label_smoothing)

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of every position, shape (N, ...)."""
        y_true, y_pred = at_least_float32(y_true), at_least_float32(y_pred)
        self._validate_shape(y_true.shape, y_pred.shape)
        if self.label_smoothing:
            even = self.label_smoothing / y_pred.shape[-1]
            y_true = y_true * (1 - self.label_smoothing) + even
        return -jnp.sum(y_true * log_probabilities(y_pred, from_logits=self.from_logits), axis=-1)

    def _validate_shape(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        if y_pred and y_true == y_pred:
            return
        hint = (
            " These look like class numbers: use SparseCategoricalCrossentropy."
            if y_pred and y_true == y_pred[:-1]
            else ""
        )
        raise ShapeError(
            f"The loss {self.name} takes one distribution per row of `y_pred`: `y_true` must "
            f"have shape {y_pred}; it has {y_true}.{hint}"
        )

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        check_range(y_true, 0, 1, "because they are probabilities")

    def _check_order(self, y_true: jax.Array | np.ndarray, y_pred: jax.Array) -> None:
        check_probabilities(y_true, self.order, rows=True)


@dataclass(frozen=True)
class BinaryCrossentropy(Loss):
    """Cross-entropy of independent binary targets.

    ``y_true``: the shape of ``y_pred``, or without its last axis of size 1; values in [0, 1].

    Args:
        from_logits: whether ``y_pred`` are logits rather than probabilities.
        label_smoothing: moves targets towards 0.5 by this share, in [0, 1).

    Example:
        >>> loss = nx.losses.BinaryCrossentropy(from_logits=True)
        >>> print(f"{loss(nx.tensor([1, 0]), nx.tensor([[0.0], [0.0]])):.4f}")
        0.6931
    """

    symmetric = False
    from_logits: bool = False
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_smoothing(self.label_smoothing)

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of every target, the shape of ``y_pred``."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        if self.label_smoothing:
            y_true = y_true * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
        if self.from_logits:
            yes, no = jax.nn.log_sigmoid(y_pred), jax.nn.log_sigmoid(-y_pred)
        else:
            p = jnp.clip(y_pred, EPSILON, 1 - EPSILON)
            yes, no = jnp.log(p), jnp.log1p(-p)
        return -(y_true * yes + (1 - y_true) * no)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        check_range(y_true, 0, 1, "because they are binary targets or probabilities")

    def _check_order(self, y_true: jax.Array | np.ndarray, y_pred: jax.Array) -> None:
        check_probabilities(y_true, self.order)


def picked(values: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the value of each label's class: (N, ..., C) and (N, ...) → (N, ...).

    A label outside 0 … C-1 gives NaN.
    """
    selected = jax.lax.platform_dependent(values, labels, cpu=_gathered, default=_selected)
    inside = (labels >= 0) & (labels < values.shape[-1])
    return jnp.where(inside, selected, jnp.nan)


def _gathered(values: jax.Array, labels: jax.Array) -> jax.Array:
    """Pick values by a gather, on a CPU.

    XLA's CPU runtime runs the first operation of a program outside its thread pool; a mask built
    from the labels alone would be a second such operation and oversubscribe the cores.
    """
    index = jnp.clip(labels, 0, values.shape[-1] - 1)[..., None]
    return jnp.take_along_axis(values, index, axis=-1, mode="promise_in_bounds")[..., 0]


def _selected(values: jax.Array, labels: jax.Array) -> jax.Array:
    """Pick values without a gather, whose gradient is a scatter: slow on a TPU."""
    classes = jax.lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    return jnp.sum(jnp.where(classes == labels[..., None], values, 0), axis=-1)


def log_probabilities(y_pred: jax.Array, *, from_logits: bool) -> jax.Array:
    """Return log-probabilities over the last axis, float32 or wider."""
    y_pred = at_least_float32(y_pred)
    if from_logits:
        return jax.nn.log_softmax(y_pred, axis=-1)
    p = y_pred / jnp.sum(y_pred, axis=-1, keepdims=True)
    return jnp.log(jnp.clip(p, EPSILON, 1 - EPSILON))


def check_smoothing(value: float) -> None:
    """Raise unless ``value`` is a number in [0, 1)."""
    check_number("The argument `label_smoothing`", value)
    if not 0 <= value < 1:
        raise ArgumentError(f"The argument `label_smoothing` must be in [0, 1); got {value}.")


def sparse_categorical_crossentropy(
    y_true: jax.Array,
    y_pred: jax.Array,
    *,
    from_logits: bool = False,
    ignore_index: int | None = None,
) -> jax.Array:
    """Return the cross-entropy of integer classes per example, shape (N,).

    See :class:`SparseCategoricalCrossentropy` for shapes and errors.

    Example:
        >>> targets, logits = nx.tensor([1]), nx.tensor([[0.0, 1.0]])
        >>> print(nx.losses.sparse_categorical_crossentropy(targets, logits).round(3))
        [0.]
    """
    loss = SparseCategoricalCrossentropy(from_logits=from_logits, ignore_index=ignore_index)
    return loss.each(y_true, y_pred)


def categorical_crossentropy(
    y_true: jax.Array, y_pred: jax.Array, *, from_logits: bool = False
) -> jax.Array:
    """Return the cross-entropy of distributions per example, shape (N,).

    See :class:`CategoricalCrossentropy` for shapes and errors.
    """
    return CategoricalCrossentropy(from_logits=from_logits).each(y_true, y_pred)


def binary_crossentropy(
    y_true: jax.Array, y_pred: jax.Array, *, from_logits: bool = False
) -> jax.Array:
    """Return the cross-entropy of binary targets per example, shape (N,).

    See :class:`BinaryCrossentropy` for shapes and errors.
    """
    return BinaryCrossentropy(from_logits=from_logits).each(y_true, y_pred)
