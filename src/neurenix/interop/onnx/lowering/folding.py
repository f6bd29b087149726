"""Equations of known arrays, computed at export.

The common ones are computed by NumPy: JAX would compile each of them for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neurenix.interop.onnx.dimensions import is_static

_MOST_ELEMENTS = 1 << 20

_SAME = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "neg": np.negative, "abs": np.abs,
}  # fmt: skip
_OF_BITS = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
}  # fmt: skip


def _broadcast(params: Any, x: np.ndarray) -> np.ndarray:
    inner = [1] * len(params["shape"])
    for axis, place in enumerate(params["broadcast_dimensions"]):
        inner[place] = x.shape[axis]
    return np.broadcast_to(x.reshape(inner), params["shape"])  # a view, see ``Builder.value_of``


def _slice(params: Any, x: np.ndarray) -> np.ndarray:
    strides = params["strides"] or (1,) * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*one) for one in bounds)]


def _select(params: Any, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.where(which, cases[1], cases[0]) if len(cases) == 2 else np.choose(which, cases)


_MOVED: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda params, *x: np.concatenate(x, params["dimension"]),
    "expand_dims": lambda params, x: np.expand_dims(x, params["dimensions"]),
    "reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "select_n": _select,
    "slice": _slice,
    "squeeze": lambda params, x: np.squeeze(x, params["dimensions"]),
    "stop_gradient": lambda params, x: x,
    "transpose": lambda params, x: np.transpose(x, params["permutation"]),
}


def fold(equation: Any, inputs: Sequence[Any]) -> list[np.ndarray] | None:
    """Return the results of an equation whose inputs are known, or None where they are not.

    Large results, and those whose size depends on the batch, are left to the graph.

    Args:
        equation: without jaxprs inside.
        inputs: arrays, or values of the graph.
    """
    avals = [variable.aval for variable in equation.outvars]
    if not inputs or not all(isinstance(one, np.ndarray) for one in inputs) or equation.effects:
        return None
    if not all(is_static(aval.shape) for aval in avals):
        return None
    name = equation.primitive.name
    if name == "broadcast_in_dim":
        return [_broadcast(equation.params, inputs[0])]
    if sum(int(np.prod(aval.shape)) for aval in avals) > _MOST_ELEMENTS:
        return None
    kind = avals[0].dtype.kind
    whole = inputs[0].dtype.kind in "biu"
    function = _SAME.get(name) or (_OF_BITS.get(name) if whole else None)
    if function is not None and kind in "biuf" and not (kind == "b" and name in ("add", "mul")):
        with np.errstate(all="ignore"):
            return [np.asarray(function(*inputs)).astype(avals[0].dtype, copy=False)]
    if name in _MOVED:
        return [np.asarray(_MOVED[name](equation.params, *inputs))]
    found = equation.primitive.bind(*inputs, **equation.params)
    return [np.asarray(one) for one in (found if equation.primitive.multiple_results else [found])]
