"""Losses and metrics that couple the examples of a batch, among those of a trainer.

Owns finding them; their batches are then left whole (``feed.py``). It does not own how a function
is judged (``neurenix._coupling``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neurenix._coupling import couples_examples
from neurenix.losses import Loss
from neurenix.losses.registry import FunctionLoss
from neurenix.metrics import FunctionMetric, Metric
from neurenix.train.outputs import OutputLosses, OutputMetric, pick


def loss_couples(loss: Loss, y: Any, output: Any) -> bool:
    """Tell whether a loss is one number for a batch that is no mean over its examples.

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
        >>> loss_couples(root, ones((4, 1)), spec)
        True
    """
    if isinstance(loss, OutputLosses):
        return any(loss_couples(one, t, p) for one, _, t, p in loss.picked(y, output))
    return isinstance(loss, FunctionLoss) and couples_examples(loss.function, y, output)


def coupling_metrics(metrics: Iterable[Metric], y: Any, output: Any) -> list[str]:
    """Return the names of the metrics that are functions and couple examples; see above."""
    return [metric.name for metric in metrics if _metric_couples(metric, y, output)]


def _metric_couples(metric: Any, y: Any, output: Any) -> bool:
    if isinstance(metric, OutputMetric):
        target = pick(y, metric.key, "targets are")
        return _metric_couples(metric.inner, target, pick(output, metric.key, "model returns"))
    return isinstance(metric, FunctionMetric) and metric.couples(y, output)
