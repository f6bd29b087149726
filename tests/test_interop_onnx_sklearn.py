"""Estimators of scikit-learn that ``skl2onnx`` exports: predictions are scikit-learn's."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("sklearn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    skl2onnx = pytest.importorskip("skl2onnx")

from sklearn.compose import ColumnTransformer  # noqa: E402  after the skip
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge  # noqa: E402
from sklearn.naive_bayes import GaussianNB  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC  # noqa: E402

from neurenix.interop.onnx import from_onnx  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.cpu8, pytest.mark.filterwarnings("ignore")]

ROWS, FEATURES = 120, 6


def data(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and classes; numbers where there are no classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=ROWS)
    if not classes:
        return x, score.astype(np.float32)
    return x, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


# Sixteen trees: their votes are exact in float32, so that ties stay ties.
CLASSIFIERS = {
    "logistic": (LogisticRegression(), 3),
    "logistic of two": (LogisticRegression(), 2),
    "linear svc": (LinearSVC(), 3),
    "forest": (RandomForestClassifier(16, random_state=0), 3),
    "forest of two": (RandomForestClassifier(16, random_state=0), 2),
    "boosting": (GradientBoostingClassifier(n_estimators=8, random_state=0), 3),
    "boosting of two": (GradientBoostingClassifier(n_estimators=8, random_state=0), 2),
    "svc": (SVC(probability=True, random_state=0), 3),
    "svc of two": (SVC(probability=True, kernel="poly", random_state=0), 2),
    "neighbours": (KNeighborsClassifier(), 3),
    "perceptron": (MLPClassifier((8,), max_iter=60, random_state=0), 3),
    "bayes": (GaussianNB(), 3),
    "pca": (make_pipeline(StandardScaler(), PCA(3), LogisticRegression()), 3),
    "columns": (
        make_pipeline(
            ColumnTransformer(
                [
                    ("a", StandardScaler(), [0, 1]),
                    ("b", MinMaxScaler(), [2, 3]),
                    ("c", KBinsDiscretizer(4, encode="onehot-dense"), [4]),
                ]
            ),
            LogisticRegression(),
        ),
        3,
    ),
}
REGRESSORS = {
    "linear": LinearRegression(),
    "ridge": Ridge(),
    "forest": RandomForestRegressor(16, random_state=0),
    "boosting": GradientBoostingRegressor(n_estimators=20, random_state=0),
    "svr": SVR(),
    "pca": make_pipeline(StandardScaler(), PCA(3), Ridge()),
}


def converted(estimator: Any, x: np.ndarray) -> Any:
    versions = {"": 18, "ai.onnx.ml": 3}
    module = from_onnx(skl2onnx.to_onnx(estimator, x[:1], target_opset=versions), check=False)
    return jax.jit(lambda x: module(x))


def expect_same(estimator: Any, x: np.ndarray, names: list[Any] | None = None) -> None:
    labels, scores = converted(estimator, x)(jnp.asarray(x))
    wanted = estimator.predict(x)
    wanted = wanted if names is None else np.searchsorted(names, wanted)
    np.testing.assert_array_equal(labels, wanted)
    is_sure = hasattr(estimator, "predict_proba")
    expected = estimator.predict_proba(x) if is_sure else estimator.decision_function(x)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name: str) -> None:
    estimator, classes = CLASSIFIERS[name]
    x, y = data(classes)
    expect_same(estimator.fit(x, y), x)


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name: str) -> None:
    x, y = data(0)
    estimator = REGRESSORS[name].fit(x, y)
    found = converted(estimator, x)(jnp.asarray(x))
    np.testing.assert_allclose(found[:, 0], estimator.predict(x), rtol=1e-5, atol=1e-5)


def test_categories() -> None:
    x = np.random.default_rng(0).integers(0, 4, (ROWS, 3))
    estimator = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    expect_same(estimator.fit(x, (x.sum(1) > 4).astype(int)), x)


@pytest.mark.parametrize("name", ["logistic", "forest", "neighbours"])
def test_labels_that_are_text_become_numbers(name: str) -> None:
    estimator, classes = CLASSIFIERS[name]
    x, y = data(classes)
    names = ["ant", "bee", "cow"]
    expect_same(estimator.fit(x, np.asarray(names)[y]), x, names)


def test_outliers() -> None:
    x, _ = data(0)
    estimator = IsolationForest(n_estimators=10, random_state=0).fit(x)
    labels, scores = converted(estimator, x)(jnp.asarray(x))
    np.testing.assert_array_equal(labels[:, 0], estimator.predict(x))
    np.testing.assert_allclose(scores[:, 0], estimator.decision_function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "svr"])
def test_gradients(name: str) -> None:
    x, y = data(0)
    estimator = REGRESSORS[name].fit(x, y)
    function = converted(estimator, x)
    found = jax.grad(lambda x: function(x).sum())(jnp.asarray(x))
    step, direction = 1e-3, np.eye(FEATURES)[1]
    moved = [estimator.predict(x + sign * step * direction).astype(float) for sign in (1, -1)]
    np.testing.assert_allclose(
        found[:, 1], (moved[0] - moved[1]) / (2 * step), rtol=1e-2, atol=1e-3
    )
