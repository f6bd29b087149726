"""The packages of the extra ``onnx``, imported at the first use."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from neurenix._core.errors import MissingExtraError

__all__ = ["find_onnxruntime", "import_onnx"]


def import_onnx(purpose: str, name: str = "onnx") -> Any:
    """Return the package ``onnx``, or a module of it.

    Args:
        purpose: what needs it, for the error.
        name: ``"onnx"``, or ``"onnx.numpy_helper"``.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", purpose) from error


def find_onnxruntime() -> Any:
    """Return the package ``onnxruntime``, which checks models, or None if it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    return importlib.import_module("onnxruntime")
