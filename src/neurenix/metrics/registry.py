"""From a name, a class, a function or a metric to a fresh metric.

Owns the table of names; the metrics themselves are beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentTypeError, unknown_name
from neurenix._nnx import nnx
from neurenix.metrics import accuracy, confusion, errors
from neurenix.metrics.base import MeanMetric, Metric, snake_case

_CLASSES: tuple[type[Metric], ...] = (
    accuracy.Accuracy,
    accuracy.SparseCategoricalAccuracy,
    accuracy.CategoricalAccuracy,
    accuracy.BinaryAccuracy,
    accuracy.TopKCategoricalAccuracy,
    errors.MeanSquaredError,
    errors.RootMeanSquaredError,
    errors.MeanAbsoluteError,
    errors.R2Score,
    confusion.Precision,
    confusion.Recall,
    confusion.F1Score,
    confusion.AUC,
)
_BY_NAME: dict[str, type[Metric]] = {snake_case(cls.__name__): cls for cls in _CLASSES}
_ALIASES: dict[str, type[Metric]] = {
    "acc": accuracy.Accuracy,
    "top5": accuracy.TopKCategoricalAccuracy,
    "mse": errors.MeanSquaredError,
    "rmse": errors.RootMeanSquaredError,
    "mae": errors.MeanAbsoluteError,
    "r2": errors.R2Score,
    "f1": confusion.F1Score,
}


class FunctionMetric(MeanMetric):
    """The mean of what a function ``(y_true, y_pred)`` returns, per example or as a scalar.

    Args:
        function: the function; traced, so it must be built of JAX operations.
        name: what logs call it; the function's own name if None.
    """

    def __init__(self, function: Callable, name: str | None = None) -> None:
        super().__init__(name or getattr(function, "__name__", type(function).__name__))
        self.function = function

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the function's values; a scalar function is called once per example."""
        values = jnp.asarray(self.function(y_true, y_pred))
        if values.ndim:
            return values
        return jax.vmap(lambda t, p: self.function(t[None], p[None]))(y_true, y_pred)


def get(metric: str | Metric | type[Metric] | Callable) -> Metric:
    """Return a fresh metric, all sums zero, that shares nothing with the one given.

    A metric got by a short name is called by that name in logs (``"acc"``, ``"mse"``).

    Raises:
        UnknownNameError: nothing has this name; near misses are suggested.
        ArgumentTypeError: it is none of these.

    Example:
        >>> get("mse").name
        'mse'
    """
    if isinstance(metric, Metric):
        fresh = nnx.clone(metric)
        fresh.reset()
        return fresh
    if isinstance(metric, str):
        known = _BY_NAME | _ALIASES
        if metric.lower() not in known:
            raise unknown_name("metric", metric, known)
        return known[metric.lower()](name=metric.lower())
    if isinstance(metric, type) and issubclass(metric, Metric):
        return metric()
    if callable(metric):
        return FunctionMetric(metric)
    raise ArgumentTypeError(
        "A metric must be a name, a neurenix.metrics.Metric or a function (y_true, y_pred); got "
        f"{type(metric).__name__}."
    )
