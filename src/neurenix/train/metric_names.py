"""The names of metrics in the logs, and whether smaller or larger values of each are better.

Does not own the metrics (``neurenix.metrics``) or the comparison (``callbacks.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from neurenix import losses
from neurenix._core.errors import ArgumentError, unknown_name
from neurenix.metrics import FunctionMetric, Metric

_MODES = ("min", "max")
_SMALLER = frozenset(
    "loss error err deviation distance divergence perplexity ppl entropy crossentropy hinge huber "
    "cosh poisson mae mse rmse mape msle rmsle nll bce cer wer fid".split()
)
_LARGER = frozenset(
    "accuracy acc auc roc precision recall sensitivity specificity f f1score fscore score r r2 "
    "iou miou dice jaccard map ndcg mrr bleu rouge meteor psnr ssim top likelihood reward".split()
)


def named_apart(metrics: Iterable[Metric]) -> list[Metric]:
    """Return the metrics with equal names numbered, as in Keras: precision, precision_1.

    Raises:
        ArgumentError: a name is reserved for the loss or for validation.

    Example:
        >>> from neurenix.metrics import Precision
        >>> [m.name for m in named_apart([Precision(class_id=0), Precision(class_id=1)])]
        ['precision', 'precision_1']
    """
    metrics = list(metrics)
    wanted = {metric.name for metric in metrics}
    taken: set[str] = set()
    for metric in metrics:
        _check_name(metric.name)
        base, number = metric.name, 0
        while metric.name in taken or (number and metric.name in wanted):
            number += 1
            metric.name = f"{base}_{number}"
        taken.add(metric.name)
    return metrics


def _check_name(name: str) -> None:
    if name == "loss" or name.startswith("val_"):
        owner = "the loss" if name == "loss" else "a number of validation"
        raise ArgumentError(
            f"metrics: one is called {name!r}, which in the logs is {owner}. Give it another "
            "name: name=… of a metric, or another name of the function."
        )


def direction_of(name: str, metrics: Iterable[Metric]) -> str:
    """Return ``"min"`` when a smaller number is better, ``"max"`` when a larger one is.

    A metric of that name decides first, then the last known word of the name: ``"error_score"`` is
    a score.

    Args:
        name: in the logs, such as ``"val_mae"``.
        metrics: of the trainer.

    Raises:
        ArgumentError: neither the metric nor the name implies a direction.
        UnknownNameError: the metric's ``direction`` is neither.

    Example:
        >>> direction_of("val_mae", []), direction_of("top5_accuracy", [])
        ('min', 'max')
    """
    plain = name.removeprefix("val_")
    own = (_of_metric(metric) for metric in metrics if metric.name == plain)
    found = next(filter(None, own), None) or _of_words(plain)
    if found is None:
        raise ArgumentError(
            f"Whether a larger or a smaller {name!r} is better cannot be told from its name. Say "
            'so: mode="max" or mode="min"; or give the metric a direction.'
        )
    return found


def _of_metric(metric: Metric) -> str | None:
    if metric.direction not in (None, *_MODES):
        raise unknown_name(f"direction of the metric {metric.name}", metric.direction, _MODES)
    if metric.direction is None and isinstance(metric, FunctionMetric):
        name = getattr(metric.function, "__name__", "")
        # The losses of the library as functions; one of the user's may share a name with them.
        return "min" if getattr(losses, name, None) is metric.function else None
    return metric.direction


def _of_words(name: str) -> str | None:
    for word in reversed(re.findall(r"[a-z]+[0-9]*", name.lower())):
        for form in (word, word.rstrip("0123456789")):
            if form in _SMALLER:
                return "min"
            if form in _LARGER:
                return "max"
    return None
