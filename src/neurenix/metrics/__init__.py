"""Metrics: sums on the device, ``update(y_true, y_pred, sample_weight=None)`` and ``result()``."""

from typing import TYPE_CHECKING

from neurenix._core.names import names_of
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
from neurenix.metrics.registry import FunctionMetric, get
from neurenix.metrics.regression import (
    MeanAbsoluteError,
    MeanSquaredError,
    R2Score,
    RootMeanSquaredError,
)

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

# Names of other libraries → what to use here.
_ELSEWHERE = {
    "AUROC": "metrics.AUC",
    "Average": "metrics.Mean",
    "F1": "metrics.F1Score",
    "FBetaScore": "metrics.F1Score, of which beta is 1",
    "MAE": "metrics.MeanAbsoluteError",
    "MSE": "metrics.MeanSquaredError",
    "RMSE": "metrics.RootMeanSquaredError",
    "accuracy_score": "metrics.Accuracy",
    "precision_score": "metrics.Precision",
    "recall_score": "metrics.Recall",
    "roc_auc_score": "metrics.AUC",
    "SparseTopKCategoricalAccuracy": "metrics.TopKCategoricalAccuracy",
}

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    __getattr__ = names_of(__name__, __all__, _ELSEWHERE)
