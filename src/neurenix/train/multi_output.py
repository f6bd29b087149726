"""Losses and metrics of a model with several outputs, one for each, by name or position.

Matches outputs to targets. Does not own the formulas (``neurenix.losses``, ``neurenix.metrics``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix import losses
from neurenix._core.errors import ArgumentError, ArgumentTypeError, unknown_name
from neurenix.losses import BinaryCrossentropy, Loss
from neurenix.metrics import MeanMetric, Metric
from neurenix.metrics import get as get_metric


@dataclass(frozen=True)
class OutputLosses(Loss):
    """The weighted sum of one loss for each output; outputs without a loss are ignored.

    Args:
        parts: (key of the output, loss, its weight in the sum).
    """

    parts: tuple[tuple[Any, Loss, float], ...]

    @property
    def name(self) -> str:
        """The names of the losses with their outputs."""
        return " + ".join(f"{loss.name} of {key!r}" for key, loss, _ in self.parts)

    def elementwise(self, y_true: Any, y_pred: Any) -> jax.Array:
        """Return the sum for each example, shape (N,)."""
        picked = self.picked(y_true, y_pred)
        parts = (weight * loss.per_example(t, p) for loss, weight, t, p in picked)
        return functools.reduce(jnp.add, parts)

    def __call__(
        self, y_true: Any, y_pred: Any, sample_weight: jax.Array | None = None
    ) -> jax.Array:
        """Return the sum of the mean losses; see :meth:`Loss.__call__`."""
        picked = self.picked(y_true, y_pred)
        parts = (weight * loss(t, p, sample_weight) for loss, weight, t, p in picked)
        return functools.reduce(jnp.add, parts)

    def target_spec(self, y_pred: Any) -> Any:
        """Return shape and dtype of the targets, in the structure of the outputs."""
        pairs = [(key, loss.target_spec(pick(y_pred, key, "model returns"))) for key, loss, _ in
                 self.parts]  # fmt: skip
        if isinstance(y_pred, Mapping):
            return dict(pairs)
        return tuple(dict(pairs).get(index, spec) for index, spec in enumerate(y_pred))

    def validate(self, y_true: Any, y_pred_shape: Any) -> None:
        """Check the targets of every loss on the host.

        Args:
            y_true: the targets, in the structure of the outputs.
            y_pred_shape: the outputs, or their shapes and dtypes.

        Raises:
            ArgumentError: an output with a loss is missing, or its targets.
            ShapeError, DataError: as the losses.
        """
        for key, loss, _ in self.parts:
            target = pick(y_true, key, "targets are")
            output = pick(y_pred_shape, key, "model returns")
            if hasattr(output, "shape") and hasattr(target, "shape"):
                loss.validate(np.asarray(target), output.shape)
            elif not takes_trees(loss):
                raise ArgumentTypeError(
                    f"The output {key!r} or its target is a {type(output).__name__} of arrays, and "
                    f"the loss {loss.name} takes one array. Give a loss function that picks, such "
                    "as lambda y_true, y_pred: nx.losses.mean_squared_error(y_true, y_pred[…])."
                )

    def picked(self, y_true: Any, y_pred: Any) -> list[tuple[Loss, float, Any, Any]]:
        """Return (loss, weight, targets, output) of each part.

        Raises:
            ArgumentError: the outputs or the targets lack one that has a loss.
        """
        return [
            (loss, weight, pick(y_true, key, "targets are"), pick(y_pred, key, "model returns"))
            for key, loss, weight in self.parts
        ]


def takes_trees(loss: Loss) -> bool:
    """Return whether a loss may take tuples and dicts of arrays: a function, or a user's class.

    Example:
        >>> takes_trees(losses.get("mse")), takes_trees(losses.get(lambda y_true, y_pred: 0.0))
        (False, True)
    """
    own = type(loss).__module__.startswith("neurenix.losses.")
    return isinstance(loss, losses.FunctionLoss) or not own


def means_of(
    loss: Loss, y_true: Any, y_pred: Any, sample_weight: Any, *, examples: int
) -> tuple[jax.Array, jax.Array]:
    """Return the mean loss and the sum of its weights, float32.

    Both are scalars, or (K,) for a loss of each of K outputs, which may ignore different examples.
    The loss is the sum of the K means.

    Args:
        loss: the loss.
        y_true: the targets.
        y_pred: what the model returned.
        sample_weight: (N,), or None.
        examples: N, the sum of weights without ``sample_weight``.
    """
    if isinstance(loss, OutputLosses):
        picked = loss.picked(y_true, y_pred)
        parts = [means_of(one, t, p, sample_weight, examples=examples) for one, _, t, p in picked]
        means = [mean * factor for (mean, _), (_, factor, *_) in zip(parts, picked, strict=True)]
        return jnp.stack(means), jnp.stack([weight for _, weight in parts])
    counted = loss.counted(y_true, y_pred, sample_weight)
    weight = jnp.float32(examples) if counted is None else jnp.sum(counted, dtype=jnp.float32)
    return loss(y_true, y_pred, sample_weight).astype(jnp.float32), weight


class OutputMetric(Metric):
    """A metric of one output.

    Args:
        key: name or position of the output.
        inner: the metric.
    """

    def __init__(self, key: Any, inner: Metric) -> None:
        super().__init__(f"{key}_{inner.name}")
        self.key, self.inner = key, inner
        self.direction = getattr(inner, "direction", None)

    def reset(self) -> None:
        """Set every sum to zero, in place."""
        self.inner.reset()

    def update(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add this output's part of a batch."""
        target = pick(y_true, self.key, "targets are")
        output = pick(y_pred, self.key, "model returns")
        update: Any = self.inner.update
        update(target, output, sample_weight=sample_weight)

    def result(self) -> jax.Array:
        """Return the metric's value so far."""
        return self.inner.result()


