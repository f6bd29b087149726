"""Gather, scatter, and slices at places that are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.dimensions import is_one, is_static
from neurenix.interop.onnx.element_types import computed
from neurenix.interop.onnx.lowering.elementwise import choose, convert
from neurenix.interop.onnx.lowering.registry import lowers
from neurenix.interop.onnx.lowering.shapes import sliced, spread, turned

_INT64 = np.dtype(np.int64)
_MODES = jax.lax.GatherScatterMode


class _Aval:
    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)


@dataclass
class _Indices:
    """Places in an operand: for some of its axes, the index of each place.

    Attributes:
        axes: of the operand.
        along: for each of these axes, integers of the shape ``shape``, or that repeat along axes.
        shape: of the places.
        inside: boolean of the shape of the batch, whether a place is inside of the operand; None
            where all are.
        windows: axes of the operand that were windows, whose axes come last in ``shape``.
    """

    axes: list[int]
    along: list[Operand]
    shape: tuple[Any, ...]
    inside: Operand | None
    windows: list[int]


def _component(b: Builder, indices: Operand, number: int) -> Operand:
    if isinstance(indices, np.ndarray):
        return indices[..., number].astype(np.int64)
    wide = convert(b, indices, np.int64)
    name = b.emit("Gather", b.plain(wide), b.constant(np.int64(number)), axis=len(wide.shape) - 1)
    return b.value(name, wide.shape[:-1], np.int64)


def _element(b: Builder, op: str, x: Operand, y: Operand, dtype: Any = None) -> Operand:
    """Return an operator of two operands of one shape (or of none), folded where both are known."""
    known = {"Add": np.add, "Max": np.maximum, "Min": np.minimum, "And": np.logical_and,
             "GreaterOrEqual": np.greater_equal, "LessOrEqual": np.less_equal}  # fmt: skip
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.asarray(known[op](x, y))
    shape = x.shape or y.shape
    if dtype is None:
        return b.elementwise(op, [x, y], _Aval(shape, x.dtype))
    return b.elementwise(op, [x, y], _Aval(shape, dtype), dtype=x.dtype)


def _size(b: Builder, size: Any) -> Operand:
    if isinstance(size, int):
        return np.asarray(size, np.int64)
    return b.root.value(b.root.emit("Squeeze", b.dimension(size)), (), np.int64)


def _count(b: Builder, size: Any) -> Operand:
    """Return 0, 1, … up to a size."""
    if isinstance(size, int):
        return np.arange(size, dtype=np.int64)
    limit = b.emit("Squeeze", b.dimension(size))
    zero, one = b.constant(np.int64(0)), b.constant(np.int64(1))
    return b.value(b.emit("Range", zero, limit, one), (size,), np.int64)


def _placed(b: Builder, x: Operand, shape: tuple[Any, ...], places: Sequence[int]) -> Operand:
    if isinstance(x, np.ndarray) and is_static(shape):
        inner = [1] * len(shape)
        for axis, place in enumerate(places):
            inner[place] = x.shape[axis]
        return np.broadcast_to(x.reshape(inner), shape)
    return spread(b, x, shape, places)


def _indices(
    b: Builder,
    shape: tuple[Any, ...],
    indices: Operand,
    sizes: dict[int, Any],
    batching: dict[int, int],
    indexed: Sequence[int],
    mode: Any,
) -> _Indices:
    """Return the places that a gather or scatter means.

    Args:
        b: the graph.
        shape: of the operand.
        indices: (*batch, components).
        sizes: of the slice along each axis of the operand.
        batching: axes of the operand → axes of the batch that run along.
        indexed: the axes of the operand that the components mean.
        mode: what happens outside of the operand.
    """
    batch = tuple(indices.shape[:-1])
    drops = mode in (_MODES.FILL_OR_DROP,)
    axes, starts, inside = [], [], None
    for number, axis in enumerate(indexed):
        start, size = _component(b, indices, number), sizes[axis]
        last = _size(b, shape[axis] - size)
        zero = np.zeros((), np.int64)
        if drops:
            low = _element(b, "GreaterOrEqual", start, zero, np.bool_)
            high = _element(b, "LessOrEqual", start, last, np.bool_)
            both = _element(b, "And", low, high)
            inside = both if inside is None else _element(b, "And", inside, both)
        if mode != _MODES.PROMISE_IN_BOUNDS:
            start = _element(b, "Min", _element(b, "Max", start, zero), last)
        if not (size == shape[axis] and not is_one(size)):
            axes.append(axis)
            starts.append(start)
    if isinstance(inside, np.ndarray) and inside.all():
        inside = None
    windows = [a for a in axes if not is_one(sizes[a])]
    windows += [a for a in sizes if a not in (*indexed, *batching) and sizes[a] != shape[a]]
    windows.sort()
    whole = (*batch, *(sizes[axis] for axis in windows))
    places = list(range(len(batch)))
    along: list[Operand] = []
    for axis, start in zip(axes, starts, strict=True):
        index = _placed(b, start, whole, places)
        if axis in windows:
            steps = _placed(b, _count(b, sizes[axis]), whole, [len(batch) + windows.index(axis)])
            index = _element(b, "Add", index, steps)
        along.append(index)
    for axis in windows:
        if axis not in axes:
            steps = _count(b, sizes[axis])
            axes.append(axis)
            along.append(_placed(b, steps, whole, [len(batch) + windows.index(axis)]))
    for axis, place in batching.items():
        axes.append(axis)
        along.append(_placed(b, _count(b, shape[axis]), whole, [place]))
    return _Indices(axes, along, whole, inside, windows)


def _vectors(b: Builder, found: _Indices) -> str:
    """Return the places as (*shape, axes): what GatherND and ScatterND take."""
    last = len(found.shape)
    known = [one for one in found.along if isinstance(one, np.ndarray)]
    if len(known) == len(found.along):
        return b.constant(np.stack(np.broadcast_arrays(*known), -1))
    parts = [b.emit("Unsqueeze", b.plain(one), b.ints(last)) for one in found.along]
    return parts[0] if len(parts) == 1 else b.emit("Concat", *parts, axis=last)


@lowers("gather")
def _gather(b: Builder, equation: Any, x: Operand, indices: Operand) -> Value:
    params, aval = equation.params, equation.outvars[0].aval
    numbers, sizes = params["dimension_numbers"], dict(enumerate(params["slice_sizes"]))
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    shape = tuple(x.shape)
    found = _indices(b, shape, indices, sizes, batching, numbers.start_index_map, params["mode"])
    rank = len(shape)
    rest = [axis for axis in range(rank) if axis not in found.axes]
    batch = len(indices.shape) - 1
    labels: list[Any]
    if not found.axes:
        value = b.value_of(x)
        whole = (*found.shape, *(shape[axis] for axis in rest))
        gathered = spread(b, value, whole, [batch + number for number in range(rank)])
        labels = [("batch", number) for number in range(batch)] + rest
    elif len(found.axes) == 1:
        (axis,) = found.axes
        places = found.along[0]
        # Repeated places are looked up once.
        name = b.emit("Gather", b.plain(x), b.plain(places), axis=axis)
        labels = [a for a in rest if a < axis] + [("batch", number) for number in range(batch)]
        labels += found.windows + [a for a in rest if a > axis]
        before = tuple(shape[a] for a in rest if a < axis)
        after = tuple(shape[a] for a in rest if a > axis)
        gathered = b.value(name, (*before, *found.shape, *after), x.dtype)
    else:
        operand = b.full(x, [*found.axes, *rest])
        name = b.emit("GatherND", operand, _vectors(b, found))
        labels = [("batch", number) for number in range(batch)] + found.windows + rest
        gathered = b.value(name, (*found.shape, *(shape[a] for a in rest)), x.dtype)
    return _in_order(b, gathered, labels, found, equation, aval)


def _in_order(
    b: Builder, gathered: Value, labels: list[Any], found: _Indices, equation: Any, aval: Any
) -> Value:
    """Return a gather's result with its axes where the equation wants them, and filled outside."""
    params = equation.params
    numbers = params["dimension_numbers"]
    absent = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    axes = [axis for axis in range(len(params["slice_sizes"])) if axis not in absent]
    offsets = dict(zip(numbers.offset_dims, axes, strict=True))
    batch = iter(range(len(aval.shape)))
    wanted = [
        offsets[place] if place in offsets else ("batch", next(batch))
        for place in range(len(aval.shape))
    ]
    there = [label for label in wanted if label in labels]
    out = turned(b, gathered, [labels.index(label) for label in there])
    if len(there) < len(wanted):  # axes of size 1 of which the place is given
        kept = [place for place, label in enumerate(wanted) if label in labels]
        out = spread(b, out, aval.shape, kept)
    if found.inside is None:
        return out
    places = [place for place, label in enumerate(wanted) if isinstance(label, tuple)]
    inside = _placed(b, found.inside, tuple(aval.shape), places)
    filling = _filling(params.get("fill_value"), np.dtype(aval.dtype))
    return choose(b, inside, out, filling, aval=aval)


