"""Detect targets and predictions that are given in the wrong order.

Checks dtypes, values and what is differentiated. Shapes are checked in ``base`` and by the losses.
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
_ROUGHLY = 0.02  # rounding tolerance, in half precision, of a probability or the sum of a row


def in_order(y_true: Any, y_pred: Any, order: str) -> tuple[Any, Any]:
    """Return both arguments of an asymmetric loss, checked for a wrong order.

    Only dtypes and the differentiated argument are checked, so the check is the same in eager and
    compiled code. It adds no operation to the compiled program.

    Args:
        y_true: the targets.
        y_pred: the predictions.
        order: sentence on the order of arguments, appended to errors.

    Returns:
        ``y_true`` and ``y_pred``, to be used in place of the arguments.

    Raises:
        DataError: the predictions are integers and the targets are not; or a gradient is taken with
            respect to the targets alone.

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
    """Return both arguments; when differentiated, check that the predictions are."""

    @jax.custom_jvp
    def same(y_true: jax.Array, y_pred: jax.Array) -> tuple[jax.Array, jax.Array]:
        return y_true, y_pred

    def rule(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
        of_targets, of_predictions = (not isinstance(t, SymbolicZero) for t in tangents)
        if of_targets and not of_predictions:
            raise DataError(
                "The gradient is taken with respect to the targets alone: the predictions do not "
                f"depend on what is differentiated. {order} If this is intended, as for the "
                "divergence of a model from a fixed reference, call the loss's elementwise(y_true, "
                "y_pred), which does not check it."
            )
        return primals, tangents

    same.defjvp(rule, symbolic_zeros=True)
    return same(y_true, y_pred)


def _dtype(x: Any) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype


def check_probabilities(y_true: jax.Array | np.ndarray, order: str, *, rows: bool = False) -> None:
    """Raise DataError if targets are not probabilities, which suggests a wrong order.

    Traced values and arrays on devices of other hosts are not checked.

    Args:
        y_true: the targets.
        order: sentence on the order of arguments, appended to errors.
        rows: check that rows with fractional values and more than one column sum to 1.
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
    """Return the values of an array as float32; None if traced or not on this host."""
    known = isinstance(values, (np.ndarray, jax.Array)) and not isinstance(values, Tracer)
    if not known or not getattr(values, "is_fully_addressable", True):
        return None
    return np.asarray(values).astype(np.float32)
