"""What a loss is: the base class, the weighted mean, and checks of shapes and values.

Owns the reduction (per position → per example → one number) and the wording of errors about
targets. Does not own any formula (``crossentropy``, ``regression``, ``similarity``, ``margin``).

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

# What keeps logarithms and quotients finite; the value of Keras (keras.config.epsilon()).
EPSILON = 1e-7
REDUCTIONS = ("mean", "sum", "none")
_MEAN_OF_KERAS = "sum_over_batch_size"
_OPTIONS = {
    "axis": "not to be chosen: the last axis",
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

    A loss has no state, is hashable and compares by its options, so it may be a static argument
    of a compiled function. A subclass writes ``elementwise``.

    Targets come first. Where a loss is not symmetric, a call with predictions first is an error
    wherever it can be told, also while traced: by shapes, by whole numbers in the place of
    predictions, and by a gradient with respect to the targets alone.

    Attributes:
        direction: ``"min"``: a smaller loss is better.
        reduction: what a call makes of the losses, as in Keras and PyTorch: ``"mean"``, ``"sum"``,
            or ``"none"`` (or None) for each of them, the shape of ``elementwise``, as
            ``compute_average_loss`` takes them. ``fit`` takes the mean, which Keras calls
            ``"sum_over_batch_size"`` too.

    Raises:
        UnknownNameError: there is no such reduction.
        ArgumentTypeError: there is no such option.

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
    # Whether targets and predictions can change places without a change of the loss.
    symmetric: ClassVar[bool] = True
    order: ClassVar[str] = TARGETS_FIRST  # what an error says of the arguments' order
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
        """Return one loss per example, shape (N,): the mean over all further positions."""
        return mean_per_example(self.elementwise(y_true, y_pred))

    def each(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return :meth:`per_example` of arguments whose order is checked, as a call checks it.

        Targets that are whole numbers may be padding, and are not held to be probabilities.
        """
        y_true, y_pred = self.in_order(y_true, y_pred)
        if (values := at_hand(y_true)) is not None:
            self._check_order(np.where(values == np.round(values), 0, values), y_pred)
        return self.per_example(y_true, y_pred)

    def counted(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> jax.Array | None:
        """Return the weights that the losses are averaged with, 0 for what does not count.

        Args:
            y_true: the targets.
            y_pred: what the model returned.
            sample_weight: as for ``__call__``.

        Returns:
            as ``sample_weight``; None when all count alike.
        """
        return None if sample_weight is None else jnp.asarray(sample_weight)

    def __call__(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> jax.Array:
        """Return the mean loss, a scalar: ``sum(w · loss) / sum(w)``.

        With another ``reduction``: the sum of ``w · loss`` over all positions, or each of them.

        Args:
            y_true: the targets; see the class for shape and dtype.
            y_pred: what the model returned. Half precision is computed in float32.
            sample_weight: (N,), one weight per example, or the shape of ``elementwise``. The
                loss is 0 when all weights are 0.

        Raises:
            ShapeError: the shapes do not go together.
            DataError: predictions were given first (see :class:`Loss`). Without weights, and where
                values are at hand: the targets are no probabilities where they must be.
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
        """Return both arguments, to be used in their place; checked unless symmetric.

        Raises:
            DataError: dtypes, or what is differentiated, say that predictions were given first.
        """
        return (y_true, y_pred) if self.symmetric else in_order(y_true, y_pred, self.order)

    def target_spec(self, y_pred: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return shape and dtype of the targets that belong to predictions like ``y_pred``."""
        return jax.ShapeDtypeStruct(y_pred.shape, jnp.float32)

    def validate(self, y_true: np.ndarray, y_pred_shape: Sequence[int]) -> None:
        """Check targets on the host, before anything is compiled.

        Args:
            y_true: the targets, a NumPy array.
            y_pred_shape: the shape of the predictions for these targets.

        Raises:
            ShapeError: the shapes do not go together.
            DataError: a value is not finite or out of range.
        """
        self._validate_shape(np.shape(y_true), tuple(y_pred_shape))
        self._validate_values(np.asarray(y_true), tuple(y_pred_shape))

    def _check_order(self, y_true: jax.Array | np.ndarray, y_pred: jax.Array) -> None:
        """Refuse predictions in the place of targets; a loss that can tell them does."""
        del y_true, y_pred  # both may be any numbers

    def _validate_shape(self, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
        same_shape(self.name, y_true, y_pred)

    def _validate_values(self, y_true: np.ndarray, y_pred_shape: tuple[int, ...]) -> None:
        """Check the range of the targets; any finite value is right unless a loss says more."""
        check_finite(y_true)


def mean_per_example(losses: jax.Array) -> jax.Array:
    """Average all axes but the first: (N, ...) → (N,)."""
    return losses if losses.ndim <= 1 else jnp.mean(losses.reshape(losses.shape[0], -1), axis=1)


def weighted(losses: jax.Array, weight: jax.Array | None) -> jax.Array:
    """Return ``w · l`` for losses (N, ...) and weights (N,), of the same shape, or a single one.

    A position of weight 0 is 0 even when its loss is infinite or not a number.

    Raises:
        ShapeError: ``weight`` has none of these shapes.
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
    """Return ``sum(w · l) / sum(w)``, and 0 when the weights sum to 0.

    A position of weight 0 does not count even when its loss is infinite or not a number.

    Raises:
        ShapeError: ``weight`` has neither the shape of ``losses`` nor a single value.
    """
    if weight.shape != losses.shape and weight.ndim != 0:
        raise _unfit(weight, losses)
    weight = jnp.broadcast_to(weight.astype(losses.dtype), losses.shape)
    total = jnp.sum(weight)
    return jnp.where(
        total == 0, 0, jnp.sum(weighted(losses, weight)) / jnp.where(total == 0, 1, total)
    )


def at_least_float32(x: jax.Array) -> jax.Array:
    """Cast integers and half precision to float32; leave float32 and float64 alone."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def paired(name: str, y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both as floats of one shape; (N,) and (N, 1) go together, nothing else broadcasts.

    Raises:
        ShapeError: the shapes differ otherwise.
    """
    y_true, y_pred = at_least_float32(y_true), at_least_float32(y_pred)
    same_shape(name, y_true.shape, y_pred.shape)
    return y_true.reshape(y_pred.shape), y_pred


def paired_rows(name: str, y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both as floats, for a loss that reduces their last axis.

    Raises:
        ShapeError: the shapes differ. A last axis of size 1 would be reduced in place of the rows.
    """
    y_true, y_pred = at_least_float32(y_true), at_least_float32(y_pred)
    same_rows(name, y_true.shape, y_pred.shape)
    return y_true, y_pred


def same_rows(name: str, y_true: tuple[int, ...], y_pred: tuple[int, ...]) -> None:
    """Raise ShapeError unless the shapes are equal and have an axis."""
    if y_pred and y_true == y_pred:
        return
    raise ShapeError(
        f"The loss {name} compares rows, along the last axis, and `y_true` has shape {y_true} "
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
    """Raise DataError when a target is NaN or infinite, saying where the first one is."""
    if y_true.dtype.kind not in "fc" or bool(np.isfinite(y_true).all()):
        return
    where = tuple(int(i) for i in np.argwhere(~np.isfinite(y_true))[0])
    raise DataError(
        f"The targets `y_true` hold {y_true[where]} at index {where}; all must be finite."
    )


def check_range(y_true: np.ndarray, low: float, high: float, why: str) -> None:
    """Raise DataError when a target is not finite or outside ``[low, high]``; say where."""
    check_finite(y_true)
    if not y_true.size or (y_true.min() >= low and y_true.max() <= high):
        return
    outside = (y_true < low) | (y_true > high)
    where = tuple(int(i) for i in np.argwhere(outside)[0])
    raise DataError(
        f"The targets `y_true` must lie in {low} … {high}, {why}; "
        f"found {y_true[where]} at index {where}."
    )
