"""One function for each primitive of JAX: importing registers them.

Each takes the builder, the equation and its operands, and adds the nodes.
"""

from neurenix.interop.onnx.lowering import (
    control,
    convolution,
    elementwise,
    indexing,
    products,
    reductions,
    shapes,
    sorting,
    windows,
)
from neurenix.interop.onnx.lowering.registry import Problem, Program, known_primitives, lower

__all__ = [
    "Problem",
    "Program",
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "known_primitives",
    "lower",
    "products",
    "reductions",
    "shapes",
    "sorting",
    "windows",
]
