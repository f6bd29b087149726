"""Losses against NumPy, weights and masks, and what wrong targets are told."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

import neurenix as nx
from neurenix import losses, metrics
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    ShapeError,
    UnknownNameError,
)
from neurenix.losses import crossentropy

N, T, C = 6, 3, 4
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(N, C)).astype(np.float32) * 3
PROBABILITIES = special.softmax(LOGITS, axis=-1)
LABELS = RNG.integers(0, C, N)
ONE_HOT = np.eye(C, dtype=np.float32)[LABELS]
SOFT = special.softmax(RNG.normal(size=(N, C)), axis=-1).astype(np.float32)
YES_NO = RNG.integers(0, 2, (N, C)).astype(np.float32)
X = RNG.normal(size=(N, C)).astype(np.float32)
Y = RNG.normal(size=(N, C)).astype(np.float32)
LOG_P = special.log_softmax(LOGITS, axis=-1)
RANGE = np.arange(N)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def binary(p, y):
    return -(y * np.log(p) + (1 - y) * np.log(1 - p))


TORCH = losses.get(losses.CrossEntropyLoss())
# name: (loss, y_true, y_pred, expected per position, before the mean over all but the first axis)
CASES = {
    "sparse": (
        losses.SparseCategoricalCrossentropy(),
        LABELS,
        PROBABILITIES,
        -LOG_P[RANGE, LABELS],
    ),
    "sparse logits": (
        losses.SparseCategoricalCrossentropy(from_logits=True),
        LABELS,
        LOGITS,
        -LOG_P[RANGE, LABELS],
    ),
    "sparse column of labels": (
        losses.SparseCategoricalCrossentropy(from_logits=True),
        LABELS[:, None],
        LOGITS,
        -LOG_P[RANGE, LABELS],
    ),
    "sparse smoothed": (
        losses.SparseCategoricalCrossentropy(from_logits=True, label_smoothing=0.2),
        LABELS,
        LOGITS,
        -((0.8 * ONE_HOT + 0.2 / C) * LOG_P).sum(-1),
    ),
    "categorical": (
        losses.CategoricalCrossentropy(),
        SOFT,
        PROBABILITIES,
        -(SOFT * LOG_P).sum(-1),
    ),
    "categorical logits smoothed": (
        losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2),
        ONE_HOT,
        LOGITS,
        -((0.8 * ONE_HOT + 0.2 / C) * LOG_P).sum(-1),
    ),
    "binary": (
        losses.BinaryCrossentropy(),
        YES_NO,
        special.expit(X),
        binary(special.expit(X), YES_NO),
    ),
    "binary logits": (
        losses.BinaryCrossentropy(from_logits=True),
        YES_NO,
        X,
        binary(special.expit(X), YES_NO),
    ),
    "binary logits of one column": (
        losses.BinaryCrossentropy(from_logits=True),
        YES_NO[:, 0],
        X[:, :1],
        binary(special.expit(X[:, :1]), YES_NO[:, :1]),
    ),
    "mse": (losses.MeanSquaredError(), Y, X, (Y - X) ** 2),
    "mae": (losses.MeanAbsoluteError(), Y, X, np.abs(Y - X)),
    "mape": (losses.MeanAbsolutePercentageError(), Y, X, 100 * np.abs((Y - X) / Y)),
    "msle": (
        losses.MeanSquaredLogarithmicError(),
        Y**2,
        X**2,
        (np.log1p(Y**2) - np.log1p(X**2)) ** 2,
    ),
    "huber": (
        losses.Huber(0.7),
        Y,
        X,
        np.where(np.abs(Y - X) <= 0.7, (Y - X) ** 2 / 2, 0.7 * (np.abs(Y - X) - 0.35)),
    ),
    "log cosh": (losses.LogCosh(), Y, X, np.log(np.cosh(X - Y))),
    "poisson": (losses.Poisson(), YES_NO, np.exp(X), np.exp(X) - YES_NO * X),
    "cosine": (losses.CosineSimilarity(), Y, X, -(unit(Y) * unit(X)).sum(-1)),
    "kl": (
        losses.KLDivergence(),
        SOFT,
        PROBABILITIES,
        special.rel_entr(SOFT, PROBABILITIES).sum(-1),
    ),
    "hinge": (losses.Hinge(), 2 * YES_NO - 1, X, np.maximum(1 - (2 * YES_NO - 1) * X, 0)),
    "hinge of 0 and 1": (losses.Hinge(), YES_NO, X, np.maximum(1 - (2 * YES_NO - 1) * X, 0)),
    "squared hinge": (
        losses.SquaredHinge(),
        YES_NO,
        X,
        np.maximum(1 - (2 * YES_NO - 1) * X, 0) ** 2,
    ),
    "categorical hinge": (
        losses.CategoricalHinge(),
        ONE_HOT,
        X,
        np.maximum(((1 - ONE_HOT) * X).max(-1) - (ONE_HOT * X).sum(-1) + 1, 0),
    ),
    "torch cross entropy": (
        losses.get(losses.CrossEntropyLoss()),
        LABELS,
        LOGITS,
        -LOG_P[RANGE, LABELS],
    ),
    "torch cross entropy of rows": (
        losses.get(losses.CrossEntropyLoss()),
        SOFT,
        LOGITS,
        -(SOFT * LOG_P).sum(-1),
    ),
    "torch nll": (losses.get(losses.NLLLoss()), LABELS, LOG_P, -LOG_P[RANGE, LABELS]),
    "torch bce": (
        losses.get(losses.BCEWithLogitsLoss()),
        YES_NO,
        X,
        binary(special.expit(X), YES_NO),
    ),
}
WEIGHT = np.array([1.0, 0.0, 2.0, 0.5, 0.0, 3.0], np.float32)


# Differences of nearly equal numbers: there the rounding of a bfloat16 input decides.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in CASES]
    + [(name, "bfloat16") for name in CASES if name not in ("mape", "log cosh")],
)
def test_a_loss_agrees_with_numpy(name, dtype):
    loss, y_true, y_pred, expected = CASES[name]
    tolerance = {"float32": 2e-4, "bfloat16": 0.05}[dtype]
    per_example = expected.reshape(N, -1).mean(-1)
    scale = np.abs(per_example).max() + 1
    x = jnp.asarray(y_pred, dtype)
    found = loss.per_example(y_true, x)
    assert found.shape == (N,) and found.dtype == jnp.float32
    np.testing.assert_allclose(found / scale, per_example / scale, atol=tolerance)
    np.testing.assert_allclose(loss(y_true, x) / scale, per_example.mean() / scale, atol=tolerance)
    weighted = (per_example * WEIGHT).sum() / WEIGHT.sum()
    found = jax.jit(loss)(y_true, x, WEIGHT)
    np.testing.assert_allclose(found / scale, weighted / scale, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite_and_agree_with_differences(name):
    loss, y_true, y_pred, _ = CASES[name]
    y_pred = jnp.asarray(y_pred)
    gradient = jax.grad(lambda p: loss(y_true, p))(y_pred)
    assert bool(jnp.isfinite(gradient).all())
    # Half along the gradient: there the difference is no sum of what cancels.
    random = jnp.asarray(np.random.default_rng(1).normal(size=y_pred.shape), jnp.float32)
    step = gradient / jnp.linalg.norm(gradient) + random / jnp.linalg.norm(random)
    step = 1e-2 * step * jnp.minimum(1, jnp.abs(y_pred))
    ahead, behind = loss(y_true, y_pred + step), loss(y_true, y_pred - step)
    np.testing.assert_allclose(ahead - behind, 2 * (gradient * step).sum(), rtol=0.1)


@pytest.mark.parametrize("name", CASES)
def test_validate_takes_the_right_targets(name):
    loss, y_true, y_pred, _ = CASES[name]
    loss.validate(np.asarray(y_true), y_pred.shape)
    spec = loss.target_spec(jax.ShapeDtypeStruct(y_pred.shape, jnp.float32))
    loss.validate(np.zeros(spec.shape, spec.dtype), y_pred.shape)


def wrong_targets(loss, y_true, shape):
    """Yield targets that ``validate`` must refuse, with the error: most losses refuse them all."""
    y_true = np.asarray(y_true)
    yield y_true[:-1], ShapeError  # an example less
    yield np.zeros((*shape, 2)), ShapeError  # an axis more
    unknown = np.array(y_true, float)
    unknown.flat[0] = np.nan
    yield unknown, DataError
    low, high, fraction = WRONG_VALUES.get(type(loss).__name__, (None, None, None))
    for value in (low, high, fraction):
        if value is not None:
            outside = np.array(y_true, float)
            outside.flat[0] = value
            yield outside, DataError


# Below, above, and between the right values; None where there are none.
WRONG_VALUES = {
    "SparseCategoricalCrossentropy": (-1, C, 0.5),
    "CategoricalCrossentropy": (-0.5, 1.5, None),
    "BinaryCrossentropy": (-0.5, 1.5, None),
    "MeanSquaredLogarithmicError": (-0.5, None, None),
    "Poisson": (-0.5, None, None),
    "KLDivergence": (-0.5, 1.5, None),
    "Hinge": (-1.5, 1.5, None),
    "SquaredHinge": (-1.5, 1.5, None),
    "CategoricalHinge": (-0.5, 1.5, None),
    "BinaryCrossEntropy": (-0.5, 1.5, None),
}


@pytest.mark.parametrize("name", CASES)
def test_validate_refuses_wrong_targets(name):
    loss, y_true, y_pred, _ = CASES[name]
    for wrong, error in wrong_targets(loss, y_true, y_pred.shape):
        with pytest.raises(error):
            loss.validate(wrong, y_pred.shape)


def test_sequences_are_averaged_per_example():
    logits = RNG.normal(size=(N, T, C)).astype(np.float32)
    labels = RNG.integers(0, C, (N, T))
    expected = -np.take_along_axis(special.log_softmax(logits, -1), labels[..., None], -1)[..., 0]
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    np.testing.assert_allclose(loss.per_example(labels, logits), expected.mean(1), rtol=1e-5)
    function = losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    np.testing.assert_allclose(function, expected.mean(1), rtol=1e-5)
    weight = RNG.integers(0, 2, (N, T)).astype(np.float32)
    by_position = (expected * weight).sum() / weight.sum()
    np.testing.assert_allclose(loss(labels, logits, weight), by_position, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (losses.categorical_crossentropy, "categorical"),
        (losses.binary_crossentropy, "binary"),
        (losses.mean_squared_error, "mse"),
        (losses.mean_absolute_error, "mae"),
        (losses.cosine_similarity, "cosine"),
        (losses.kl_divergence, "kl"),
        (losses.hinge, "hinge"),
    ],
)
def test_functions_return_one_loss_per_example(function, name):
    loss, y_true, y_pred, _ = CASES[name]
    np.testing.assert_array_equal(function(y_true, y_pred), loss.per_example(y_true, y_pred))


def test_extreme_logits_stay_finite():
    logits = jnp.array([[1e4, -1e4]])
    for loss, target in [
        (losses.SparseCategoricalCrossentropy(from_logits=True), jnp.array([1])),
        (losses.BinaryCrossentropy(from_logits=True), jnp.array([[0.0, 1.0]])),
    ]:
        assert bool(jnp.isfinite(loss(target, logits)))
        assert bool(jnp.isfinite(jax.grad(lambda p, f=loss, t=target: f(t, p))(logits)).all())


def test_a_row_of_zeros_has_a_cosine_with_a_gradient():
    gradient = jax.grad(lambda p: losses.CosineSimilarity()(Y[:1], p))(jnp.zeros((1, C)))
    assert bool(jnp.isfinite(gradient).all())


def test_weights_of_zero_hide_what_is_not_a_number():
    loss = losses.MeanSquaredError()
    y_pred = jnp.array([1.0, jnp.nan])
    assert float(loss(jnp.zeros(2), y_pred, jnp.array([1.0, 0.0]))) == 1.0
    assert float(loss(jnp.zeros(2), jnp.ones(2), jnp.zeros(2))) == 0.0


SPARSE = losses.SparseCategoricalCrossentropy(from_logits=True)
WRONG = {
    "label too large": (SPARSE, np.array([0, 4]), (2, 4), DataError, r"0 … 3.*4 at index \(1,\)"),
    "label negative": (SPARSE, np.array([-1, 0]), (2, 4), DataError, r"-1 at index \(0,\)"),
    "label with fraction": (SPARSE, np.array([0.5, 1]), (2, 4), DataError, "whole"),
    "one-hot for sparse": (SPARSE, np.eye(4), (4, 4), ShapeError, "CategoricalCrossentropy"),
    "labels for one-hot": (
        losses.CategoricalCrossentropy(),
        np.array([0, 1]),
        (2, 4),
        ShapeError,
        "SparseCategoricalCrossentropy",
    ),
    "count differs": (SPARSE, np.array([0, 1, 2]), (2, 4), ShapeError, "y_true"),
    "nan": (
        losses.MeanSquaredError(),
        np.array([[0.0], [np.nan]]),
        (2, 1),
        DataError,
        r"nan at index \(1, 0\)",
    ),
    "nan probabilities": (
        losses.BinaryCrossentropy(),
        np.array([np.nan, 1]),
        (2,),
        DataError,
        "finite",
    ),
    "broadcast": (losses.MeanSquaredError(), np.zeros(3), (3, 3), ShapeError, "one by one"),
    "not yes or no": (
        losses.BinaryCrossentropy(),
        np.array([0, 2]),
        (2, 1),
        DataError,
        "binary targets",
    ),
    "count below 0": (losses.Poisson(), np.array([-1.0]), (1,), DataError, "counts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_targets_are_told_before_anything_compiles(name):
    loss, y_true, shape, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        loss.validate(y_true, shape)


def test_wrong_shapes_are_told_while_tracing():
    with pytest.raises(ShapeError, match="y_true"):
        jax.jit(losses.MeanSquaredError())(jnp.zeros(3), jnp.zeros((3, 3)))
    with pytest.raises(ShapeError, match="sample_weight"):
        losses.MeanSquaredError()(jnp.zeros(3), jnp.zeros(3), jnp.zeros(4))


@pytest.mark.parametrize("name", ["cosine_similarity", "kl_divergence", "categorical_hinge"])
def test_a_loss_of_rows_does_not_reduce_a_last_axis_of_size_1(name):
    rows, loss = np.array([[0.2, 0.8], [0.5, 0.5]], np.float32), losses.get(name)
    for y_true, y_pred in (
        (rows, rows[..., None]),
        (rows[..., None], rows),
        (rows[0], rows[:, :1]),
    ):
        with pytest.raises(ShapeError, match=f"{name} compares rows"):
            loss(y_true, y_pred)
        with pytest.raises(ShapeError, match="compares rows"):
            loss.validate(y_true, y_pred.shape)


def test_arguments_in_pytorchs_order_are_told():
    labels, logits = jnp.zeros((2, 1), jnp.int32), jnp.zeros((2,), jnp.float32)
    with pytest.raises(DataError, match="targets first"):
        SPARSE(logits, labels)


@pytest.mark.parametrize(
    "build",
    [
        lambda: losses.Huber(0),
        lambda: losses.CategoricalCrossentropy(label_smoothing=1),
        lambda: losses.BinaryCrossentropy(label_smoothing=-0.1),
    ],
)
def test_options_out_of_range(build):
    with pytest.raises(ArgumentError, match="`"):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: losses.Huber("1"),
        lambda: losses.Huber(True),
        lambda: losses.Huber(np.array("1")),
        lambda: losses.BinaryCrossentropy(label_smoothing=[0.1]),
    ],
)
def test_options_that_are_no_numbers(build):
    with pytest.raises(ArgumentTypeError, match="must be a number"):
        build()


def test_a_huber_loss_without_an_end_is_half_the_squared_error():
    loss, half = losses.Huber(np.inf), 0.5 * np.square(Y - X)
    np.testing.assert_allclose(loss.elementwise(Y, X), half, rtol=1e-6)
    gradient = jax.grad(lambda p: loss(Y, p))(X)
    np.testing.assert_allclose(gradient, (X - Y) / X.size, rtol=1e-6)


def test_losses_compare_by_their_options_and_have_names():
    assert losses.Huber(2.0) == losses.Huber(2.0) != losses.Huber(1.0)
    assert hash(SPARSE) == hash(losses.SparseCategoricalCrossentropy(from_logits=True))
    assert SPARSE.name == "sparse_categorical_crossentropy"
    assert losses.KLDivergence().name == "kl_divergence"


def test_get_finds_names_classes_and_functions():
    assert losses.get("MSE") == losses.MeanSquaredError()
    assert losses.get("kl_divergence") == losses.KLDivergence()
    assert losses.get(losses.Huber) == losses.Huber()
    assert losses.get(SPARSE) is SPARSE
    with pytest.raises(UnknownNameError, match="mean_squared_error"):
        losses.get("mean_square_error")
    with pytest.raises(ArgumentTypeError, match="loss"):
        losses.get(3)


@pytest.mark.parametrize(
    "function",
    [
        lambda t, p: jnp.mean((t - p) ** 2, axis=-1),
        lambda t, p: jnp.mean((t - p) ** 2),
        lambda t, p: (t - p) ** 2,
    ],
    ids=["per example", "scalar", "per position"],
)
def test_a_function_is_a_loss(function):
    loss, reference = losses.get(function), losses.MeanSquaredError()
    np.testing.assert_allclose(loss(Y, X), reference(Y, X), rtol=1e-5)
    np.testing.assert_allclose(loss(Y, X, WEIGHT), reference(Y, X, WEIGHT), rtol=1e-5)
    np.testing.assert_allclose(loss.per_example(Y, X), reference.per_example(Y, X), rtol=1e-5)


def test_a_function_of_the_wrong_shape_is_told():
    loss = losses.get(lambda t, p: jnp.zeros(3))
    with pytest.raises(ShapeError, match="batch of 6"):
        loss.per_example(Y, X)


def test_all_names_are_exported():
    assert all(hasattr(losses, name) for name in losses.__all__)


COLUMN = X[:, :1]


@pytest.mark.parametrize(
    "function",
    [
        lambda t, p: jnp.mean((t - p) ** 2),
        lambda t, p: (t - p) ** 2,
        jax.jit(lambda t, p: jnp.mean((t - p) ** 2)),
        lambda t, p: jnp.mean((t.reshape(-1) - p[:, 0]) ** 2),
        lambda t, p: jnp.mean((t.reshape(-1)[:, None] - p) ** 2),
    ],
    ids=["scalar", "per position", "compiled", "takes the column", "makes a column"],
)
def test_a_function_gets_targets_of_one_column_paired(function):
    loss, targets = losses.get(function), Y[:, 0]
    expected = np.square(targets - COLUMN[:, 0])
    for y_true in (targets, targets[:, None]):
        np.testing.assert_allclose(loss(y_true, COLUMN), expected.mean(), rtol=1e-5)
        np.testing.assert_allclose(loss.per_example(y_true, COLUMN), expected, rtol=1e-5)
        weighted = (expected * WEIGHT).sum() / WEIGHT.sum()
        np.testing.assert_allclose(loss(y_true, COLUMN, WEIGHT), weighted, rtol=1e-5)


def test_a_function_that_handles_the_column_itself_gets_the_targets_as_they_are():
    loss = losses.get(lambda t, p: jnp.mean((t - p[:, 0]) ** 2))
    np.testing.assert_allclose(loss(Y[:, 0], COLUMN), ((Y - X)[:, 0] ** 2).mean(), rtol=1e-5)


def test_a_function_gets_predictions_without_an_axis_paired():
    loss = losses.get(lambda t, p: jnp.mean((t - p) ** 2))
    np.testing.assert_allclose(loss(Y[:, :1], X[:, 0]), ((Y - X)[:, 0] ** 2).mean(), rtol=1e-5)


@pytest.mark.parametrize("label", [-1, C, 1000])
@pytest.mark.parametrize(
    "loss",
    [
        losses.SparseCategoricalCrossentropy(),
        SPARSE,
        losses.SparseCategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        losses.get(losses.CrossEntropyLoss()),
        losses.get(losses.NLLLoss()),
    ],
    ids=lambda loss: loss.name,
)
def test_a_label_out_of_range_is_not_a_number(loss, label):
    labels = LABELS.copy()
    labels[2] = label
    found = jax.jit(loss.per_example)(labels, LOG_P)
    right = np.arange(N) != 2
    assert bool(jnp.isnan(found[2])) and bool(jnp.isfinite(found[right]).all())
    # What of the rest is right stays as it is, to the last bit.
    expected = jax.jit(loss.per_example)(LABELS, LOG_P)
    np.testing.assert_array_equal(np.asarray(found)[right], np.asarray(expected)[right])
    assert bool(jnp.isnan(loss(labels, LOG_P)))


@pytest.mark.parametrize(("platform", "scatters"), [("cpu", True), ("tpu", False)])
def test_integer_classes_are_gathered_on_a_cpu_only(platform: str, scatters: bool):
    gradient = jax.jit(jax.grad(lambda p: losses.CrossEntropyLoss()(p, LABELS)))
    program = gradient.trace(LOGITS).lower(lowering_platforms=(platform,)).as_text()
    assert ("scatter" in program) is scatters


def test_both_ways_to_pick_a_class_agree():
    values, labels = jnp.asarray(X), jnp.asarray(LABELS)
    np.testing.assert_array_equal(
        crossentropy._gathered(values, labels), crossentropy._selected(values, labels)
    )


IGNORING = {
    "sparse": losses.SparseCategoricalCrossentropy(from_logits=True, ignore_index=-100),
    "cross entropy": losses.get(losses.CrossEntropyLoss()),
    "nll": losses.get(losses.NLLLoss()),
}


@pytest.mark.parametrize("name", IGNORING)
def test_ignored_examples_have_no_loss_and_do_not_count(name):
    loss, labels = IGNORING[name], LABELS.copy()
    labels[[1, 4]] = -100
    loss.validate(labels, (N, C))
    kept = labels >= 0
    expected = -LOG_P[RANGE, LABELS] * kept
    np.testing.assert_allclose(loss.per_example(labels, LOG_P), expected, rtol=1e-5)
    np.testing.assert_allclose(loss(labels, LOG_P), expected.sum() / kept.sum(), rtol=1e-5)
    weight = np.arange(N, dtype=np.float32)
    weighted = (expected * weight).sum() / (weight * kept).sum()
    np.testing.assert_allclose(loss(labels, LOG_P, weight), weighted, rtol=1e-5)
    gradient = jax.grad(lambda p: loss(labels, p))(jnp.asarray(LOG_P))
    assert not np.asarray(gradient)[~kept].any() and np.asarray(gradient)[kept].any()
    assert float(loss(np.full(N, -100), LOG_P)) == 0
    with pytest.raises(DataError, match=r"-7 at index \(1,\)"):
        loss.validate(np.array([-100, -7]), (2, C))
    with pytest.raises(ShapeError, match="sample_weight"):
        loss(labels, LOG_P, np.ones(N + 1))


def test_ignored_positions_are_left_out_of_the_mean_of_their_example():
    logits = RNG.normal(size=(3, T, C)).astype(np.float32)
    labels = np.array([[0, 1, 2], [3, -1, -1], [-1, -1, -1]])
    log_p = special.log_softmax(logits, -1)
    positions = -np.take_along_axis(log_p, labels[..., None] % C, -1)[..., 0] * (labels >= 0)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_index=-1)
    np.testing.assert_allclose(loss.elementwise(labels, logits), positions, rtol=1e-5)
    examples = positions.sum(1) / [3, 1, 1]
    np.testing.assert_allclose(loss.per_example(labels, logits), examples, rtol=1e-5)
    function = losses.sparse_categorical_crossentropy
    found = function(labels, logits, from_logits=True, ignore_index=-1)
    np.testing.assert_allclose(found, examples, rtol=1e-5)
    # The batch's is the mean over all positions that count, as that of joined axes.
    together = positions.sum() / 4
    np.testing.assert_allclose(loss(labels, logits), together, rtol=1e-5)
    joined = loss(labels.reshape(-1), logits.reshape(-1, C))
    np.testing.assert_allclose(joined, together, rtol=1e-5)
    each = loss(labels, logits, np.ones(labels.shape, np.float32))
    np.testing.assert_allclose(each, together, rtol=1e-5)
    # A batch that is filled up with examples of weight 0 has the loss of the batch.
    filled = np.array([1.0, 1.0, 0.0], np.float32)
    np.testing.assert_allclose(loss(labels, logits, filled), together, rtol=1e-6)
    twice = (2 * positions[0].sum() + positions[1].sum()) / (2 * 3 + 1)
    found = loss(labels, logits, np.array([2.0, 1.0, 5.0], np.float32))
    np.testing.assert_allclose(found, twice, rtol=1e-5)


@pytest.mark.interop
def test_positions_are_ignored_as_pytorch_ignores_them():
    torch = pytest.importorskip("torch")
    logits = RNG.normal(size=(3, T, C)).astype(np.float32)
    labels = np.array([[0, 1, 2], [3, -100, -100], [-100, -100, -100]])
    rows = torch.tensor(logits.reshape(-1, C))
    wanted = torch.nn.CrossEntropyLoss()(rows, torch.tensor(labels.reshape(-1)))
    found = losses.CrossEntropyLoss()(np.moveaxis(logits, -1, 1), labels)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_rows_of_probabilities_all_count():
    loss = losses.get(losses.CrossEntropyLoss())
    assert loss.counted(SOFT, LOGITS) is None
    np.testing.assert_array_equal(
        loss.per_example(SOFT, LOGITS),
        losses.CategoricalCrossentropy(from_logits=True).per_example(SOFT, LOGITS),
    )


def test_an_ignored_label_is_a_whole_number():
    with pytest.raises(ArgumentTypeError, match="ignore_index"):
        losses.SparseCategoricalCrossentropy(ignore_index="pad")


@pytest.mark.parametrize("reduce", [jnp.mean, jnp.asarray], ids=["scalar", "per example"])
def test_an_infinite_loss_of_weight_zero_does_not_count(reduce):
    loss = losses.get(lambda t, p: reduce(-jnp.log(p - t)))
    y_true, y_pred = jnp.array([0.0, 1.0]), jnp.array([1.0, 1.0])
    assert float(loss(y_true, y_pred, jnp.array([1.0, 0.0]))) == 0
    assert not np.isfinite(loss(y_true, y_pred))


def test_a_smaller_loss_is_better():
    assert {loss.direction for loss, *_ in CASES.values()} == {"min"}


BASES = {"Loss", "FunctionLoss", "TorchLoss", "get"}


@pytest.mark.parametrize("name", sorted({*losses.__all__} - BASES))
def test_lists_are_arrays(name):
    loss, y_pred = getattr(losses, name), [[0.25, 0.75], [0.5, 0.5]]
    of_classes = "parse" in name or name in ("CrossEntropyLoss", "NLLLoss")
    y_true = [0, 1] if of_classes else [[1, 0], [0, 1]]
    arrays = jnp.array(y_true), jnp.array(y_pred)
    if not isinstance(loss, type):
        np.testing.assert_array_equal(loss(y_true, y_pred), loss(*arrays))
        return
    if issubclass(loss, losses.TorchLoss):
        assert np.isfinite(loss()(y_pred, y_true))
        np.testing.assert_array_equal(loss()(y_pred, y_true), loss()(*arrays[::-1]))
        return
    assert np.isfinite(loss()(y_true, y_pred))
    for weight in (None, [1.0, 3.0]):
        np.testing.assert_array_equal(loss()(y_true, y_pred, weight), loss()(*arrays, weight))
    np.testing.assert_array_equal(loss().per_example(y_true, y_pred), loss().per_example(*arrays))


@pytest.mark.parametrize(
    ("library", "name"), [("torch.nn.modules.loss", "MSELoss"), ("keras.src.losses", "Huber")]
)
def test_a_loss_of_another_library_is_refused(library, name):
    foreign = type(name, (), {"__module__": library, "__call__": lambda self, t, p: 0.0})
    for given in (foreign(), foreign):
        with pytest.raises(ArgumentTypeError, match=rf"loss {name} is of .*nx\.losses\.{name}\(\)"):
            losses.get(given)


def test_functions_of_torch_are_refused_and_those_of_keras_are_not():
    def mse_loss(first, second):
        return ((first - second) ** 2).mean()

    mse_loss.__module__ = "keras.src.losses.losses"
    assert losses.get(mse_loss).name == "mse_loss"
    mse_loss.__module__ = "torch.nn.functional"
    with pytest.raises(ArgumentTypeError, match="loss mse_loss is of torch"):
        losses.get(mse_loss)


SOFT_ROWS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], np.float32)
RAW = np.array([[1.5, 0.2, -2.0], [0.3, 0.1, 0.9]], np.float32)


@pytest.mark.parametrize(
    ("loss", "first", "second"),
    [
        (losses.BinaryCrossentropy(from_logits=True), RAW[0], np.ones(3, np.float32)),
        (losses.CategoricalCrossentropy(), RAW, SOFT_ROWS),
        (losses.CategoricalCrossentropy(), RAW[1:], SOFT_ROWS[1:]),
        (losses.KLDivergence(), np.log(SOFT_ROWS), SOFT_ROWS),
    ],
)
def test_predictions_that_come_first_are_told_by_their_values(loss, first, second):
    with pytest.raises(DataError, match=r"`y_true`.*\(y_true, y_pred\): targets first"):
        loss(jnp.asarray(first), jnp.asarray(second))
    assert np.isfinite(jax.jit(lambda t, p: loss(t, p))(first, second))  # nothing, while traced
    assert np.isfinite(loss(first, second, jnp.ones(len(first))))  # nor of what may not count


NOT_SYMMETRIC = {
    "binary": (losses.BinaryCrossentropy(from_logits=True), RAW, (RAW > 0).astype(np.int32)),
    "binary, flags": (losses.BinaryCrossentropy(from_logits=True), RAW, RAW > 0),
    "categorical": (losses.CategoricalCrossentropy(), SOFT_ROWS, np.eye(3, dtype=np.int8)[:2]),
    "divergence": (losses.KLDivergence(), SOFT_ROWS, np.eye(3, dtype=np.int8)[:2]),
    "hinge": (losses.Hinge(), RAW, np.sign(RAW).astype(np.int32)),
    "squared hinge": (losses.SquaredHinge(), RAW, np.sign(RAW).astype(np.int32)),
    "categorical hinge": (losses.CategoricalHinge(), RAW, np.eye(3, dtype=np.int32)[:2]),
    "poisson": (losses.Poisson(), np.exp(RAW), np.arange(6).reshape(2, 3)),
    "percentage": (losses.MeanAbsolutePercentageError(), RAW, np.arange(1, 7).reshape(2, 3)),
    "sparse": (SPARSE, RAW, np.array([0, 2])),
    "sparse, sequences": (SPARSE, RAW[:, None], np.array([[0], [2]])),
}
COMPILERS = {"eager": lambda f: f, "jax.jit": jax.jit, "nx.jit": nx.jit}


@pytest.mark.parametrize("compiled", COMPILERS)
@pytest.mark.parametrize("name", NOT_SYMMETRIC)
def test_whole_numbers_in_the_place_of_predictions_are_told(name, compiled):
    loss, y_pred, y_true = NOT_SYMMETRIC[name]
    step = COMPILERS[compiled](lambda first, second: loss(first, second))
    assert np.isfinite(step(jnp.asarray(y_true), jnp.asarray(y_pred)))
    with pytest.raises((DataError, ShapeError), match=r"\(y_true, y_pred\): targets first"):
        step(jnp.asarray(y_pred), jnp.asarray(y_true))
    weighted = COMPILERS[compiled](lambda a, b, w: loss(a, b, w))
    with pytest.raises((DataError, ShapeError), match=r"\(y_true, y_pred\): targets first"):
        weighted(jnp.asarray(y_pred), jnp.asarray(y_true), jnp.ones(2))


FUNCTIONS = {
    "binary": lambda t, p: losses.binary_crossentropy(t, p, from_logits=True).mean(),
    "categorical": lambda t, p: losses.categorical_crossentropy(t, p, from_logits=True).mean(),
    "divergence": lambda t, p: losses.kl_divergence(t, p).mean(),
    "hinge": lambda t, p: losses.hinge(t, p).mean(),
    "classes": lambda t, p: losses.BinaryCrossentropy(from_logits=True)(t, p),
    "weighted": lambda t, p: losses.KLDivergence()(t, p, jnp.ones(2)),
}


@pytest.mark.parametrize("transform", [jax.grad, lambda f: nx.jit(nx.grad(f)),
                                       lambda f: jax.grad(jax.jit(f)),
                                       lambda f: jax.grad(jax.checkpoint(f))])  # fmt: skip
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_of_the_targets_alone_is_refused(name, transform):
    """It is what a step has whose model's output is given first, as probabilities are."""
    function, logits = FUNCTIONS[name], jnp.asarray(RAW)
    fixed = jnp.asarray(SOFT_ROWS)
    right = transform(lambda p: function(fixed, jax.nn.softmax(p)))(logits)
    assert np.isfinite(right).all() and np.abs(right).max() > 0
    with pytest.raises(DataError, match="respect to the targets alone.*targets first"):
        transform(lambda p: function(jax.nn.softmax(p), fixed))(logits)


