"""Reductions of windows: pools."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from neurenix._jaxpr import open_jaxpr
from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.lowering.convolution import strided
from neurenix.interop.onnx.lowering.registry import CannotLowerError, Program, lowers
from neurenix.interop.onnx.lowering.shapes import padded, sliced, spread, turned

_REDUCERS = {"max": "Max", "min": "Min", "add": "Add", "mul": "Mul", "or": "Or", "and": "And"}
_MOST_PARTS = 256  # elements of a window that is reduced element by element


@lowers("reduce_window_max", "reduce_window_sum", "reduce_window_min")
def _pool(b: Builder, equation: Any, x: Operand) -> Value:
    name, dtype = equation.primitive.name, equation.outvars[0].aval.dtype
    if name == "reduce_window_sum":
        return _windows(b, equation, x, "Add", np.zeros((), dtype))
    limits = np.finfo if np.dtype(dtype).kind == "f" else np.iinfo
    kind = np.dtype(dtype).kind
    if kind == "b":
        edge: Any = name == "reduce_window_min"
    elif kind in "iu":
        edge = limits(dtype).min if name == "reduce_window_max" else limits(dtype).max
    else:
        edge = -np.inf if name == "reduce_window_max" else np.inf
    reducer = "Max" if name == "reduce_window_max" else "Min"
    return _windows(b, equation, x, reducer, np.asarray(edge, dtype))


@lowers("reduce_window")
def _reduce_window(
    b: Builder, equation: Any, x: Operand, start: Operand, *rest: Operand, program: Program
) -> Value:
    """Lower a reduction by a function that is one primitive of two numbers."""
    jaxpr = open_jaxpr(equation.params["jaxpr"])
    reducer = _REDUCERS.get(jaxpr.eqns[0].primitive.name) if len(jaxpr.eqns) == 1 else None
    if reducer is None or rest or not isinstance(start, np.ndarray):
        raise CannotLowerError("windows are reduced by max, min, sum or product only")
    return _windows(b, equation, x, reducer, start)


def _windows(b: Builder, equation: Any, x: Operand, reducer: str, start: np.ndarray) -> Value:
    params, aval = equation.params, equation.outvars[0].aval
    window, strides = params["window_dimensions"], params["window_strides"]
    pads, spread = params["padding"], params["window_dilation"]
    between = [step - 1 for step in params["base_dilation"]]
    spatial = [
        axis
        for axis in range(len(window))
        if window[axis] > 1 or strides[axis] > 1 or tuple(pads[axis]) != (0, 0)
    ]
    floats = start.dtype.name in ("float32", "float16")
    is_max = reducer == "Max" and start.dtype.name in ("float32", "float16", "float64")
    is_sum = reducer == "Add" and floats and not start.any()
    few = all(
        low < window[axis] and high < window[axis] and low >= 0 and high >= 0
        for axis, (low, high) in enumerate(pads)
    )
    kept = len(window) - len(spatial)
    simple = few and not any(between) and 1 <= len(spatial) <= 3
    if not (is_max or is_sum) or not simple or (is_max and start != -np.inf):
        return _by_elements(b, x, reducer, start, params)
    others = [axis for axis in range(len(window)) if axis not in spatial]
    # Axes as in ONNX: (N, C, …).
    turn = [*others, *spatial]
    x = turned(b, x, turn)
    shape = x.shape
    name = b.full(x, range(len(turn)))
    lead = shape[:kept]
    if kept != 2:
        name = b.reshape(name, (math.prod(lead), 1, *shape[kept:]))
    name = b.compute(
        "MaxPool" if is_max else "AveragePool",
        name,
        dtype=x.dtype,
        kernel_shape=[window[a] for a in spatial],
        strides=[strides[a] for a in spatial],
        pads=[pads[a][0] for a in spatial] + [pads[a][1] for a in spatial],
        dilations=[spread[a] for a in spatial],
        count_include_pad=None if is_max else 1,
    )
    out_shape = tuple(aval.shape[axis] for axis in turn)
    if kept != 2:
        name = b.reshape(name, out_shape)
    out = b.value(name, out_shape, aval.dtype)
    if is_sum:
        count = np.asarray(math.prod(window), out.dtype)
        out = b.elementwise("Mul", [out, count], out)
    return turned(b, out, [turn.index(axis) for axis in range(len(turn))])


def _by_elements(
    b: Builder, x: Operand, reducer: str, start: np.ndarray, params: dict[str, Any]
) -> Value:
    """Return windows reduced one element after the other: slices of the padded operand."""
    window, spread = params["window_dimensions"], params["window_dilation"]
    if math.prod(window) > _MOST_PARTS:
        raise CannotLowerError(
            f"a window of {math.prod(window)} elements is too large for {reducer}"
        )
    config = [
        (low, high, step - 1)
        for (low, high), step in zip(params["padding"], params["base_dilation"], strict=True)
    ]
    x = padded(b, x, start, config)
    reach = [(size - 1) * step for size, step in zip(window, spread, strict=True)]
    total: Value | None = None
    for place in itertools.product(*map(range, window)):
        starts = [number * step for number, step in zip(place, spread, strict=True)]
        limits = [
            size - far + first for size, far, first in zip(x.shape, reach, starts, strict=True)
        ]
        part = strided(b, sliced(b, x, starts, limits, [1] * len(starts)), params["window_strides"])
        total = part if total is None else combine(b, reducer, total, part)
    assert total is not None  # noqa: S101  a window has an element
    if start.any() and reducer in ("Add", "Mul") or reducer == "Mul" and start != 1:
        total = combine(b, reducer, total, start)
    return total


def combine(b: Builder, reducer: str, x: Operand, y: Operand) -> Value:
    """Return two operands combined element by element; Max and Min of booleans are Or and And."""
    if x.dtype == np.bool_:
        reducer = {"Max": "Or", "Min": "And"}.get(reducer, reducer)
    whole = x if isinstance(x, Value) else b.value_of(x)
    return b.elementwise(reducer, [x, y], whole)


def _accumulated(
    b: Builder, x: Value, reducer: str, axis: int, identity: Any, backwards: bool
) -> Value:
    """Return the combination of all elements up to each one, by doubling the reach."""
    size = x.shape[axis]
    if not isinstance(size, int):
        return _one_by_one(b, x, reducer, axis, identity, backwards)
    reach = 1
    while reach < size:
        config = [(0, 0, 0)] * len(x.shape)
        config[axis] = (-reach, reach, 0) if backwards else (reach, -reach, 0)
        x = combine(b, reducer, x, padded(b, x, np.asarray(identity, x.dtype), config))
        reach *= 2
    return x


def _one_by_one(
    b: Builder, x: Value, reducer: str, axis: int, identity: Any, backwards: bool
) -> Value:
    """Return what ``_accumulated`` does along an axis of unknown size, by a loop."""
    rest = tuple(size for place, size in enumerate(x.shape) if place != axis)
    body = Builder(b)
    total, new = (body.enter(name, x.dtype, rest) for name in ("total", "new"))
    total = combine(body, reducer, total, new)
    for _ in range(2):
        body.leave(body.plain(total), x.dtype, rest)
    start = b.plain(spread(b, np.asarray(identity, x.dtype), rest, ()))
    _, name = b.emit(
        "Scan",
        start,
        b.plain(x),
        outputs=2,
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
        scan_input_directions=[1] if backwards else None,
        scan_output_directions=[1] if backwards else None,
    )
    return b.value(name, x.shape, x.dtype)


@lowers("cumsum")
def _cumsum(b: Builder, equation: Any, x: Operand) -> Value:
    aval, axis = equation.outvars[0].aval, equation.params["axis"]
    x = b.value_of(x)
    place = b.constant(np.int64(x.order.index(axis)))
    back = 1 if equation.params["reverse"] else None
    name = b.full(x, x.order)
    name = b.compute("CumSum", name, dtype=x.dtype, rest=(place,), reverse=back)
    return b.value(name, aval.shape, aval.dtype, order=x.order)


@lowers("cumprod", "cummax", "cummin")
def _cumulative(b: Builder, equation: Any, x: Operand) -> Value:
    name, params = equation.primitive.name, equation.params
    dtype = np.dtype(b.value_of(x).dtype)
    reducer = {"cumprod": "Mul", "cummax": "Max", "cummin": "Min"}[name]
    if reducer == "Mul":
        identity: Any = 1
    elif dtype.kind == "f":
        identity = -np.inf if reducer == "Max" else np.inf
    else:
        limits = np.iinfo(dtype)
        identity = limits.min if reducer == "Max" else limits.max
    return _accumulated(b, b.value_of(x), reducer, params["axis"], identity, params["reverse"])


@lowers("cumlogsumexp")
def _cumlogsumexp(b: Builder, equation: Any, x: Operand) -> Value:
    aval, params = equation.outvars[0].aval, equation.params
    x = b.value_of(x)
    axes = [params["axis"]]
    name = b.emit("ReduceMax", b.plain(x), b.ints(*axes), keepdims=1)
    one = tuple(1 if a in axes else size for a, size in enumerate(x.shape))
    top = b.value(
        name, x.shape, x.dtype, repeated=frozenset(axes) if one != x.shape else frozenset()
    )
    raised = b.elementwise("Exp", [b.elementwise("Sub", [x, top], aval)], aval)
    place = b.constant(np.int64(params["axis"]))
    back = 1 if params["reverse"] else None
    total = b.compute("CumSum", b.plain(raised), dtype=x.dtype, rest=(place,), reverse=back)
    low = b.elementwise("Log", [b.value(total, aval.shape, aval.dtype)], aval)
    return b.elementwise("Add", [low, top], aval)
