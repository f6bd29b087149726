"""The comparison of an exported model with the module: onnxruntime's outputs with JAX's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.element_types import computed

# Largest differences, relative to the largest number of the array, that are no error.
TOLERANCE = 2e-3
_COARSE = 20.0  # times that for models in bfloat16 or float16, which compute in float32 there


def open_session(runtime: Any, path: str | os.PathLike[str]) -> Any:
    """Return onnxruntime's session of a file, on the CPU.

    Raises:
        ConversionError: onnxruntime refuses the file.
    """
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(
            os.fspath(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its classes are not public
        raise ConversionError(
            f"onnxruntime {runtime.__version__} cannot load the exported model: {first_line(error)}"
        ) from error


def largest_difference(
    session: Any, inputs: Mapping[str, np.ndarray], wanted: Sequence[Any]
) -> float:
    """Return the largest difference of a session's outputs from those wanted.

    Raises:
        ConversionError: onnxruntime fails while it computes.
    """
    taken = {one.name for one in session.get_inputs()}
    given = {
        name: np.asarray(array).astype(computed(array.dtype))
        for name, array in inputs.items()
        if name in taken
    }
    try:
        found = session.run(None, given)
    except Exception as error:  # its classes are not public
        raise ConversionError(
            f"onnxruntime fails on the exported model: {first_line(error)}"
        ) from error
    return max((difference(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().split("\n", 1)[0]


def difference(found: Any, wanted: Any) -> float:
    """Return the largest difference relative to the largest number; infinite for NaN apart.

    Example:
        >>> difference(np.array([1.0, 2.0]), np.array([1.0, 4.0]))
        0.5
    """
    a, b = np.asarray(found), np.asarray(wanted)
    if a.shape != b.shape:
        return float("inf")
    if b.dtype.kind in "biu" or b.size == 0:
        return float(not np.array_equal(a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    ):
        return float("inf")
    scale = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-12)
    return float(np.abs(a - b)[finite].max(initial=0.0)) / scale


def tolerance(dtypes: set[str]) -> float:
    """Return the largest difference that is no error, for a model with arrays of these dtypes."""
    return TOLERANCE * (_COARSE if dtypes & {"bfloat16", "float16"} else 1.0)


Compute = Callable[[Sequence[Any]], Sequence[Any]]
