"""The map from names to dtypes, and a cast that rejects values the dtype cannot hold.

The public names of dtypes are in ``tensor.dtypes``.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neurenix._core.errors import ArgumentError, DataError, unknown_name

_NAMED = {
    name: jnp.dtype(name)
    for name in (
        "bfloat16 float16 float32 float64 float8_e4m3fn float8_e5m2 complex64 bool "
        "int4 int8 int16 int32 int64 uint4 uint8 uint16 uint32 uint64"
    ).split()
}
_SHORT = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "bool_": "bool",
}
_PYTHON = {float: "float32", int: "int32", bool: "bool", complex: "complex64"}


def dtype(name: Any) -> np.dtype:
    """Return the dtype for a name, a Python type or a dtype.

    Raises:
        UnknownNameError: unknown dtype name.
        ArgumentError: the dtype has 64 bits and JAX computes in 32.

    Example:
        >>> nx.dtype("bf16"), nx.dtype(float), nx.dtype(nx.int8)
        (dtype(bfloat16), dtype('float32'), dtype('int8'))
    """
    if isinstance(name, type) and name in _PYTHON:
        name = _PYTHON[name]
    if isinstance(name, str):
        spelled = name.strip().lower()
        found = _NAMED.get(_SHORT.get(spelled, spelled))
        if found is None:
            raise unknown_name("dtype", name, [*_NAMED, *_SHORT])
    else:
        try:
            found = np.dtype("O" if name is None else name)  # NumPy's dtype(None) is float64
        except TypeError as error:
            raise unknown_name("dtype", repr(name), _NAMED) from error
        if not (jnp.issubdtype(found, jnp.number) or found == np.bool_):
            raise unknown_name("dtype", repr(name), _NAMED)
    if jax.dtypes.canonicalize_dtype(found) != found:
        raise ArgumentError(
            f"dtype {found} needs 64-bit arithmetic, which JAX has switched off and no TPU has in "
            'hardware. Use the 32-bit type, or jax.config.update("jax_enable_x64", True) first.'
        )
    return jnp.dtype(found)


def names_dtype(value: Any) -> bool:
    """Return whether ``value`` is a dtype, a dtype name, or a type that stands for one.

    Example:
        >>> names_dtype("bf16"), names_dtype(jnp.float16), names_dtype("cpu")
        (True, True, False)
    """
    if isinstance(value, str):
        spelled = value.strip().lower()
        return _SHORT.get(spelled, spelled) in _NAMED
    if isinstance(value, type):
        return value in _PYTHON or issubclass(value, np.generic) or hasattr(value, "dtype")
    return isinstance(value, np.dtype)


def cast(array: Any, target: np.dtype, *, called: str) -> Any:
    """Return a NumPy or JAX array cast to another dtype.

    Args:
        array: any shape. Traced values cannot be checked; out-of-range integers wrap.
        target: the dtype.
        called: name of the array in the error.

    Raises:
        DataError: ``target`` is an integer dtype that cannot hold the values.

    Example:
        >>> cast(np.array([1.5]), np.dtype("int8"), called="data")
        array([1], dtype=int8)
    """
    real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
    may_wrap = real and jnp.issubdtype(target, jnp.integer) and array.dtype != target
    if may_wrap and array.size and not isinstance(array, Tracer):
        expect_held(called, array.min().item(), array.max().item(), target)
    return array.astype(target)


def expect_held(what: str, first: float, last: float, target: np.dtype) -> None:
    """Raise DataError if an integer dtype cannot hold both numbers."""
    if not jnp.issubdtype(target, jnp.integer):
        return
    limits = jnp.iinfo(target)
    for number in (first, last):
        if not math.isfinite(number) or not limits.min <= math.trunc(number) <= limits.max:
            raise DataError(
                f"{what}: contains {number}, and {target} holds {limits.min} to {limits.max}. "
                "Pass another dtype."
            )
