"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.element_types import computed
from neurenix.interop.onnx.lowering.elementwise import Formula, convert
from neurenix.interop.onnx.lowering.registry import CannotLowerError, lowers

_REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_or": "ReduceMax",
    "reduce_and": "ReduceMin",
}


@lowers(*_REDUCTIONS)
def _reduce(b: Builder, equation: Any, x: Operand, *_: Operand) -> Value:
    name = equation.primitive.name
    if name in ("reduce_or", "reduce_and") and x.dtype != np.bool_:
        raise CannotLowerError("ONNX reduces bits of booleans only")
    return reduced(b, x, _REDUCTIONS[name], equation.params["axes"])


def reduced(b: Builder, x: Operand, op: str, axes: Sequence[int]) -> Value:
    """Return an operand reduced over axes, which are left out."""
    value = b.value_of(x)
    axes = [axis for axis in axes if axis in range(len(value.shape))]
    if not axes:
        return value
    name, order = b.full(value, value.order), value.order
    places = b.ints(*(order.index(axis) for axis in axes))
    name = b.compute(op, name, dtype=value.dtype, rest=(places,), keepdims=0)
    left = [axis for axis in range(len(order)) if axis not in axes]
    kept = [left.index(axis) for axis in order if axis in left]
    shape = tuple(value.shape[axis] for axis in left)
    return b.value(name, shape, value.dtype, order=tuple(kept))


@lowers("reduce_xor")
def _reduce_xor(b: Builder, equation: Any, x: Operand, *_: Operand) -> Value:
    aval = equation.outvars[0].aval
    if x.dtype != np.bool_:
        raise CannotLowerError("ONNX reduces bits of booleans only")
    total = reduced(b, convert(b, x, np.int32), "ReduceSum", equation.params["axes"])
    odd = Formula(b, total)("Mod", total, 2)
    return convert(b, odd, aval.dtype)


@lowers("argmax", "argmin")
def _arg(b: Builder, equation: Any, x: Operand) -> Value:
    aval, params = equation.outvars[0].aval, equation.params
    (axis,) = params["axes"]
    value = b.value_of(x)
    op = "ArgMax" if equation.primitive.name == "argmax" else "ArgMin"
    name = b.compute(op, b.plain(value), dtype=value.dtype, keep=True, axis=axis, keepdims=0)
    return b.value(b.cast(name, np.dtype(np.int64), computed(aval.dtype)), aval.shape, aval.dtype)
