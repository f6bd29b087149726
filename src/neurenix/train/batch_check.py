"""Checks of a batch against the model, the loss and the metrics, before anything is compiled.

Owns the shape of the model's output, whether loss and targets match it, and which losses and
metrics mix the examples of a batch. Does not own reading batches (``batch.py``) or the losses' own
checks (``neurenix.losses``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    NotCompiledError,
    ShapeError,
)
from neurenix._user_functions.batch_dependence import Coupling, coupling_of
from neurenix.losses import Loss
from neurenix.losses.registry import FunctionLoss
from neurenix.metrics import FunctionMetric, Metric
from neurenix.train.batch import Batch
from neurenix.train.epoch_iterator import EpochIterator
from neurenix.train.multi_output import OutputLosses, OutputMetric, pick, takes_trees
from neurenix.train.step import StepDefinition


class BatchCheck:
    """Checks of batches against the model's output, whose shapes it caches.

    Args:
        definition: the step.
        loss: the trainer's loss, or None.
        metrics: the trainer's metrics.
    """

    def __init__(
        self, definition: StepDefinition, loss: Loss | None, metrics: Sequence[Metric]
    ) -> None:
        self._definition, self._loss, self._metrics = definition, loss, metrics
        self._specs: dict[Any, Any] = {}
        self._output_shape: tuple[int, ...] | None = None
        self._coupling: dict[Any, tuple[Coupling, dict[str, Coupling]]] = {}

    @property
    def loss(self) -> Loss:
        """The trainer's loss.

        Raises:
            NotCompiledError: there is no loss.
        """
        if self._loss is None:
            raise NotCompiledError(
                'There is no loss. Name one: model.compile(optimizer="adam", loss="…") or '
                'Trainer(module, loss="…").'
            )
        return self._loss

    def output_spec(self, x: Any) -> Any:
        """Return shapes and dtypes of the model's output for inputs like ``x``."""
        leaves, treedef = jax.tree.flatten(x)
        key = (treedef, *((leaf.shape, leaf.dtype) for leaf in leaves))
        if key not in self._specs:
            model = self._definition.model.read()
            self._specs[key] = jax.eval_shape(self._definition.predict, model, x)
        return self._specs[key]

    def first(self, batch: Batch) -> None:
        """Check the first batch, and remember the shape of its output for ``labels``.

        Raises:
            ArgumentError: there are no targets.
            ArgumentTypeError: the loss takes one array, and the model returns several.
            DataError: the output is complex, or a target is out of range.
            ShapeError: inputs, model, loss and targets do not match.
        """
        self._output_shape = self.check(batch)

    def check(self, batch: Batch) -> tuple[int, ...] | None:
        """Check as ``first``, without storing the shape.

        Returns:
            the shape of the output; None if it is not one array.
        """
        loss, x, y = self.loss, batch.x, batch.y
        if y is None:
            raise ArgumentError(
                "There are no targets: give y, or batches of (x, y), or dicts with a 'label'."
            )
        output = self.output_spec(x)
        shape: tuple[int, ...] | None = getattr(output, "shape", None)
        if shape is None and not takes_trees(loss):
            raise ArgumentTypeError(
                f"The model returns a {type(output).__name__} of arrays, and the loss "
                f"{loss.name} takes one array. Give a loss function that picks, such as "
                "lambda y_true, y_pred: nx.losses.mean_squared_error(y_true, y_pred[…])."
            )
        if any(jnp.iscomplexobj(leaf) for leaf in jax.tree.leaves(output)):
            given = " for inputs that are" if any(map(np.iscomplexobj, jax.tree.leaves(x))) else ""
            raise DataError(
                f"The model returns complex numbers{given}, and a loss needs real ones. Give real "
                "and imaginary parts as features, or take jnp.abs in the model."
            )
        check_targets(loss, y, output)
        return shape

    def leave_whole(self, feed: EpochIterator) -> Coupling:
        """Forbid padding of ``feed`` if the loss or a metric couples the examples of a batch.

        Returns:
            how the loss couples them.

        Raises:
            ArgumentError: batches have weights, or need padding.
        """
        of_loss, of_metrics = self._found_coupling(feed.first)
        if of_loss:
            feed.keep_whole(f"loss {self.loss.name}", of_loss)
        for name, coupling in of_metrics.items():
            feed.keep_whole(f"metric {name} (a class of nx.metrics takes any batch)", coupling)
        return of_loss

    def _found_coupling(self, batch: Batch) -> tuple[Coupling, dict[str, Coupling]]:
        """Return how the loss couples examples, and the metrics by name; cached by shape."""
        output = self.output_spec(batch.x)
        leaves, treedef = jax.tree.flatten((batch.x, batch.y))
        key = (treedef, *(np.shape(leaf) for leaf in leaves))
        if key not in self._coupling:
            of_loss = loss_coupling(self.loss, batch.y, output)
            of_metrics = coupling_metrics(self._metrics, batch.y, output)
            self._coupling[key] = of_loss, of_metrics
        return self._coupling[key]

    def labels(self, batch: Batch, steps: int) -> None:
        """Check the targets of a host batch, of ``steps`` batches stacked, against the loss."""
        loss = self.loss
        if isinstance(loss, OutputLosses):
            if all(_on_host(leaf) is not None for leaf in jax.tree.leaves(batch.y)):
                x, y = _one_batch((batch.x, batch.y), steps)
                loss.validate(y, self.output_spec(x))
            return
        y = _on_host(batch.y)
        if self._output_shape is None or y is None:
            return
        y = _one_batch(y, steps)
        try:
            loss.validate(y, (len(y), *self._output_shape[1:]))
        except ShapeError:  # inputs of another shape may have outputs of another shape
            x = _one_batch(batch.x, steps)
            loss.validate(y, self.output_spec(x).shape)


