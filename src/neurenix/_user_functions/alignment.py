"""Targets (N,) and predictions (N, 1) for a user's loss or metric function.

Owns the choice of the targets' shape for such a function. The library's own losses pair targets and
predictions themselves (``neurenix.losses.base.paired``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._jaxpr import walk


def aligned(function: Callable[..., Any], y_true: Any, y_pred: Any) -> Any:
    """Return the targets in a shape that does not broadcast against the predictions.

    Where the shapes differ by one last axis of size 1, ``t - p`` has the shape (N, N), and its mean
    is wrong. The targets then get the shape of the predictions, unless the function handles the
    axis itself (``t - p[:, 0]``), which makes smaller arrays with the original targets.

    Args:
        function: takes targets and predictions; it is traced and not run.
        y_true: targets; returned unchanged unless both arguments are arrays of such shapes.
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
    except Exception:  # the call itself raises it
        return math.inf
    made = (variable.aval for site in walk(traced) for variable in site.equation.outvars)
    return max((math.prod(getattr(aval, "shape", ())) for aval in made), default=0)
