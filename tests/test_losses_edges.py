"""Losses where a logarithm or a quotient has its end, and what short names and functions mean."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from neurenix import losses

SMOOTHED = special.log_softmax([1.0, 0.0])
# name: (loss, y_true, y_pred, value by hand)
EDGES = {
    "binary, smoothed": (
        losses.BinaryCrossentropy(label_smoothing=0.2),
        [1.0],
        [0.8],
        -(0.9 * math.log(0.8) + 0.1 * math.log(0.2)),
    ),
    "binary, of 0": (losses.BinaryCrossentropy(), [1.0], [0.0], -math.log(1e-7)),
    "sparse, of rows that add up to 2": (
        losses.SparseCategoricalCrossentropy(),
        [0],
        [[0.5, 1.5]],
        -math.log(0.25),
    ),
    "sparse, of 0": (
        losses.SparseCategoricalCrossentropy(),
        [0],
        [[0.0, 1.0]],
        -math.log(1e-7),
    ),
    "divergence, of targets of 0": (
        losses.KLDivergence(),
        [[1.0, 0.0]],
        [[0.5, 0.5]],
        math.log(2) + 1e-7 * math.log(2e-7),
    ),
    "divergence, of predictions of 0": (
        losses.KLDivergence(),
        [[1.0, 0.0]],
        [[0.0, 1.0]],
        -math.log(1e-7) + 1e-7 * math.log(1e-7),
    ),
    "logarithmic, below 0": (
        losses.MeanSquaredLogarithmicError(),
        [1.0],
        [-3.0],
        math.log(2) ** 2,
    ),
    "log cosh, far away": (
        losses.LogCosh(),
        [0.0, 0.0],
        [1000.0, -1000.0],
        1000 - math.log(2),
    ),
    "percentage, of 0": (losses.MeanAbsolutePercentageError(), [0.0], [1e-7], 100.0),
    "poisson, of 0": (losses.Poisson(), [1.0], [0.0], -math.log(1e-7)),
    "torch cross entropy of rows, smoothed": (
        losses.get(losses.CrossEntropyLoss(label_smoothing=0.2)),
        [[1.0, 0.0]],
        [[1.0, 0.0]],
        -(0.9 * SMOOTHED[0] + 0.1 * SMOOTHED[1]),
    ),
}


@pytest.mark.parametrize("name", EDGES)
def test_a_loss_ends_where_its_formula_would_not(name):
    loss, y_true, y_pred, expected = EDGES[name]
    y_true, y_pred = jnp.asarray(y_true), jnp.asarray(y_pred)
    np.testing.assert_allclose(loss(y_true, y_pred), expected, rtol=1e-4)
    assert bool(jnp.isfinite(jax.grad(lambda p: loss(y_true, p))(y_pred)).all())


def test_one_weight_for_all_changes_no_mean():
    assert float(losses.MeanSquaredError()(jnp.zeros(2), jnp.ones(2), 2.0)) == 1.0


def test_answers_of_yes_and_no_may_be_rounded():
    loss = losses.BinaryCrossentropy(from_logits=True)
    assert np.isfinite(loss(jnp.array([-0.01, 1.01]), jnp.zeros(2)))


X, Y = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
SHARES = special.softmax(Y, -1)


@pytest.mark.parametrize(
    ("function", "loss", "y_true"),
    [
        (losses.huber, losses.Huber(delta=0.3), X),
        (
            losses.categorical_crossentropy,
            losses.CategoricalCrossentropy(from_logits=True),
            SHARES,
        ),
        (losses.binary_crossentropy, losses.BinaryCrossentropy(from_logits=True), SHARES),
    ],
    ids=["huber", "categorical", "binary"],
)
def test_a_function_has_the_options_of_its_class(function, loss, y_true):
    options = {"delta": 0.3} if function is losses.huber else {"from_logits": True}
    np.testing.assert_array_equal(
        function(y_true, 2 * X, **options), loss.per_example(y_true, 2 * X)
    )


LONG_NAMES = {
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "mse": "mean_squared_error",
    "msle": "mean_squared_logarithmic_error",
}


@pytest.mark.parametrize("short", LONG_NAMES)
def test_a_short_name_is_that_of_the_long_one(short):
    assert losses.get(short) == losses.get(LONG_NAMES[short])
