"""Targets (N,) and predictions (N, 1) for a function that somebody else wrote.

Owns the choice of the shape in which such a function gets its targets. It does not own the
library's losses, which pair the two themselves (``neurenix.losses.base.paired``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp


def aligned(function: Callable[..., Any], y_true: Any, y_pred: Any) -> Any:
    """Return the targets in the shape in which ``function`` does not pair every two examples.

    Where the two shapes differ by one last axis of size 1, ``t - p`` has the shape (N, N), and
    its mean is a number that nobody meant. The targets then get the shape of the predictions,
    unless the function handles it itself (``t - p[:, 0]``), which makes smaller arrays of the
    targets as they are.

    Args:
        function: of targets and predictions; it is traced, and nothing is computed.
        y_true: targets; returned as they are unless both are single arrays of such shapes.
        y_pred: predictions.

    Example:
        >>> aligned(lambda t, p: t - p, jnp.ones(3), jnp.ones((3, 1))).shape
        (3, 1)
        >>> aligned(lambda t, p: t - p[:, 0], jnp.ones(3), jnp.ones((3, 1))).shape
        (3,)
    """
    true, pred = getattr(y_true, "shape", None), getattr(y_pred, "shape", None)
    if true is None or pred is None or (*true, 1) != pred and true != (*pred, 1):
        return y_true
    reshaped = jnp.reshape(y_true, pred)
    smaller = _largest(function, y_true, y_pred) < _largest(function, reshaped, y_pred)
    return y_true if smaller else reshaped


def _largest(function: Callable[..., Any], *arrays: Any) -> float:
    """Return the size of the largest array that the function makes, infinite if it fails."""
    try:
        traced = jax.make_jaxpr(function)(*arrays)
    except Exception:  # whatever it is, the call itself will say it
        return math.inf
    return max((math.prod(shape) for shape in _shapes(traced.jaxpr)), default=0)


def _shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Go through the shapes of all arrays that are made, also in functions inside."""
    for equation in jaxpr.eqns:
        yield from (getattr(variable.aval, "shape", ()) for variable in equation.outvars)
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(value):
                yield from _shapes(getattr(value, "jaxpr", value))


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
