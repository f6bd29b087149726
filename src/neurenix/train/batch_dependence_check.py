"""Losses and metrics that couple the examples of a batch, among those of a trainer.

Owns finding them; their batches are then left whole (``epoch_iterator.py``). It does not own how a
function is judged (``neurenix._user_functions.batch_dependence``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neurenix._core.errors import ArgumentError
from neurenix._user_functions.batch_dependence import Coupling, coupling_of
from neurenix.losses import Loss
from neurenix.losses.registry import FunctionLoss
from neurenix.metrics import FunctionMetric, Metric
from neurenix.train.multi_output import OutputLosses, OutputMetric, pick


def loss_coupling(loss: Loss, y: Any, output: Any) -> Coupling:
    """Tell how a loss couples the examples of a batch, if it does.

    Args:
        loss: any loss; only functions of users are judged.
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
    """Raise ArgumentError if a batch of a loss that couples examples is computed in parts."""
    if parts > 1:
        raise ArgumentError(
            f"accumulate_steps={parts} computes each batch in parts, and the loss {loss.name} "
            "couples the examples of a batch: the mean of its values for the parts is another "
            "function. Use accumulate_steps=1, or a loss that gives each example a number of its "
            "own (a masked mean: the sum over an example's entries, with masks as weights)."
        )


def coupling_metrics(metrics: Iterable[Metric], y: Any, output: Any) -> dict[str, Coupling]:
    """Return how those of the metrics that are functions couple examples, by name; see above."""
    found = {metric.name: _metric_coupling(metric, y, output) for metric in metrics}
    return {name: coupling for name, coupling in found.items() if coupling}


def _metric_coupling(metric: Any, y: Any, output: Any) -> Coupling:
    if isinstance(metric, OutputMetric):
        target = pick(y, metric.key, "targets are")
        return _metric_coupling(metric.inner, target, pick(output, metric.key, "model returns"))
    return metric.coupling(y, output) if isinstance(metric, FunctionMetric) else Coupling.NONE
