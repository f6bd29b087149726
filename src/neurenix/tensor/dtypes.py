"""Public names of dtypes: those of NumPy and JAX, short names, and their limits.

The map from names to dtypes is in ``_dtypes``.
"""

from __future__ import annotations

from jax.numpy import (
    bfloat16,
    bool_,
    complex64,
    finfo,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    iinfo,
    int4,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    issubdtype,
    promote_types,
    result_type,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)

from neurenix._dtypes import dtype

__all__ = [
    "bfloat16",
    "bool_",
    "complex64",
    "dtype",
    "finfo",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "iinfo",
    "int16",
    "int32",
    "int4",
    "int64",
    "int8",
    "isdtype",
    "issubdtype",
    "promote_types",
    "result_type",
    "uint16",
    "uint32",
    "uint4",
    "uint64",
    "uint8",
]
