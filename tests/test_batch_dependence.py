"""Losses and metrics of the user's that couple the examples of a batch, or only seem to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import neurenix as nx
from neurenix._user_functions.batch_dependence import Coupling, coupling_of
from neurenix.train import FitOptions, Trainer
from train_helpers import MLP

IN_ORDER = FitOptions(shuffle=False)
STILL = optax.sgd(0.0)
WEIGHTS = np.array([1.0, 2.0, 3.0], np.float32)
LABELS = optax.losses.softmax_cross_entropy_with_integer_labels


def spec(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


NUMBERS = (spec(8, 3), spec(8, 3))
COLUMN = (spec(8), spec(8, 1))
CLASSES = (spec(8, dtype="int32"), spec(8, 3))
PENALISED = (spec(8, 3), (spec(8, 3), spec(), spec(5)))  # two outputs without rows
SEQUENCES = (spec(8, 5, dtype="int32"), spec(8, 5, 3))


def masked(y: jax.Array, p: jax.Array) -> jax.Array:
    known = (y != -99).astype(jnp.float32)
    return jnp.sum(known * (y - p) ** 2) / jnp.maximum(jnp.sum(known), 1)


def pearson(y: jax.Array, p: jax.Array) -> jax.Array:
    y, p = y - y.mean(), p - p.mean()
    return 1 - (y * p).sum() / jnp.sqrt((y**2).sum() * (p**2).sum())


def f1(y: jax.Array, p: jax.Array) -> jax.Array:
    both = jnp.sum((y > 0) & (p > 0))
    return 2 * both / jnp.maximum(jnp.sum(y > 0) + jnp.sum(p > 0), 1)


def rmse(y: jax.Array, p: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean((y - p) ** 2))


def r_squared(y: jax.Array, p: jax.Array) -> jax.Array:
    return 1 - jnp.sum((y - p) ** 2) / jnp.sum((y - jnp.mean(y)) ** 2)


def masked_in_rows(y: jax.Array, p: jax.Array) -> jax.Array:
    counts = (y != 0).astype(jnp.float32)
    return jnp.mean(jnp.sum(counts * LABELS(p, y), 1) / jnp.maximum(counts.sum(1), 1))


def own_softmax(y: jax.Array, p: jax.Array) -> jax.Array:
    e = jnp.exp(p - jnp.max(p))
    return -jnp.mean(jnp.log(e / e.sum(-1, keepdims=True))[jnp.arange(len(y)), y])


def with_penalty(y: jax.Array, p: jax.Array) -> jax.Array:
    penalty = -0.5 * jnp.mean(jnp.sum(1 + p - jnp.exp(p), -1))
    return jnp.mean(jnp.sum((y - p) ** 2, -1) + 0.1 * penalty)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda y, p: jnp.mean((y - p) ** 2), COLUMN),
        (lambda y, p: jnp.mean((y - p[:, 0]) ** 2), COLUMN),
        (lambda y, p: jnp.sum((y - p) ** 2) / len(y), NUMBERS),
        (lambda y, p: jnp.vdot(y - p, y - p) / y.shape[0], NUMBERS),
        (lambda y, p: 0.3 * jnp.mean(jnp.abs(y - p)) - 2 * jnp.mean(jnp.minimum(y, p)), NUMBERS),
        (lambda y, p: jnp.mean(jnp.sum(y * jnp.log(y / p), -1)), NUMBERS),
        (lambda y, p: jnp.nan_to_num(jnp.mean(jnp.linalg.norm(y - p, axis=-1))), NUMBERS),
        (lambda y, p: jnp.nan_to_num(jnp.mean(y * jnp.log(y / p)), nan=9.0), NUMBERS),
        (lambda y, p: optax.losses.huber_loss(p, y).mean(), NUMBERS),
        (jax.jit(lambda y, p: optax.losses.sigmoid_binary_cross_entropy(p, y).mean()), NUMBERS),
        (with_penalty, NUMBERS),
        (lambda y, p: LABELS(p, y).mean(), CLASSES),
        (lambda y, p: jnp.mean(jnp.asarray(WEIGHTS)[y] * LABELS(p, y)), CLASSES),
        (lambda y, p: jnp.mean(p.argmax(-1) == y), CLASSES),
        (own_softmax, CLASSES),
        (masked_in_rows, SEQUENCES),
        (lambda y, p: jnp.mean((y - p[0]) ** 2) + 0.1 * p[1] + p[2].sum(), PENALISED),
        (lambda y, p: LABELS(p.reshape(-1, 3), y.reshape(-1)).mean(), SEQUENCES),
    ],
)
def test_a_mean_over_examples_is_known_for_one(function: Any, arguments: Any) -> None:
    assert coupling_of(function, *arguments) is Coupling.NONE


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (masked, NUMBERS),
        (pearson, NUMBERS),
        (f1, NUMBERS),
        (rmse, COLUMN),
        (lambda y, p: jnp.sum((y - p[0]) ** 2) + 0.1 * p[1], PENALISED),
        (r_squared, NUMBERS),
        (lambda y, p: jnp.sum((y - p) ** 2), NUMBERS),
        (lambda y, p: jnp.sum((p > 0.5) == y), NUMBERS),
        (lambda y, p: jnp.max(jnp.abs(y - p)), NUMBERS),
        (lambda y, p: jnp.median(jnp.abs(y - p)), NUMBERS),
        (lambda y, p: jnp.all(y == p), NUMBERS),
        (lambda y, p: jnp.mean((p[1:] - p[:-1]) ** 2), NUMBERS),
        (lambda y, p: jnp.average((y - p) ** 2, weights=y), NUMBERS),
        (lambda y, p: jnp.sum((y.T @ p / len(y) - jnp.eye(3)) ** 2), NUMBERS),
        (lambda y, p: jnp.exp(LABELS(p, y).mean()), CLASSES),
        (
            lambda y, p: (
                jnp.sum(jnp.asarray(WEIGHTS)[y] * LABELS(p, y)) / jnp.sum(jnp.asarray(WEIGHTS)[y])
            ),
            CLASSES,
        ),
        (lambda y, p: jnp.mean(jnp.bincount(y, length=3) / jnp.sum(p, 0)), CLASSES),
        (lambda y, p: jnp.mean((y[:, None] == y) * (p @ p.T)), CLASSES),
    ],
)
def test_what_is_no_mean_over_examples_couples_them(function: Any, arguments: Any) -> None:
    assert coupling_of(function, *arguments) is Coupling.SCALAR


def regression(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, 6)).astype(np.float32)
    return x, x[:, :1] + x[:, 1:2]


def batches(x: np.ndarray, y: np.ndarray, size: int) -> list[Any]:
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def test_a_masked_mean_is_one_number_in_fit_evaluate_and_validation() -> None:
    x, y = regression()
    y[32:][::2] = -99  # none in the first batch
    module = MLP((6, 8, 1))
    trainer = Trainer(module, optimizer=STILL, loss=masked)
    expected = np.mean([masked(b, module(a)) for a, b in batches(x, y, 32)])
    logs = trainer.fit(x, y, validation_data=(x, y), options=IN_ORDER)
    np.testing.assert_allclose([logs["loss"], logs["val_loss"]], [[expected]] * 2, rtol=1e-5)
    np.testing.assert_allclose(trainer.evaluate(x, y)["loss"], expected, rtol=1e-5)
    whole = trainer.evaluate(x, y, batch_size=64)["loss"]
    np.testing.assert_allclose(whole, masked(y, module(x)), rtol=1e-5)


@pytest.mark.parametrize("loss", [masked, pearson])
def test_a_ragged_batch_of_such_a_loss_is_refused(loss: Any) -> None:
    x, y = regression(40)
    for call in (Trainer.fit, Trainer.evaluate):
        with pytest.raises(nx.ArgumentError, match=f"filled up.*loss {loss.__name__} "):
            call(Trainer(MLP((6, 8, 1)), loss=loss), x, y)


def test_a_loss_that_one_example_alone_does_not_have_is_finite() -> None:
    x, y = regression()
    module = MLP((6, 8, 1))
    trainer = Trainer(module, optimizer=STILL, loss=pearson)
    logs = trainer.fit(x, y, validation_data=(x, y), options=IN_ORDER)
    expected = np.mean([pearson(b, module(a)) for a, b in batches(x, y, 32)])
    np.testing.assert_allclose([logs["loss"], logs["val_loss"]], [[expected]] * 2, rtol=1e-5)


@pytest.mark.parametrize("metric", [rmse, f1, r_squared])
def test_a_metric_that_couples_examples_is_the_mean_over_batches(metric: Any) -> None:
    x, y = regression()
    module = MLP((6, 8, 1))
    trainer = Trainer(module, optimizer=STILL, loss="mse", metrics=[metric])
    expected = np.mean([metric(b, module(a)) for a, b in batches(x, y, 32)])
    logs = trainer.fit(x, y, validation_data=(x, y), options=IN_ORDER)
    name = metric.__name__
    np.testing.assert_allclose([logs[name], logs[f"val_{name}"]], [[expected]] * 2, rtol=1e-5)
    found = trainer.evaluate(x, y, batch_size=64)
    np.testing.assert_allclose(found[name], metric(y, module(x)), rtol=1e-5)
    np.testing.assert_allclose(found["loss"], rmse(y, module(x)) ** 2, rtol=1e-5)


def info_nce(y: jax.Array, p: jax.Array) -> jax.Array:
    return LABELS(p @ y.T, jnp.arange(len(p)))


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (info_nce, NUMBERS, Coupling.PER_EXAMPLE),
        (lambda y, p: jnp.mean((p - p.mean(0)) ** 2, -1), NUMBERS, Coupling.PER_EXAMPLE),
        (lambda y, p: jnp.abs(jnp.roll(p, 1, 0) - y), NUMBERS, Coupling.PER_EXAMPLE),
        (lambda y, p: LABELS(p, y) / jnp.max(y + 1), CLASSES, Coupling.PER_EXAMPLE),
        (lambda y, p: LABELS(p, y), CLASSES, Coupling.NONE),
        (lambda y, p: jnp.asarray(WEIGHTS)[y] * LABELS(p, y), CLASSES, Coupling.NONE),
        (lambda y, p: (y - p) ** 2, COLUMN, Coupling.NONE),
        (lambda y, p: jnp.where(y > 0, jnp.abs(y - p), 0), NUMBERS, Coupling.NONE),
        (lambda y, p: LABELS(p, y), SEQUENCES, Coupling.NONE),
        (lambda y, p: p.argmax(-1) == y, CLASSES, Coupling.NONE),
        (lambda y, p: jnp.sort(jnp.abs(y - p), -1)[:, 0], NUMBERS, Coupling.NONE),
        (lambda y, p: jax.vmap(lambda t, q: jnp.sum((t - q) ** 2))(y, p), NUMBERS, Coupling.NONE),
        (lambda y, p: (y - p).reshape(8, 3).sum(-1), NUMBERS, Coupling.NONE),
    ],
)
def test_a_number_for_each_example_may_be_made_of_others(function, arguments, expected) -> None:
    assert coupling_of(function, *arguments) is expected


def precision(y: jax.Array, p: jax.Array) -> jax.Array:
    said = p > 0
    return jnp.sum(said & (y > 0)) / jnp.maximum(jnp.sum(said), 1)


def of_known_labels(y: jax.Array, p: jax.Array) -> jax.Array:
    known = y >= 0
    losses = jnp.where(known, LABELS(p, jnp.maximum(y, 0)), 0)
    return losses.sum() / jnp.maximum(known.sum(), 1)


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize(
    ("function", "labels"),
    [
        (precision, "float32"),
        (of_known_labels, "int32"),
        (lambda y, p: jnp.nanmean((y - p) ** 2), "float32"),
        (lambda y, p: jnp.mean((y - p) ** 2, where=p < 0.95), "float32"),
        (lambda y, p: jnp.sum(jnp.where(y == 7.5, p, 0)) / jnp.sum(y == 7.5), "float32"),
    ],
)
def test_a_rare_value_that_a_mask_tests_for_is_tried(function, labels, rows) -> None:
    y = spec(rows, dtype=labels) if labels == "int32" else spec(rows, 3)
    assert coupling_of(function, y, spec(rows, 3)) is Coupling.SCALAR


def test_large_outputs_are_judged_on_smaller_ones() -> None:
    weights = jnp.ones(50_000)
    computed: list[int] = []

    def weighted(y: jax.Array, p: jax.Array) -> jax.Array:
        computed.append(p.size)
        return weights[y] * LABELS(p, y)

    def centred(y: jax.Array, p: jax.Array) -> jax.Array:
        return weighted(y, p - p.mean(0))

    logits = (spec(8, 2048, dtype="int32"), spec(8, 2048, 50_000))  # 3 GiB
    assert coupling_of(weighted, *logits) is Coupling.NONE
    assert coupling_of(centred, *logits) is Coupling.PER_EXAMPLE
    whole = 8 * 2048 * 50_000
    assert computed.count(whole) == 2, "only its shapes are traced"
    assert max(size for size in computed if size != whole) <= 2**26


def test_rows_of_a_function_for_one_size_of_batch_may_be_made_of_others() -> None:
    def summed(y: jax.Array, p: jax.Array) -> jax.Array:
        return (y - p).reshape(8, 3).sum(-1)

    def centred(y: jax.Array, p: jax.Array) -> jax.Array:
        return summed(y, p - p.mean(0))

    assert coupling_of(summed, *NUMBERS) is Coupling.NONE
    assert coupling_of(centred, *NUMBERS) is Coupling.PER_EXAMPLE


def test_a_contrastive_loss_of_each_example_is_left_whole_and_may_be_weighted() -> None:
    x, y = regression(40)
    y = np.tile(y, 3)
    trainer = Trainer(MLP((6, 8, 3)), optimizer=STILL, loss=info_nce, metrics=[info_nce])
    for call in (trainer.fit, trainer.evaluate):
        with pytest.raises(nx.ArgumentError, match="filled up.*loss info_nce gives each example"):
            call(x, y)
    weight = np.linspace(0, 1, 40, dtype=np.float32)
    found = trainer.evaluate(x, y, batch_size=40, sample_weight=weight)
    each = np.asarray(info_nce(y, trainer.module(x)))
    expected = np.average(each, weights=weight)
    assert found == pytest.approx({"loss": expected, "info_nce": expected}, rel=1e-5)


def test_such_a_metric_is_never_filled_up_or_weighted() -> None:
    x, y = regression(40)
    trainer = Trainer(MLP((6, 8, 1)), loss="mse", metrics=[rmse])
    for call in (trainer.fit, trainer.evaluate):
        with pytest.raises(nx.ArgumentError, match="the metric rmse .*batch_size that divides"):
            call(x, y)
    with pytest.raises(nx.ArgumentError, match="weights here.*metric rmse"):
        trainer.evaluate(x, y, batch_size=40, sample_weight=np.ones(40))
    metric = nx.metrics.get(rmse)
    with pytest.raises(nx.ArgumentError, match="metric rmse .*class of nx.metrics"):
        metric.update(y, y, sample_weight=np.ones(40))


def test_a_metric_that_is_a_mean_is_weighted_as_ever() -> None:
    def error(y: jax.Array, p: jax.Array) -> jax.Array:
        return jnp.mean(jnp.abs(y - p))

    x, y = regression(40)
    trainer = Trainer(MLP((6, 8, 1)), loss="mse", metrics=[error, "mae"])
    found = trainer.evaluate(x, y, sample_weight=np.linspace(0, 1, 40))
    assert found["error"] == pytest.approx(found["mae"], rel=1e-5)


class Two(nx.nn.Module):
    """Returns two arrays by name."""

    def __init__(self) -> None:
        self.a, self.b = nx.nn.Linear(6, 1), nx.nn.Linear(6, 1)

    def __call__(self, x: Any) -> dict[str, Any]:
        return {"a": self.a(x), "b": self.b(x)}


def test_a_metric_of_one_of_several_outputs_may_couple() -> None:
    x, y = regression()
    model = Two()
    model.compile(STILL, {"a": "mse", "b": "mse"}, metrics={"b": [rmse]})
    found = model.evaluate(x, {"a": y, "b": y}, batch_size=64)
    assert found["b_rmse"] == pytest.approx(float(rmse(y, model(x)["b"])), rel=1e-5)
    with pytest.raises(nx.ArgumentError, match="metric b_rmse"):
        model.evaluate(x[:40], {"a": y[:40], "b": y[:40]})


def test_a_loss_as_a_metric_counts_what_the_loss_counts() -> None:
    x, y = regression(40)
    labels = (y[:, 0] > 0).astype(np.int32)
    labels[:10] = -100
    loss = nx.losses.CrossEntropyLoss()
    trainer = Trainer(MLP((6, 8, 3)), loss=loss, metrics=[loss])
    found = trainer.evaluate(x, labels)
    assert found["CrossEntropyLoss"] == pytest.approx(found["loss"], rel=1e-5)


@pytest.mark.parametrize("loss", [masked, info_nce])
def test_such_a_loss_is_not_computed_in_parts(loss: Any) -> None:
    x, y = regression()
    y = np.tile(y, 3)
    model = nx.nn.Linear(6, 3)
    model.compile("sgd", loss, accumulate_steps=4)
    with pytest.raises(nx.ArgumentError, match=f"accumulate_steps=4 .*loss {loss.__name__} "):
        model.fit(x, y, batch_size=32)
    assert np.isfinite(model.evaluate(x, y, batch_size=32)["loss"])


class Penalised(nx.nn.Module):
    """Returns a penalty beside its output, which has no rows."""

    def __init__(self) -> None:
        self.layer = nx.nn.Linear(6, 1)

    def __call__(self, x: Any) -> Any:
        return self.layer(x), jnp.sum(self.layer.kernel[...] ** 2)


def penalised(y: jax.Array, output: Any) -> jax.Array:
    return jnp.mean((y - output[0]) ** 2) + 0.1 * output[1]


def test_a_penalty_beside_the_output_may_be_filled_up_and_weighted() -> None:
    x, y = regression(40)
    model = Penalised()
    model.compile(STILL, penalised, metrics=[penalised])
    whole = float(penalised(y, model(x)))
    found = model.evaluate(x, y, batch_size=32)
    assert found == pytest.approx({"loss": whole, "penalised": whole}, rel=1e-5)
    assert model.fit(x, y, batch_size=32, verbose=False)["loss"] == pytest.approx([whole], rel=1e-5)
    weight = np.linspace(0, 1, 40, dtype=np.float32)
    squared = np.average((y - np.asarray(model(x)[0])) ** 2, axis=0, weights=weight)
    expected = squared.item() + 0.1 * float(model(x)[1])
    assert model.evaluate(x, y, sample_weight=weight)["loss"] == pytest.approx(expected, rel=1e-5)
