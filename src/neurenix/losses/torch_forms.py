"""Formulas of PyTorch's losses where they differ from Keras's, with targets first.

Differences: class weights, classes on the second axis, logarithms clipped at -100,
log-probabilities. Source: https://docs.pytorch.org/docs/stable/nn.html#loss-functions. The public
classes are in ``torch_names``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._core.number_checks import check_number
from neurenix.losses.argument_order import PREDICTIONS_FIRST, check_probabilities
from neurenix.losses.base import Loss, at_least_float32, check_range, paired, weighted
from neurenix.losses.crossentropy import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    SparseCategoricalCrossentropy,
)

Weights = tuple[Any, ...] | float
_LEAST_LOG = -100.0  # lower bound in PyTorch's BCELoss
_LEAST_DIVISOR = 1e-12  # and in its gradient


def frozen(name: str, weights: Any) -> Weights | None:
    """Return weights, an array or a list, as nested tuples, which are hashable.

    Raises:
        ArgumentTypeError: the weights are traced, or are not numbers.
        ArgumentError: a weight is negative or not finite.
    """
    if weights is None:
        return None
    if isinstance(weights, Tracer):
        raise ArgumentTypeError(
            f"The argument `{name}` is traced. Create the loss outside the compiled function."
        )
    try:
        values = np.asarray(weights).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"The argument `{name}` must be an array of numbers; got {weights!r}."
        ) from error
    if not np.isfinite(values).all() or (values < 0).any():
        raise ArgumentError(f"`{name}` must hold finite weights of at least 0; got {weights}.")
    return _tuples(values.tolist())


def _tuples(values: Any) -> Any:
    return tuple(map(_tuples, values)) if isinstance(values, list) else values


@dataclass(frozen=True)
class CrossEntropy(SparseCategoricalCrossentropy):
    """``CrossEntropyLoss`` and ``NLLLoss``: classes on the second axis, (N, C, ...).

    Args:
        normalized: whether ``y_pred`` are already log-probabilities.
        weight: one weight per class, or None. For integer classes, the mean is divided by the sum
            of the targets' weights.
    """

    order = PREDICTIONS_FIRST
    from_logits: bool = True
    normalized: bool = False
    weight: Weights | None = None

    @property
    def name(self) -> str:
        """The name in logs and errors."""
        return "nll_loss" if self.normalized else "cross_entropy_loss"

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the weighted cross-entropy of every position, shape (N, ...)."""
        y_true, y_pred = jnp.asarray(y_true), jnp.asarray(y_pred)
        soft = _is_soft(y_true, y_pred)
        self._check_shapes(y_true.shape, y_pred.shape, soft=soft)
        weight, scores = self._class_weights(y_pred.shape), _last(y_pred)
        if soft:
            return self._of_shares(at_least_float32(_last(y_true)), scores, weight)
        places, classes = scores.shape[:-1], scores.shape[-1]
        if weight is None:
            losses = super().elementwise(y_true.reshape(-1), scores.reshape(-1, classes))
            return losses.reshape(places)
        labels = y_true.reshape(places).astype(jnp.int32)
        losses = self._of_shares(jax.nn.one_hot(labels, classes), scores, weight)
        # A class outside 0 … C-1 gives a one-hot row of zeros.
        inside = (labels >= 0) & (labels < classes)
        return self._without_ignored(labels, jnp.where(inside, losses, jnp.nan))

    def _of_shares(self, shares: jax.Array, scores: jax.Array, weight: Any) -> jax.Array:
        shares = shares * (1 - self.label_smoothing) + self.label_smoothing / scores.shape[-1]
        log_p = self._log_probabilities(scores)
        # A class with probability 0 does not count, even if its log-probability is infinite.
        terms = jnp.where(shares == 0, 0, shares * log_p)
        return -jnp.sum(terms if weight is None else weight * terms, axis=-1)

    def _counts(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array | None:
        """Return the weight of each position in the mean: its class's weight, 0 if ignored."""
        labels, shape, soft = jnp.asarray(y_true), np.shape(y_pred), _is_soft(y_true, y_pred)
        self._check_shapes(labels.shape, shape, soft=soft)
        weight = self._class_weights(shape)
        if soft or (weight is None and self.ignore_index is None):
            return None
        labels = labels.reshape(shape[:1] + shape[2:]).astype(jnp.int32)
        kept = labels != self.ignore_index
        if weight is None:
            return kept
        return jnp.where(kept, weight[jnp.clip(labels, 0, shape[1] - 1)], 0)

    def per_example(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return one loss per example, shape (N,): the mean over its valid positions."""
        if self.weight is None or (counts := self._counts(y_true, y_pred)) is None:
            return super().per_example(y_true, y_pred)
        losses = self.elementwise(y_true, y_pred)
        axes = tuple(range(1, losses.ndim))
        total = jnp.sum(counts, axes)
        return jnp.sum(losses, axes) / jnp.where(total == 0, 1, total)

    def __call__(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> jax.Array:
        """Return the mean loss; see :meth:`Loss.__call__`."""
        if self.weight is None or self.reduction != "mean":
            return super().__call__(y_true, y_pred, sample_weight)
        y_true, y_pred = self.in_order(y_true, y_pred)
        # The losses already include the class weights; only the divisor needs them.
        losses, counts = self.elementwise(y_true, y_pred), self._counts(y_true, y_pred)
        counts = jnp.ones_like(losses) if counts is None else counts
        given = None if sample_weight is None else jnp.asarray(sample_weight)
        total = jnp.sum(weighted(counts, given))
        return jnp.where(
            total == 0, 0, jnp.sum(weighted(losses, given)) / jnp.where(total == 0, 1, total)
        )

    def target_spec(self, y_pred: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return (N, ...) int32 for predictions (N, C, ...)."""
        return jax.ShapeDtypeStruct(y_pred.shape[:1] + y_pred.shape[2:], jnp.int32)

    def validate(self, y_true: np.ndarray, y_pred_shape: Sequence[int]) -> None:
        """Check targets on the host; see :meth:`Loss.validate`."""
        y_true, shape = np.asarray(y_true), tuple(y_pred_shape)
        soft = y_true.shape == shape and jnp.issubdtype(y_true.dtype, jnp.floating)
        self._check_shapes(y_true.shape, shape, soft=soft)
        self._class_weights(shape)
        if soft:
            CategoricalCrossentropy().validate(y_true, shape)
        else:
            self._validate_values(y_true, (*shape[:1], *shape[2:], shape[1]))

    def _log_probabilities(self, y_pred: jax.Array) -> jax.Array:
        if self.normalized:
            return at_least_float32(y_pred)
        return super()._log_probabilities(y_pred)

    def _class_weights(self, y_pred: tuple[int, ...]) -> jax.Array | None:
        if self.weight is None:
            return None
        weight = jnp.asarray(self.weight, jnp.float32)
        if weight.shape != y_pred[1:2]:
            raise ShapeError(
                f"The loss {self.name} has `weight` of shape {weight.shape} where there are "
                f"{y_pred[1]} classes. Give one weight for each class."
            )
        return weight

    def _check_shapes(
        self, y_true: tuple[int, ...], y_pred: tuple[int, ...], *, soft: bool
    ) -> None:
        needed = y_pred[:1] + y_pred[2:]
        if len(y_pred) > 1 and (soft or y_true in (needed, (*needed, 1))):
            return
        hint = ""
        if y_true == y_pred:
            hint = " Rows of probabilities are floats; class numbers are labels.argmax(1)."
        elif y_true == y_pred[:-1]:
            hint = (
                " For classes on the last axis use nx.losses.SparseCategoricalCrossentropy("
                "from_logits=True)."
            )
        elif y_pred == y_true[:1] + y_true[2:]:
            hint = f" {self.order}"
        raise ShapeError(
            f"The loss {self.name} takes predictions of shape (N, C, ...), classes on the second "
            "axis as in PyTorch, and as targets class numbers of shape (N, ...), or probabilities "
            f"of the predictions' shape; found predictions {y_pred} and targets {y_true}.{hint}"
        )

    def _check_order(self, y_true: jax.Array | np.ndarray, y_pred: jax.Array) -> None:
        if _is_soft(y_true, y_pred) and np.ndim(y_pred) > 1:
            check_probabilities(_last(y_true), self.order, rows=True)


def _last(x: Any) -> Any:
    """Move the class axis from second to last."""
    if np.ndim(x) < 3:
        return x
    return np.moveaxis(x, 1, -1) if isinstance(x, np.ndarray) else jnp.moveaxis(x, 1, -1)


def _is_soft(y_true: Any, y_pred: Any) -> bool:
    """Return whether targets are rows of probabilities rather than class numbers."""
    return np.shape(y_true) == np.shape(y_pred) and jnp.issubdtype(
        jnp.asarray(y_true).dtype, jnp.floating
    )


@dataclass(frozen=True)
class BinaryCrossEntropy(BinaryCrossentropy):
    """``BCELoss`` and ``BCEWithLogitsLoss``.

    Args:
        weight: factor of the losses, broadcast to their shape; the mean is not divided by it. None
            means 1.
        pos_weight: factor of the losses of positive targets, broadcast likewise.
    """

    order = PREDICTIONS_FIRST
    weight: Weights | None = None
    pos_weight: Weights | None = None

    @property
    def name(self) -> str:
        """The name in logs and errors."""
        return "bce_with_logits_loss" if self.from_logits else "bce_loss"

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of every target, the shape of ``y_pred``."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        if self.from_logits:
            yes, no = jax.nn.log_sigmoid(y_pred), jax.nn.log_sigmoid(-y_pred)
        else:
            yes, no = _bounded_log(y_pred), _bounded_log(1 - y_pred)
        positive = y_true * self._factor("pos_weight", y_pred)
        return -(positive * yes + (1 - y_true) * no) * self._factor("weight", y_pred)

    def _factor(self, name: str, y_pred: jax.Array) -> Any:
        given = getattr(self, name)
        if given is None:
            return 1
        factor = jnp.asarray(given, y_pred.dtype)
        try:
            fits = jnp.broadcast_shapes(factor.shape, y_pred.shape) == y_pred.shape
        except ValueError:
            fits = False
        if not fits:
            raise ShapeError(
                f"The loss {self.name} has `{name}` of shape {factor.shape}, which does not "
                f"broadcast to the predictions' shape {y_pred.shape}."
            )
        return factor


@jax.custom_jvp
def _bounded_log(x: jax.Array) -> jax.Array:
    """Return the logarithm, at least -100, NaN below 0; the gradient is at most 1e12."""
    return jnp.maximum(jnp.log(x), _LEAST_LOG)


@_bounded_log.defjvp
def _bounded_log_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (tangent,) = primals, tangents
    return _bounded_log(x), tangent / jnp.maximum(x, _LEAST_DIVISOR)


@dataclass(frozen=True)
class Divergence(Loss):
    """``KLDivLoss``: ``target · (log(target) - input)`` of log-probabilities ``input``.

    Args:
        log_target: whether the targets are log-probabilities too.
        summed: whether the loss of an example is the sum over its positions (PyTorch's
            ``"batchmean"``) instead of the mean.
    """

    symmetric = False
    order = PREDICTIONS_FIRST
    log_target: bool = False
    summed: bool = False

    @property
    def name(self) -> str:
        """The name in logs and errors."""
        return "kl_div_loss"

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the divergence of every position, the shape of ``y_pred``."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        if self.log_target:
            return jnp.exp(y_true) * (y_true - y_pred)
        return jax.scipy.special.xlogy(y_true, y_true) - y_true * y_pred

    def per_example(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return one loss per example, shape (N,)."""
        losses = self.elementwise(y_true, y_pred)
        if self.summed and losses.ndim > 1:
            return jnp.sum(losses.reshape(losses.shape[0], -1), axis=1)
        return super().per_example(y_true, y_pred)

    def in_order(self, y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return both; log-probability targets may be differentiated alone, as in PyTorch."""
        return (y_true, y_pred) if self.log_target else super().in_order(y_true, y_pred)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        if self.log_target:
            super()._validate_values(y_true, y_pred_shape)
        else:
            check_range(y_true, 0, 1, "because they are probabilities")

    def _check_order(self, y_true: jax.Array | np.ndarray, y_pred: jax.Array) -> None:
        if not self.log_target:
            check_probabilities(y_true, self.order)


@dataclass(frozen=True)
class SmoothL1(Loss):
    """``SmoothL1Loss``: ``d²/(2·beta)`` if ``|d| < beta``, else ``|d| - beta/2``.

    Args:
        beta: where the two meet, in the unit of the targets; at least 0. With 0 the loss is
            ``|d|``.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_number("The argument `beta`", self.beta)
        if not self.beta >= 0:
            raise ArgumentError(f"The argument `beta` must be at least 0; got {self.beta}.")

    @property
    def name(self) -> str:
        """The name in logs and errors."""
        return "smooth_l1_loss"

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the loss of every element."""
        y_true, y_pred = paired(self.name, y_true, y_pred)
        distance = jnp.abs(y_true - y_pred)
        if not self.beta:
            return distance
        near = jnp.minimum(distance, self.beta)
        return near * (distance - 0.5 * near) / self.beta