def test_gradients_of_both_and_of_a_reference_are_taken():
    logits, fixed = jnp.asarray(RAW), jnp.asarray(SOFT_ROWS)
    entropy = jax.grad(lambda p: losses.CategoricalCrossentropy()(*[jax.nn.softmax(p)] * 2))
    assert np.isfinite(entropy(logits)).all()
    policy = jax.grad(lambda p: losses.KLDivergence().elementwise(jax.nn.softmax(p), fixed).mean())(
        logits
    )
    p = special.softmax(RAW, -1)
    ratio = np.log(p / SOFT_ROWS)
    wanted = p * (ratio - (p * ratio).sum(-1, keepdims=True)) / 2
    np.testing.assert_allclose(policy, wanted, atol=1e-5)
    second = jax.hessian(lambda p: losses.BinaryCrossentropy(from_logits=True)(fixed[0], p))
    p = special.expit(RAW[0])
    np.testing.assert_allclose(second(logits[0]), np.diag(p * (1 - p) / 3), atol=1e-6)


def test_the_check_adds_nothing_to_a_program():
    loss, arrays = losses.BinaryCrossentropy(), (jnp.asarray(SOFT_ROWS), jnp.asarray(RAW))
    texts = [
        jax.jit(lambda t, p, f=f: f(t, p)).lower(*arrays).as_text()
        for f in (loss.each, loss.per_example)
    ]
    assert texts[0] == texts[1]


