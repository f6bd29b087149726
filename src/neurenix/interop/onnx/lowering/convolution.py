"""Convolutions, by any dimension numbers: Conv, or ConvTranspose where the input is dilated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.element_types import computed
from neurenix.interop.onnx.lowering.elementwise import convert
from neurenix.interop.onnx.lowering.registry import CannotLowerError, lowers
from neurenix.interop.onnx.lowering.shapes import padded, reverse, sliced, turned

_MAKES_SENSE = {"float16", "float32"}


@lowers("conv_general_dilated")
def _convolution(b: Builder, equation: Any, x: Operand, kernel: Operand) -> Value:
    aval, params = equation.outvars[0].aval, equation.params
    dtype = computed(aval.dtype)
    if dtype.name not in _MAKES_SENSE:
        raise CannotLowerError(f"onnxruntime convolves no {dtype.name}; cast to float32 before")
    numbers = params["dimension_numbers"]
    # Axes as in ONNX: (N, C, …) and (O, I, …).
    x = turned(b, convert(b, x, dtype), numbers.lhs_spec)
    kernel = turned(b, convert(b, kernel, dtype), numbers.rhs_spec)
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    if batches > 1:
        x, groups = _batches_as_groups(b, x, batches), batches
    spaced = any(step != 1 for step in params["lhs_dilation"])
    make = _transposed if spaced else _direct
    shape = tuple(aval.shape[axis] for axis in numbers.out_spec)
    out = make(b, x, kernel, shape, groups, params)
    place = [numbers.out_spec.index(axis) for axis in range(len(shape))]
    return turned(b, out, place)


def _direct(
    b: Builder, x: Value, kernel: Value, shape: Any, groups: int, params: dict[str, Any]
) -> Value:
    pads = params["padding"]
    around = [(0, 0, 0), (0, 0, 0), *((min(low, 0), min(high, 0), 0) for low, high in pads)]
    x = padded(b, x, np.zeros((), x.dtype), around)
    strides = params["window_strides"]
    name = b.compute(
        "Conv",
        b.full(x, range(len(shape))),
        b.full(kernel, range(len(shape))),
        dtype=x.dtype,
        group=groups,
        pads=[max(low, 0) for low, _ in pads] + [max(high, 0) for _, high in pads],
        strides=list(strides),
        dilations=list(params["rhs_dilation"]),
        kernel_shape=list(kernel.shape[2:]),
    )
    return b.value(name, shape, x.dtype)


def _transposed(
    b: Builder, x: Value, kernel: Value, shape: Any, groups: int, params: dict[str, Any]
) -> Value:
    """Return a convolution of the input with zeros between its elements.

    ConvTranspose slides the reversed kernel over all places at which it touches the input. Where
    less is wanted, it crops; where more is wanted, zeros are added.
    """
    spatial = range(2, len(shape))
    out, into, *sizes = kernel.shape
    kernel = reverse(b, kernel, list(spatial))
    name = b.plain(kernel)
    if groups > 1:
        name = b.reshape(name, (groups, out // groups, into, *sizes))
        name = b.emit("Transpose", name, perm=[0, 2, 1, *(a + 1 for a in spatial)])
        name = b.reshape(name, (groups * into, out // groups, *sizes))
    else:
        name = b.emit("Transpose", name, perm=[1, 0, *spatial])
    dilations, steps = params["rhs_dilation"], params["lhs_dilation"]
    reach = [(size - 1) * step for size, step in zip(sizes, dilations, strict=True)]
    crops = [
        (far - low, far - high) for far, (low, high) in zip(reach, params["padding"], strict=True)
    ]
    made = b.compute(
        "ConvTranspose",
        b.full(x, range(len(shape))),
        name,
        dtype=x.dtype,
        group=groups,
        strides=list(steps),
        dilations=list(dilations),
        kernel_shape=list(sizes),
        pads=[max(low, 0) for low, _ in crops] + [max(high, 0) for _, high in crops],
    )
    whole = [
        (size - 1) * step + 1 + far - max(low, 0) - max(high, 0)
        for size, step, far, (low, high) in zip(x.shape[2:], steps, reach, crops, strict=True)
    ]
    if any(isinstance(size, int) and size < 1 for size in whole):
        raise CannotLowerError("it keeps less than one element of the transposed convolution")
    value = b.value(made, (*shape[:2], *whole), x.dtype)
    more = [(0, 0, 0), (0, 0, 0), *((max(-low, 0), max(-high, 0), 0) for low, high in crops)]
    value = padded(b, value, np.zeros((), x.dtype), more)
    return strided(b, value, (1, 1, *params["window_strides"]))


def strided(b: Builder, x: Value, strides: Sequence[int]) -> Value:
    """Return every n-th element along each axis."""
    return sliced(b, x, [0] * len(strides), x.shape, strides)


def _batches_as_groups(b: Builder, x: Value, batches: int) -> Value:
    rows, channels, *rest = x.shape
    name = b.reshape(b.plain(x), (batches, rows // batches, channels, *rest))
    name = b.emit("Transpose", name, perm=[1, 0, *range(2, len(x.shape) + 1)])
    shape = (rows // batches, batches * channels, *rest)
    return b.value(b.reshape(name, shape), shape, x.dtype)
