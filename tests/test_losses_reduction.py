"""What a call of a loss makes of the losses: their mean, their sum, or each."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import neurenix as nx
from neurenix import ArgumentError, ShapeError, UnknownNameError, losses, nn

LABELS = np.array([[0, 2], [-1, 1], [-1, -1]])
LOGITS = np.random.default_rng(3).normal(size=(3, 2, 3)).astype(np.float32)


def test_each_loss_and_their_sum_are_those_of_the_positions_that_count() -> None:
    log_p = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    wanted = -np.take_along_axis(log_p, np.maximum(LABELS, 0)[..., None], -1)[..., 0]
    wanted = np.where(LABELS == -1, 0, wanted)
    loss = functools.partial(
        losses.SparseCategoricalCrossentropy, from_logits=True, ignore_index=-1
    )
    np.testing.assert_allclose(loss(reduction="none")(LABELS, LOGITS), wanted, rtol=1e-5)
    np.testing.assert_allclose(loss(reduction=None)(LABELS, LOGITS), wanted, rtol=1e-5)
    np.testing.assert_allclose(loss(reduction="sum")(LABELS, LOGITS), wanted.sum(), rtol=1e-5)
    of_examples, of_positions = np.float32([2, 0.5, 1]), np.float32([[1, 2], [3, 4], [5, 6]])
    for weight, each in ((of_examples, of_examples[:, None]), (of_positions, of_positions)):
        found = loss(reduction="none")(LABELS, LOGITS, weight)
        np.testing.assert_allclose(found, wanted * each, rtol=1e-5)
        found = loss(reduction="sum")(LABELS, LOGITS, weight)
        np.testing.assert_allclose(found, (wanted * each).sum(), rtol=1e-5)


def test_a_loss_of_weight_0_is_0_in_every_reduction() -> None:
    y_true, y_pred = np.zeros((2, 1)), np.array([[np.inf], [3.0]])
    for reduction, wanted in (("none", [[0], [9]]), ("sum", 9), ("mean", 9)):
        loss = losses.MeanSquaredError(reduction=reduction)
        np.testing.assert_array_equal(loss(y_true, y_pred, np.array([0.0, 1.0])), wanted)


def test_each_loss_goes_into_the_average_over_replicas() -> None:
    loss = losses.MeanSquaredError(reduction="none")
    average = nx.distribute.compute_average_loss(loss(np.zeros((4, 3)), np.ones((4, 3)) * 2))
    assert float(average) == float(losses.MeanSquaredError()(np.zeros((4, 3)), np.ones((4, 3)) * 2))


def test_what_is_no_reduction_is_refused_and_fit_takes_the_mean_alone() -> None:
    with pytest.raises(UnknownNameError, match="no reduction of a loss named 'men'. Did you mean"):
        losses.Huber(reduction="men")
    with pytest.raises(ShapeError, match="Give one weight per example"):
        losses.MeanSquaredError(reduction="sum")(np.zeros((4, 2)), np.ones((4, 2)), np.ones(3))
    model = nn.Linear(2, 1)
    for loss in (losses.MeanSquaredError(reduction="sum"), {"a": losses.Huber(reduction="none")}):
        with pytest.raises(ArgumentError, match="is for training loops of your own. fit takes"):
            model.compile(loss=loss)
    assert losses.MeanSquaredError() == losses.MeanSquaredError(reduction="mean")
