"""Element types: which one of ONNX holds numbers of a dtype, and which ones a kernel takes.

bfloat16 and the 8-bit floats are stored as they are and computed in float32: onnxruntime's CPU
kernels take neither.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.extra import import_onnx

_STORED_ONLY = {
    "bfloat16": "BFLOAT16",
    "float8_e4m3fn": "FLOAT8E4M3FN",
    "float8_e4m3fnuz": "FLOAT8E4M3FNUZ",
    "float8_e5m2": "FLOAT8E5M2",
    "float8_e5m2fnuz": "FLOAT8E5M2FNUZ",
}
_COMPUTED = {
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "float16": "FLOAT16",
    "int8": "INT8",
    "uint8": "UINT8",
    "int16": "INT16",
    "uint16": "UINT16",
    "int32": "INT32",
    "uint32": "UINT32",
    "int64": "INT64",
    "uint64": "UINT64",
    "bool": "BOOL",
}

# The dtypes that onnxruntime's CPU kernels take, where these are not all numbers.
_FLOATS = {"float16", "float32", "float64"}
_COMMON = _FLOATS | {"int32", "int64"}
_ACCEPTED = {
    "Pow": _COMMON,
    "Max": _COMMON | {"int8", "uint8", "uint32", "uint64"},
    "Min": _COMMON | {"int8", "uint8", "uint32", "uint64"},
    "Neg": _COMMON | {"int8", "int16"},
    "Where": _COMMON | {"int8", "uint8", "uint32"},
    "ReduceSum": _COMMON,
    "ReduceProd": _COMMON,
    "ReduceMax": _COMMON | {"int8", "uint8", "bool"},
    "ReduceMin": _COMMON | {"int8", "uint8", "bool"},
    "ArgMax": _COMMON | {"int8", "uint8"},
    "ArgMin": _COMMON | {"int8", "uint8"},
    "CumSum": _COMMON,
    "TopK": _COMMON | {"int8", "uint8", "int16"},
    "MatMul": _COMMON | {"uint32", "uint64"},
    "MaxPool": _FLOATS | {"int8", "uint8"},
    "AveragePool": {"float16", "float32"},
    "Conv": {"float16", "float32"},
    "ConvTranspose": {"float16", "float32"},
    "Pad": _COMMON | {"int8", "uint8", "uint32", "uint64", "bool"},
}
_WIDER = {
    "bool": "int32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
}
_EXACT = {"MaxPool": {"int32": "float64", "int16": "float64", "uint16": "float64"}}


def stored_type(dtype: Any) -> int:
    """Return ONNX's number of the element type that stores a dtype.

    Raises:
        ConversionError: ONNX has none, as for complex numbers.
    """
    name = jnp.dtype(dtype).name
    member = _COMPUTED.get(name) or _STORED_ONLY.get(name)
    if member is None:
        raise ConversionError(f"ONNX has no numbers of the dtype {name} here.")
    return element_type(member)


def element_type(member: str) -> int:
    """Return ONNX's number of an element type, such as ``"FLOAT"``."""
    return int(getattr(import_onnx("nx.to_onnx").TensorProto, member))


def computed(dtype: Any) -> np.dtype:
    """Return the dtype in which numbers of a dtype are computed.

    Example:
        >>> computed("bfloat16"), computed("int8")
        (dtype('float32'), dtype('int8'))
    """
    dtype = jnp.dtype(dtype)
    return np.dtype(np.float32) if dtype.name in _STORED_ONLY else dtype


def kernel_dtype(op: str, dtype: np.dtype) -> np.dtype:
    """Return the dtype in which an operator computes numbers of a dtype exactly.

    Example:
        >>> kernel_dtype("Where", np.dtype("bool")), kernel_dtype("Add", np.dtype("int8"))
        (dtype('int32'), dtype('int8'))
    """
    accepted = _ACCEPTED.get(op)
    if accepted is None or dtype.name in accepted:
        return dtype
    wider = _EXACT.get(op, _WIDER).get(dtype.name, "")
    return np.dtype(wider) if wider in accepted else dtype
