"""Modules that look across their batch: no added row may reach what they compute of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix import nn
from neurenix.train import FitOptions, Trainer, TrainOptions
from neurenix.train.padding_check import PaddingCheck
from train_helpers import MLP, classification, prepared

pytestmark = pytest.mark.cpu8

FEATURES = 3
X = (3 * np.random.default_rng(0).normal(size=(12, FEATURES)) + 1).astype(np.float32)
Y = X.sum(1, keepdims=True)
IN_ORDER = FitOptions(shuffle=False)


def strategies() -> list[Any]:
    return [nx.distribute.OneDeviceStrategy("tpu:0"), nx.distribute.TPUStrategy()]


class Foreign(nnx.Module):
    """A ``BatchNorm`` that knows of no added rows, before a layer."""

    def __init__(self) -> None:
        self.norm = nnx.BatchNorm(FEATURES, momentum=0.9, rngs=nnx.Rngs(0))
        self.layer = nnx.Linear(FEATURES, 1, rngs=nnx.Rngs(0))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer(self.norm(x))


class Across(nnx.Module):
    """A layer, and what a function of the whole batch adds to its output."""

    def __init__(self, function: Callable[[jax.Array], jax.Array], gate: float = 1.0) -> None:
        self.layer = nnx.Linear(FEATURES, FEATURES, rngs=nnx.Rngs(0))
        self.gate = nnx.Param(jnp.full((), gate))
        self.function = function

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer(x) + self.gate[...] * self.function(x)


ACROSS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "mean": lambda x: x - x.mean(0),
    "deviation": lambda x: x / (x.std(0) + 1),
    "total": lambda x: x * 0 + x.sum(),
    "softmax": lambda x: jax.nn.softmax(x, 0),
    "neighbour": lambda x: jnp.roll(x, 1, 0),
    "rank": lambda x: jnp.argsort(jnp.argsort(x, 0), 0).astype(x.dtype),
    "similarity": lambda x: jax.nn.softmax(x @ x.T, -1) @ x,
    "greatest": lambda x: x - jnp.abs(x).max(),
}


def parts_of(count: int, size: int = 8) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


@pytest.mark.parametrize("count", [9, 11, 12])
def test_statistics_of_a_foreign_batch_norm_are_those_of_the_examples(count: int) -> None:
    x, y, module = X[:count], Y[:count], Foreign()
    Trainer(module, optimizer=optax.sgd(0.0), loss="mse").fit(x, y, batch_size=8, options=IN_ORDER)
    mean = np.zeros(FEATURES)
    for part in parts_of(count):
        mean = 0.9 * mean + 0.1 * x[part].mean(0)
    np.testing.assert_allclose(module.norm.mean[...], mean, rtol=1e-5)


@pytest.mark.parametrize("count", [9, 11, 12])
@pytest.mark.parametrize("name", ACROSS)
def test_predictions_are_those_of_the_batches_as_they_are(name: str, count: int) -> None:
    module = Across(ACROSS[name])
    x = X[:count]
    expected = np.concatenate([np.asarray(module(x[part])) for part in parts_of(count)])
    predicted = Trainer(module).predict(x, batch_size=8)
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("replicas", [1, 8])
@pytest.mark.parametrize("count", [11, 12])
def test_losses_and_weights_are_those_of_the_batches_as_they_are(count: int, replicas: int) -> None:
    x, y = X[:count], X[:count] ** 2
    module, expected = Across(ACROSS["mean"]), Across(ACROSS["mean"])
    optimizer, losses = nnx.Optimizer(expected, optax.sgd(0.1), wrt=nnx.Param), []
    for part in parts_of(count):
        loss_of = lambda m, p=part: jnp.mean((m(x[p]) - y[p]) ** 2)  # noqa: E731
        loss, gradients = nnx.value_and_grad(loss_of)(expected)
        optimizer.update(expected, gradients)
        losses.append((float(loss), part.stop - part.start))
    options = TrainOptions(strategy=strategies()[replicas == 8])
    trainer = Trainer(module, optimizer=optax.sgd(0.1), loss="mse", options=options)
    history = trainer.fit(
        x, y, batch_size=8, validation_data=(x, y), options=FitOptions(shuffle=False)
    )
    values, counts = zip(*losses, strict=True)
    np.testing.assert_allclose(history["loss"], np.average(values, weights=counts), rtol=1e-5)
    np.testing.assert_allclose(module.layer.kernel[...], expected.layer.kernel[...], rtol=1e-4)
    value = np.mean(
        np.concatenate([(expected(x[part]) - y[part]) ** 2 for part in parts_of(count)])
    )
    np.testing.assert_allclose(history["val_loss"], value, rtol=1e-4)
    evaluated = trainer.evaluate(x, y, batch_size=8)
    np.testing.assert_allclose(evaluated["loss"], value, rtol=1e-4)


def test_a_batch_that_the_replicas_do_not_divide_is_computed_whole_on_each() -> None:
    module = Foreign()
    options = TrainOptions(strategy=strategies()[1])
    trainer = Trainer(module, optimizer=optax.sgd(0.0), loss="mse", options=options)
    trainer.fit(X, Y, batch_size=12, shuffle=False)
    np.testing.assert_allclose(module.norm.mean[...], 0.1 * X.mean(0), rtol=1e-5)


@pytest.mark.parametrize("per_call", [2, 3, 4])
def test_a_call_of_several_steps_leaves_the_smaller_batch_alone(per_call: int) -> None:
    x = np.concatenate([X, X + 1, 2 * X])[:35]  # 4 batches of 8, and 3
    module = Foreign()
    module.norm.mean[...] = jnp.ones(FEATURES)
    options = TrainOptions(steps_per_execution=per_call)
    trainer = Trainer(module, optimizer=optax.sgd(0.0), loss="mse", options=options)
    trainer.fit(x, x[:, :1], batch_size=8, epochs=2, options=IN_ORDER)
    mean = np.ones(FEATURES)
    for part in 2 * parts_of(35):
        mean = 0.9 * mean + 0.1 * x[part].mean(0)
    np.testing.assert_allclose(module.norm.mean[...], mean, rtol=1e-5)
    assert trainer.steps_made == 10


@pytest.mark.parametrize("count", [9, 11, 12])
def test_the_parts_of_an_accumulation_have_the_rows_of_the_batch(count: int) -> None:
    x, module = X[:count], Foreign()
    options = TrainOptions(accumulate_steps=4)
    Trainer(module, optimizer=optax.sgd(0.0), loss="mse", options=options).fit(
        x, x[:, :1], batch_size=8, options=IN_ORDER
    )
    mean = np.zeros(FEATURES)
    for part in parts_of(count):
        rows = x[part]
        for first in range(min(4, len(rows))):
            mean = 0.9 * mean + 0.1 * rows[first::4].mean(0)
    np.testing.assert_allclose(module.norm.mean[...], mean, rtol=1e-5)


class Codebook(nnx.Module):
    """Counts how often each of four words is read: state, and nothing of it in the output."""

    def __init__(self) -> None:
        self.table = nnx.Embed(4, 2, rngs=nnx.Rngs(0))
        self.usage = nnx.BatchStat(jnp.zeros(4))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        self.usage[...] = 0.9 * self.usage[...] + jax.nn.one_hot(tokens, 4).sum((0, 1))
        return self.table(tokens).mean(1)


def test_tokens_are_counted_once() -> None:
    tokens = np.random.default_rng(1).integers(0, 4, (11, 5)).astype(np.int32)
    module, y = Codebook(), np.zeros((11, 2), np.float32)
    Trainer(module, optimizer=optax.sgd(0.0), loss="mse").fit(
        tokens, y, batch_size=8, options=IN_ORDER
    )
    first, last = (np.bincount(part.ravel(), minlength=4) for part in (tokens[:8], tokens[8:]))
    np.testing.assert_allclose(module.usage[...], 0.9 * first + last, rtol=1e-6)


@jax.custom_vjp
def balanced(x: jax.Array) -> jax.Array:
    return x


balanced.defvjp(
    lambda x: (x, x), lambda x, g: (g + jnp.broadcast_to(x.mean(0), x.shape) / x.shape[0],)
)


def test_a_term_that_only_gradients_have_is_seen() -> None:
    class Balanced(nnx.Module):
        def __init__(self) -> None:
            self.layer = nnx.Linear(FEATURES, 1, use_bias=False, rngs=nnx.Rngs(0))

        def __call__(self, x: jax.Array) -> jax.Array:
            return balanced(self.layer(x))

    x, module, expected = X[:3], Balanced(), Balanced()
    gradients = nnx.grad(lambda m: jnp.mean((m(x) - Y[:3]) ** 2))(expected)
    kernel = expected.layer.kernel[...] - 0.1 * gradients.layer.kernel[...]
    Trainer(module, optimizer=optax.sgd(0.1), loss="mse").fit(x, Y[:3], batch_size=8)
    np.testing.assert_allclose(module.layer.kernel[...], kernel, rtol=1e-5)


def test_a_gate_that_opens_later_is_seen_in_training_and_after_it() -> None:
    x, y = X[:11], X[:11] ** 2
    module = Across(ACROSS["mean"], gate=0.0)
    trainer = Trainer(module, optimizer=optax.sgd(0.05), loss="mse")
    np.testing.assert_allclose(trainer.predict(x, batch_size=8), module(x), rtol=1e-5, atol=1e-6)
    trainer.fit(x, y, batch_size=8, epochs=2, shuffle=False)
    assert abs(float(module.gate[...])) > 1e-3
    expected = np.concatenate([np.asarray(module(x[part])) for part in parts_of(11)])
    np.testing.assert_allclose(trainer.predict(x, batch_size=8), expected, rtol=1e-4, atol=1e-5)


class Seen(nnx.Module):
    """Counts its examples, and divides its output by their number where it is asked to."""

    def __init__(self, divides: bool) -> None:
        self.layer = nnx.Linear(FEATURES, 1, rngs=nnx.Rngs(0))
        self.seen = nnx.BatchStat(jnp.zeros((), jnp.int32))
        self.divides = divides

    def __call__(self, x: jax.Array) -> jax.Array:
        self.seen[...] += len(x)
        return self.layer(x) / (len(x) if self.divides else 1)


def test_a_number_of_rows_is_that_of_the_examples() -> None:
    module = Seen(divides=False)
    Trainer(module, optimizer=optax.sgd(0.0), loss="mse").fit(X[:11], Y[:11], batch_size=8)
    assert int(module.seen[...]) == 11
    divided = Seen(divides=True)
    expected = np.concatenate([np.asarray(divided(X[part])) for part in parts_of(11)])
    predicted = Trainer(divided).predict(X[:11], batch_size=8)
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-6)


def test_rows_that_are_taken_by_their_number_are_filled_up(capfd: Any) -> None:
    class Chosen(nnx.Module):
        def __init__(self) -> None:
            self.layer = nnx.Linear(FEATURES, FEATURES, rngs=nnx.Rngs(0))

        def __call__(self, x: jax.Array) -> jax.Array:
            rows = jnp.arange(len(x)) % len(x)
            return self.layer(x)[rows, jnp.argmax(x, 1)]

    module = Chosen()
    predicted = Trainer(module).predict(X[:11], batch_size=8)
    np.testing.assert_allclose(predicted, module(X[:11]), rtol=1e-5)
    assert "compiled once more" not in capfd.readouterr().err


def test_it_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    module = Foreign()
    trainer = Trainer(module, loss="mse")
    for _ in range(2):
        trainer.fit(X[:11], Y[:11], batch_size=8, epochs=2)
    assert capfd.readouterr().err.count("change what Foreign, its loss or its metrics") == 1
    assert prepared(trainer).compiled.step_compilations == 2


MODELS: dict[str, Callable[[], Any]] = {
    "layers": lambda: nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm(8), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 3)
    ),
    "foreign": MLP,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_module_that_treats_rows_alone_is_compiled_once(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = classification(19)
    trainer = Trainer(MODELS[name](), loss=nx.losses.SparseCategoricalCrossentropy())
    trainer.fit(x, y, batch_size=8, validation_data=(x, y))
    trainer.predict(x, batch_size=8)
    assert prepared(trainer).compiled.step_compilations == 1
    assert "compiled once more" not in capfd.readouterr().err


@pytest.mark.parametrize("per_call", [1, 2])
def test_the_trial_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, per_call: int) -> None:
    """Weights, optimizer, statistics and random numbers go on as if there had been none."""
    x, y = classification(19)
    weights = []
    for tried in (True, False):
        nx.seed(0)
        model = MODELS["layers"]()
        loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
        options = TrainOptions(steps_per_execution=per_call)
        trainer = Trainer(model, loss=loss, options=options)
        if not tried:
            monkeypatch.setattr(PaddingCheck, "judge", lambda *_, **__: lambda batch, size: True)
        trainer.fit(x, y, batch_size=8, epochs=2)
        weights.append(jax.tree.leaves(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_of_examples_and_masked_rows_go_with_it() -> None:
    weight = np.linspace(0.5, 2, 11).astype(np.float32)
    module = Across(ACROSS["mean"])
    trainer = Trainer(module, loss="mse")
    y = X[:11] ** 2
    found = trainer.evaluate(X[:11], y, batch_size=8, sample_weight=weight)["loss"]
    expected = np.concatenate(
        [np.mean((module(X[part]) - y[part]) ** 2, 1) for part in parts_of(11)]
    )
    np.testing.assert_allclose(found, np.average(expected, weights=weight), rtol=1e-5)


class Centred(nx.losses.Loss):
    """A loss class of a user's own that looks across the batch."""

    def elementwise(self, y_true: Any, y_pred: Any) -> jax.Array:
        error = y_true - y_pred
        return jnp.mean((error - error.mean(0)) ** 2, -1)


