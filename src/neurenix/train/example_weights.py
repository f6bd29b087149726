"""Weights of examples: those that a user gives, and those of their classes.

Owns the table of class weights, how labels are read for it, and what a weight may be. It does not
own what a weight does to the loss (``step.py``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError
from neurenix.train.batch import Batch

_EVEN = 1e-3  # by how much the sum of a row of class probabilities may differ from 1


def class_table(weights: Mapping[int, float] | None) -> np.ndarray | None:
    """Return the weight of every class, float32, from a mapping; classes it lacks have 1.

    Raises:
        ArgumentTypeError: it is no mapping.
        ArgumentError: a key is no class number, or a weight negative or not finite.

    Example:
        >>> class_table({0: 1, 2: 0.5})
        array([1. , 1. , 0.5], dtype=float32)
    """
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        raise ArgumentTypeError(
            f"class_weight is {type(weights).__name__}, expected a mapping from class numbers to "
            "weights, such as {0: 1.0, 1: 5.0}."
        )
    known = {_class_number(key): _class_weight(key, value) for key, value in weights.items()}
    if not known:
        raise ArgumentError("class_weight is empty: give at least one class, or leave it out.")
    table = np.ones(max(known) + 1, np.float32)
    for number, weight in known.items():
        table[number] = weight
    return table


def checked_weights(weights: Any, name: str = "sample_weight") -> Any:
    """Return weights as they are, on the host: batches are filled up there (``batch.pad``).

    Raises:
        DataError: a weight is negative or not finite.
    """
    if isinstance(weights, jax.Array) and weights.is_fully_addressable:
        weights = np.asarray(weights)
        if jnp.issubdtype(weights.dtype, jnp.floating):  # bfloat16 too, which NumPy does not know
            weights = weights.astype(np.float32)
    if not isinstance(weights, np.ndarray) or not weights.size or weights.dtype.kind not in "fiub":
        return weights
    if not (weights.min() >= 0 and np.isfinite(weights.max())):
        wrong = ~((weights >= 0) & np.isfinite(weights))
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise DataError(
            f"{name} holds {weights[where]} at index {where}; weights are finite and not negative."
        )
    return weights


def weighed(batch: Batch, table: np.ndarray | None, *, axes: int = 1) -> Batch:
    """Return the batch with the weights of its classes, and its own weights checked.

    Args:
        batch: as the user's data yields it.
        table: of ``class_table``.
        axes: leading axes that count examples: 1 for (N, …), 2 for stacked batches (K, N, …).

    Raises:
        ShapeError: there is not one weight for each example.
        DataError: a weight is negative or not finite, or the labels name no classes.
    """
    if batch.weight is not None:
        weight = checked_weights(_one_for_each(batch.weight, axes))
        batch = batch._replace(weight=weight)
    if table is None or batch.y is None:
        return batch
    labels = _class_numbers(batch.y, axes)
    inside = (labels >= 0) & (labels < len(table))
    weight = np.where(inside, table[np.where(inside, labels, 0)], np.float32(1))
    return batch._replace(weight=weight if batch.weight is None else weight * batch.weight)


def _class_number(key: Any) -> int:
    number = -1
    if not isinstance(key, bool):
        try:
            number = operator.index(key)
        except TypeError:
            pass
    if number < 0:
        raise ArgumentError(
            f"class_weight has the key {key!r}; keys are class numbers, whole and from 0."
        )
    return number


def _class_weight(key: Any, value: Any) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise ArgumentError(
            f"class_weight[{key!r}] is {value!r}; weights are finite numbers, not negative."
        )
    return weight


def _one_for_each(weight: Any, axes: int) -> Any:
    shape = np.shape(weight)
    if len(shape) == axes + 1 and shape[-1] == 1:
        return weight.reshape(shape[:-1])
    if len(shape) != axes:
        raise ShapeError(
            f"sample_weight has shape {shape[axes - 1 :]}, expected one weight for each example: "
            f"{shape[axes - 1 : axes]}."
        )
    return weight


def _class_numbers(y: Any, axes: int) -> np.ndarray:
    """Return integer class numbers, one for each example, from numbers or one-hot rows."""
    if not isinstance(y, (np.ndarray, jax.Array)):
        raise DataError(f"class_weight needs targets that are one array, not {type(y).__name__}.")
    labels = np.asarray(y)
    if labels.ndim == axes + 1:
        if labels.shape[-1] == 1:
            labels = labels[..., 0]
        elif (labels >= 0).all() and (np.abs(labels.sum(-1) - 1) < _EVEN).all():
            return labels.argmax(-1)
    if labels.ndim != axes:
        raise DataError(
            f"class_weight needs one class for each example, as a number or a one-hot row; the "
            f"targets have shape {np.shape(y)[axes - 1 :]}. Give sample_weight instead."
        )
    if labels.dtype.kind == "f":
        if not (np.isfinite(labels).all() and (labels == np.round(labels)).all()):
            raise DataError("class_weight needs whole class numbers; the targets have fractions.")
        return labels.astype(np.int64)
    return labels.astype(np.int64) if labels.dtype.kind == "b" else labels