def test_padding_in_the_targets_of_a_function_is_taken():
    targets = np.array([[1.0, 0.0, -1.0]], np.float32)
    assert np.isfinite(losses.binary_crossentropy(targets, RAW[:1], from_logits=True)).all()
    with pytest.raises(DataError, match="targets first"):
        losses.binary_crossentropy(RAW[:1], targets * 0, from_logits=True)


@pytest.mark.parametrize(
    "targets",
    [
        SOFT_ROWS,
        SOFT_ROWS.astype(jnp.bfloat16),
        np.eye(3)[[0, 2]],
        np.array([[1, 1, 0], [0, 0, 0]]),  # several answers, and padding
        np.array([[0.5, 0, 0], [0, 0, 0.25]]),  # one answer, weighted
    ],
)
def test_targets_that_may_be_meant_are_taken(targets):
    assert np.isfinite(losses.CategoricalCrossentropy(from_logits=True)(targets, RAW))
    assert np.isfinite(losses.BinaryCrossentropy(from_logits=True)(targets, RAW))


@pytest.mark.parametrize(
    "function",
    [
        optax.softmax_cross_entropy,
        optax.losses.huber_loss,
        functools.partial(optax.sigmoid_focal_loss, alpha=0.2),
        jax.jit(optax.losses.hinge_loss),
        lambda y_pred, y_true: y_pred - y_true,
        lambda embeddings, labels: embeddings * labels,
    ],
)
def test_a_function_that_takes_predictions_first_is_refused(function) -> None:
    """With targets first it would be another loss: one of optax's fell without end."""
    for get, what in ((losses.get, "loss"), (metrics.get, "metric")):
        with pytest.raises(
            ArgumentTypeError, match=f"The {what} .*: targets.*lambda y_true, y_pred:"
        ):
            get(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda y_true, y_pred: y_true - y_pred,
        lambda labels, logits: labels - logits,
        lambda targets, labels: targets - labels,
        lambda y, p: y - p,
        lambda a, /, *labels: a,
        np.subtract,
    ],
)
def test_other_functions_are_taken(function) -> None:
    assert losses.get(function).function is function
