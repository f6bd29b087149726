"""Sort and top_k."""

from __future__ import annotations

from typing import Any

import numpy as np

from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.element_types import computed, kernel_dtype
from neurenix.interop.onnx.lowering.registry import lowers

_INT64 = np.dtype(np.int64)


@lowers("sort")
def _sort(b: Builder, equation: Any, *operands: Operand) -> list[Value]:
    """Lower to TopK of all elements, which keeps the order of equal ones; the last key first."""
    params = equation.params
    axis, keys = params["dimension"], params["num_keys"]
    size = operands[0].shape[axis]
    names = [b.plain(operand) for operand in operands]
    kinds = [computed(operand.dtype) for operand in operands]
    for key in reversed(range(keys)):
        ordered, at = _top(b, names[key], kinds[key], b.dimension(size), axis, largest=0)
        names = [
            ordered if number == key else b.emit("GatherElements", name, at, axis=axis)
            for number, name in enumerate(names)
        ]
    avals = [variable.aval for variable in equation.outvars]
    return [b.value(n, aval.shape, aval.dtype) for n, aval in zip(names, avals, strict=True)]


@lowers("top_k", "approx_top_k")
def _top_k(b: Builder, equation: Any, x: Operand) -> list[Value]:
    params = equation.params
    axis = params.get("axis", params.get("reduction_dimension")) % len(x.shape)
    largest = int(params.get("is_max_k", True))
    values, places = (variable.aval for variable in equation.outvars)
    kind = computed(x.dtype)
    found, at = _top(b, b.plain(x), kind, b.dimension(params["k"]), axis, largest=largest)
    at = b.cast(at, _INT64, computed(places.dtype))
    return [b.value(found, values.shape, kind), b.value(at, places.shape, places.dtype)]


def _top(
    b: Builder, name: str, dtype: np.dtype, count: str, axis: int, *, largest: int
) -> tuple[str, str]:
    wide = kernel_dtype("TopK", dtype)
    found, at = b.emit(
        "TopK", b.cast(name, dtype, wide), count, outputs=2, axis=axis, largest=largest, sorted=1
    )
    return b.cast(found, wide, dtype), at
