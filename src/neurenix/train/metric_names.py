"""What the logs call each metric.

Owns that no two numbers of the logs have one name. It does not own the metrics
(``neurenix.metrics``).
"""

from __future__ import annotations

from collections.abc import Iterable

from neurenix._core.errors import ArgumentError
from neurenix.metrics import Metric


def named_apart(metrics: Iterable[Metric]) -> list[Metric]:
    """Return the metrics, those of one name numbered as Keras does: precision, precision_1.

    Raises:
        ArgumentError: a name is one that the logs give to the loss or to validation.

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
