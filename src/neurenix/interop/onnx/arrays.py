"""Arrays of two kinds: known when a program is traced (NumPy), or computed by it (JAX).

``Shape → Gather → Reshape`` works because what is known stays in NumPy. Owns telling them apart,
and the step from one to the other. 64-bit numbers become 32-bit ones there, as everywhere in JAX
without ``jax_enable_x64``; a known integer that does not fit is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.files import MAX_ELEMENTS

__all__ = ["as_jax", "canonical", "expect_size", "is_known", "namespace"]

# A constant with more elements is computed by the program, not kept in it.
MAX_KNOWN = 2**16


def is_known(value: Any) -> bool:
    """Tell whether the value is known when the program is traced."""
    return isinstance(value, (np.ndarray, np.generic))


def namespace(*values: Any) -> Any:
    """Return ``numpy`` if all values are known, or else ``jax.numpy``; None counts for nothing."""
    return np if all(value is None or is_known(value) for value in values) else jnp


def canonical(dtype: Any) -> np.dtype:
    """Return the dtype that JAX has for a dtype."""
    return jax.dtypes.canonicalize_dtype(dtype)


def as_jax(value: Any) -> Any:
    """Return a value as a JAX array.

    Raises:
        ConversionError: a known integer does not fit into 32 bits, or the value is text.
    """
    if value is None or isinstance(value, jax.Array):
        return value
    values = np.asarray(value)
    if values.dtype.kind in "OSU":
        raise ConversionError("The model computes with text, which JAX has not.")
    wanted = canonical(values.dtype)
    if values.dtype.kind in "iu" and wanted != values.dtype and values.size:
        info = np.iinfo(wanted)
        if values.min() < info.min or values.max() > info.max:
            raise ConversionError(
                f"The integer {values.max() if values.max() > info.max else values.min()} does not "
                f"fit into the {info.bits} bits that JAX has by default. Make it smaller, or set "
                "jax_enable_x64."
            )
    return jnp.asarray(values, wanted)


def expect_size(shape: Sequence[int], what: str) -> tuple[int, ...]:
    """Return a shape, as integers, that a model asks for by a number.

    Raises:
        ConversionError: it is negative, or larger than any memory.
    """
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes) or math.prod(sizes) > MAX_ELEMENTS:
        raise ConversionError(
            f"{what} asks for an array of shape {sizes}. Arrays of up to {MAX_ELEMENTS:,} elements "
            "are made."
        )
    return sizes
