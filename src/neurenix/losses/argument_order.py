"""The order of targets and predictions, and what tells that they were given the other way round.

Owns the two orders in words and the checks of dtypes, of values and of what a gradient is taken
with respect to. It does not own checks of shapes (``base`` and the losses themselves).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero

from neurenix._core.errors import DataError

TARGETS_FIRST = (
    "The order of arguments is (y_true, y_pred): targets first, as in Keras and unlike PyTorch."
)
PREDICTIONS_FIRST = (
    "The order of arguments is (input, target): predictions first, as in PyTorch and unlike Keras."
)
_ROUGHLY = 0.02  # what half precision may add to a probability, or to the sum of a row


def in_order(y_true: Any, y_pred: Any, order: str) -> tuple[Any, Any]:
    """Return both arguments of a loss that is not symmetric, with a check where they are traced.

    Nothing but dtypes, and what is differentiated, is looked at, so the check is the same eagerly
    and in a compiled function. No operation is added to the compiled program.

    Args:
        y_true: the targets.
        y_pred: the predictions.
        order: the sentence about the order that an error ends with.

    Returns:
        ``y_true`` and ``y_pred``, to be used in place of the arguments.

    Raises:
        DataError: the predictions are whole numbers and the targets are not; or, where a gradient
            is taken, it is taken with respect to the targets alone.

    Example:
        >>> labels, logits = in_order(jnp.array([1]), jnp.array([0.5]), TARGETS_FIRST)
    """
    true, pred = _dtype(y_true), _dtype(y_pred)
    if pred.kind in "biu" and jnp.issubdtype(true, jnp.floating):
        raise DataError(
            f"The targets `y_true` are {true} and the predictions `y_pred` are {pred}, which have "
            f"no gradient. {order}"
        )
    if isinstance(y_true, Tracer) and jnp.issubdtype(true, jnp.floating):
        return _differentiated(order, y_true, jnp.asarray(y_pred))
    return y_true, y_pred


def _differentiated(order: str, y_true: jax.Array, y_pred: jax.Array) -> tuple[Any, Any]:
    """Return both; where they are differentiated, check that the predictions are."""

    @jax.custom_jvp
    def same(y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
        return y_true, y_pred

    def rule(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
        of_targets, of_predictions = (not isinstance(t, SymbolicZero) for t in tangents)
        if of_targets and not of_predictions:
            raise DataError(
                "The gradient is taken with respect to the targets alone: the predictions do not "
                f"depend on what is differentiated. {order} Where that is meant, as for the "
                "divergence of a model from a fixed reference, the loss's elementwise(y_true, "
                "y_pred) does not check it."
            )
        return primals, tangents

    same.defjvp(rule, symbolic_zeros=True)
    return same(y_true, y_pred)


def _dtype(x: Any) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype


def check_probabilities(y_true: jax.Array | np.ndarray, order: str, *, rows: bool = False) -> None:
    """Raise DataError for targets that are no probabilities, as where predictions are given first.

    Nothing is looked at while a program is traced, nor what lies on the devices of other hosts.

    Args:
        y_true: the targets.
        order: the sentence about the order that an error ends with.
        rows: whether rows that are soft (fractions, and not one alone) have to sum to 1.
    """
    values = at_hand(y_true)
    if values is None:
        return
    outside = (values < -_ROUGHLY) | (values > 1 + _ROUGHLY)
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        raise DataError(
            "The targets `y_true` must be probabilities, 0 … 1; found "
            f"{values[where]:.6g} at index {where}. {order}"
        )
    if not rows or not values.ndim:
        return
    soft, sums = (values > 0) & (values < 1), values.sum(-1)
    wrong = soft.any(-1) & ((values != 0).sum(-1) > 1) & (np.abs(sums - 1) > _ROUGHLY)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise DataError(
            "The targets `y_true` must be class numbers, or rows of probabilities that sum to 1; "
            f"the row at index {where} sums to {sums[where]:.6g}. {order}"
        )


def at_hand(values: Any) -> np.ndarray | None:
    """Return the values of an array as float32; None while traced, or where they lie elsewhere."""
    known = isinstance(values, (np.ndarray, jax.Array)) and not isinstance(values, Tracer)
    if not known or not getattr(values, "is_fully_addressable", True):
        return None
    return np.asarray(values).astype(np.float32)
