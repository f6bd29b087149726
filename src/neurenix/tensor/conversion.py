"""Convert data from the user into arrays of numbers.

Owns the checks (ragged lists, objects, values that do not fit) and the default dtypes: Python and
NumPy floats become float32 and integers int32, unless a dtype is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import DataError
from neurenix._dtypes import cast

_NARROW = {
    np.dtype("float64"): np.dtype("float32"),
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("complex128"): np.dtype("complex64"),
    np.dtype("longdouble"): np.dtype("float32"),
    np.dtype("clongdouble"): np.dtype("complex64"),
}


def numbers_of(data: Any, wanted: np.dtype | None) -> np.ndarray:
    """Return ``data`` as an array of numbers in a dtype that JAX supports."""
    if callable(getattr(data, "detach", None)):  # a PyTorch tensor, which may require gradients
        data = data.detach()
    try:
        array = np.asarray(data)
    except (ValueError, TypeError) as error:
        raise DataError(f"Tensor(data): {_why_not(data, error)}") from error
    if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == np.bool_):
        raise DataError(
            f"Tensor(data): needs numbers, got {_example(array)} (NumPy dtype {array.dtype})."
        )
    if not array.dtype.isnative:  # such as files in network byte order
        array = array.astype(array.dtype.newbyteorder("="))
    target = _NARROW.get(array.dtype, array.dtype) if wanted is None else wanted
    return cast(array, target, called="Tensor(data)")


def _why_not(data: Any, error: Exception) -> str:
    if isinstance(data, list | tuple):
        ragged = _ragged(data, "data")
        if ragged:
            return f"the list is ragged: {ragged}. Pad it to one length, or batch it by length."
    return f"cannot be converted to an array: {error}"


def _ragged(data: Sequence[Any], name: str) -> str:
    lengths = [len(item) if isinstance(item, list | tuple) else None for item in data]
    for index, length in enumerate(lengths):
        if length != lengths[0]:
            return f"{name}[0] has {_length(lengths[0])}, {name}[{index}] has {_length(length)}"
    for index, item in enumerate(data):
        if isinstance(item, list | tuple):
            found = _ragged(item, f"{name}[{index}]")
            if found:
                return found
    return ""


def _length(length: int | None) -> str:
    return "no length (a number)" if length is None else f"length {length}"


def _example(array: np.ndarray) -> str:
    first = array.reshape(-1)[0] if array.size else None
    return f"{type(first).__name__} {first!r}"
