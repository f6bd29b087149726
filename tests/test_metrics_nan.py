"""What metrics of right and wrong say of predictions that are NaN: wrong, whatever the answer."""

from __future__ import annotations

import numpy as np
import pytest

from neurenix import metrics

NAN = {
    "accuracy, classes": (metrics.Accuracy, np.array([0, 0, 1]), (3, 2)),
    "accuracy, one-hot": (metrics.Accuracy, np.eye(3)[[0, 0, 1]], (3, 3)),
    "accuracy, yes/no": (metrics.Accuracy, np.array([0, 1, 0]), (3,)),
    "sparse": (metrics.SparseCategoricalAccuracy, np.array([0, 0, 1]), (3, 2)),
    "categorical": (metrics.CategoricalAccuracy, np.eye(3)[[0, 0, 1]], (3, 3)),
    "binary": (metrics.BinaryAccuracy, np.array([0, 1, 0]), (3,)),
    "top k": (metrics.TopKCategoricalAccuracy, np.array([0, 1, 2]), (3, 8)),
    "top k of fewer": (metrics.TopKCategoricalAccuracy, np.array([0, 1, 2]), (3, 3)),
    "precision": (metrics.Precision, np.array([1, 0, 1]), (3,)),
    "precision of no": (lambda: metrics.Precision(class_id=0), np.array([1, 0, 0]), (3,)),
    "precision of a class": (lambda: metrics.Precision(class_id=0), np.array([0, 0, 1]), (3, 2)),
    "recall of no": (lambda: metrics.Recall(class_id=0), np.array([1, 0, 0]), (3,)),
    "f1 of a class": (lambda: metrics.F1Score(class_id=0), np.array([0, 0, 1]), (3, 2)),
    "auc": (metrics.AUC, np.array([0, 1, 0]), (3,)),
    "auc of logits": (lambda: metrics.AUC(from_logits=True), np.array([0, 1, 0]), (3,)),
}


@pytest.mark.parametrize("name", NAN)
def test_a_prediction_that_is_nan_is_never_right(name):
    make, y_true, shape = NAN[name]
    metric = make()
    metric.update(y_true, np.full(shape, np.nan, np.float32))
    assert float(metric.result()) == 0.0


def test_one_nan_costs_one_example_and_no_more():
    scores = np.array([[0.1, 0.9], [np.nan, 0.9], [0.1, np.nan]], np.float32)
    for make in (metrics.Accuracy, lambda: metrics.TopKCategoricalAccuracy(1)):
        metric = make()
        metric.update(np.array([1, 1, 1]), scores)
        assert float(metric.result()) == pytest.approx(1 / 3)
    best = metrics.TopKCategoricalAccuracy(2)
    best.update(np.array([1, 1, 1]), scores)
    assert float(best.result()) == pytest.approx(2 / 3)
    infinite = metrics.TopKCategoricalAccuracy(2)
    infinite.update(np.array([0]), np.array([[-np.inf, 1.0]], np.float32))
    assert float(infinite.result()) == 0.0
    area = metrics.AUC()
    area.update(np.array([1, 1, 0, 0]), np.array([0.9, np.nan, 0.1, 0.2], np.float32))
    assert float(area.result()) == 0.5
