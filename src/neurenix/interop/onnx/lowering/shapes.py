"""Primitives that change shapes, and those that put arrays together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.dimensions import is_one, is_static
from neurenix.interop.onnx.element_types import computed
from neurenix.interop.onnx.lowering.registry import lowers


def _aval(equation: Any) -> Any:
    return equation.outvars[0].aval


@lowers("transpose")
def _transpose(b: Builder, equation: Any, x: Operand) -> Value:
    return turned(b, x, equation.params["permutation"])


def turned(b: Builder, x: Operand, permutation: Sequence[int]) -> Value:
    """Return an operand with its axes in another order, which moves nothing yet."""
    x = b.value_of(x)
    place = {axis: number for number, axis in enumerate(permutation)}
    return x.scope.value(
        x.name,
        tuple(x.shape[axis] for axis in permutation),
        x.dtype,
        order=tuple(place[axis] for axis in x.order),
        repeated=frozenset(place[axis] for axis in x.repeated),
        is_scalar=x.is_scalar,
    )


@lowers("broadcast_in_dim")
def _broadcast_in_dim(b: Builder, equation: Any, x: Operand, *_: Operand) -> Operand:
    shape, places = _aval(equation).shape, equation.params["broadcast_dimensions"]
    if isinstance(x, np.ndarray) and is_static(shape):
        inner = [1] * len(shape)
        for axis, place in enumerate(places):
            inner[place] = x.shape[axis]
        return np.broadcast_to(x.reshape(inner), shape)
    return spread(b, x, shape, places)


def spread(b: Builder, x: Operand, shape: Any, places: Sequence[int]) -> Value:
    """Return an operand whose axis i becomes axis ``places[i]`` of a larger shape."""
    x = b.value_of(x)
    everywhere = frozenset(a for a, size in enumerate(shape) if not is_one(size))
    if x.is_scalar or not x.shape:
        return x.scope.value(
            x.name, shape, x.dtype, repeated=everywhere, is_scalar=bool(len(shape))
        )
    scope = x.scope
    name = scope.arranged(x, range(len(x.shape)))
    new = [axis for axis in range(len(shape)) if axis not in places]
    if new:
        name = scope.emit("Unsqueeze", name, scope.ints(*new))
    kept = {
        place for axis, place in enumerate(places)
        if axis not in x.repeated and not (is_one(x.shape[axis]) and not is_one(shape[place]))
    }  # fmt: skip
    return scope.value(name, shape, x.dtype, repeated=everywhere - kept)


@lowers("reshape")
def _reshape(b: Builder, equation: Any, x: Operand, *_: Operand) -> Operand:
    return reshaped(b, x, _aval(equation).shape)


def reshaped(b: Builder, x: Operand, shape: Any) -> Value:
    """Return an operand in another shape of as many elements."""
    x = b.value_of(x)
    if x.is_scalar:
        everywhere = frozenset(a for a, size in enumerate(shape) if not is_one(size))
        return x.scope.value(
            x.name, shape, x.dtype, repeated=everywhere, is_scalar=bool(len(shape))
        )
    wide = [axis for axis, size in enumerate(x.shape) if not is_one(size)]
    target = [axis for axis, size in enumerate(shape) if not is_one(size)]
    if [x.shape[a] for a in wide] == [shape[a] for a in target]:  # only axes of size 1 come and go
        place = dict(zip(wide, target, strict=True))
        order = [place[axis] for axis in x.order if axis in place]
        if order == sorted(order):
            sizes = tuple(
                1 if axis in {place[a] for a in x.repeated if a in place} else size
                for axis, size in enumerate(shape)
            )
            return x.scope.value(
                x.scope.reshape(x.name, sizes), shape, x.dtype,
                repeated=frozenset(place[a] for a in x.repeated if a in place),
            )  # fmt: skip
    return b.value(b.reshape(b.plain(x), shape), shape, x.dtype)


@lowers("squeeze")
def _squeeze(b: Builder, equation: Any, x: Operand) -> Operand:
    return reshaped(b, x, _aval(equation).shape)


@lowers("concatenate")
def _concatenate(b: Builder, equation: Any, *operands: Operand) -> Value:
    aval, axis = _aval(equation), equation.params["dimension"]
    values = [b.value_of(operand) for operand in operands]
    plain = tuple(range(len(aval.shape)))
    order = next((v.order for v in values if v.order != plain and not v.repeated), plain)
    name = b.emit("Concat", *(b.full(x, order) for x in operands), axis=order.index(axis))
    return b.value(name, aval.shape, aval.dtype, order=order)


@lowers("stack")
def _stack(b: Builder, equation: Any, *operands: Operand) -> Value:
    aval, axis = _aval(equation), equation.params["axis"]
    parts = [b.emit("Unsqueeze", b.plain(x), b.ints(axis)) for x in operands]
    return b.value(b.emit("Concat", *parts, axis=axis), aval.shape, aval.dtype)


@lowers("unstack")
def _unstack(b: Builder, equation: Any, x: Operand) -> list[Value]:
    axis, name = equation.params["axis"], b.plain(x)
    return [
        b.value(
            b.emit("Gather", name, b.constant(np.int64(number)), axis=axis),
            variable.aval.shape,
            variable.aval.dtype,
        )
        for number, variable in enumerate(equation.outvars)
    ]


@lowers("split")
def _split(b: Builder, equation: Any, x: Operand) -> list[Value]:
    axis, sizes = equation.params["axis"], equation.params["sizes"]
    order = b.value_of(x).order
    names = b.emit(
        "Split", b.full(x, order), b.sizes(sizes), outputs=len(sizes), axis=order.index(axis)
    )
    names = [names] if isinstance(names, str) else names
    avals = [variable.aval for variable in equation.outvars]
    return [b.value(n, a.shape, a.dtype, order=order) for n, a in zip(names, avals, strict=True)]


def sliced(
    b: Builder, x: Operand, starts: Sequence[Any], limits: Sequence[Any], strides: Sequence[int]
) -> Value:
    """Return a part of an operand, by sizes that are known or symbolic."""
    value = b.value_of(x)
    shape = tuple(
        limit - start if step == 1 else (limit - start + step - 1) // step
        for start, limit, step in zip(starts, limits, strides, strict=True)
    )
    axes = [
        axis for axis, size in enumerate(value.shape)
        if not (isinstance(starts[axis], int) and starts[axis] == 0
                and limits[axis] == size and strides[axis] == 1)
    ]  # fmt: skip
    if not axes:
        return value
    kept = value.repeated - set(axes)
    if value.is_scalar or set(axes) <= value.repeated and is_static(shape) and 0 not in shape:
        return value.scope.value(
            value.name, shape, value.dtype, order=value.order, repeated=value.repeated,
            is_scalar=value.is_scalar,
        )  # fmt: skip
    if kept != value.repeated:
        name, order, kept = b.plain(value), tuple(range(len(shape))), frozenset()
    else:
        name, order = value.name, value.order
    name = b.emit(
        "Slice", name,
        b.sizes(starts[a] for a in axes), b.sizes(limits[a] for a in axes),
        b.ints(*(order.index(a) for a in axes)), b.ints(*(strides[a] for a in axes)),
    )  # fmt: skip
    return b.value(name, shape, value.dtype, order=order, repeated=kept)


@lowers("slice")
def _slice(b: Builder, equation: Any, x: Operand) -> Value:
    params = equation.params
    strides = params["strides"] or (1,) * len(x.shape)
    return sliced(b, x, params["start_indices"], params["limit_indices"], strides)


@lowers("rev")
def _rev(b: Builder, equation: Any, x: Operand) -> Value:
    return reverse(b, x, equation.params["dimensions"])


def reverse(b: Builder, x: Operand, axes: Sequence[int]) -> Value:
    """Return an operand with the elements along some axes in reverse order."""
    x = b.value_of(x)
    axes = [axis for axis in axes if axis not in x.repeated]
    if not axes or x.is_scalar:
        return x
    least = np.iinfo(np.int64).min
    name = b.emit(
        "Slice", x.name, b.ints(*[-1] * len(axes)), b.ints(*[least] * len(axes)),
        b.ints(*(x.order.index(a) for a in axes)), b.ints(*[-1] * len(axes)),
    )  # fmt: skip
    return b.value(name, x.shape, x.dtype, order=x.order, repeated=x.repeated)


@lowers("pad")
def _pad(b: Builder, equation: Any, x: Operand, filling: Operand) -> Value:
    return padded(b, x, filling, equation.params["padding_config"])


def padded(b: Builder, x: Operand, filling: Operand, config: Sequence[tuple[Any, ...]]) -> Value:
    """Return an operand with elements around it, between its own, or fewer elements.

    Args:
        b: the graph.
        x: the operand.
        filling: what new elements are, without axes.
        config: for each axis, how many elements come before, after and between; fewer than none
            take elements away.
    """
    value = b.value_of(x)
    order, dtype = value.order, value.dtype
    name, shape = b.full(value, order), list(value.shape)
    constant = b.plain(filling)
    for axis, (_, _, between) in enumerate(config):
        if between:
            place = order.index(axis)
            name = _spaced(b, name, [shape[a] for a in order], place, between, constant, dtype)
            shape[axis] = shape[axis] * (between + 1) - between
    before = [max(config[axis][0], 0) for axis in order]
    after = [max(config[axis][1], 0) for axis in order]
    if any(before) or any(after):
        name = b.pad(name, b.ints(*before, *after), constant, dtype)
    whole = [
        size + max(low, 0) + max(high, 0)
        for size, (low, high, _) in zip(shape, config, strict=True)
    ]
    out = b.value(name, tuple(whole), dtype, order=order)
    starts = [max(-low, 0) for low, _, _ in config]
    limits = [size - max(-high, 0) for size, (_, high, _) in zip(whole, config, strict=True)]
    return sliced(b, out, starts, limits, [1] * len(config))


def _spaced(
    b: Builder, name: str, shape: list[Any], place: int, between: int, constant: str, dtype: Any
) -> str:
    """Return a tensor with ``between`` new elements between those of one axis."""
    rank = len(shape)
    name = b.emit("Unsqueeze", name, b.ints(place + 1))
    pads = [0] * (2 * rank + 2)
    pads[rank + 1 + place + 1] = between
    name = b.pad(name, b.ints(*pads), constant, dtype)
    whole = shape[place] * (between + 1)
    name = b.reshape(name, tuple(whole if a == place else size for a, size in enumerate(shape)))
    return b.emit("Slice", name, b.ints(0), b.sizes([whole - between]), b.ints(place))


@lowers("iota")
def _iota(b: Builder, equation: Any, *_: Operand) -> Operand:
    aval, axis = _aval(equation), equation.params["dimension"]
    size, dtype = aval.shape[axis], computed(aval.dtype)
    if isinstance(size, int):
        numbers: Operand = np.arange(size).astype(dtype)
    else:
        zero, one = b.constant(np.int64(0)), b.constant(np.int64(1))
        limit = b.emit("Squeeze", b.dimension(size))
        name = b.cast(b.emit("Range", zero, limit, one), np.int64, dtype)
        numbers = b.value(name, (size,), dtype)
    if isinstance(numbers, np.ndarray) and is_static(aval.shape):
        inner = [1] * len(aval.shape)
        inner[axis] = size
        return np.broadcast_to(numbers.reshape(inner), aval.shape)
    return spread(b, numbers, aval.shape, [axis])


@lowers("dim_as_value")
def _dim_as_value(b: Builder, equation: Any) -> Value:
    aval = _aval(equation)
    name = b.emit("Squeeze", b.dimension(equation.params["dim"]))
    return b.value(b.cast(name, np.int64, aval.dtype), (), aval.dtype)


@lowers("tile")
def _tile(b: Builder, equation: Any, x: Operand) -> Value:
    aval = _aval(equation)
    return b.value(
        b.emit("Tile", b.plain(x), b.sizes(equation.params["reps"])), aval.shape, aval.dtype
    )
