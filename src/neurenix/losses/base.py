"""The base class of losses, the weighted mean, and checks of shapes and values.

Owns the reduction (per position → per example → one number). The formulas are in ``crossentropy``,
``regression``, ``similarity`` and ``margin``.

Letters: ``N`` examples, ``T`` positions of a sequence, ``C`` classes, ``...`` any further axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import DataError, ShapeError, unknown_name
from neurenix._core.names import OptionsExplained, snake_case
from neurenix.losses.argument_order import TARGETS_FIRST, at_hand, in_order

# Keeps logarithms and quotients finite; Keras's value (keras.config.epsilon()).
EPSILON = 1e-7
REDUCTIONS = ("mean", "sum", "none")
_MEAN_OF_KERAS = "sum_over_batch_size"
_OPTIONS = {
    "axis": "not configurable: always the last axis",
    "beta": "delta",
    "ignore_class": "ignore_index",
    "pos_weight": "class_weight= of fit",
    "reduce": "reduction",
    "size_average": "reduction",
    "weight": "class_weight= of fit",
}


@dataclass(frozen=True)
class Loss(OptionsExplained, ABC):
    """Base of every loss: a formula per position, averaged per example, then over the batch.

    A loss has no state. It is hashable and compares by its options, so it can be a static argument
    of a compiled function. A subclass defines ``elementwise``.

    Targets come first. For an asymmetric loss, a call with predictions first raises where it can
    be detected, also while traced: by shapes, by integers as predictions, and by a gradient with
    respect to the targets alone.

    Attributes:
        direction: ``"min"``: a smaller loss is better.
        reduction: of the losses in a call, as in Keras and PyTorch: ``"mean"``, ``"sum"``, or
            ``"none"`` (or None) for the losses of shape ``elementwise``, as needed by
            ``compute_average_loss``. ``fit`` uses the mean; Keras's name
            ``"sum_over_batch_size"`` is accepted too.

    Raises:
        UnknownNameError: unknown reduction.
        ArgumentTypeError: unknown option.

    Example:
        >>> from neurenix.losses import MeanSquaredError
        >>> loss = MeanSquaredError()
        >>> print(loss(nx.tensor([1.0, 2.0]), nx.tensor([1.0, 4.0])))
        2.0
        >>> each = MeanSquaredError(reduction="none")
        >>> print(each(nx.tensor([1.0, 2.0]), nx.tensor([1.0, 4.0])))
        [0. 4.]
    """

    migration_options: ClassVar[Mapping[str, str]] = _OPTIONS
    direction: ClassVar[str] = "min"
    # Whether swapping targets and predictions leaves the loss unchanged.
    symmetric: ClassVar[bool] = True
    order: ClassVar[str] = TARGETS_FIRST  # sentence on the order of arguments, for errors
    reduction: str | None = field(default="mean", kw_only=True)

    def __post_init__(self) -> None:
        """Check the options."""
        if self.reduction is None:
            object.__setattr__(self, "reduction", "none")
        if self.reduction == _MEAN_OF_KERAS:
            object.__setattr__(self, "reduction", "mean")
        if self.reduction not in REDUCTIONS:
            raise unknown_name("reduction of a loss", str(self.reduction), REDUCTIONS)

    @property
    def name(self) -> str:
        """The class name in snake case, as used in logs."""
        return snake_case(type(self).__name__)

    @abstractmethod
    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the loss of every position, shape (N, ...), float32 or wider."""

    def per_example(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return one loss per example, shape (N,): the mean over all other axes."""
        return mean_per_example(self.elementwise(y_true, y_pred))

    def each(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return :meth:`per_example`, with the same check of the order of arguments as a call.

        Integer targets may be padding and are not checked to be probabilities.
        """
        y_true, y_pred = self.in_order(y_true, y_pred)
        if (values := at_hand(y_true)) is not None:
            self._check_order(np.where(values == np.round(values), 0, values), y_pred)
        return self.per_example(y_true, y_pred)

    def counted(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> jax.Array | None:
        """Return the weights of the weighted mean, 0 for ignored positions.

        Args:
            y_true: the targets.
            y_pred: the model's output.
            sample_weight: as for ``__call__``.

        Returns:
            Weights of a shape accepted as ``sample_weight``; None if all are equal.
        """
        return None if sample_weight is None else jnp.asarray(sample_weight)

    def __call__(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> jax.Array:
        """Return the mean loss, a scalar: ``sum(w · loss) / sum(w)``.

        With another ``reduction``, return the sum of ``w · loss``, or ``w · loss`` per position.

        Args:
            y_true: the targets; see the class for shape and dtype.
            y_pred: the model's output. Half precision is computed in float32.
            sample_weight: (N,), one weight per example, or the shape of ``elementwise``. The loss
                is 0 if all weights are 0.

        Raises:
            ShapeError: the shapes are incompatible.
            DataError: predictions were given first (see :class:`Loss`). Without weights and with
                known values: the targets must be probabilities and are not.
        """
        y_true, y_pred = self.in_order(y_true, y_pred)
        weight = self.counted(y_true, y_pred, sample_weight)
        if weight is None:
            self._check_order(y_true, y_pred)
        if self.reduction != "mean":
            given = None if sample_weight is None else jnp.asarray(sample_weight)
            losses = weighted(self.elementwise(y_true, y_pred), given)
            return jnp.sum(losses) if self.reduction == "sum" else losses
        if weight is None:
            return jnp.mean(self.per_example(y_true, y_pred))
        if weight.ndim > 1:
            losses = self.elementwise(y_true, y_pred)
        else:
            losses = self.per_example(y_true, y_pred)
        return weighted_mean(losses, weight)

    def in_order(self, y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return both arguments, checked for a wrong order unless the loss is symmetric.

        Raises:
            DataError: dtypes or differentiation show that predictions were given first.
        """
        return (y_true, y_pred) if self.symmetric else in_order(y_true, y_pred, self.order)

    def target_spec(self, y_pred: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return shape and dtype of the targets for predictions like ``y_pred``."""
        return jax.ShapeDtypeStruct(y_pred.shape, jnp.float32)

    def validate(self, y_true: np.ndarray, y_pred_shape: Sequence[int]) -> None:
        """Check targets on the host, before compilation.

        Args:
            y_true: the targets, a NumPy array.
            y_pred_shape: the shape of the predictions for these targets.

        Raises:
            ShapeError: the shapes are incompatible.
            DataError: a value is not finite, or out of range.
        """
        self._validate_shape(np.shape(y_true), tuple(y_pred_shape))
        self._validate_values(np.asarray(y_true), tuple(y_pred_shape))

    def _check_order(self, y_true: jax.Array | np.ndarray, y_pred: jax.Array) -> None:
        """Raise if predictions were given first; subclasses that can detect it override this."""
        del y_true, y_pred

    def _validate_shape(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        same_shape(self.name, y_true, y_pred)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        """Check the range of the targets; by default, any finite value is valid."""
        check_finite(y_true)


def mean_per_example(losses: jax.Array) -> jax.Array:
    """Average all axes but the first: (N, ...) → (N,)."""
    return losses if losses.ndim <= 1 else jnp.mean(losses.reshape(losses.shape[0], -1), axis=1)


def weighted(losses: jax.Array, weight: jax.Array | None) -> jax.Array:
    """Return ``w · l`` for losses (N, ...) and weights (N,), of the same shape, or a scalar.

    A position of weight 0 gives 0, even if its loss is infinite or NaN.

    Raises:
        ShapeError: ``weight`` has another shape.
    """
    if weight is None:
        return losses
    if weight.shape not in ((), losses.shape[:1], losses.shape):
        raise _unfit(weight, losses)
    weight = weight.reshape(weight.shape + (1,) * (losses.ndim - weight.ndim))
    weight = weight.astype(losses.dtype)
    return jnp.where(weight == 0, 0, losses) * weight


def _unfit(weight: jax.Array, losses: jax.Array) -> ShapeError:
    return ShapeError(
        f"The argument `sample_weight` has shape {weight.shape}; there are losses of shape "
        f"{losses.shape}. Give one weight per example, shape {losses.shape[:1]}."
    )


def weighted_mean(losses: jax.Array, weight: jax.Array) -> jax.Array:
    """Return ``sum(w · l) / sum(w)``, or 0 if the weights sum to 0.

    A position of weight 0 does not count, even if its loss is infinite or NaN.

    Raises:
        ShapeError: ``weight`` is neither a scalar nor of the shape of ``losses``.
    """
    if weight.shape != losses.shape and weight.ndim != 0:
        raise _unfit(weight, losses)
    weight = jnp.broadcast_to(weight.astype(losses.dtype), losses.shape)
    total = jnp.sum(weight)
    return jnp.where(
        total == 0, 0, jnp.sum(weighted(losses, weight)) / jnp.where(total == 0, 1, total)
    )


def at_least_float32(x: jax.Array) -> jax.Array:
    """Cast integers and half precision to float32; keep float32 and float64."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def paired(name: str, y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both as floats of the shape of ``y_pred``; only (N,) and (N, 1) are matched.

    Raises:
        ShapeError: the shapes differ otherwise.
    """
    y_true, y_pred = at_least_float32(y_true), at_least_float32(y_pred)
    same_shape(name, y_true.shape, y_pred.shape)
    return y_true.reshape(y_pred.shape), y_pred


def paired_rows(name: str, y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both as floats, for a loss that reduces the last axis.

    Raises:
        ShapeError: the shapes differ.
    """
    y_true, y_pred = at_least_float32(y_true), at_least_float32(y_pred)
    same_rows(name, y_true.shape, y_pred.shape)
    return y_true, y_pred


def same_rows(name: str, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
    """Raise ShapeError unless the shapes are equal and have at least one axis."""
    if y_pred and y_true == y_pred:
        return
    raise ShapeError(
        f"The loss {name} compares rows along the last axis: `y_true` has shape {y_true} "
        f"where `y_pred` has shape {y_pred}. Give both the same shape, (N, …, C)."
    )


def same_shape(name: str, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
    """Raise ShapeError unless the shapes are equal, up to one last axis of size 1."""
    if y_true == y_pred or y_true + (1,) == y_pred or y_true == y_pred + (1,):
        return
    raise ShapeError(
        f"The loss {name} compares targets and predictions one by one, and `y_true` has shape "
        f"{y_true} where `y_pred` has shape {y_pred}. Give targets of shape {y_pred}."
    )


def check_finite(y_true: np.ndarray) -> None:
    """Raise DataError at the first target that is NaN or infinite."""
    if y_true.dtype.kind not in "fc" or bool(np.isfinite(y_true).all()):
        return
    where = tuple(int(i) for i in np.argwhere(~np.isfinite(y_true))[0])
    raise DataError(
        f"The targets `y_true` hold {y_true[where]} at index {where}; all must be finite."
    )


def check_range(y_true: np.ndarray, low: float, high: float, why: str) -> None:
    """Raise DataError at the first target that is not finite or outside ``[low, high]``."""
    check_finite(y_true)
    if not y_true.size or (y_true.min() >= low and y_true.max() <= high):
        return
    outside = (y_true < low) | (y_true > high)
    where = tuple(int(i) for i in np.argwhere(outside)[0])
    raise DataError(
        f"The targets `y_true` must be in {low} … {high}, {why}; "
        f"found {y_true[where]} at index {where}."
    )
