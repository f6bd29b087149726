"""One batch as the step sees it: inputs, targets and the weights of the examples.

Owns reading what datasets yield (arrays, tuples, dicts), class weights, and padding. Does not own
the order or number of batches (``epoch_iterator.py``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from inspect import Parameter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError

_EVEN = 1e-3  # tolerance of the sum of a row of class probabilities

# The weight of a padding row. Weights of examples are never negative.
ADDED = -1.0

_TARGET_NAMES = ("label", "labels", "target", "targets", "y")
_WEIGHT_NAME = "sample_weight"


class Batch(NamedTuple):
    """A batch of N examples.

    Attributes:
        x: input, shape (N, …); a tuple is passed as positional arguments, a dict as keywords.
        y: targets, shape (N, …), or None.
        weight: float32 weight of each example, shape (N,), or None for all one; ``ADDED`` for a
            padding row.
    """

    x: Any
    y: Any = None
    weight: Any = None

    def examples_and_weight(self) -> tuple[Any, Any]:
        """Return which rows are examples, bool (N,), and weights that are 0 for the others.

        Both are None if there are no weights.

        Example:
            >>> batch = pad(Batch(np.ones((3, 2))), 4)
            >>> [part.tolist() for part in batch.examples_and_weight()]
            [[True, True, True, False], [1.0, 1.0, 1.0, 0.0]]
        """
        if self.weight is None:
            return None, None
        return self.weight != ADDED, jnp.maximum(self.weight, 0)


def as_batch(element: Any) -> Batch:
    """Return one element of a dataset as a batch.

    A tuple is ``(x,)``, ``(x, y)`` or ``(x, y, weight)``. In a dict the targets are under
    ``label``, ``labels``, ``target``, ``targets`` or ``y``, weights under ``sample_weight``; one
    other entry is the input, several are keyword arguments of the model.

    Raises:
        DataError: an array is ragged or of objects, or sizes do not match.

    Example:
        >>> as_batch({"image": np.zeros((2, 3), "float32"), "label": np.zeros(2, "int32")}).y
        array([0, 0], dtype=int32)
    """
    if isinstance(element, Batch):
        return element
    if isinstance(element, Mapping):
        x, y, weight = _from_mapping(element)
    elif isinstance(element, (tuple, list)):
        if not 1 <= len(element) <= 3:
            raise DataError(
                f"A batch is (x,), (x, y) or (x, y, sample_weight), got {len(element)} entries."
            )
        x, y, weight = (*element, None, None)[:3]
    else:
        x, y, weight = element, None, None
    batch = Batch(_arrays(x), _arrays(y), _arrays(weight))
    num_examples(batch)
    return batch


def named_inputs(x: dict[str, Any], parameters: Mapping[str, Parameter]) -> Any:
    """Return the inputs of a model among named arrays, for ``predict``.

    An array with the name of a parameter of the model is an input. Of the others, those named as
    targets or weights are ignored; a single remaining one is the model's input by position.

    Args:
        x: the arrays.
        parameters: of the model's call.

    Example:
        >>> import inspect
        >>> parameters = inspect.signature(lambda height, weight: 0).parameters
        >>> sorted(named_inputs({"height": 1, "weight": 2, "label": 3}, parameters))
        ['height', 'weight']
    """
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return x
    apart = {*_TARGET_NAMES, _WEIGHT_NAME} - {*parameters}
    inputs = {name: value for name, value in x.items() if name not in apart} or x
    if len(inputs) == 1 and not inputs.keys() & {*parameters}:
        return next(iter(inputs.values()))
    return inputs


def num_examples(batch: Batch) -> int:
    """Return N.

    Raises:
        DataError: inputs and targets have different numbers of examples, or there are none.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(batch)]
    if shapes and shapes[0] and shapes[0][0] and all(s[:1] == shapes[0][:1] for s in shapes):
        return shapes[0][0]
    sizes = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]:
        shape = np.shape(leaf)
        if not shape:
            raise ShapeError(f"batch{jax.tree_util.keystr(path)} is a scalar, expected (N, …).")
        sizes[jax.tree_util.keystr(path)] = shape[0]
    if not sizes or 0 in sizes.values():
        raise DataError("The batch is empty.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise DataError(f"Inputs and targets do not match in number of examples: {listed}.")
    return next(iter(sizes.values()))


def pad(batch: Batch, size: int) -> Batch:
    """Return the batch with ``size`` rows; the added ones have the weight ``ADDED``.

    They repeat rows of the batch. ``nn.BatchNorm`` ignores them; for other modules that mix the
    rows of a batch, see ``padding_check.py``.
    """
    count = num_examples(batch)
    weight = np.ones(count, np.float32) if batch.weight is None else batch.weight
    if count == size:
        return batch._replace(weight=np.asarray(weight, np.float32))
    index = np.arange(size) % count
    x, y = jax.tree.map(lambda leaf: np.asarray(leaf)[index], (batch.x, batch.y))
    padded = np.full(size, ADDED, np.float32)
    padded[:count] = weight
    return Batch(x, y, padded)


def _from_mapping(element: Mapping[Any, Any]) -> tuple[Any, Any, Any]:
    rest = dict(element)
    y = _targets(rest)
    weight = rest.pop(_WEIGHT_NAME, None)
    if not rest:
        raise DataError(
            f"The batch has no input: its only keys are {sorted(element)}, which are targets or "
            "weights."
        )
    return (next(iter(rest.values())) if len(rest) == 1 else rest), y, weight


def _targets(rest: dict[Any, Any]) -> Any:
    found = [name for name in _TARGET_NAMES if name in rest]
    if len(found) > 1:
        raise DataError(f"The batch has several entries that mean the same: {found}.")
    return rest.pop(found[0]) if found else None


def _arrays(part: Any) -> Any:
    if part is None or isinstance(part, np.ndarray):  # the usual case, without a tree walk
        return part if part is None else _array(part)
    return jax.tree.map(_array, part)


def _array(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, jax.Array)):
        if leaf.dtype == object:
            raise DataError(
                "A batch holds an array of Python objects: its rows have different lengths or "
                "are not numbers. Pad the rows to one length."
            )
        return leaf
    if hasattr(leaf, "__array__"):
        return np.asarray(leaf)
    raise ArgumentTypeError(
        f"A batch holds {type(leaf).__name__}, which is not an array. Convert it with np.asarray."
    )


def class_table(weights: Mapping[int, float] | None) -> np.ndarray | None:
    """Return the weight of every class, float32, from a mapping; missing classes have 1.

    Raises:
        ArgumentTypeError: it is not a mapping.
        ArgumentError: a key is not a class number, or a weight is negative or not finite.

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
    """Return weights, checked and moved to the host, where batches are padded (``pad``).

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
    """Return the batch with class weights applied and its own weights checked.

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