def check_targets(loss: Loss, y: Any, output: Any) -> None:
    """Check targets against the loss.

    Args:
        loss: the loss.
        y: targets of one batch.
        output: shape and dtype of the model's output for it, or a tree of them.

    Raises:
        ShapeError, DataError: as ``Loss.validate``.
    """
    shape = getattr(output, "shape", None)
    if isinstance(loss, OutputLosses):
        loss.validate(y, output)
    elif isinstance(y, (np.ndarray, jax.Array)) and shape is not None:
        loss.validate(np.asarray(y), shape)


def _one_batch(tree: Any, steps: int) -> Any:
    """Return ``steps`` stacked batches as one."""
    if steps == 1:
        return tree
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def _on_host(y: Any) -> np.ndarray | None:
    """Return targets that can be read without waiting for a device, or None.

    Targets on an accelerator are not read. A label out of range then makes the loss NaN, which
    ``divergence.py`` explains.
    """
    if isinstance(y, jax.Array) and y.is_fully_addressable:
        held = y.sharding.device_set
        return np.asarray(y) if all(device.platform == "cpu" for device in held) else None
    return y if isinstance(y, np.ndarray) else None


def loss_coupling(loss: Loss, y: Any, output: Any) -> Coupling:
    """Return how a loss couples the examples of a batch.

    Args:
        loss: any loss; only users' functions can couple examples.
        y: targets of a batch, (N, …).
        output: shapes and dtypes of the model's output for it, (N, …).

    Example:
        >>> import jax
        >>> from neurenix.losses import get
        >>> from neurenix.tensor import mean, ones, sqrt
        >>> spec = jax.ShapeDtypeStruct((4, 1), "float32")
        >>> root = get(lambda t, p: sqrt(mean((t - p) ** 2)))
        >>> loss_coupling(root, ones((4, 1)), spec).name
        'SCALAR'
    """
    if isinstance(loss, OutputLosses):
        parts = [loss_coupling(one, t, p) for one, _, t, p in loss.picked(y, output)]
        return max(parts, default=Coupling.NONE)
    if isinstance(loss, FunctionLoss):
        return coupling_of(loss.function, y, output)
    return Coupling.NONE


def expect_one_part(loss: Loss, parts: int) -> None:
    """Raise ArgumentError if batches are computed in parts; for a loss that couples examples."""
    if parts > 1:
        raise ArgumentError(
            f"accumulate_steps={parts} computes each batch in parts, and the loss {loss.name} "
            "couples the examples of a batch: the mean of its values for the parts is another "
            "function. Use accumulate_steps=1, or a loss that gives each example a number of its "
            "own (a masked mean: the sum over an example's entries, with masks as weights)."
        )


def coupling_metrics(metrics: Iterable[Metric], y: Any, output: Any) -> dict[str, Coupling]:
    """Return how the metrics that are functions couple examples, by name."""
    found = {metric.name: _metric_coupling(metric, y, output) for metric in metrics}
    return {name: coupling for name, coupling in found.items() if coupling}


def _metric_coupling(metric: Any, y: Any, output: Any) -> Coupling:
    if isinstance(metric, OutputMetric):
        target = pick(y, metric.key, "targets are")
        return _metric_coupling(metric.inner, target, pick(output, metric.key, "model returns"))
    return metric.coupling(y, output) if isinstance(metric, FunctionMetric) else Coupling.NONE