class OutputLoss(OutputMetric):
    """The mean loss of one output, called as in Keras: the output's name and ``_loss``.

    Args:
        key: name or position of the output.
        loss: its loss, without its weight in the sum.
    """

    def __init__(self, key: Any, loss: Loss) -> None:
        super().__init__(key, MeanLoss(loss))


class MeanLoss(MeanMetric):
    """The mean of a loss over all batches of an epoch.

    Args:
        loss: the loss.
    """

    direction = "min"

    def __init__(self, loss: Loss) -> None:
        super().__init__("loss")
        self.loss = loss

    def update(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Add a batch; see :meth:`Loss.__call__`."""
        examples = len(jax.tree.leaves(y_pred)[0])
        self._add(*means_of(self.loss, y_true, y_pred, sample_weight, examples=examples))


def as_loss(loss: Any, weights: Any = None) -> Loss | None:
    """Return the loss for the argument of ``compile``: one, or one for each output.

    Args:
        loss: anything that ``neurenix.losses.get`` takes, a dict of these by output, or a list of
            these by position.
        weights: numbers in the same form; 1 by default.

    Raises:
        UnknownNameError: unknown loss name, or ``weights`` has an output without a loss.
        ArgumentError: there are weights for a single loss, a weight is not a number, or the
            reduction of a loss is not the mean.

    Example:
        >>> as_loss({"a": "mse", "b": "mae"}, {"b": 0.5}).name
        "mean_squared_error of 'a' + mean_absolute_error of 'b'"
    """
    if not isinstance(loss, (Mapping, list, tuple)):
        if weights is not None:
            raise ArgumentError("loss_weights goes with one loss for each output: a dict or list.")
        return None if loss is None else _averaged(losses.get(loss))
    given, weighed = _by_key(loss), {} if weights is None else _by_key(weights)
    for key in weighed:
        if key not in given:
            raise unknown_name("output of loss_weights", str(key), list(map(str, given)))
    parts = [
        (key, _averaged(losses.get(one)), _number(weighed.get(key, 1.0)))
        for key, one in given.items()
    ]
    if not parts:
        raise ArgumentError("loss is empty: give one for each output that is to be trained.")
    return OutputLosses(tuple(parts))


def _averaged(loss: Loss) -> Loss:
    if loss.reduction != "mean":
        raise ArgumentError(
            f"The loss {loss.name} has reduction={loss.reduction!r}, which is for training loops "
            "of your own. fit takes the mean over the examples that count: leave reduction out."
        )
    return loss


def as_metrics(metrics: Any) -> list[Metric]:
    """Return metrics for the argument of ``compile``: None, one, a list, a dict by output.

    Raises:
        UnknownNameError: unknown metric name.
    """
    if isinstance(metrics, Mapping):
        return [OutputMetric(key, get_metric(metric)) for key, value in metrics.items()
                for metric in _listed(value)]  # fmt: skip
    return [get_metric(metric) for metric in _listed(metrics)]


def losses_of_outputs(loss: Loss | None, metrics: Sequence[Metric]) -> list[Metric]:
    """Return a metric for the loss of every output, if there are several and no such metric."""
    if not isinstance(loss, OutputLosses) or any(isinstance(m, OutputLoss) for m in metrics):
        return []
    return [OutputLoss(key, part) for key, part, _ in loss.parts]


def follow_loss(metrics: Sequence[Metric], loss: Loss | None) -> None:
    """Set options of metrics that were not given to those of the loss.

    These are the label to ignore, and the threshold, which is that of logits if the loss takes
    binary logits.
    """
    of_output = {}
    if isinstance(loss, OutputLosses):
        of_output = {key: part for key, part, _ in loss.parts}
    for metric in metrics:
        own: Any = metric
        its_loss = loss
        if isinstance(metric, OutputMetric):
            own, its_loss = metric.inner, of_output.get(metric.key)
        if getattr(own, "ignore_index", 0) is None:
            own.ignore_index = getattr(its_loss, "ignore_index", None)
        logits = isinstance(its_loss, BinaryCrossentropy) and its_loss.from_logits
        if logits and getattr(own, "threshold", 0) is None:
            own.threshold = 0.0


def pick(tree: Any, key: Any, what: str) -> Any:
    """Return the entry of outputs or targets that belongs to ``key``.

    Raises:
        ArgumentError: there is none; the message starts with "The" and ``what``.
    """
    if isinstance(tree, Mapping):
        if key in tree:
            return tree[key]
        found = f"a dict of {', '.join(map(repr, tree))}"
    elif isinstance(tree, (tuple, list)):
        if isinstance(key, int) and key < len(tree):
            return tree[key]
        found = f"a tuple of {len(tree)}"
    else:
        found = "one array"
    raise ArgumentError(f"A loss or a metric is for the output {key!r}; the {what} {found}.")


def _by_key(given: Any) -> dict[Any, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, (list, tuple)):
        return dict(enumerate(given))
    raise ArgumentTypeError(
        f"loss_weights is {type(given).__name__}, expected a dict or a list like that of the loss."
    )


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number):
        raise ArgumentError(f"loss_weights holds {value!r}; weights are finite numbers.")
    return number


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
