"""What callbacks set while ``fit`` runs: the rate, weights, numbers, the end of an epoch."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
from neurenix.train import Trainer, TrainOptions
from train_helpers import MLP, Noisy, assert_same_weights, classification, prepared

pytestmark = pytest.mark.cpu8

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


STRATEGIES = {
    "one": lambda: nx.distribute.OneDeviceStrategy("tpu:0"),
    "replicas": lambda: nx.distribute.TPUStrategy(),
    "divided": lambda: nx.distribute.TPUStrategy(mesh={"data": 2, "fsdp": 4}),
}


def linear() -> Any:
    nx.seed(0)
    return nx.nn.Linear(4, 1)


def by_hand(model: Any, rates: list[float]) -> np.ndarray:
    """Return the kernel after one step of SGD for each rate, over batches of 8 in order."""
    kernel, bias = np.asarray(model.kernel[...]), np.asarray(model.bias[...])
    for number, rate in enumerate(rates):
        x, y = X[8 * number : 8 * number + 8], Y[8 * number : 8 * number + 8]
        error = x @ kernel + bias - y
        kernel, bias = kernel - rate * 2 * x.T @ error / 8, bias - rate * 2 * error.mean(0)
    return kernel


def trained(
    model: Any, callback: Any, optimizer: Any = None, *, data: Any = (X, Y), **kwargs: Any
) -> Trainer:
    """Train in steps of 8, in order."""
    options = TrainOptions(steps_per_execution=kwargs.pop("steps", 1))
    optimizer = optimizer or nx.optim.SGD(0.1)
    trainer = Trainer(model, optimizer=optimizer, loss="mse", options=options)
    trainer.fit(*data, batch_size=8, shuffle=False, callbacks=callback, **kwargs)
    return trainer


def at_batch_end(function: Callable[[Any, int], None]) -> nx.callbacks.Callback:
    class AtBatchEnd(nx.callbacks.Callback):
        def on_train_batch_end(self, step: int, logs: Mapping[str, float]) -> None:
            function(self, step)

    return AtBatchEnd()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rate_set_after_a_batch_holds_from_the_next_step(strategy: str) -> None:
    rates = [0.1, 0.05, 0.0, 0.2, 0.01, 0.0, 0.0, 0.03]
    seen: list[float] = []

    def set_next(callback: Any, step: int) -> None:
        callback.trainer.learning_rate = rates[step % 8]
        seen.append(callback.trainer.learning_rate)

    model = linear()
    expected = by_hand(model, rates)
    with STRATEGIES[strategy]().scope():
        trainer = trained(model, at_batch_end(set_next))
    np.testing.assert_allclose(model.kernel[...], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(seen, [*rates[1:], rates[0]], atol=1e-12)
    assert prepared(trainer).compiled.step_compilations == 1


def test_with_several_steps_a_call_it_holds_from_the_next_call() -> None:
    rates = [0.1, 0.1, 0.1, 0.02, 0.02, 0.02, 0.3, 0.3]
    model = linear()
    expected = by_hand(model, rates)

    def set_next(callback: Any, step: int) -> None:
        callback.trainer.learning_rate = rates[step % 8]

    trained(model, at_batch_end(set_next), steps=3)
    np.testing.assert_allclose(model.kernel[...], expected, rtol=1e-4, atol=1e-6)


def test_a_schedule_is_read_and_set_at_the_next_step() -> None:
    seen: list[float] = []

    def look(callback: Any, step: int) -> None:
        seen.append(callback.trainer.learning_rate)
        if step == 4:
            callback.trainer.learning_rate = 1.0
            seen.append(callback.trainer.learning_rate)

    halved = nx.optim.schedules.ExponentialDecay(0.1, 1, 0.5)
    model = linear()
    rates = [0.1, 0.05, 0.025, 0.0125, 1.0, 0.5, 0.25, 0.125]
    expected = by_hand(model, rates)
    trained(model, at_batch_end(look), nx.optim.SGD(halved))
    np.testing.assert_allclose(seen, [*rates[1:4], 0.00625, *rates[4:], 0.0625], rtol=1e-5)
    np.testing.assert_allclose(model.kernel[...], expected, rtol=1e-4, atol=1e-6)


MOMENTS = ["on_train_begin", "on_epoch_begin", "on_train_batch_end", "on_epoch_end", "on_train_end"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_weights_are_kept_whenever_they_are_set(moment: str, strategy: str) -> None:
    model = linear()
    still = nx.optim.SGD(1e-9)

    def fill(*_: Any) -> None:
        model.kernel[...] = jnp.full((4, 1), 100.0)

    with STRATEGIES[strategy]().scope():
        trained(model, nx.callbacks.LambdaCallback(**{moment: fill}), still)
    np.testing.assert_allclose(model.kernel[...], 100.0, rtol=1e-4)


@pytest.mark.parametrize("steps", [1, 3])
def test_weights_clipped_after_every_batch_are_what_the_next_begins_with(steps: int) -> None:
    held: list[float] = []

    def clip(callback: Any, step: int) -> None:
        held.append(float(np.abs(callback.model.kernel[...]).max()))
        callback.model.kernel[...] = jnp.clip(callback.model.kernel[...], -0.01, 0.01)

    model = linear()
    trainer = trained(model, at_batch_end(clip), epochs=2, steps=steps)
    assert np.abs(model.kernel[...]).max() <= 0.01
    assert max(held[1:]) < 0.01 + 0.1 * 2 * 4 * steps  # what so many steps from there can add
    assert min(held) > 0.01
    assert prepared(trainer).compiled.step_compilations == 1


def test_what_is_read_after_a_batch_is_the_newest() -> None:
    read: list[np.ndarray] = []
    model = linear()
    expected = [by_hand(model, [0.1] * count) for count in range(1, 9)]
    trained(model, at_batch_end(lambda self, _: read.append(np.array(self.model.kernel[...]))))
    np.testing.assert_allclose(read, expected, rtol=1e-4, atol=1e-6)


def test_arrays_that_a_callback_has_set_are_still_its_own() -> None:
    kept = jax.tree.map(jnp.copy, nnx.state(MLP(), nnx.Param))
    x, y = classification(32)

    class Reset(nx.callbacks.Callback):
        def on_train_batch_end(self, step: int, logs: Mapping[str, float]) -> None:
            nnx.update(self.model, kept)

    model = MLP(seed=3)
    loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer = Trainer(model, optimizer="adam", loss=loss)
    trainer.fit(x, y, batch_size=8, epochs=2, callbacks=Reset())
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(kept))
    assert_same_weights(model, MLP())


def test_a_callback_that_sets_nothing_changes_nothing() -> None:
    x, y = classification(48)
    models = [Noisy(), Noisy()]
    for model, callbacks in zip(models, [(), at_batch_end(lambda *_: None)], strict=True):
        loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
        trainer = Trainer(model, optimizer="adam", loss=loss)
        trainer.fit(x, y, batch_size=8, epochs=2, callbacks=callbacks)
    assert_same_weights(*models)


def test_weights_of_another_shape_are_named_and_not_kept() -> None:
    def misshape(callback: Any, step: int) -> None:
        if step == 2:
            callback.model.kernel.set_value(jnp.zeros((5, 1)))

    model = linear()
    expected = by_hand(model, [0.1, 0.1])
    with pytest.raises(nx.ShapeError, match=r"kernel to shape \(5, 1\).*\(4, 1\)"):
        trained(model, at_batch_end(misshape))
    np.testing.assert_allclose(model.kernel[...], expected, rtol=1e-4, atol=1e-6)


def test_an_optimizer_state_of_another_structure_is_told() -> None:
    def lose(callback: Any, step: int) -> None:
        callback.trainer.optimizer_state = None

    with pytest.raises(nx.ArgumentError, match="optimizer's state.*between two calls of fit"):
        trained(linear(), at_batch_end(lose), "adam")


def test_weights_set_before_a_callback_fails_are_kept() -> None:
    def fail(callback: Any, step: int) -> None:
        callback.model.kernel[...] = jnp.full((4, 1), 7.0)
        raise KeyboardInterrupt

    model = linear()
    with pytest.raises(KeyboardInterrupt):
        trained(model, at_batch_end(fail))
    np.testing.assert_array_equal(model.kernel[...], 7.0)


def test_a_diverged_batch_of_several_is_found_after_a_rate_was_set() -> None:
    inputs = X.copy()
    inputs[43] = np.nan

    def halve(callback: Any, step: int) -> None:
        callback.trainer.learning_rate /= 2

    with pytest.raises(nx.TrainingDivergedError, match=r"at step 5 \(epoch 1\)"):
        trained(linear(), at_batch_end(halve), data=(inputs, Y), steps=2)


def stop(callback: Any, step: int) -> None:
    callback.trainer.stop_training = True


@pytest.mark.parametrize("batches", [1, 3])
def test_an_epoch_that_is_stopped_is_validated_all_the_same(batches: int, tmp_path: Path) -> None:
    early = nx.callbacks.EarlyStopping("val_loss", patience=3)
    path = tmp_path / "x-{val_loss:.2f}.safetensors"
    checkpoint = nx.callbacks.ModelCheckpoint(path, save_best_only=True)
    stops = at_batch_end(lambda self, step: stop(self, step) if step == batches else None)
    model = linear()
    trainer = Trainer(model, optimizer=nx.optim.SGD(0.1), loss="mse")
    history = trainer.fit(
        X, Y, epochs=3, batch_size=8, validation_data=(X, Y), callbacks=[stops, early, checkpoint]
    )
    assert history.epochs == [0] and trainer.steps_made == batches
    assert history["val_loss"] == pytest.approx([trainer.evaluate(X, Y)["loss"]])
    assert early.best == history["val_loss"][0] and len(checkpoint.saved) == 1


def test_numbers_that_callbacks_add_are_in_the_history(tmp_path: Path) -> None:
    class Adds(nx.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
            logs["rate"], logs["note"] = jnp.float32(self.trainer.learning_rate), f"n{epoch}"

    path = tmp_path / "log.csv"
    trainer = Trainer(linear(), optimizer=nx.optim.SGD(0.5), loss="mse")
    history = trainer.fit(X, Y, epochs=2, callbacks=[Adds(), nx.callbacks.CSVLogger(path)])
    assert history["rate"] == [0.5, 0.5] and history.history["note"] == ["n0", "n1"]
    assert list(history) == ["loss", "rate", "note"]
    assert "rate: 0.5000" in repr(history)
    with path.open(newline="") as file:
        assert [float(row["rate"]) for row in csv.DictReader(file)] == history["rate"]


def test_a_layer_that_a_callback_freezes_is_told() -> None:
    model = nx.nn.Sequential(nx.nn.Linear(4, 4), nx.nn.Linear(4, 1))
    model.compile("sgd", "mse")
    freeze = nx.callbacks.LambdaCallback(on_epoch_begin=lambda epoch: epoch and model[0].freeze())
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    with pytest.raises(nx.ArgumentError, match="frozen, unfrozen or replaced layers.*two calls"):
        model.fit(x, y, epochs=3, callbacks=freeze)
    kernel = np.asarray(model[0].kernel[...])
    model.fit(x, y)
    np.testing.assert_array_equal(model[0].kernel[...], kernel)


def test_an_attribute_that_a_callback_sets_is_no_other_model() -> None:
    model = nx.nn.Sequential(nx.nn.Linear(4, 1))
    model.compile("sgd", "mse")
    note = nx.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "seen", epoch)
    )
    history = model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=3, callbacks=note)
    assert model.seen == 2 and len(history["loss"]) == 3
