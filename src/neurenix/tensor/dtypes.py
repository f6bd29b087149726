"""Names of dtypes: the ones of NumPy and JAX, and the short ones that people say.

Owns the map from names; the dtypes themselves are JAX's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.numpy import (
    bfloat16,
    bool_,
    complex64,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)

from neurenix._core.errors import ArgumentError, unknown_name

__all__ = [
    "bfloat16",
    "bool_",
    "complex64",
    "dtype",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int16",
    "int32",
    "int4",
    "int64",
    "int8",
    "uint16",
    "uint32",
    "uint4",
    "uint64",
    "uint8",
]

_NAMED = {
    str(np.dtype(kind)): np.dtype(kind)
    for kind in (
        *(bfloat16, float16, float32, float64, float8_e4m3fn, float8_e5m2, complex64, bool_),
        *(int4, int8, int16, int32, int64, uint4, uint8, uint16, uint32, uint64),
    )
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
    """Return the dtype that a name, a Python type or a dtype means.

    Raises:
        UnknownNameError: nothing is called so.
        ArgumentError: a 64-bit type while JAX computes in 32 bits.

    Example:
        >>> dtype("bf16"), dtype(float), dtype(jnp.int8)
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
            found = np.dtype(name)
        except TypeError as error:
            raise unknown_name("dtype", repr(name), _NAMED) from error
    if jax.dtypes.canonicalize_dtype(found) != found:
        raise ArgumentError(
            f"dtype {found} needs 64-bit arithmetic, which JAX has switched off and no TPU has in "
            'hardware. Use the 32-bit type, or jax.config.update("jax_enable_x64", True) first.'
        )
    return jnp.dtype(found)
