"""Check arrays of examples: an equal number of rows, numbers only, 64 bits cast to 32.

Owns the conversion of users' data and its errors. Does not own the order in which rows are read
(``neurenix.data.order``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import DataError
from neurenix._core.keys import keys_explained

_NARROW = {
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}
# Extended precision, where it differs from 64 bits; JAX does not have it.
_EXTENDED = {np.dtype(np.longdouble), np.dtype(np.clongdouble)} - {*_NARROW}
_NARROW |= {kind: np.dtype(np.complex64 if kind.kind == "c" else np.float32) for kind in _EXTENDED}
WIDE = frozenset(_NARROW)
"""The 64-bit (and extended) dtypes, which only a ``jax.Array`` keeps."""


@dataclass(frozen=True)
class Columns:
    """Arrays with the same number of rows, in dicts and tuples.

    Args:
        leaves: the arrays, each of shape ``(rows, …)``.
        structure: their tree structure.
        rows: the number of examples.
    """

    leaves: tuple[np.ndarray, ...]
    structure: Any
    rows: int


def as_columns(data: Any, name: str) -> Columns:
    """Check arrays and convert them to NumPy, 64-bit numbers to 32 bits.

    NumPy creates 64-bit arrays by default, so 64 bits are not a choice. A ``jax.Array`` keeps its
    dtype, which has 64 bits only with ``jax_enable_x64``. Arrays that need no conversion are not
    copied: do not write to them afterwards.

    Args:
        data: an array-like of shape ``(rows, …)``, or dicts and tuples of such.
        name: the argument's name, for messages.

    Returns:
        The arrays, their structure and the number of rows.

    Raises:
        DataError: no rows, different numbers of rows, ragged lists, object or text arrays, an
            integer that does not fit into 32 bits, or a torch tensor that NumPy cannot read. The
            message names the array.

    Example:
        >>> as_columns({"x": [[1, 2], [3, 4]], "y": [0, 1]}, "data").rows
        2
    """
    converted = _convert(data, name)
    with keys_explained(converted):
        leaves, structure = jax.tree.flatten(converted)
    if not leaves:
        raise DataError(f"{name} holds no array: found {data!r}.")
    paths = [name + jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(converted)]
    counts = [len(leaf) for leaf in leaves]
    if len(set(counts)) > 1:
        found = ", ".join(f"{path} has {n}" for path, n in zip(paths, counts, strict=True))
        raise DataError(f"All arrays need the same number of rows (examples): {found}.")
    if counts[0] == 0:
        raise DataError(f"{paths[0]} is empty: it has shape {leaves[0].shape}, no rows.")
    return Columns(tuple(leaves), structure, counts[0])


def _convert(data: Any, path: str) -> Any:
    if isinstance(data, dict):
        return {key: _convert(value, f"{path}[{key!r}]") for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_convert(value, f"{path}[{place}]") for place, value in enumerate(data))
    return as_array(data, path)


def as_array(data: Any, name: str) -> np.ndarray:
    """Convert one array-like to NumPy; see ``as_columns``.

    Raises:
        DataError: as ``as_columns``.

    Example:
        >>> as_array([[1.0, 2.0], [3.0]], "x")
        Traceback (most recent call last):
            ...
        neurenix._core.errors.DataError: x is ragged: row 0 has length 2 and row 1 has length 1. \
Pad the rows to one length.
    """
    array = as_numbers(data, name)
    if np.ndim(array) == 0:
        raise DataError(f"{name} is the single number {array}; its first axis must be the rows.")
    return np.asarray(array)


def as_numbers(data: Any, name: str, *, narrow: bool = True) -> Any:
    """Convert one array-like or number to NumPy, 64 bits to 32; a ``jax.Array`` keeps its dtype.

    Args:
        data: an array-like of any shape, including ``()``.
        name: its name, for messages.
        narrow: whether to cast 64-bit numbers to 32 bits.

    Returns:
        An array; for shape ``()``, a NumPy scalar.

    Raises:
        DataError: as ``as_columns``.

    Example:
        >>> as_numbers(3, "x"), as_numbers([0.5], "x").dtype
        (np.int32(3), dtype('float32'))
    """
    if data is None:
        raise DataError(f"{name} is None; an array is needed.")
    try:
        array = np.asarray(data)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise DataError(f"{name} cannot be read as an array: {error}") from error
        raise DataError(f"{name} is ragged: {_where_ragged(data)}.") from error
    except (RuntimeError, TypeError) as error:
        if not hasattr(data, "detach"):  # not a torch tensor
            raise
        if getattr(data, "requires_grad", False):
            raise DataError(
                f"{name} is a tensor that requires a gradient, which torch does not give as an "
                "array. Call .detach() on it."
            ) from error
        raise DataError(f"{name} cannot be read as an array: {error}") from error
    if array.dtype.kind in "OUSMm":
        what = {"O": "Python objects", "M": "dates", "m": "durations"}.get(array.dtype.kind, "text")
        raise DataError(
            f"{name} holds {what} (dtype {array.dtype}, shape {array.shape}), not numbers. "
            "Convert it first: encode text and categories as integers, make sparse data dense."
        )
    if array.dtype.type is np.void:
        raise DataError(
            f"{name} holds records ({array.dtype}), not numbers. Give an array of each field, such "
            "as a dict of them."
        )
    if not array.dtype.isnative:  # such as from a file in network byte order
        array = array.astype(array.dtype.newbyteorder("="))
    keeps = isinstance(data, jax.Array) or not (narrow or array.dtype in _EXTENDED)
    array = array if keeps else _narrowed(array, name)
    return array if array.ndim else array[()]


def _narrowed(array: np.ndarray, name: str) -> np.ndarray:
    narrow = _NARROW.get(array.dtype)
    if narrow is None:
        return array
    if narrow.kind in "iu" and array.size:
        limits, low, high = np.iinfo(narrow), array.min(), array.max()
        if low < limits.min or high > limits.max:
            raise DataError(
                f"{name} holds integers from {low} to {high}, which do not fit into {narrow}. "
                "Renumber them, or convert to float32."
            )
    return array.astype(narrow)


def _where_ragged(data: Any) -> str:
    advice = "Pad the rows to one length"
    if isinstance(data, Sequence):
        shapes = [np.shape(row) if not isinstance(row, Sequence) else (len(row),) for row in data]
        for place, shape in enumerate(shapes):
            if shape != shapes[0]:
                if len(shape) == len(shapes[0]) == 1:
                    sizes = f"length {shapes[0][0]} and row {place} has length {shape[0]}"
                else:
                    sizes = f"shape {shapes[0]} and row {place} has shape {shape}"
                return f"row 0 has {sizes}. {advice}"
    return f"its inner lists differ in length. {advice}"