def _filling(value: Any, dtype: np.dtype) -> np.ndarray:
    """Return what a gather gives outside: NaN, the least integer, the largest unsigned one."""
    if value is None:
        if dtype.kind == "b":
            value = True
        elif dtype.kind in "iu":
            value = np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
        else:
            value = np.nan
    return np.asarray(value, computed(dtype))


_SCATTERS = {
    "scatter": "none",
    "scatter-add": "add",
    "scatter-sub": "add",
    "scatter-mul": "mul",
    "scatter-min": "min",
    "scatter-max": "max",
}


@lowers(*_SCATTERS)
def _scatter(
    b: Builder, equation: Any, x: Operand, indices: Operand, updates: Operand, **_: Any
) -> Value:
    params, aval, name = equation.params, equation.outvars[0].aval, equation.primitive.name
    numbers, shape = params["dimension_numbers"], tuple(x.shape)
    absent = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(len(shape)) if axis not in absent]
    sizes: dict[int, Any] = dict.fromkeys(range(len(shape)), 1)
    place_of = dict(zip(windows, numbers.update_window_dims, strict=True))
    sizes |= {axis: updates.shape[place] for axis, place in place_of.items()}
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    found = _indices(
        b, shape, indices, sizes, batching, numbers.scatter_dims_to_operand_dims, params["mode"]
    )
    if "sub" in name:
        updates = b.elementwise("Neg", [updates], b.value_of(updates))
    rest = [axis for axis in range(len(shape)) if axis not in found.axes]
    batch = [p for p in range(len(updates.shape)) if p not in numbers.update_window_dims]
    ones = [place_of[a] for a in windows if a not in (*found.windows, *rest)]
    order = [*batch, *(place_of[axis] for axis in (*found.windows, *rest)), *ones]
    given = b.full(updates, order)
    if ones:
        given = b.emit("Squeeze", given, b.ints(*range(len(order) - len(ones), len(order))))
    if not found.axes:  # one place of no axis: the whole operand
        found.axes, found.along = [], []
        return _whole(b, x, given, found, batch, aval, _SCATTERS[name], updates)
    turn = [*found.axes, *rest]
    operand = b.full(x, turn)
    first = shape[turn[0]]
    if found.inside is not None:  # what falls outside goes to one more place, which is left out
        limits = [0] * (2 * len(turn))
        limits[len(turn)] = 1
        filling = b.constant(np.zeros((), computed(x.dtype)))
        operand = b.pad(operand, b.ints(*limits), filling, computed(x.dtype))
        inside = _placed(b, found.inside, found.shape, list(range(len(batch))))
        found.along[0] = choose(
            b, inside, found.along[0], _size(b, first), aval=_Aval(found.shape, np.int64)
        )
    out = b.emit("ScatterND", operand, _vectors(b, found), given, reduction=_SCATTERS[name])
    if found.inside is not None:
        out = b.emit("Slice", out, b.ints(0), b.dimension(first), b.ints(0))
    return b.value(out, aval.shape, aval.dtype, order=tuple(turn))


