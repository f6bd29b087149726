"""Make a ``BatchSource`` from user data: arrays, a dataset, or an iterable of batches.

Owns the distinction of these and the errors for wrong data. Does not own the size and number of
the batches that a step takes (``epoch_iterator.py``).
"""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np

from neurenix import random
from neurenix._core.errors import ArgumentError, DataError
from neurenix._core.keys import keys_explained
from neurenix._jit.training_mode import inputs_only
from neurenix.data import BatchSource, Dataset
from neurenix.data.columns import as_array
from neurenix.data.stream import StreamDataset, as_batch_source
from neurenix.distribute import DistributedDataset, PerReplicaDataset
from neurenix.train.batch import checked_weights, named_inputs

DEFAULT_BATCH_SIZE = 32


def make_dataset(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, *, shuffle: bool
) -> BatchSource:
    """Return the batches of ``fit``: of arrays, a dataset, or any iterable of batches.

    Arrays are shuffled with the seed of ``nx.seed``; its random stream does not advance.

    Raises:
        DataError: ``x`` and ``y`` do not match, or are ragged, or empty.
        ArgumentError: a batch size for data that is batched already.
    """
    known = isinstance(x, (Dataset, StreamDataset))
    if y is None and (known or not is_arrays(x)):
        dataset = x if known else _source_of(x)
        if isinstance(dataset, Dataset) and dataset.batch_size is None:
            dataset = dataset.batch(batch_size or DEFAULT_BATCH_SIZE)
        elif batch_size is not None:
            raise ArgumentError(
                f"batch_size={batch_size} was given with a dataset that is batched already. Leave "
                "it out, or give arrays."
            )
        if sample_weight is not None:
            raise ArgumentError("sample_weight goes with arrays; a dataset yields (x, y, weight).")
        return dataset
    if y is None and isinstance(x, tuple):
        x = (x,)  # not (x, y): the inputs of a model that takes several
    check_lists(x, y)
    dataset = Dataset.from_arrays(x, y, sample_weight=_host_weights(sample_weight))
    if shuffle:
        dataset = dataset.shuffle(seed=random.current_seed())
    return dataset.batch(batch_size or DEFAULT_BATCH_SIZE)


def _source_of(data: Any) -> BatchSource:
    if isinstance(data, PerReplicaDataset):
        return data.process_batches()
    # What a strategy splits, fit splits itself.
    return as_batch_source(data.dataset if isinstance(data, DistributedDataset) else data)


def make_inputs(x: Any, batch_size: int | None, module: Any) -> BatchSource:
    """Return the batches of ``predict``; a dict of arrays is inputs by name.

    Args:
        x: as for ``make_dataset``.
        batch_size: for arrays.
        module: the module to call, whose parameters distinguish inputs from targets.

    Raises:
        DataError: as ``make_dataset``; or a list of arrays may be inputs or batches.
        ArgumentError: as ``make_dataset``.
    """
    if isinstance(x, dict) and is_arrays(x):
        x = named_inputs(x, inputs_only(inspect.signature(module)).parameters)
    _check_batches(x, module)
    if isinstance(x, dict):  # in a tuple, so that no name is taken for that of the targets
        return Dataset.from_arrays((x,)).batch(batch_size or DEFAULT_BATCH_SIZE)
    return make_dataset(x, None, None, batch_size, shuffle=False)


def make_validation_dataset(data: Any, batch_size: int) -> BatchSource:
    """Return batches from ``validation_data``: (x, y), (x, y, sample_weight), or a dataset.

    Raises:
        ArgumentError: a tuple of another length.
        DataError: as ``make_dataset``.
    """
    if isinstance(data, tuple) or _is_pair_in_list(data):
        if not 2 <= len(data) <= 3:
            raise ArgumentError(
                "It is (x, y), (x, y, sample_weight) or a dataset, got a tuple of "
                f"{len(data)}. There are no targets without y."
            )
        x, y, weight = (*data, None)[:3]
        return make_dataset(x, y, weight, batch_size, shuffle=False)
    unbatched = isinstance(data, Dataset) and data.batch_size is None
    size = batch_size if unbatched or _is_array_like(data) else None
    return make_dataset(data, None, None, size, shuffle=False)


def is_arrays(x: Any) -> bool:
    """Return whether ``x`` is the inputs of all examples, not a source of batches."""
    return _is_array_like(x) or _is_several(x)


def _is_pair_in_list(data: Any) -> bool:
    return isinstance(data, list) and 2 <= len(data) <= 3 and _is_array_like(data[0])


def _is_array_like(x: Any) -> bool:
    if isinstance(x, (np.ndarray, jax.Array)) or hasattr(x, "__array__"):
        return True
    if isinstance(x, dict):
        return all(map(_is_array_like, x.values()))
    return isinstance(x, list) and bool(x) and isinstance(x[0], (int, float, list))


def check_lists(x: Any, y: Any) -> None:
    """Raise for Keras's lists of inputs or targets; here, items of a list are rows.

    Raises:
        DataError: each item of a list has as many rows as the other argument.
    """
    for name, one, other, advice in (
        ("x", x, y, "Several inputs of a model go in a tuple: fit((a, b), y)."),
        ("y", y, x, "Targets of several outputs go in a tuple: fit(x, (a, b))."),
    ):
        rows, count = _rows_of_each(one), _rows(other)
        if rows is not None and rows in (count, _rows_of_each(other)) and len(one) != count:
            beside = "y" if name == "x" else "x"
            raise DataError(
                f"{name} is a list of {len(one)} arrays, each with the {rows} rows that {beside} "
                f"has. {advice} The items of a list are its rows."
            )


def _check_batches(x: Any, module: Any) -> None:
    """Raise for a list of arrays that may be batches of one size or inputs of ``module``."""
    rows = _rows_of_each(x)
    if rows is None:
        return
    try:
        inputs_only(inspect.signature(module)).bind(*x)
    except TypeError:
        return
    raise DataError(
        f"x is a list of {len(x)} arrays of {rows} rows each, which may be {len(x)} inputs of "
        f"{type(module).__name__} or {len(x)} batches. Give inputs in a tuple, predict((a, b)); "
        "and batches one after the other, predict(iter([a, b]))."
    )


def _rows_of_each(parts: Any) -> int | None:
    """Return the number of rows of each of several arrays in a list, else None."""
    if not isinstance(parts, list) or len(parts) < 2:
        return None
    if not all(hasattr(part, "__array__") for part in parts):
        return None
    sizes = {np.shape(part)[:1] for part in parts}
    return next(iter(sizes.pop()), None) if len(sizes) == 1 else None


def _rows(tree: Any) -> int | None:
    """Return the number of rows of arrays, or of a list of rows; None if unknown."""
    if isinstance(tree, list):
        return len(tree)
    with keys_explained(tree):
        shape = next((np.shape(leaf) for leaf in jax.tree.leaves(tree)), ())
    return shape[0] if shape else None


def _is_several(x: Any) -> bool:
    return isinstance(x, tuple) and bool(x) and all(map(_is_array_like, x))


def _host_weights(weights: Any) -> Any:
    if weights is None:
        return None
    weights = as_array(weights, "sample_weight")
    return checked_weights(weights[:, 0] if weights.shape[1:] == (1,) else weights)
