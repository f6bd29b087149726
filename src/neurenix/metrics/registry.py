"""Build a new metric from a name, a class, a function or a metric."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ArgumentTypeError, unknown_name
from neurenix._core.names import snake_case
from neurenix._nnx import nnx
from neurenix._user_functions.alignment import aligned
from neurenix._user_functions.batch_dependence import Coupling, coupling_of, of_each_alone, spec_of
from neurenix._user_functions.other_libraries import (
    is_of_library,
    refuse_foreign,
    refuse_predictions_first,
)
from neurenix.metrics import accuracy, confusion, regression
from neurenix.metrics.base import MeanMetric, Metric

_CLASSES: tuple[type[Metric], ...] = (
    accuracy.Accuracy,
    accuracy.SparseCategoricalAccuracy,
    accuracy.CategoricalAccuracy,
    accuracy.BinaryAccuracy,
    accuracy.TopKCategoricalAccuracy,
    regression.MeanSquaredError,
    regression.RootMeanSquaredError,
    regression.MeanAbsoluteError,
    regression.R2Score,
    confusion.Precision,
    confusion.Recall,
    confusion.F1Score,
    confusion.AUC,
)
_BY_NAME: dict[str, type[Metric]] = {snake_case(cls.__name__): cls for cls in _CLASSES}
_ALIASES: dict[str, type[Metric]] = {
    "acc": accuracy.Accuracy,
    "top5": accuracy.TopKCategoricalAccuracy,
    "sparse_top_k_categorical_accuracy": accuracy.TopKCategoricalAccuracy,
    "mse": regression.MeanSquaredError,
    "rmse": regression.RootMeanSquaredError,
    "mae": regression.MeanAbsoluteError,
    "r2": regression.R2Score,
    "f1": confusion.F1Score,
}


class FunctionMetric(MeanMetric):
    """The mean of a function ``(y_true, y_pred)`` that returns one value per example or a scalar.

    For a model that returns a dict or a tuple of arrays, ``y_pred`` is that dict or tuple. A
    function that returns the mean over examples, or whose targets and predictions differ by a last
    axis of size 1, is called with one example at a time (vectorized), so that no target is
    broadcast against predictions of other examples.

    A scalar that couples the examples of a batch (a root of a mean, an F1 score, a correlation) is
    computed per batch, and the metric is its mean over batches, as in Keras. This differs from its
    value over all examples, which needs a :class:`Metric` with its own sums
    (``RootMeanSquaredError``, ``F1Score``, ``R2Score``). ``fit`` and ``evaluate`` then require
    batches of equal size without weights; equal size is also required where the value of one
    example depends on others.

    A :class:`~neurenix.losses.Loss` is accepted as a function; the mean is then the loss's.

    Args:
        function: the function; traced, so it must use JAX operations.
        name: name in logs; the function's name by default.
    """

    def __init__(self, function: Callable, *, name: str | None = None) -> None:
        super().__init__(name or getattr(function, "__name__", type(function).__name__))
        self.function = function
        self.direction = getattr(function, "direction", None)  # set if the function is a Loss

    def coupling(self, y_true: Any, y_pred: Any) -> Coupling:
        """Return whether the value of one example depends on others in the batch.

        Args:
            y_true: targets (N, …); only shapes and dtypes are used.
            y_pred: predictions (N, …); only shapes and dtypes are used.
        """
        specs = jax.tree.map(spec_of, (y_true, y_pred))
        return Coupling.NONE if _is_loss(self.function) else coupling_of(self.function, *specs)

    def update(self, y_true: Any, y_pred: Any, sample_weight: jax.Array | None = None) -> None:
        """Add a batch; see :meth:`MeanMetric.update`.

        Raises:
            ShapeError: the shapes are incompatible.
            ArgumentError: there are weights, and the function returns one number per batch.
        """
        y_true, y_pred = self._input("y_true", y_true), self._input("y_pred", y_pred)
        function: Any = self.function
        if _is_loss(function):
            weight = function.counted(y_true, y_pred, sample_weight)
            self._add(function.per_example(y_true, y_pred), weight)
        elif self.coupling(y_true, y_pred) is not Coupling.SCALAR:
            self._add(self.values(y_true, y_pred), sample_weight)
        elif sample_weight is None:
            value = function(aligned(function, y_true, y_pred), y_pred)
            self._add(value, jnp.float32(len(jax.tree.leaves(y_pred)[0])))
        else:
            raise ArgumentError(
                f"The metric {self.name} is one number for a whole batch that is not the mean over "
                "its examples, so it has no weighted form. Give whole batches without weights "
                "(a batch_size that divides the number of examples, or drop_remainder=True of "
                "Dataset.batch), a class of nx.metrics, or a function that returns one value for "
                "each example."
            )

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the function's values one example at a time, shape (N, ...)."""
        if not _differ_by_one_axis(y_true, y_pred):
            values = jnp.asarray(self.function(y_true, y_pred))
            if values.ndim:
                return values
        return of_each_alone(self.function, y_true, y_pred)

    def _input(self, name: str, value: Any) -> Any:
        return jax.tree.map(jnp.asarray, value)


