"""The comparison of a converted model with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.extra import import_onnxruntime
from neurenix.interop.onnx.model import Port

__all__ = ["Verification", "example_for", "verify"]

# Largest difference, relative to the largest number of an output, that is no error: rounding.
_TOLERANCE = 2e-3


@dataclass(frozen=True)
class Verification:
    """The largest difference from onnxruntime.

    Attributes:
        outputs: relative to the largest number of the output.
    """

    outputs: float

    def __str__(self) -> str:
        return f"largest difference from onnxruntime {self.outputs:.1e}"


def example_for(port: Port, sizes: Mapping[str, int]) -> np.ndarray:
    """Return values for an input: small numbers, 2 for every size that the file leaves open."""
    shape = [
        size if isinstance(size, int) else sizes.get(size or "", 2) for size in port.shape or ()
    ]
    dtype = np.dtype(np.float32) if port.dtype is None else port.dtype
    rng = np.random.default_rng(0)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def verify(data: Any, call: Any, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Any:
    """Compare a converted model with onnxruntime.

    Args:
        data: path or bytes of the ONNX file.
        call: the converted model, a function of inputs by name.
        inputs: arrays by name.
        outputs: names of the outputs.

    Returns:
        ``Verification``; or a text that says why nothing was compared.

    Raises:
        ConversionError: the outputs differ by more than rounding.
    """
    runtime = import_onnxruntime()
    if runtime is None:
        return "not compared: onnxruntime is not installed"
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        wanted = session.run(list(outputs), dict(inputs))
    except Exception as error:  # noqa: BLE001  onnxruntime's errors have no common class
        first = str(error).strip().splitlines()[0][:200]
        return f"not compared: onnxruntime does not run it ({first})"
    found = call(**inputs)
    found = found if isinstance(found, tuple) else (found,)
    worst = 0.0
    for name, ours, theirs in zip(outputs, found, wanted, strict=True):
        if isinstance(theirs, list):  # maps of class labels, which come as one array here
            continue
        difference = _difference(np.asarray(jax.device_get(ours)), np.asarray(theirs))
        if not difference <= _TOLERANCE:
            raise ConversionError(
                f"The output {name!r} differs from onnxruntime's by {difference:.1e}, relative to "
                "its largest number. Please report the model; check=False leaves the comparison "
                "out."
            )
        worst = max(worst, difference)
    return Verification(worst)


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    if theirs.dtype.kind in "OSU":
        return 0.0
    if ours.shape != theirs.shape:
        return float("inf")
    if theirs.dtype.kind in "biu" or ours.size == 0:
        return float(not np.array_equal(ours, theirs))
    a, b = ours.astype(np.complex128), theirs.astype(np.complex128)
    if not np.array_equal(np.isnan(a), np.isnan(b)) or not np.array_equal(np.isinf(a), np.isinf(b)):
        return float("inf")
    finite = np.isfinite(b)
    scale = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-6)
    return float(np.abs(a - b)[finite].max(initial=0.0)) / scale
