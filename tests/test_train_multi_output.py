"""Models of several outputs: the loss of each, what metrics take from it, what couples examples."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix.train import Trainer, TrainOptions
from train_helpers import assert_same_weights, classification

pytestmark = pytest.mark.cpu8

X, Y = classification(48)
IGNORED = np.where(np.arange(48) < 28, -100, Y)  # all of the first batches
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
IGNORING = nx.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_index=-100)


class Heads(nnx.Module):
    """Returns two arrays by name."""

    def __init__(self) -> None:
        self.a, self.b = (nnx.Linear(6, width, rngs=nnx.Rngs(0)) for width in (1, 3))

    def __call__(self, x: jax.Array) -> dict[str, jax.Array]:
        return {"a": self.a(x), "b": self.b(x)}


@pytest.mark.parametrize("parts", [1, 4])
def test_the_loss_is_the_sum_of_its_parts_at_every_batch_size(parts: int) -> None:
    targets = {"a": X[:, :1], "b": IGNORED}
    options = TrainOptions(accumulate_steps=parts)
    still = optax.sgd(0.0)
    trainer = Trainer(Heads(), optimizer=still, loss={"a": "mse", "b": IGNORING}, options=options)
    labels = trainer.predict(X)["b"]
    chances = np.log(np.exp(labels).sum(1)) - labels[np.arange(48), Y]
    for size in (48, 16, 8):
        found = trainer.evaluate(X, targets, batch_size=size)
        trained = trainer.fit(X, targets, batch_size=size, shuffle=False)
        assert found["b_loss"] == pytest.approx(chances[28:].mean(), rel=1e-5)
        assert found["loss"] == pytest.approx(found["a_loss"] + found["b_loss"], rel=1e-5)
        assert trained["loss"] == pytest.approx([found["loss"]], rel=1e-5)


def test_accumulation_counts_what_each_output_counts() -> None:
    modules = [Heads(), Heads()]
    for module, parts in zip(modules, (1, 4), strict=True):
        options = TrainOptions(accumulate_steps=parts)
        loss = {"a": "mse", "b": IGNORING}
        trainer = Trainer(module, optimizer=optax.sgd(0.5), loss=loss, options=options)
        trainer.fit(X, {"a": X[:, :1], "b": IGNORED}, batch_size=16, shuffle=False)
    assert_same_weights(*modules, rtol=1e-5, atol=1e-6)


def test_a_metric_follows_the_loss_of_its_output() -> None:
    yes = (X[:, :1] > 0).astype(np.float32)
    loss = {"a": nx.losses.BinaryCrossentropy(from_logits=True), "b": IGNORING}
    metrics = {"a": ["binary_accuracy"], "b": ["accuracy"]}
    trainer = Trainer(Heads(), loss=loss, metrics=metrics)
    found, outputs = trainer.evaluate(X, {"a": yes, "b": IGNORED}), trainer.predict(X)
    assert found["b_accuracy"] == pytest.approx((outputs["b"].argmax(1) == Y)[28:].mean())
    assert found["a_binary_accuracy"] == pytest.approx(((outputs["a"] > 0) == yes).mean())


def test_a_variant_has_the_losses_of_its_outputs_once() -> None:
    trainer = Trainer(Heads(), loss={"a": "mse", "b": LOSS})
    for one in (trainer, trainer.variant()):
        assert [metric.name for metric in one.metrics] == ["a_loss", "b_loss"]


def test_a_loss_of_one_output_that_couples_examples_is_never_filled_up() -> None:
    def root(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.mean((y_true - y_pred) ** 2))

    trainer = Trainer(Heads(), loss={"a": root, "b": LOSS})
    with pytest.raises(nx.ArgumentError, match="filled up"):
        trainer.evaluate(X[:40], {"a": X[:40, :1], "b": Y[:40]})


def test_a_metric_of_one_output_keeps_its_direction() -> None:
    class Usefulness(nx.metrics.MeanMetric):
        direction = "max"

        def values(self, y_true: Any, y_pred: Any) -> Any:
            return y_pred

    trainer = Trainer(Heads(), loss={"a": "mse", "b": LOSS}, metrics={"a": [Usefulness]})
    early = nx.callbacks.EarlyStopping("a_usefulness")  # asks for the mode where none is known
    assert trainer.fit(X, {"a": X[:, :1], "b": Y}, callbacks=early).epochs == [0]


class Gaussian(nnx.Module):
    """Returns a reconstruction, and the two arrays of a distribution."""

    def __init__(self) -> None:
        self.a, self.b, self.c = (nnx.Linear(6, 6, rngs=nnx.Rngs(i)) for i in range(3))

    def __call__(self, x: jax.Array) -> Any:
        return {"again": self.a(x), "code": (self.b(x), self.c(x))}


def divergence(_: Any, code: Any) -> jax.Array:
    mean, log_variance = code
    return 0.5 * (mean**2 + jnp.exp(log_variance) - log_variance - 1).sum(-1)


def test_an_output_with_a_loss_of_its_own_may_be_several_arrays() -> None:
    loss = {"again": "mse", "code": divergence}
    trainer = Trainer(Gaussian(), optimizer=optax.sgd(0.1), loss=loss)
    data = X, {"again": X, "code": np.zeros(48, np.float32)}
    made = trainer.predict(X)
    expected = ((made["again"] - X) ** 2).mean(), divergence(None, made["code"]).mean()
    found = trainer.evaluate(*data)
    np.testing.assert_allclose(
        [found["again_loss"], found["code_loss"]], np.asarray(expected), rtol=1e-5
    )
    assert trainer.fit(*data, epochs=3, validation_data=data)["loss"][-1] < sum(expected)
    with pytest.raises(nx.ArgumentTypeError, match="The output 'code' .* is a tuple of arrays"):
        Trainer(Gaussian(), loss={"again": "mse", "code": "mse"}).fit(*data)
