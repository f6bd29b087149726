"""The optional packages of this bridge, imported when they are needed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from neurenix._core.errors import MissingExtraError

__all__ = ["import_onnx", "import_onnxruntime"]


def import_onnx(purpose: str, name: str = "onnx") -> Any:
    """Return the package ``onnx``, or a module of it.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError("onnx", "onnx", purpose) from error


def import_onnxruntime() -> Any:
    """Return ``onnxruntime``, which checks conversions, or None if it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    return importlib.import_module("onnxruntime")
