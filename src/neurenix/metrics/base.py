"""The base classes of metrics: sums on the device, updated batch by batch.

Every state of a metric is a **sum**, in float32, so states of replicas or of several steps can be
added. Counts are exact up to 2**24 per addition.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentTypeError, ShapeError
from neurenix._core.names import ExplainedMeta, MissingAttributeError, snake_case
from neurenix._nnx import nnx

_OPTIONS = {
    "axis": "not configurable: always the last axis",
    "dtype": "not configurable: always float32",
    "ignore_class": "ignore_index",
    "num_thresholds": "bins",
    "thresholds": "threshold",
    "top_k": "k",
}

_METHODS = {
    "add_variable": "self._sum(*shape), which is added to in update",
    "add_weight": "self._sum(*shape), which is added to in update",
    "forward": "update(y_true, y_pred), then result()",
    "reset_state": "reset()",
    "reset_states": "reset()",
    "update_state": "update(y_true, y_pred, sample_weight=None)",
}


_NnxMeta: Any = type(nnx.Metric)


class _MetricMeta(ExplainedMeta, _NnxMeta):
    pass


class Metric(nnx.Metric, metaclass=_MetricMeta):
    """Base of every metric.

    A subclass creates its sums with ``self._sum(shape)`` in ``__init__``, adds to them in
    ``update`` and computes the value in ``result``. All methods must be traceable.

    Attributes:
        name: name in logs and ``History``.
        direction: ``"min"`` or ``"max"``, whichever is better, or None if unknown; used by
            ``EarlyStopping`` and ``ModelCheckpoint``.
    """

    migration_options: ClassVar[Mapping[str, str]] = _OPTIONS
    direction: str | None = None

    if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or hasattr(type(self), name):
                object.__getattribute__(self, name)  # raises the original AttributeError
            what = f"{type(self).__name__!r} object"
            raise MissingAttributeError(what, name, lambda: dir(self), _METHODS)

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise ArgumentTypeError(
                f"{type(self).__name__}: name is {name!r}, expected a string. Give options by "
                "name, such as threshold=0.5."
            )
        self.name = name or snake_case(type(self).__name__)

    @staticmethod
    def _sum(*shape: int) -> nnx.metrics.MetricState:
        return nnx.metrics.MetricState(jnp.zeros(shape, jnp.float32))

    def reset(self) -> None:
        """Set every sum to zero, in place."""
        for value in vars(self).values():
            if isinstance(value, nnx.metrics.MetricState):
                value[...] = jnp.zeros_like(value[...])

    def result(self) -> jax.Array:
        """Return the value so far: a float32 scalar that formats like a float."""
        raise NotImplementedError(f"{type(self).__name__} must define result().")

    def _input(self, name: str, value: Any) -> Any:
        """Return one argument of ``update`` as an array.

        Raises:
            ArgumentTypeError: ``value`` is None, a dict or a tuple.
        """
        if isinstance(value, (dict, tuple)) or value is None:
            raise ArgumentTypeError(
                f"The metric {self.name} takes one array as `{name}`; got {_described(value)}. For "
                "a model that returns several, give a function that picks: metrics=[lambda "
                "y_true, y_pred: nx.losses.mean_absolute_error(y_true, y_pred[…])]."
            )
        return jnp.asarray(value)

    def compute(self) -> jax.Array:
        """Return ``result()``; the method name in ``nnx.metrics``."""
        return self.result()


class MeanMetric(Metric):
    """A weighted mean of one value per example; a subclass defines ``values``."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.total = self._sum()
        self.count = self._sum()

    def values(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the values to average, shape (N, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define values().")

    def update(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Add a batch.

        Args:
            y_true: targets, (N, ...).
            y_pred: predictions, (N, ...).
            sample_weight: (N,), one weight per example; 0 ignores an example.

        Raises:
            ShapeError: the shapes are incompatible.
            ArgumentTypeError: targets or predictions are not one array.
        """
        y_true, y_pred = self._input("y_true", y_true), self._input("y_pred", y_pred)
        self._add(self.values(y_true, y_pred), sample_weight)

    def _add(self, values: jax.Array, sample_weight: jax.Array | None) -> None:
        total, count = weighted_sum(values, sample_weight)
        self.total[...] += total
        self.count[...] += count

    def result(self) -> jax.Array:
        """Return the weighted mean so far; 0 before the first batch."""
        return safe_ratio(self.total[...], self.count[...])


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value))}"
    return "None" if value is None else f"a {type(value).__name__} of {len(value)}"


def weighted_sum(values: jax.Array, sample_weight: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Return ``sum(w · values)`` and ``sum(w)``, float32; NaN values of weight 0 are ignored.

    Raises:
        ShapeError: the leading axes of ``values`` differ from the shape of ``sample_weight``.
    """
    values = jnp.asarray(values).astype(jnp.float32)
    if sample_weight is None:
        return jnp.sum(values), jnp.float32(values.size)
    weight = match_weight(sample_weight, values.shape)
    return jnp.sum(jnp.where(weight == 0, 0, values) * weight), jnp.sum(weight)


def match_weight(sample_weight: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the weights as float32 of ``shape``; (N,) is broadcast to (N, T, …).

    Raises:
        ShapeError: the leading axes differ.
    """
    weight = jnp.asarray(sample_weight).astype(jnp.float32)
    if weight.shape != shape[: weight.ndim]:
        raise ShapeError(
            f"The argument `sample_weight` has shape {weight.shape}; the values have shape "
            f"{shape}. Give one weight per example, shape {shape[:1]}."
        )
    weight = weight.reshape(weight.shape + (1,) * (len(shape) - weight.ndim))
    return jnp.broadcast_to(weight, shape)


def checked_label(ignore_index: Any) -> int | None:
    """Return ``ignore_index`` as an int, or None.

    Raises:
        ArgumentTypeError: ``ignore_index`` is neither an integer nor None.
    """
    try:
        return None if ignore_index is None else operator.index(ignore_index)
    except TypeError as error:
        raise ArgumentTypeError(
            f"The argument `ignore_index` must be a whole number or None; got {ignore_index!r}."
        ) from error


def without_ignored(
    y_true: jax.Array,
    shape: tuple[int, ...],
    sample_weight: jax.Array | None,
    ignore_index: int | None,
) -> jax.Array | None:
    """Return the weights, 0 where the label is ``ignore_index``; one-hot rows are never ignored.

    Args:
        y_true: integer classes of ``shape``, or with a last axis of size 1; or one-hot rows.
        shape: of the weighted values, (N, …).
        sample_weight: as for ``update``.
        ignore_index: label to ignore, or None.
    """
    if ignore_index is None or y_true.size != math.prod(shape):
        return sample_weight
    weight = jnp.ones(shape) if sample_weight is None else match_weight(sample_weight, shape)
    # Cast to int32: in uint8, -100 would wrap to another class.
    return jnp.where(y_true.reshape(shape).astype(jnp.int32) == ignore_index, 0, weight)


def safe_ratio(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
    """Return the ratio, or 0 where the denominator is 0."""
    zero = denominator == 0
    return jnp.where(zero, 0, numerator / jnp.where(zero, 1, denominator))
