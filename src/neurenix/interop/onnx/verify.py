"""The comparison of a converted model with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.agreement import TOLERANCE, difference, first_line
from neurenix.interop.onnx.extra import find_onnxruntime
from neurenix.interop.onnx.model import Port

__all__ = ["Verification", "example_for", "verify"]


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
    runtime = find_onnxruntime()
    if runtime is None:
        return "not compared: onnxruntime is not installed"
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        wanted = session.run(list(outputs), dict(inputs))
    except Exception as error:  # onnxruntime's errors have no common class
        return f"not compared: onnxruntime does not run it ({first_line(error)[:200]})"
    found = call(**inputs)
    found = found if isinstance(found, tuple) else (found,)
    worst = 0.0
    for name, ours, theirs in zip(outputs, found, wanted, strict=True):
        if isinstance(theirs, list):  # maps of class labels, which come as one array here
            continue
        if np.asarray(theirs).dtype.kind in "OSU":
            continue  # text, which JAX has not
        apart = difference(ours, theirs)
        if not apart <= TOLERANCE:
            raise ConversionError(
                f"The output {name!r} differs from onnxruntime's by {apart:.1e}, relative to "
                "its largest number. Please report the model; check=False leaves the comparison "
                "out."
            )
        worst = max(worst, apart)
    return Verification(worst)