def _is_loss(function: Any) -> bool:
    """Return whether ``function`` is a ``neurenix.losses.Loss``, which is not imported here."""
    return hasattr(function, "per_example") and hasattr(function, "counted")


def _differ_by_one_axis(y_true: Any, y_pred: Any) -> bool:
    true, pred = getattr(y_true, "shape", ()), getattr(y_pred, "shape", ())
    return (*true, 1) == pred or true == (*pred, 1)


def get(metric: str | Metric | type[Metric] | Callable) -> Metric:
    """Return a new metric with all sums zero, independent of the one given.

    A metric created from a short name has that name in logs (``"acc"``, ``"mse"``).

    Raises:
        UnknownNameError: unknown metric name; the message suggests similar names.
        ArgumentTypeError: ``metric`` has another type, takes plain values such as ``Mean``, belongs
            to another library such as Keras, or is a function whose parameter names say predictions
            first, as in optax.

    Example:
        >>> nx.metrics.get("mse").name
        'mse'
    """
    _refuse_methods_of_keras(metric)
    if isinstance(metric, Metric):
        _check_update(metric)
        fresh: Any = nnx.clone(metric)
        fresh.reset()
        return fresh
    if isinstance(metric, str):
        known = _BY_NAME | _ALIASES
        if metric.lower() not in known:
            raise unknown_name("metric", metric, known)
        return known[metric.lower()](name=metric.lower())
    if isinstance(metric, type) and issubclass(metric, Metric):
        return get(metric())
    refuse_foreign("metric", metric, (cls.__name__ for cls in _CLASSES))
    if not isinstance(metric, type) and hasattr(metric, "targets_first"):
        # A loss with a PyTorch name; that class is not imported here either.
        return FunctionMetric(metric.targets_first, name=type(metric).__name__)
    if callable(metric) and not isinstance(metric, type):
        refuse_predictions_first("metric", metric)
        return FunctionMetric(metric)
    raise ArgumentTypeError(
        "A metric must be a name, a neurenix.metrics.Metric or a function (y_true, y_pred); got "
        f"{type(metric).__name__}."
    )


def _refuse_methods_of_keras(metric: Any) -> None:
    """Check that a user-defined metric does not define Keras's methods.

    Raises:
        ArgumentTypeError: it does; the message names the methods to define instead.
    """
    kind = metric if isinstance(metric, type) else type(metric)
    if not hasattr(kind, "update_state") or is_of_library(kind.__module__):
        return
    raise ArgumentTypeError(
        f"{kind.__name__} has update_state, a method of Keras metrics. Derive from "
        "nx.metrics.Metric instead, create sums in __init__, self.total = self._sum(), and "
        "define update(self, y_true, y_pred, sample_weight=None), which adds to them, "
        "self.total[...] += …, and result(self). reset() is inherited. For the mean of "
        "something give a function: metrics=[lambda y_true, y_pred: …]."
    )


def _check_update(metric: Metric) -> None:
    signature = inspect.signature(metric.update)
    try:
        signature.bind(None, None, sample_weight=None)
    except TypeError as error:
        raise ArgumentTypeError(
            f"{type(metric).__name__} cannot be a metric of a model: its update takes "
            f"({', '.join(signature.parameters)}), and is called with (y_true, y_pred, "
            "sample_weight=…). For the mean of something give a function: "
            "metrics=[lambda y_true, y_pred: …]."
        ) from error
