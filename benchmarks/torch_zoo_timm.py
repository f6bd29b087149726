"""``timm``, imported beside a ``torchvision`` whose compiled operators may not load.

``timm`` imports ``torchvision`` for a few Python functions. Its wheels hold operators compiled for
one build of PyTorch: beside another one (a CPU build) ``import torchvision`` stops, since it gives
shapes to operators that are not there. Declared beforehand, they are never called.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.prefix) / "torchvision"
"""Where torchvision lies when it is installed for timm alone: ``transformers`` takes any that it
finds, and does not import beside one whose operators are missing."""

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@functools.cache
def import_timm() -> Any:
    """Return ``timm``.

    Raises:
        ImportError: it or torchvision is not installed.
    """
    if FOLDER.is_dir() and importlib.util.find_spec("torchvision") is None:
        sys.path.append(str(FOLDER))
    if "torchvision" not in sys.modules and not _load_operators():
        import torch

        for schema in _OPERATORS:
            name, arguments = schema.split("(", 1)
            torch.library.define(f"torchvision::{name}", f"({arguments}")
    import timm

    return timm


def _load_operators() -> bool:
    """Load the compiled operators of torchvision; return whether they fit this PyTorch."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ImportError("timm needs torchvision, which is not installed.")
    try:
        for library in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(library)
    except OSError:
        return False
    return True
