"""Metrics: sums on the device, ``update(y_true, y_pred, sample_weight=None)`` and ``result()``.

Owns the public names; each formula is in the module named after its family.
"""

from neurenix.metrics.accuracy import (
    Accuracy,
    BinaryAccuracy,
    CategoricalAccuracy,
    SparseCategoricalAccuracy,
    TopKCategoricalAccuracy,
)
from neurenix.metrics.aggregate import Mean, Sum
from neurenix.metrics.base import MeanMetric, Metric
from neurenix.metrics.confusion import AUC, F1Score, Precision, Recall
from neurenix.metrics.errors import (
    MeanAbsoluteError,
    MeanSquaredError,
    R2Score,
    RootMeanSquaredError,
)
from neurenix.metrics.registry import FunctionMetric, get

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "CategoricalAccuracy",
    "F1Score",
    "FunctionMetric",
    "Mean",
    "MeanAbsoluteError",
    "MeanMetric",
    "MeanSquaredError",
    "Metric",
    "Precision",
    "R2Score",
    "Recall",
    "RootMeanSquaredError",
    "SparseCategoricalAccuracy",
    "Sum",
    "TopKCategoricalAccuracy",
    "get",
]
