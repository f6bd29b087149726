"""From a name, a class, a function or a metric to a fresh metric.

Owns the table of names; the metrics themselves are beside it.
"""

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
    """The mean of what a function ``(y_true, y_pred)`` returns, per example or as a scalar.

    Where a model returns a dict or a tuple of arrays, that is ``y_pred``. A function that returns
    the mean over the examples, or whose targets and predictions differ by a last axis of size 1,
    is called with one example at a time (vectorised), so that no target meets the prediction of
    another example.

    A scalar that couples the examples of a batch (the root of a mean, an F1 score, a correlation)
    is taken of each whole batch, and the metric is the mean over the batches, as in Keras. That
    is not its value over all examples, which only a :class:`Metric` with sums of its own gives
    (``RootMeanSquaredError``, ``F1Score``, ``R2Score``). ``fit`` and ``evaluate`` then need
    batches of one size and no weights; of one size too for values per example that are made of
    other examples of the batch.

    A :class:`~neurenix.losses.Loss` is a function too; its mean is the one that the loss takes.

    Args:
        function: the function; traced, so it must be built of JAX operations.
        name: what logs call it; the function's own name if None.
    """

    def __init__(self, function: Callable, *, name: str | None = None) -> None:
        super().__init__(name or getattr(function, "__name__", type(function).__name__))
        self.function = function
        self.direction = getattr(function, "direction", None)  # a Loss is a function too

    def coupling(self, y_true: Any, y_pred: Any) -> Coupling:
        """Tell whether the function looks at each example of a batch alone.

        Args:
            y_true: targets (N, …), of which shapes and dtypes are looked at.
            y_pred: predictions (N, …), likewise.
        """
        specs = jax.tree.map(spec_of, (y_true, y_pred))
        return Coupling.NONE if _is_loss(self.function) else coupling_of(self.function, *specs)

    def update(self, y_true: Any, y_pred: Any, sample_weight: jax.Array | None = None) -> None:
        """Add a batch; see :meth:`MeanMetric.update`.

        Raises:
            ShapeError: the shapes do not go together.
            ArgumentError: there are weights, and the function is one number for a whole batch.
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
    """Tell a ``neurenix.losses.Loss``, which this package does not know, from a function."""
    return hasattr(function, "per_example") and hasattr(function, "counted")


def _differ_by_one_axis(y_true: Any, y_pred: Any) -> bool:
    true, pred = getattr(y_true, "shape", ()), getattr(y_pred, "shape", ())
    return (*true, 1) == pred or true == (*pred, 1)


def get(metric: str | Metric | type[Metric] | Callable) -> Metric:
    """Return a fresh metric, all sums zero, that shares nothing with the one given.

    A metric got by a short name is called by that name in logs (``"acc"``, ``"mse"``).

    Raises:
        UnknownNameError: nothing has this name; near misses are suggested.
        ArgumentTypeError: it is none of these; a metric of plain values such as ``Mean``; one of
            another library, such as Keras; or a function whose names say that it takes predictions
            first, as those of optax do.

    Example:
        >>> nx.metrics.get("mse").name
        'mse'
    """
    _refuse_methods_of_keras(metric)
    if isinstance(metric, Metric):
        _check_update(metric)
        fresh = nnx.clone(metric)
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
        # A loss under PyTorch's name, which this package does not know either.
        return FunctionMetric(metric.targets_first, name=type(metric).__name__)
    if callable(metric) and not isinstance(metric, type):
        refuse_predictions_first("metric", metric)
        return FunctionMetric(metric)
    raise ArgumentTypeError(
        "A metric must be a name, a neurenix.metrics.Metric or a function (y_true, y_pred); got "
        f"{type(metric).__name__}."
    )


def _refuse_methods_of_keras(metric: Any) -> None:
    """Raise where a metric of the user's own has the methods of one of Keras; theirs have others.

    Raises:
        ArgumentTypeError: so it is; the message has the methods to write.
    """
    kind = metric if isinstance(metric, type) else type(metric)
    if not hasattr(kind, "update_state") or is_of_library(kind.__module__):
        return
    raise ArgumentTypeError(
        f"{kind.__name__} has update_state, a method of metrics of Keras. Here a metric derives "
        "from nx.metrics.Metric, makes its sums in __init__, self.total = self._sum(), and has "
        "update(self, y_true, y_pred, sample_weight=None) for update_state, which adds to them, "
        "self.total[...] += …; result(self); and reset() for reset_state, which it inherits. For "
        "the mean of something give a function: metrics=[lambda y_true, y_pred: …]."
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