def _whole(
    b: Builder, x: Operand, given: str, found: _Indices, batch: list[int], aval: Any,
    reduction: str, updates: Operand,
) -> Value:  # fmt: skip
    """Return a scatter of updates that are as large as the operand, at its one place."""
    if batch:
        name = b.emit("Squeeze", given, b.ints(*range(len(batch))))
    else:
        name = given
    new = b.value(name, aval.shape, aval.dtype)
    ops = {"add": "Add", "mul": "Mul", "min": "Min", "max": "Max"}
    if reduction != "none":
        new = b.elementwise(ops[reduction], [x, new], aval)
    if found.inside is None:
        return new
    inside = b.value_of(found.inside)
    flat = b.value(b.reshape(b.plain(inside), ()), (), np.bool_)
    return choose(b, flat, new, x, aval=aval)


@lowers("dynamic_slice")
def _dynamic_slice(b: Builder, equation: Any, x: Operand, *starts: Operand) -> Value:
    aval, sizes = equation.outvars[0].aval, equation.params["slice_sizes"]
    x = b.value_of(x)
    moving = [axis for axis, size in enumerate(x.shape) if sizes[axis] != size]
    if not moving:
        return x
    begins = [_start(b, starts[axis], x.shape[axis], sizes[axis]) for axis in moving]
    known = [one for one in begins if isinstance(one, np.ndarray)]
    if len(known) == len(begins):
        first = dict(zip(moving, known, strict=True))
        numbers = [int(first[a]) if a in first else 0 for a in range(len(x.shape))]
        limits = [start + size for start, size in zip(numbers, sizes, strict=True)]
        return sliced(b, x, numbers, limits, [1] * len(numbers))
    low = _vector(b, begins)
    high = b.emit("Add", low, b.sizes(sizes[axis] for axis in moving))
    name = b.emit("Slice", b.plain(x), low, high, b.ints(*moving))
    return b.value(name, aval.shape, aval.dtype)