class Total(nx.metrics.Metric):
    """A metric of a user's own that takes no notice of weights."""

    def __init__(self) -> None:
        super().__init__("total")
        self.sum = nnx.metrics.MetricState(jnp.zeros(()))

    def reset(self) -> None:
        self.sum[...] = jnp.zeros(())

    def update(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.sum[...] += jnp.sum(y_pred)

    def result(self) -> jax.Array:
        return self.sum[...]


def test_losses_and_metrics_of_a_users_own_class_see_no_added_rows() -> None:
    nx.seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES))
    x, y = X[:11], X[:11] ** 2
    model.compile(optax.sgd(0.0), Centred(), metrics=[Total()])
    found = model.evaluate(x, y, batch_size=8)
    error = y - np.asarray(model(x))
    losses = [((error[p] - error[p].mean(0)) ** 2).mean(1) for p in parts_of(11)]
    np.testing.assert_allclose(found["loss"], np.concatenate(losses).mean(), rtol=1e-5)
    np.testing.assert_allclose(found["total"], np.asarray(model(x)).sum(), rtol=1e-5)


def test_inputs_that_have_no_value_at_zero_are_filled_up(capfd: Any) -> None:
    """The mean over a row's positions: a row of zeros in the mask has none."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 2)

        def __call__(self, tokens: jax.Array, mask: jax.Array) -> jax.Array:
            shown = mask[..., None].astype(jnp.float32)
            return self.head((self.table(tokens) * shown).sum(1) / shown.sum(1))

    random = np.random.default_rng(0)
    lengths = random.integers(1, 7, (11, 1))
    inputs = {
        "tokens": random.integers(1, 50, (11, 6)).astype(np.int32),
        "mask": np.arange(6)[None] < lengths,
    }
    model = Pooled()
    model.compile("adam", nx.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(inputs, random.integers(0, 2, 11), batch_size=8)
    predicted = model.predict(inputs, batch_size=8)
    np.testing.assert_allclose(predicted, model.eval()(**inputs), rtol=1e-5, atol=1e-6)
    assert "compiled once more" not in capfd.readouterr().err
