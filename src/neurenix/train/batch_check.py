"""Checks of a batch against the model and the loss, before anything is compiled.

Owns what the model returns for inputs of a shape, and whether loss and targets go with it. It does
not own reading batches (``batch.py``) nor the losses' own checks (``neurenix.losses``).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError
from neurenix._user_functions.batch_dependence import Coupling
from neurenix.losses import Loss
from neurenix.train.batch import Batch
from neurenix.train.batch_dependence_check import coupling_metrics, loss_coupling
from neurenix.train.config import Recipe
from neurenix.train.epoch_iterator import Feed
from neurenix.train.multi_output import OutputLosses, takes_trees
from neurenix.train.step import StepDefinition


class BatchCheck:
    """What is known of a model's output, and the checks that it allows.

    Args:
        definition: the step.
        recipe: what it was made of. Where that has no loss, what needs one raises NotCompiledError.
    """

    def __init__(self, definition: StepDefinition, recipe: Recipe) -> None:
        self._definition, self._recipe = definition, recipe
        self._specs: dict[Any, Any] = {}
        self._output_shape: tuple[int, ...] | None = None
        self._coupling: dict[Any, tuple[Coupling, dict[str, Coupling]]] = {}

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
            DataError: the output is complex, or a target out of range.
            ShapeError: inputs, model, loss and targets do not go together.
        """
        self._output_shape = self.check(batch)

    def check(self, batch: Batch) -> tuple[int, ...] | None:
        """Check as ``first`` and remember nothing.

        Returns:
            the shape of the output; None when it is not one array.
        """
        loss, x, y = self._recipe.needed_loss(), batch.x, batch.y
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

    def leave_whole(self, feed: Feed) -> Coupling:
        """Let no batch of ``feed`` be filled up where the loss or a metric couples its examples.

        Returns:
            how the loss couples them.

        Raises:
            ArgumentError: batches have weights, or must be filled up.
        """
        of_loss, of_metrics = self._found_coupling(feed.first)
        if of_loss:
            feed.keep_whole(f"loss {self._recipe.needed_loss().name}", of_loss)
        for name, coupling in of_metrics.items():
            feed.keep_whole(f"metric {name} (a class of nx.metrics takes any batch)", coupling)
        return of_loss

    def _found_coupling(self, batch: Batch) -> tuple[Coupling, dict[str, Coupling]]:
        """Tell how the loss couples examples, and metrics by name; found once for a shape."""
        output = self.output_spec(batch.x)
        leaves, treedef = jax.tree.flatten((batch.x, batch.y))
        key = (treedef, *(np.shape(leaf) for leaf in leaves))
        if key not in self._coupling:
            of_loss = loss_coupling(self._recipe.needed_loss(), batch.y, output)
            of_metrics = coupling_metrics(self._recipe.metrics, batch.y, output)
            self._coupling[key] = of_loss, of_metrics
        return self._coupling[key]

    def labels(self, batch: Batch, steps: int) -> None:
        """Check the targets of a host batch, of ``steps`` batches stacked, against the loss."""
        loss = self._recipe.needed_loss()
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
    """Check targets against the loss, as far as it can tell.

    Args:
        loss: the loss.
        y: targets of one batch.
        output: shape and dtype of the model's output for it, or a tree of such.

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
    """Return targets that can be looked at without waiting for a device, or None.

    What lies on an accelerator is left there; a label out of range then gives a loss that is not
    finite, and ``divergence.py`` finds it.
    """
    if isinstance(y, jax.Array) and y.is_fully_addressable:
        held = y.sharding.device_set
        return np.asarray(y) if all(device.platform == "cpu" for device in held) else None
    return y if isinstance(y, np.ndarray) else None