def _start(b: Builder, start: Operand, size: Any, taken: Any) -> Operand:
    """Return where a slice starts, as JAX moves it inside."""
    if isinstance(start, np.ndarray):
        start = start.astype(np.int64)
    else:
        start = convert(b, start, np.int64)
    inside = _element(b, "Max", start, np.zeros((), np.int64))
    return _element(b, "Min", inside, _size(b, size - taken))


def _vector(b: Builder, numbers: Sequence[Operand]) -> str:
    parts = [b.emit("Unsqueeze", b.plain(number), b.ints(0)) for number in numbers]
    return parts[0] if len(parts) == 1 else b.emit("Concat", *parts, axis=0)


@lowers("dynamic_update_slice")
def _dynamic_update_slice(
    b: Builder, equation: Any, x: Operand, new: Operand, *starts: Operand
) -> Operand:
    aval = equation.outvars[0].aval
    moving = [axis for axis, size in enumerate(x.shape) if new.shape[axis] != size]
    if not moving:
        return new
    begins = {a: _start(b, starts[a], x.shape[a], new.shape[a]) for a in moving}
    dtype = computed(aval.dtype)
    if len(moving) == 1:
        (axis,) = moving
        low = _vector(b, [begins[axis]])
        high = b.emit("Add", low, b.dimension(new.shape[axis]))
        whole, at = b.plain(x), b.ints(axis)
        before = b.emit("Slice", whole, b.ints(0), low, at)
        after = b.emit("Slice", whole, high, b.dimension(x.shape[axis]), at)
        name = b.emit("Concat", before, b.plain(new), after, axis=axis)
        return b.value(name, aval.shape, dtype)
    rank = range(len(x.shape))
    zero = np.zeros((), np.int64)
    low = _vector(b, [begins.get(axis, zero) for axis in rank])
    gap = b.sizes(size - taken for size, taken in zip(x.shape, new.shape, strict=True))
    pads = b.emit("Concat", low, b.emit("Sub", gap, low), axis=0)
    wide = b.pad(b.plain(new), pads, b.constant(np.zeros((), dtype)), dtype)
    ones = b.emit("Expand", b.constant(np.ones((1,) * len(rank), bool)), b.sizes(new.shape))
    inside = b.pad(ones, pads, b.constant(np.zeros((), bool)), np.dtype(bool))
    shape = tuple(aval.shape)
    return choose(b, b.value(inside, shape, np.bool_), b.value(wide, shape, dtype), x, aval=aval)
