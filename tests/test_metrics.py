"""Metrics against NumPy and scikit-learn, batch by batch, masked, compiled and over replicas."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from neurenix import losses, metrics
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    ShapeError,
    UnknownNameError,
)
from neurenix._nnx import nnx

N, C = 40, 5
RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(N, C)).astype(np.float32)
LABELS = RNG.integers(0, C, N)
ONE_HOT = np.eye(C, dtype=np.float32)[LABELS]
PROBABILITY = RNG.uniform(size=N).astype(np.float32)
YES_NO = (RNG.uniform(size=N) < PROBABILITY).astype(np.int32)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = (X + 0.5 * RNG.normal(size=(N, 2))).astype(np.float32)
WEIGHT = RNG.integers(0, 3, N).astype(np.float32)


def mean(values, weight):
    weight = np.broadcast_to(weight.reshape(-1, *(1,) * (values.ndim - 1)), values.shape)
    return (values * weight).sum() / weight.sum()


def top(k):
    order = np.argsort(-SCORES, axis=-1)[:, :k]
    return (order == LABELS[:, None]).any(-1)


def sklearn_score(name, **options):
    def score(weight):
        import sklearn.metrics

        return getattr(sklearn.metrics, name)(
            YES_NO, PROBABILITY > 0.5, sample_weight=weight, **options
        )

    return score


def class_score(name):
    def score(weight):
        import sklearn.metrics

        actual, said = LABELS == 2, SCORES.argmax(-1) == 2
        return getattr(sklearn.metrics, name)(actual, said, sample_weight=weight)

    return score


def area(weight):
    import sklearn.metrics

    return sklearn.metrics.roc_auc_score(YES_NO, PROBABILITY, sample_weight=weight)


def explained(weight):
    import sklearn.metrics

    wide = np.repeat(weight, 2)
    return sklearn.metrics.r2_score(Y.reshape(-1), X.reshape(-1), sample_weight=wide)


RIGHT = SCORES.argmax(-1) == LABELS
# name: (make, y_true, y_pred, expected(weight), tolerance)
CASES = {
    "accuracy of classes": (metrics.Accuracy, LABELS, SCORES, lambda w: mean(RIGHT, w), 1e-6),
    "accuracy of a column": (
        metrics.Accuracy,
        LABELS[:, None],
        SCORES,
        lambda w: mean(RIGHT, w),
        1e-6,
    ),
    "accuracy of one-hot rows": (
        metrics.Accuracy,
        ONE_HOT,
        SCORES,
        lambda w: mean(RIGHT, w),
        1e-6,
    ),
    "accuracy of yes and no": (
        metrics.Accuracy,
        YES_NO,
        PROBABILITY[:, None],
        lambda w: mean((PROBABILITY > 0.5) == YES_NO, w),
        1e-6,
    ),
    "accuracy of logits": (
        lambda: metrics.Accuracy(threshold=0.0),
        YES_NO,
        special.logit(PROBABILITY),
        lambda w: mean((PROBABILITY > 0.5) == YES_NO, w),
        1e-6,
    ),
    "sparse": (
        metrics.SparseCategoricalAccuracy,
        LABELS,
        SCORES,
        lambda w: mean(RIGHT, w),
        1e-6,
    ),
    "categorical": (
        metrics.CategoricalAccuracy,
        ONE_HOT,
        SCORES,
        lambda w: mean(RIGHT, w),
        1e-6,
    ),
    "binary": (
        lambda: metrics.BinaryAccuracy(threshold=0.3),
        YES_NO,
        PROBABILITY,
        lambda w: mean((PROBABILITY > 0.3) == YES_NO, w),
        1e-6,
    ),
    "top 2": (
        lambda: metrics.TopKCategoricalAccuracy(2),
        LABELS,
        SCORES,
        lambda w: mean(top(2), w),
        1e-6,
    ),
    "top 2 of one-hot rows": (
        lambda: metrics.TopKCategoricalAccuracy(2),
        ONE_HOT,
        SCORES,
        lambda w: mean(top(2), w),
        1e-6,
    ),
    "mse": (metrics.MeanSquaredError, Y, X, lambda w: mean((Y - X) ** 2, w), 1e-5),
    "rmse": (
        metrics.RootMeanSquaredError,
        Y,
        X,
        lambda w: np.sqrt(mean((Y - X) ** 2, w)),
        1e-5,
    ),
    "mae": (metrics.MeanAbsoluteError, Y, X, lambda w: mean(np.abs(Y - X), w), 1e-5),
    "r2": (metrics.R2Score, Y, X, explained, 1e-4),
    "precision": (
        metrics.Precision,
        YES_NO,
        PROBABILITY,
        sklearn_score("precision_score"),
        1e-6,
    ),
    "recall": (metrics.Recall, YES_NO, PROBABILITY, sklearn_score("recall_score"), 1e-6),
    "f1": (metrics.F1Score, YES_NO, PROBABILITY, sklearn_score("f1_score"), 1e-6),
    "precision of yes": (
        lambda: metrics.Precision(class_id=1),
        YES_NO,
        PROBABILITY[:, None],
        sklearn_score("precision_score"),
        1e-6,
    ),
    "recall of no": (
        lambda: metrics.Recall(class_id=0),
        YES_NO,
        PROBABILITY,
        sklearn_score("recall_score", pos_label=0),
        1e-6,
    ),
    "precision of class 2": (
        lambda: metrics.Precision(class_id=2),
        LABELS,
        SCORES,
        class_score("precision_score"),
        1e-6,
    ),
    "recall of class 2": (
        lambda: metrics.Recall(class_id=2),
        ONE_HOT,
        SCORES,
        class_score("recall_score"),
        1e-6,
    ),
    "auc": (metrics.AUC, YES_NO, PROBABILITY, area, 2e-3),
    "auc of any scores": (metrics.AUC, YES_NO, 3 * special.logit(PROBABILITY), area, 2e-3),
    "auc of a sigmoid of logits": (
        lambda: metrics.AUC(from_logits=True),
        YES_NO,
        special.logit(PROBABILITY),
        area,
        2e-3,
    ),
}


@nnx.jit
def compiled(metric, *batch):
    metric.update(*batch)


@pytest.mark.parametrize("weighted", [False, True], ids=["compiled", "weighted"])
@pytest.mark.parametrize("name", CASES)
def test_a_metric_agrees_with_an_independent_one(name, weighted):
    make, y_true, y_pred, expected, tolerance = CASES[name]
    weight = WEIGHT if weighted else np.ones(N, np.float32)
    metric = make()
    first = 7 if weighted else N // 2  # of one size where each would be compiled
    for part in (slice(0, first), slice(first, N)):
        batch = y_true[part], y_pred[part]
        if weighted:
            metric.update(*batch, weight[part])
        else:
            compiled(metric, *batch)
    np.testing.assert_allclose(metric.result(), expected(weight), atol=tolerance)
    np.testing.assert_array_equal(metric.result(), metric.compute())
    metric.reset()
    metric.update(y_true[:9], y_pred[:9], np.zeros(9))
    assert float(metric.result()) in (0.0, 1.0)  # nothing counted; no division by zero


@pytest.mark.parametrize("name", CASES)
def test_states_are_sums_so_replicas_add_up(name):
    make, y_true, y_pred, expected, tolerance = CASES[name]
    parts = []
    for part in (slice(0, 13), slice(13, N)):
        metric = make()
        metric.update(y_true[part], y_pred[part])
        parts.append(nnx.state(metric, nnx.metrics.MetricState))
    whole = make()
    nnx.update(whole, jax.tree.map(jnp.add, *parts))
    np.testing.assert_allclose(whole.result(), expected(np.ones(N)), atol=tolerance)


def test_mean_takes_numbers_arrays_and_weights():
    average = metrics.Mean("loss")
    average.update(2.0)
    average.update(np.array([[1.0, 3.0], [5.0, 7.0]]), np.array([1.0, 0.0]))
    assert float(average.result()) == 2.0
    assert f"{average.result():.4f}" == "2.0000" and f"{average.result():.1%}" == "200.0%"
    total = metrics.Sum()
    total.update(jnp.array([1.0, 2.0]), jnp.array([1.0, 3.0]))
    assert float(total.result()) == 7.0


def test_an_example_of_weight_zero_is_not_looked_at():
    average = metrics.Mean()
    average.update(jnp.array([1.0, jnp.nan]), jnp.array([1.0, 0.0]))
    assert float(average.result()) == 1.0


def test_r2_does_not_look_at_an_example_of_weight_zero():
    metric = metrics.R2Score()
    metric.update(np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, np.nan]), np.array([1.0, 1.0, 0]))
    assert float(metric.result()) == -1.0


def test_r2_of_targets_far_from_0_agrees_with_scikit_learn():
    import sklearn.metrics

    rng = np.random.default_rng(0)
    years = rng.normal(1998, 10, (200, 100)).astype(np.float32)
    years.sort(axis=0)  # the first batch is not like the others
    said = (years + rng.normal(0, 5, years.shape)).astype(np.float32)
    weight = rng.integers(0, 3, years.shape).astype(np.float32)

    def score(weight):
        def add(metric, batch):
            metric.update(*batch)
            return metric, None

        return nnx.scan(add)(metrics.R2Score(), (years, said, weight))[0].result()

    for weights in (np.ones_like(years), weight):
        flat = (array.ravel() for array in (years, said))
        wanted = sklearn.metrics.r2_score(*flat, sample_weight=weights.ravel())
        np.testing.assert_allclose(score(weights), wanted, rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 3.3, 200.7, -1e20])
def test_r2_of_constant_targets_is_1_where_all_are_met_and_else_0(value):
    metric = metrics.R2Score()
    targets = np.full(101, value, np.float32)
    for _ in range(3):
        metric.update(targets, targets)
    assert float(metric.result()) == 1.0
    metric.update(targets, targets + np.float32(0.1 + value / 8))
    assert float(metric.result()) == 0.0


def test_sequences_weigh_every_position():
    accuracy = metrics.Accuracy()
    scores = jnp.eye(3)[jnp.array([[0, 1], [2, 2]])]
    accuracy.update(jnp.array([[0, 0], [2, 2]]), scores, jnp.array([1.0, 0.0]))
    assert float(accuracy.result()) == 0.5


def test_bfloat16_scores_count_exactly():
    accuracy = metrics.Accuracy()
    for _ in range(5):
        accuracy.update(np.zeros(1000, np.int32), jnp.ones((1000, 2), jnp.bfloat16))
    assert float(accuracy.count[...]) == 5000.0 and float(accuracy.result()) == 1.0


WRONG = {
    "classes": (metrics.SparseCategoricalAccuracy, np.zeros(3), np.zeros((4, 5))),
    "rows": (metrics.CategoricalAccuracy, np.zeros(4), np.zeros((4, 5))),
    "answers": (metrics.BinaryAccuracy, np.zeros(4), np.zeros((4, 5))),
    "numbers": (metrics.MeanSquaredError, np.zeros(4), np.zeros((4, 5))),
    "accuracy": (metrics.Accuracy, np.zeros((4, 2)), np.zeros((4, 5))),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shapes_are_told(name):
    make, y_true, y_pred = WRONG[name]
    with pytest.raises(ShapeError, match="y_true"):
        make().update(y_true, y_pred)


def test_wrong_weights_and_options_are_told():
    with pytest.raises(ShapeError, match="sample_weight"):
        metrics.Mean().update(np.zeros(3), np.zeros(4))
    with pytest.raises(ArgumentError, match="`k`"):
        metrics.TopKCategoricalAccuracy(0)
    for bins in (1, 2.5, True):
        with pytest.raises(ArgumentError, match="`bins`"):
            metrics.AUC(bins)
    for class_id in (-1, 1.0, "cat"):
        with pytest.raises(ArgumentError, match="`class_id`"):
            metrics.F1Score(class_id=class_id)
    assert metrics.TopKCategoricalAccuracy(np.int64(2)).k == 2


@pytest.mark.parametrize(
    ("y_pred", "classes"), [(SCORES, "0 to 4"), (PROBABILITY, "0 to 1"), (X[:, :1], "0 to 1")]
)
def test_a_class_that_the_scores_do_not_have_is_told(y_pred, classes):
    with pytest.raises(ArgumentError, match=f"class 7.*the classes {classes}"):
        metrics.Recall(class_id=7).update(YES_NO, y_pred)


def test_the_largest_scores_are_ranked_too():
    metric = metrics.AUC()
    metric.update([0, 0, 1, 1], [-np.inf, -3.0, 2.0, np.inf])
    assert float(metric.result()) == 1.0
    metric.update([0, 1], [np.inf, -np.inf])
    np.testing.assert_allclose(metric.result(), (4 + 0.5 + 0.5) / 9)


def test_a_name_is_given_as_in_keras():
    """By keyword always; by place where Keras has it first, as in ``Mean("loss")``."""
    kinds = [getattr(metrics, name) for name in metrics.__all__]
    kinds = [kind for kind in kinds if isinstance(kind, type) and "name" in parameters_of(kind)]
    assert {metrics.Accuracy, metrics.AUC, metrics.Mean, metrics.Precision} <= {*kinds}
    for kind in kinds:
        if "function" not in parameters_of(kind):
            assert kind(name="mine").name == "mine"
        first, *others = parameters_of(kind).values()
        assert all(one.kind is one.KEYWORD_ONLY for one in others), kind
        in_keras = first.name in ("name", "k", "threshold", "bins", "function")
        assert in_keras and first.kind is first.POSITIONAL_OR_KEYWORD, kind
    assert metrics.SparseCategoricalAccuracy("train_accuracy").name == "train_accuracy"
    assert metrics.Accuracy("acc").name == "acc"
    for make in (metrics.BinaryAccuracy, metrics.Accuracy, metrics.Mean):
        with pytest.raises(ArgumentTypeError, match="name is 0.3, expected a string.*threshold="):
            make(0.3)


def parameters_of(kind):
    return dict([*inspect.signature(kind.__init__).parameters.items()][1:])  # without self


def test_get_returns_a_fresh_metric_with_the_name_asked_for():
    used = metrics.MeanAbsoluteError("mine")
    used.update(jnp.zeros(1), jnp.full(1, 3.0))
    fresh = metrics.get(used)
    assert fresh is not used and fresh.name == "mine"
    assert float(fresh.result()) == 0.0 and float(used.result()) == 3.0
    assert [metrics.get(n).name for n in ("acc", "accuracy", "mse")] == ["acc", "accuracy", "mse"]
    assert isinstance(metrics.get(metrics.Recall), metrics.Recall)
    with pytest.raises(UnknownNameError, match="'accuracy'"):
        metrics.get("acuracy")
    with pytest.raises(ArgumentTypeError, match="metric"):
        metrics.get(3)


@pytest.mark.parametrize(
    "function",
    [lambda t, p: jnp.mean(jnp.abs(t - p), -1), lambda t, p: jnp.mean(jnp.abs(t - p))],
    ids=["per example", "scalar"],
)
def test_a_function_is_a_metric(function):
    metric = metrics.get(function)
    metric.update(Y, X, WEIGHT)
    np.testing.assert_allclose(metric.result(), mean(np.abs(Y - X), WEIGHT), rtol=1e-5)


def test_all_names_are_exported():
    assert all(hasattr(metrics, name) for name in metrics.__all__)


@pytest.mark.parametrize(
    "function",
    [
        lambda t, p: (t - p) ** 2,
        lambda t, p: jnp.mean((t - p) ** 2),
        lambda t, p: (t - p[:, 0]) ** 2,
    ],
    ids=["per position", "scalar", "takes the column"],
)
def test_a_function_gets_targets_of_one_column_paired(function):
    metric, expected = metrics.get(function), np.square(Y[:, 0] - X[:, 0])
    metric.update(Y[:, 0], X[:, :1])
    np.testing.assert_allclose(metric.result(), expected.mean(), rtol=1e-5)
    metric.reset()
    metric.update(Y[:, 0], X[:, :1], sample_weight=WEIGHT)
    np.testing.assert_allclose(metric.result(), mean(expected, WEIGHT), rtol=1e-5)


@pytest.mark.parametrize("reduce", [jnp.asarray, jnp.mean], ids=["per example", "scalar"])
def test_a_function_may_pick_from_a_dict(reduce):
    metric = metrics.get(lambda t, p: reduce(jnp.abs(t - p["mean"])))
    metric.update(Y, {"mean": X, "other": SCORES})
    np.testing.assert_allclose(metric.result(), np.abs(Y - X).mean(), rtol=1e-5)


@pytest.mark.parametrize("name", ["mae", "accuracy", "precision", "auc", "r2"])
def test_several_outputs_are_told(name):
    with pytest.raises(ArgumentTypeError, match=f"{name}.*`y_pred`.*dict of 'a', 'b'.*function"):
        metrics.get(name).update(Y, {"a": X, "b": X})
    with pytest.raises(ArgumentTypeError, match="`y_true`.*tuple of 2"):
        metrics.get(name).update((Y, Y), X)


@pytest.mark.parametrize("metric", [metrics.Mean, metrics.Sum])
def test_a_metric_of_plain_values_is_no_metric_of_a_model(metric):
    with pytest.raises(ArgumentTypeError, match=r"(Mean|Sum).*\(values, sample_weight\).*function"):
        metrics.get(metric)
    with pytest.raises(ArgumentTypeError, match="function"):
        metrics.get(metric("total"))


def test_a_label_outside_of_the_scores_is_not_among_the_best():
    metric = metrics.TopKCategoricalAccuracy(C)
    metric.update(np.array([0, -1, C, -100]), SCORES[:4])
    assert float(metric.result()) == 0.25


def test_classes_of_the_same_score_do_not_push_each_other_out():
    metric = metrics.TopKCategoricalAccuracy(1)
    metric.update(np.array([0, 2]), np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    assert float(metric.result()) == 0.5


def test_a_score_at_the_threshold_says_no():
    metric = metrics.BinaryAccuracy()
    metric.update(np.array([0, 1]), np.array([0.5, 0.5]))
    assert float(metric.result()) == 0.5
    metric = metrics.BinaryAccuracy()
    metric.update(np.array([0.5]), np.array([0.1]))  # a target at it, too
    assert float(metric.result()) == 1.0


def test_r2_may_begin_with_examples_that_do_not_count():
    metric, x = metrics.R2Score(), np.float32([1e4, 1e4 + 1, 1e4 + 2, 1e4 + 3])
    metric.update(x, x, np.zeros(4))
    metric.update(x, x + 0.5)
    np.testing.assert_allclose(metric.result(), 1 - 0.25 / 1.25, rtol=1e-5)


SHORT_NAMES = {
    "rmse": metrics.RootMeanSquaredError,
    "f1": metrics.F1Score,
    "r2": metrics.R2Score,
    "mae": metrics.MeanAbsoluteError,
    "top5": metrics.TopKCategoricalAccuracy,
}


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_a_metric_is_found_by_a_short_name(name):
    found = metrics.get(name)
    assert type(found) is SHORT_NAMES[name] and getattr(found, "k", 5) == 5


def test_every_metric_says_which_way_is_better():
    names = ["mse", "rmse", "mae"]
    assert [metrics.get(name).direction for name in names] == ["min"] * 3
    names = ["acc", "top5", "r2", "f1", "auc", "precision", "recall", "binary_accuracy"]
    assert [metrics.get(name).direction for name in names] == ["max"] * len(names)
    assert metrics.get(losses.Huber()).direction == "min"
    assert metrics.Mean().direction is None


@pytest.mark.parametrize("metric", [
    metrics.Accuracy, metrics.SparseCategoricalAccuracy, metrics.TopKCategoricalAccuracy,
    metrics.F1Score,
])  # fmt: skip
@pytest.mark.parametrize("weighted", [False, True])
def test_positions_of_an_ignored_label_are_left_out(metric, weighted):
    own = {metrics.F1Score: {"class_id": 2}, metrics.TopKCategoricalAccuracy: {"k": 2}}
    options = own.get(metric, {})
    weight = WEIGHT.reshape(8, 5) if weighted else None
    labels, scores = LABELS.reshape(8, 5), SCORES.reshape(8, 5, C)
    hidden = np.arange(8)[:, None] % 4 == np.arange(5) % 4
    without, expected = metric(ignore_index=-100, **options), metric(**options)
    without.update(np.where(hidden, -100, labels), scores, sample_weight=weight)
    kept = None if weight is None else weight[~hidden]
    expected.update(labels[~hidden], scores[~hidden], sample_weight=kept)
    np.testing.assert_allclose(without.result(), expected.result(), rtol=1e-6)
    every = metric(**options)
    every.update(labels, scores, sample_weight=weight)
    assert every.result() != expected.result()


def test_one_hot_rows_have_no_ignored_label():
    one, other = metrics.Accuracy(ignore_index=0), metrics.Accuracy()
    for metric in (one, other):
        metric.update(ONE_HOT, SCORES)
    assert one.result() == other.result()


@pytest.mark.parametrize("metric", [metrics.Accuracy, metrics.F1Score])
@pytest.mark.parametrize("wrong", ["pad", 1.5])
def test_a_label_to_ignore_is_a_whole_number(metric, wrong):
    with pytest.raises(ArgumentTypeError, match="ignore_index"):
        metric(ignore_index=wrong)


@pytest.mark.parametrize(
    ("library", "name", "told"),
    [
        ("keras.src.metrics", "MeanAbsoluteError", r"keras.*nx\.metrics\.MeanAbsoluteError\(\)"),
        ("torchmetrics.classification", "BinaryF1Score", r"nx\.metrics\.F1Score\(\)"),
        ("torchmetrics.text", "BLEUScore", r"class of nx\.metrics.*function \(y_true, y_pred\)"),
    ],
)
def test_a_metric_of_another_library_is_refused(library, name, told):
    foreign = type(name, (), {"__module__": library, "__call__": lambda self, t, p: 0.0})
    derived = type("Mine", (foreign,), {"__module__": "__main__"})
    for given in (foreign(), foreign):
        with pytest.raises(ArgumentTypeError, match=f"metric {name} is of .*{told}"):
            metrics.get(given)
    with pytest.raises(ArgumentTypeError, match="metric Mine is of"):
        metrics.get(derived())


@pytest.mark.parametrize(("label", "ignored"), [(156, -100), (44, 300)])
def test_a_small_integer_is_no_other_label_by_overflow(label: int, ignored: int) -> None:
    found = metrics.SparseCategoricalAccuracy(ignore_index=ignored)
    found.update(jnp.full(8, label, jnp.uint8), jnp.zeros((8, 200)))
    assert found.count[...] == 8
