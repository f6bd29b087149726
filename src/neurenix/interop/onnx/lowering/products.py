"""Products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.element_types import computed
from neurenix.interop.onnx.lowering.elementwise import convert
from neurenix.interop.onnx.lowering.registry import lowers


@lowers("dot_general")
def _dot_general(b: Builder, equation: Any, x: Operand, y: Operand) -> Value:
    """Lower to MatMul: axes of x are (batch, own, summed), those of y (batch, summed, own)."""
    aval = equation.outvars[0].aval
    (sum_x, sum_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    dtype = computed(aval.dtype)
    x, y = (convert(b, operand, dtype) for operand in (x, y))
    own_x = [a for a in range(len(x.shape)) if a not in (*sum_x, *batch_x)]
    own_y = [a for a in range(len(y.shape)) if a not in (*sum_y, *batch_y)]
    summed = [x.shape[a] for a in sum_x]

    def sizes(value: Value, axes: Sequence[int]) -> list[Any]:
        return [value.shape[axis] for axis in axes]

    first = b.full(x, [*batch_x, *own_x, *sum_x])
    second = b.full(y, [*batch_y, *sum_y, *own_y])
    batch, left, right = sizes(x, batch_x), sizes(x, own_x), sizes(y, own_y)
    # Axes before the last two are batches for MatMul: rows of several axes need not be made one.
    keeps_rows = len(sum_x) == 1 and not batch_x and own_x
    if not keeps_rows and (len(own_x) != 1 or len(sum_x) != 1):
        first = b.reshape(first, (*batch, math.prod(left), math.prod(summed)))
    if len(own_y) != 1 or len(sum_y) != 1:
        second = b.reshape(second, (*batch, math.prod(summed), math.prod(right)))
    name = b.compute("MatMul", first, second, dtype=dtype)
    if len(own_y) != 1 or not (keeps_rows or len(own_x) == 1):
        name = b.reshape(name, (*batch, *left, *right))
    return b.value(name, aval.shape, aval.dtype)


@lowers("ragged_dot_general")
def _ragged_dot(b: Builder, equation: Any, x: Operand, y: Operand, counts: Operand) -> Value:
    """Lower to one MatMul for each group of rows."""
    aval = equation.outvars[0].aval
    dtype = computed(aval.dtype)
    x, y = (convert(b, operand, dtype) for operand in (x, y))
    rows, matrices = b.plain(x), b.plain(y)
    sizes = b.cast(b.plain(counts), counts.dtype, np.int64)
    ends = b.emit("CumSum", sizes, b.constant(np.int64(0)))
    starts = b.emit("Sub", ends, sizes)
    parts, axis = [], b.ints(0)
    last = b.ints(y.shape[0])
    for group in range(y.shape[0]):
        at = b.ints(group)
        start, end = b.emit("Gather", starts, at, axis=0), b.emit("Gather", ends, at, axis=0)
        own = b.emit("Slice", rows, start, end, axis)
        matrix = b.emit("Gather", matrices, b.constant(np.int64(group)), axis=0)
        parts.append(b.compute("MatMul", own, matrix, dtype=dtype))
    # Rows of no group are zero.
    end = b.emit("Gather", ends, b.emit("Sub", last, b.ints(1)), axis=0)
    others = b.emit("Sub", b.dimension(aval.shape[0]), end)
    shape = b.emit("Concat", others, b.dimension(aval.shape[1]), axis=0)
    parts.append(b.emit("Expand", b.constant(np.zeros((1, 1), dtype)), shape))
    name = b.emit("Concat", *parts, axis=0)
    return b.value(name, aval.shape, aval.dtype)
