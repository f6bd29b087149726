"""``ai.onnx.ml``: features, encoders, linear models and support vector machines.

JAX has no text. Where a model's class labels are text, its label is the number of the class, and
what a text would be mapped to is the number of its place in the list.

Letters: ``N`` rows, ``F`` features, ``K`` classes, ``V`` support vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import as_jax, canonical, is_known
from neurenix.interop.onnx.registry import operator

__all__ = ["as_float", "labels_of", "transformed"]

Array = Any
_EXACT = jax.lax.Precision.HIGHEST


def as_float(x: Array) -> Array:
    """Return numbers as floats of at least 32 bits."""
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def labels_of(numbers: Array, labels: Sequence[int] | None) -> Array:
    """Return the labels of classes by their numbers; the numbers where labels are text."""
    if labels:
        numbers = as_jax(np.asarray(labels, np.int64))[numbers]
    return numbers.astype(canonical(np.int64))


def transformed(scores: Array, how: str | None) -> Array:
    """Return scores (N, K) after a ``post_transform``."""
    if how in (None, "NONE"):
        return scores
    if how == "LOGISTIC":
        return jax.nn.sigmoid(scores)
    if how == "SOFTMAX":
        return jax.nn.softmax(scores, axis=-1)
    if how == "SOFTMAX_ZERO":
        # A score of zero stays so.
        most = scores.max(-1, keepdims=True)
        powers = jnp.where(jnp.abs(scores) > 1e-7, jnp.exp(scores - most), scores * jnp.exp(-most))
        total = powers.sum(-1, keepdims=True)
        return jnp.where(total == 0, 0.5, powers / jnp.where(total == 0, 1, total))
    if how == "PROBIT":
        return jax.scipy.special.ndtri(scores)
    raise ConversionError(f"post_transform is {how!r}.")


@operator("ai.onnx.ml::Scaler")
def scaler(x, *, offset=(0.0,), scale=(1.0,)):
    x = as_float(x)
    return (x - jnp.asarray(offset, x.dtype)) * jnp.asarray(scale, x.dtype)


@operator("ai.onnx.ml::Normalizer")
def normalizer(x, *, norm="MAX"):
    x = as_float(x)
    if norm == "MAX":
        size = x.max(-1, keepdims=True)
    elif norm == "L1":
        size = jnp.abs(x).sum(-1, keepdims=True)
    elif norm == "L2":
        squares = jnp.square(x).sum(-1, keepdims=True)
        size = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
    else:
        raise ConversionError(f"the norm {norm!r} is not one of MAX, L1, L2.")
    return x / jnp.where(size == 0, 1, size)


@operator("ai.onnx.ml::Binarizer")
def binarizer(x, *, threshold=0.0):
    return (x > threshold).astype(x.dtype)


@operator("ai.onnx.ml::Imputer")
def imputer(
    x, *, imputed_value_floats=None, imputed_value_int64s=None, replaced_value_float=0.0,
    replaced_value_int64=0,
):  # fmt: skip
    if jnp.issubdtype(x.dtype, jnp.integer):
        values, replaced = imputed_value_int64s, replaced_value_int64
    else:
        values, replaced = imputed_value_floats, replaced_value_float
    if not values:
        raise ConversionError(f"it has no values to put into {np.dtype(x.dtype).name}.")
    missing = jnp.isnan(x) if np.isnan(replaced) else x == replaced
    return jnp.where(missing, jnp.asarray(values, x.dtype), x)


@operator("ai.onnx.ml::FeatureVectorizer")
def feature_vectorizer(*xs, inputdimensions):
    columns = []
    for x, count in zip(xs, inputdimensions, strict=True):
        x = as_float(x)
        x = x.reshape(-1, 1) if x.ndim == 1 else x.reshape(len(x), -1)[:, :count]
        columns.append(jnp.pad(x, [(0, 0), (0, count - x.shape[1])]))
    return jnp.concatenate(columns, 1)


# Raw inputs: text that is known is not converted.
@operator("ai.onnx.ml::ArrayFeatureExtractor", nested=True)
def array_feature_extractor(x, indices, *, run):
    indices = as_jax(indices).reshape(-1)
    if is_known(x) and x.dtype.kind in "OSU":
        if x.ndim > 1 and len(x) > 1:
            raise ConversionError("it takes text out of rows, and JAX has no text.")
        return indices.reshape(1, -1)
    x = as_jax(x)
    return (x[None] if x.ndim == 1 else x)[..., indices]


@operator("ai.onnx.ml::ZipMap")
def zip_map(x, *, classlabels_int64s=None, classlabels_strings=None):
    return x


@operator("ai.onnx.ml::OneHotEncoder", folds=True)
def one_hot_encoder(x, *, cats_int64s=None, cats_strings=None, zeros=1):
    if is_known(x) and x.dtype.kind in "OSU":
        return (_texts(x)[..., None] == np.asarray(cats_strings or [], object)).astype(np.float32)
    if not cats_int64s:
        raise ConversionError("its categories are text, and JAX has no text.")
    categories = np.asarray(cats_int64s, np.int64)
    if is_known(x):
        return (x[..., None].astype(np.int64) == categories).astype(np.float32)
    return (x[..., None].astype(canonical(np.int64)) == as_jax(categories)).astype(jnp.float32)


@operator("ai.onnx.ml::CategoryMapper", folds=True)
def category_mapper(x, *, cats_int64s, cats_strings, default_int64=-1, default_string="_Unused"):
    if is_known(x) and x.dtype.kind in "OSU":
        return _looked_up(x, cats_strings, np.asarray(cats_int64s, np.int64), default_int64)
    numbers = np.arange(len(cats_strings), dtype=np.int64)
    return _looked_up(x, cats_int64s, numbers, -1)


@operator("ai.onnx.ml::LabelEncoder", since=2, folds=True)
def label_encoder(
    x, *, keys_strings=None, keys_int64s=None, keys_floats=None, keys_tensor=None,
    values_strings=None, values_int64s=None, values_floats=None, values_tensor=None,
    default_string="_Unused", default_int64=-1, default_float=-0.0, default_tensor=None,
):  # fmt: skip
    named = (keys_strings, keys_int64s, keys_floats, keys_tensor)
    keys = next((each for each in named if each is not None), [])
    default: Any = -1
    if values_tensor is not None and values_tensor.dtype.kind not in "OSU":
        values = values_tensor
        default = -1 if default_tensor is None else default_tensor.reshape(())
        if default_tensor is None and jnp.issubdtype(values.dtype, jnp.floating):
            default = -0.0
    elif values_floats is not None:
        values, default = np.asarray(values_floats, np.float32), default_float
    elif values_int64s is not None:
        values, default = np.asarray(values_int64s, np.int64), default_int64
    else:
        values = np.arange(len(keys), dtype=np.int64)
    return _looked_up(x, keys, values, default)


@operator("ai.onnx.ml::LabelEncoder", since=1, folds=True)
def label_encoder_1(x, *, classes_strings, default_int64=-1, default_string="_Unused"):
    numbers = np.arange(len(classes_strings), dtype=np.int64)
    if is_known(x) and x.dtype.kind in "OSU":
        return _looked_up(x, classes_strings, numbers, default_int64)
    return _looked_up(x, numbers, numbers, -1)


def _texts(x: np.ndarray) -> np.ndarray:
    """Return text that may be bytes as text."""
    decode = np.vectorize(
        lambda each: each.decode() if isinstance(each, bytes) else str(each), otypes=[object]
    )
    return decode(x) if x.size else x.astype(object)


def _looked_up(x: Any, keys: Any, values: np.ndarray, default: Any) -> Any:
    """Return the value of each key, the last of equal ones, or the default."""
    if len(keys) != len(values):
        raise ConversionError(f"it has {len(keys)} keys and {len(values)} values.")
    is_text = any(isinstance(each, (str, bytes)) for each in keys)
    if is_known(x):
        given = _texts(np.asarray(keys, object)) if is_text else np.asarray(keys)
        x = _texts(x) if is_text else x
        same = x[..., None] == given
        if not is_text and given.dtype.kind == "f" and x.dtype.kind == "f":
            same = same | (np.isnan(x)[..., None] & np.isnan(given))
        np_like, table = np, values
    elif is_text:
        raise ConversionError("its keys are text, and JAX has no text.")
    else:
        given = jnp.asarray(np.asarray(keys).astype(x.dtype))
        same = x[..., None] == given
        if jnp.issubdtype(x.dtype, jnp.floating):
            same = same | (jnp.isnan(x)[..., None] & jnp.isnan(given))
        np_like, table = jnp, as_jax(values)
    if not len(keys):
        return np_like.full(x.shape, default, table.dtype)
    place = len(keys) - 1 - np_like.argmax(np_like.flip(same, -1), -1)
    found = np_like.where(same.any(-1), table[place], np_like.asarray(default, table.dtype))
    return found.astype(table.dtype)


@operator("ai.onnx.ml::LinearRegressor")
def linear_regressor(x, *, coefficients, intercepts=None, targets=1, post_transform="NONE"):
    return transformed(_linear(x, coefficients, intercepts, targets), post_transform)


@operator("ai.onnx.ml::LinearClassifier")
def linear_classifier(
    x, *, coefficients, intercepts=None, classlabels_ints=None, classlabels_strings=None,
    multi_class=0, post_transform="NONE",
):  # fmt: skip
    count = len(classlabels_ints or classlabels_strings or ())
    scores = _linear(x, coefficients, intercepts, max(len(coefficients) // x.shape[-1], 1))
    if scores.shape[1] == 1 and count == 2:
        scores = jnp.concatenate([-scores, scores], 1)
    result = transformed(scores, post_transform)
    if scores.shape[1] > 1:
        return [labels_of(scores.argmax(1), classlabels_ints), result]
    over = scores[:, 0] > 0
    positive = classlabels_ints[0] if classlabels_ints else 1
    return [jnp.where(over, positive, 0).astype(canonical(np.int64)), result]


def _linear(x: Array, coefficients: Any, intercepts: Any, targets: int) -> Array:
    x = as_float(x)
    weights = jnp.asarray(coefficients, x.dtype).reshape(targets, -1)
    result = jnp.matmul(x, weights.T, precision=_EXACT)
    return result + jnp.asarray(intercepts, x.dtype) if intercepts else result


def _kernel(x: Array, vectors: Array, kind: str, parameters: Sequence[float] | None) -> Array:
    """Return the kernel between rows and vectors, (N, V)."""
    gamma, bias, degree = parameters or (0.0, 0.0, 0.0)
    if kind == "RBF":
        # Differences, since squares of large numbers cancel badly.
        return jnp.exp(-gamma * jnp.square(x[:, None] - vectors).sum(-1))
    product = jnp.matmul(x, vectors.T, precision=_EXACT)
    if kind == "LINEAR":
        return product
    if kind == "POLY":
        return (gamma * product + bias) ** int(degree)
    if kind == "SIGMOID":
        return jnp.tanh(gamma * product + bias)
    raise ConversionError(f"the kernel {kind!r} is not one of LINEAR, POLY, RBF, SIGMOID.")


@operator("ai.onnx.ml::SVMRegressor")
def svm_regressor(
    x, *, coefficients, kernel_params=None, kernel_type="LINEAR", n_supports=0, one_class=0,
    post_transform="NONE", rho, support_vectors=None, n_targets=1,
):  # fmt: skip
    x = as_float(x)
    weights = jnp.asarray(coefficients, x.dtype)
    if n_supports:
        vectors = jnp.asarray(support_vectors, x.dtype).reshape(n_supports, -1)
        x = _kernel(x, vectors, kernel_type, kernel_params)
    result = jnp.matmul(x, weights[:, None], precision=_EXACT) + rho[0]
    if one_class:
        return jnp.where(result > 0, 1, -1).astype(x.dtype)
    return transformed(result, post_transform)


@operator("ai.onnx.ml::SVMClassifier")
def svm_classifier(
    x, *, coefficients, classlabels_ints=None, classlabels_strings=None, kernel_params=None,
    kernel_type="LINEAR", post_transform="NONE", prob_a=None, prob_b=None, rho,
    support_vectors=None, vectors_per_class=None,
):  # fmt: skip
    x = as_float(x)
    count = max(len(classlabels_ints or classlabels_strings or ()), 1)
    if not vectors_per_class or not sum(vectors_per_class):
        weights = jnp.asarray(coefficients, x.dtype).reshape(count, -1)
        scores = jnp.matmul(x, weights.T, precision=_EXACT) + rho[0]
        labels = labels_of(scores.argmax(1), classlabels_ints)
        return [labels, transformed(scores, post_transform)]
    vectors = jnp.asarray(support_vectors, x.dtype).reshape(sum(vectors_per_class), -1)
    pairs = list(itertools.combinations(range(count), 2))
    weights = _pair_weights(coefficients, vectors_per_class, pairs)
    kernel = _kernel(x, vectors, kernel_type, kernel_params)
    scores = jnp.matmul(kernel, jnp.asarray(weights, x.dtype), precision=_EXACT)
    scores = scores + jnp.asarray(rho, x.dtype)
    first, second = (np.eye(count)[[pair[n] for pair in pairs]] for n in (0, 1))
    votes = jnp.where(scores[..., None] > 0, first, second).sum(1)
    labels = labels_of(votes.argmax(1), classlabels_ints)
    if prob_a:
        a, b = jnp.asarray(prob_a, x.dtype), jnp.asarray(prob_b, x.dtype)
        sure = jnp.clip(jax.nn.sigmoid(-(scores * a + b)), 1e-7, 1 - 1e-7)
        scores = _coupled(sure, pairs, count)
    elif len(pairs) == 1:
        scores = jnp.concatenate([-scores, scores], 1)
    return [labels, transformed(scores, post_transform)]


def _pair_weights(coefficients: Any, per_class: Sequence[int], pairs: Any) -> np.ndarray:
    """Return the weight of each support vector in each pair of classes, (V, pairs)."""
    given = np.reshape(np.asarray(coefficients), (-1, sum(per_class)))
    ends = np.cumsum(per_class)
    parts = [slice(int(end - n), int(end)) for end, n in zip(ends, per_class, strict=True)]
    weights = np.zeros((given.shape[1], len(pairs)), given.dtype)
    for number, (i, j) in enumerate(pairs):
        weights[parts[i], number] = given[j - 1, parts[i]]
        weights[parts[j], number] = given[i, parts[j]]
    return weights


def _coupled(sure: Array, pairs: Any, count: int) -> Array:
    """Return probabilities of classes from those of pairs, by the steps of libsvm.

    Wu, Lin and Weng, 2004, "Probability estimates for multi-class classification by pairwise
    coupling", algorithm 2, which stops at a residual of 0.005 / K.
    """
    first, second = (np.asarray([pair[n] for pair in pairs]) for n in (0, 1))
    table = jnp.zeros((len(sure), count, count), sure.dtype)
    table = table.at[:, first, second].set(sure).at[:, second, first].set(1 - sure)
    matrix = -jnp.swapaxes(table, 1, 2) * table
    diagonal = jnp.square(table).sum(1)
    matrix = matrix + jnp.eye(count, dtype=sure.dtype) * diagonal[:, None]

    def sweep(p: Array, _: Any) -> tuple[Array, None]:
        q = jnp.einsum("nij,nj->ni", matrix, p, precision=_EXACT)
        total = (p * q).sum(-1)
        finished = jnp.abs(q - total[:, None]).max(-1) < 0.005 / count
        new = p
        for k in range(count):
            step = (total - q[:, k]) / matrix[:, k, k]
            new = new.at[:, k].add(step)
            total = (total + step * (step * matrix[:, k, k] + 2 * q[:, k])) / (1 + step) ** 2
            new = new / (1 + step)[:, None]
            q = (q + step[:, None] * matrix[:, k]) / (1 + step)[:, None]
        return jnp.where(finished[:, None], p, new), None

    start = jnp.full((len(sure), count), 1 / count, sure.dtype)
    return jax.lax.scan(sweep, start, None, length=max(100, count))[0]
