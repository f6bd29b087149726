"""Bad input to training: one clear error each, before anything is compiled."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
from neurenix._jit.recompilation import RecompilationWarning
from neurenix.train import FitOptions, Trainer, TrainOptions
from train_helpers import MLP, assert_same_weights, classification, prepared

pytestmark = pytest.mark.cpu8

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = classification(32)


@pytest.mark.parametrize(
    ("fit", "error", "message"),
    [
        (lambda t: t.fit(X, Y[:30]), nx.DataError, "x has 32, y has 30"),
        (lambda t: t.fit(X[:0], Y[:0]), nx.DataError, "empty"),
        (lambda t: t.fit([]), nx.DataError, "empty"),
        (lambda t: t.fit(X, np.where(Y == 2, 7, Y)), nx.DataError, "found 7 at index"),
        (lambda t: t.fit(X, Y - 1), nx.DataError, "found -1 at index"),
        (
            lambda t: t.fit([[1.0, 2.0], [3.0]], Y[:2]),
            nx.DataError,
            "x is ragged: row 0 has length 2",
        ),
        (lambda t: t.fit([X, X[:, :2]], Y), nx.DataError, r"go in a tuple: fit\(\(a, b\), y\)"),
        (lambda t: t.evaluate([X, X], Y), nx.DataError, "go in a tuple"),
        (lambda t: t.fit(np.array([{}, {}]), Y[:2]), nx.DataError, "holds Python objects"),
        (lambda t: t.fit(X), nx.ArgumentError, "There are no targets: give y"),
        (lambda t: t.fit(X, Y + 0.5), nx.DataError, "integer|class"),
        (lambda t: t.fit(X, np.eye(3, dtype=np.float32)[Y]), nx.ShapeError, "y_true|class"),
        (lambda t: t.fit(X, Y, epochs=0), nx.ArgumentError, "epochs"),
        (lambda t: t.fit(X, Y, batch_size=-4), nx.ArgumentError, "batch_size"),
        (lambda t: t.fit([(X, Y)], batch_size=4), nx.ArgumentError, "batched already"),
        (lambda t: t.fit([(np.array(["a", "b"]), Y[:2])]), nx.DataError, "numbers"),
        (lambda t: t.fit([{"x": X, "label": Y, "y": Y}]), nx.DataError, "several entries"),
        (lambda t: t.fit([{"label": Y}]), nx.DataError, "no input"),
        (lambda t: t.fit([(X, Y, Y, Y)]), nx.DataError, "got 4 entries"),
        (lambda t: t.fit([(X, jnp.float32(1))]), nx.ShapeError, "is a scalar"),
        (lambda t: t.fit(X, Y, initial_epoch=-1), nx.ArgumentError, "initial_epoch must .* from 0"),
    ],
)
def test_bad_data(fit: Any, error: type[Exception], message: str) -> None:
    trainer = Trainer(MLP(), loss=LOSS)
    with pytest.raises(error, match=message):
        fit(trainer)
    assert prepared(trainer).compiled.step_compilations == 0


def test_a_late_bad_label_is_found() -> None:
    labels = Y.copy()
    labels[-1] = 3
    with pytest.raises(nx.DataError, match="found 3 at index"):
        Trainer(MLP(), loss=LOSS).fit(X, labels, batch_size=4, options=FitOptions(shuffle=False))


def test_no_loss_and_unknown_names() -> None:
    with pytest.raises(nx.NotCompiledError, match="loss"):
        Trainer(MLP()).fit(X, Y)
    with pytest.raises(nx.UnknownNameError, match="adam"):
        Trainer(MLP(), optimizer="adm")
    with pytest.raises(nx.UnknownNameError, match="accuracy"):
        Trainer(MLP(), metrics=["acuracy"])
    with pytest.raises(nx.UnknownNameError, match="bfloat16"):
        TrainOptions(precision="bfloat61")
    with pytest.raises(nx.ArgumentTypeError, match="module"):
        Trainer(lambda x: x)


@pytest.mark.parametrize("name", ["loss", "val_accuracy"])
def test_a_metric_takes_no_name_of_the_logs(name: str) -> None:
    with pytest.raises(nx.ArgumentError, match=f"called '{name}'"):
        Trainer(MLP(), loss=LOSS, metrics=[nx.metrics.Accuracy(name=name)])


def test_metrics_of_one_name_are_numbered() -> None:
    trainer = Trainer(
        MLP(),
        loss=LOSS,
        metrics=[nx.metrics.Precision(class_id=i) for i in (0, 1)] + [lambda t, p: 0.0 * p[:, 0]],
    )
    history = trainer.fit(X, Y)
    assert {*history.history} >= {"precision", "precision_1", "<lambda>"}
    labels = trainer.predict(X).argmax(1)
    found = trainer.evaluate(X, Y)
    for name, label in (("precision", 0), ("precision_1", 1)):
        right = ((labels == label) & (Y == label)).sum() / max((labels == label).sum(), 1)
        np.testing.assert_allclose(found[name], right, rtol=1e-6)


class Small(nx.losses.MeanSquaredError):
    """Takes targets below 5, and is no number beyond."""

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        return jnp.where(y_true[:, None] < 5, y_pred, jnp.nan)

    def validate(self, y_true: np.ndarray, y_pred_shape: Any) -> None:
        if y_true.max() >= 5:
            raise nx.DataError(f"The targets must be below 5; found {y_true.max()}.")


@pytest.mark.parametrize("on_host", [True, False])
def test_a_late_bad_label_on_a_device_is_found(
    on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_host:  # as on an accelerator, where the host does not wait for labels
        monkeypatch.setattr("neurenix.train.batch_check._on_host", lambda y: None)
    batches = [(jnp.asarray(X), jnp.full(32, float(value))) for value in (1, 2, 7)]
    with pytest.raises(nx.DataError, match="found 7.*" + ("" if on_host else "step 2 .epoch 1")):
        Trainer(MLP(), loss=Small()).fit(batches)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, g: t.fit(g(3), steps_per_epoch=5), "ended after 3 batches of the 5 asked for. "),
        (lambda t, g: t.fit(g(8), steps_per_epoch=5, epochs=2), r"3 batches of the 5 .*8 in all"),
        (lambda t, g: t.evaluate(g(2), steps=3), "2 batches of the 3"),
        (
            lambda t, g: t.fit(X, Y, epochs=2, validation_data=g(3), validation_steps=2),
            r"1 batches of the 2 .*3 in all",
        ),
    ],
)
def test_a_generator_that_ends_too_soon(call: Any, message: str) -> None:
    def batches(count: int) -> Any:
        return iter([(X[:8], Y[:8])] * count)

    with pytest.raises(nx.DataError, match=message):
        call(Trainer(MLP(), loss=LOSS), batches)


class Pooled(nnx.Module):
    """Forgets the examples: returns the mean over everything."""

    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.ones(()))

    def __call__(self, x: jax.Array) -> jax.Array:
        return (x * self.weight).mean()


class Same(nnx.Module):
    """Returns its input."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


def test_outputs_that_make_no_array() -> None:
    with pytest.raises(nx.ShapeError, match=r"shape \(\) for a batch of 32"):
        Trainer(Pooled()).predict(X)
    with pytest.raises(nx.ShapeError, match=r"\(N, 4\), \(N, 6\).*Pad"):
        Trainer(Same()).predict([X, X[:, :4]])


def test_a_model_without_parameters_evaluates_and_predicts() -> None:
    model = nx.nn.Sequential(nx.nn.Flatten(), nx.nn.Softmax())
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    found = model.predict(X)
    np.testing.assert_allclose(found, np.exp(X) / np.exp(X).sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(model.evaluate(X, Y)["accuracy"], (X.argmax(1) == Y).mean())
    with pytest.raises(nx.ArgumentError, match="nothing to train"):
        model.fit(X, Y)


class ScaledUp(nnx.Module):
    """Overflows in its middle layer once an input is large."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.first, self.last = nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
        self.middle = Explosion()

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.middle(self.first(x)))


class Explosion(nnx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.where(jnp.abs(x).max() > 100, jnp.inf, 1.0) * x


@pytest.mark.parametrize("per_call", [1, 2])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_weights(per_call: int) -> None:
    x, y = classification(80)
    bad = x.copy()
    bad[50] = 1e6
    options = TrainOptions(steps_per_execution=per_call)
    good = ScaledUp()
    Trainer(good, optimizer="sgd", loss=LOSS, options=options).fit(
        x[:48], y[:48], batch_size=16, options=FitOptions(shuffle=False)
    )
    module = ScaledUp()
    trainer = Trainer(module, optimizer="sgd", loss=LOSS, options=options)
    with pytest.raises(nx.TrainingDivergedError, match=r"step 3 \(epoch 1\).*middle.*Explosion"):
        trainer.fit(bad, y, batch_size=16, options=FitOptions(shuffle=False))
    assert_same_weights(module, good, rtol=1e-6, atol=1e-7)


def test_a_layer_that_inherits_its_call_is_named() -> None:
    model = nx.nn.Sequential(nx.nn.Conv2d(1, 2, 1), nx.nn.MaxPool2d(2), nx.nn.Flatten())
    model.compile("sgd", "mse")
    x = np.full((16, 2, 2, 1), 3e38, np.float32)
    model[0].kernel.set_value(jnp.full((1, 1, 1, 2), 100.0))
    with pytest.raises(nx.TrainingDivergedError, match=r"of layer layers\.0 \(Conv2d\)"):
        model.fit(x, np.zeros((16, 2), np.float32))


class Sowing(nnx.Module):
    """Leaves an intermediate behind at every call, as many NNX modules do."""

    def __init__(self) -> None:
        self.layer = nnx.Linear(6, 3, rngs=nnx.Rngs(0))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.layer(x)
        self.sow(nnx.Intermediate, "features", x)
        return x


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_a_module_that_sows_trains() -> None:
    trainer = Trainer(Sowing(), loss=LOSS)
    assert len(trainer.fit(X, Y, epochs=2)["loss"]) == 2
    assert trainer.predict(X).shape == (32, 3)


@pytest.mark.parametrize("bad", [0, 7, 8, 20, 31])
def test_the_first_bad_batch_is_named_however_late_it_is_looked_at(bad: int) -> None:
    x = X.copy()
    x[bad, 2] = np.nan
    trainer = Trainer(MLP(), loss=LOSS)
    with pytest.raises(nx.TrainingDivergedError, match=rf"step {bad} \(.*batch itself"):
        trainer.fit(x, Y, batch_size=1, shuffle=False)
    assert trainer.steps_made == bad


def log_loss(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    return -jnp.log(jnp.where(y_true[:, None] > 0, 1.0, 0.0) * jnp.abs(y_pred)).mean(1)


def test_an_infinite_loss_of_weight_0_never_counts() -> None:
    targets = np.arange(32, dtype=np.float32) - 4
    weights = (targets > 0).astype(np.float32)
    trainer = Trainer(MLP(), optimizer="sgd", loss=log_loss)
    options = FitOptions(sample_weight=weights)
    assert np.isfinite(trainer.fit(X, targets, batch_size=8, options=options)["loss"]).all()
    assert np.isfinite(trainer.evaluate(X, targets, sample_weight=weights)["loss"])
    with pytest.raises(nx.TrainingDivergedError, match="log_loss"):
        trainer.fit(X, targets, batch_size=8)


class Root(nnx.Module):
    """Has a finite loss with a gradient that is not, at weights of 0."""

    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.zeros(6))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.abs(x * self.weight)).sum(1)


def test_a_gradient_that_is_not_finite_is_found_too() -> None:
    module = Root()
    trainer = Trainer(module, optimizer="sgd", loss="mse")
    with pytest.raises(nx.TrainingDivergedError, match="step 0.*gradient of parameter weight"):
        trainer.fit(X, X[:, 0], batch_size=16)
    assert not np.asarray(module.weight[...]).any()


def test_without_the_check_it_is_found_one_step_later() -> None:
    options = TrainOptions(check_gradients=False)
    trainer = Trainer(Root(), optimizer="sgd", loss="mse", options=options)
    with pytest.raises(nx.TrainingDivergedError, match="step 1.*Parameter weight was not finite"):
        trainer.fit(X, X[:, 0], batch_size=16)


@pytest.mark.parametrize("replicas", [1, 8])
def test_a_model_with_dropout_that_diverges_is_explained(replicas: int) -> None:
    layers = nx.nn.Linear(4, 8), nx.nn.BatchNorm(8), nx.nn.Dropout(0.1), nx.nn.Linear(8, 1)
    model = nx.nn.Sequential(*layers)
    x, y = np.ones((64, 4)), np.ones((64, 1))
    scope = nx.distribute.TPUStrategy() if replicas == 8 else None
    options = TrainOptions(strategy=scope)
    trainer = Trainer(model, optimizer=nx.optim.SGD(1e30), loss="mse", options=options)
    with pytest.raises(nx.TrainingDivergedError, match=r"step 1 \(epoch 1\).*layer layers\.\d"):
        trainer.fit(x, y, epochs=3)


@pytest.mark.parametrize("per_call", [1, 2])
def test_a_learning_rate_that_is_not_finite_changes_no_weight(per_call: int) -> None:
    def rate(step: Any) -> jax.Array:
        return 0.1 * (4.0 - jnp.asarray(step, jnp.float32)) ** -0.5

    module, expected = MLP(), MLP()
    options = TrainOptions(steps_per_execution=per_call)
    trainer = Trainer(module, optimizer=nx.optim.SGD(rate), loss=LOSS, options=options)
    with pytest.raises(
        nx.TrainingDivergedError, match=r"learning rate is inf at step 4 .*number 0"
    ):
        trainer.fit(X, Y, batch_size=4, options=FitOptions(shuffle=False))
    reference = Trainer(expected, optimizer=nx.optim.SGD(rate), loss=LOSS)
    reference.fit(X[:16], Y[:16], batch_size=4, options=FitOptions(shuffle=False))
    assert trainer.steps_made == 4
    assert_same_weights(module, expected, rtol=1e-5, atol=1e-6)


def test_terminate_on_nan_ends_quietly() -> None:
    x = X.copy()
    x[:] = np.nan
    history = Trainer(MLP(), loss=LOSS).fit(x, Y, callbacks=[nx.callbacks.TerminateOnNaN()])
    assert history.epochs == []


def test_shapes_that_change_at_every_step_are_reported() -> None:
    def batches() -> Any:
        for length in range(4, 11):
            yield np.ones((8, length), np.float32), np.zeros(8, np.float32)

    class Mean(nnx.Module):
        def __init__(self) -> None:
            self.weight = nnx.Param(jnp.ones(()))

        def __call__(self, x: jax.Array) -> jax.Array:
            return x.mean(1) * self.weight

    with pytest.warns(RecompilationWarning, match=r"\.x changed 4 times.*float32\[8,8\]"):
        Trainer(Mean(), loss="mse").fit(batches())


def test_shapes_that_change_at_every_prediction_are_reported() -> None:
    model = nx.nn.Sequential(nx.nn.Embedding(8, 4), nx.nn.ReLU())
    model.compile(loss="mse")
    with pytest.warns(RecompilationWarning, match=r"predict.*x.* changed 4 times.*int32\[32,7\]"):
        for length in range(3, 8):
            model.predict(np.ones((4, length), np.int32))


def test_steady_shapes_are_not_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompilationWarning)
        Trainer(MLP(), loss=LOSS).fit(X, Y, epochs=8, batch_size=5)


def test_a_module_without_parameters_says_so() -> None:
    with pytest.raises(nx.ArgumentError, match="no parameters"):
        Trainer(Explosion(), loss="mse").fit(X, X)


@pytest.mark.parametrize("kind", [">f4", ">f8", np.longdouble])
@pytest.mark.parametrize("give", [lambda x, y: (x, y), lambda x, y: ([(x, y)],)])
def test_numbers_in_another_order_of_bytes_are_numbers(give: Any, kind: Any) -> None:
    x, y = np.round(X * 8).astype(kind), Y.astype(">i8")
    same, other = (Trainer(MLP(), loss=LOSS) for _ in range(2))
    same.fit(*give(x.astype(np.float32), Y.astype(np.int32)))
    other.fit(*give(x, y))
    assert_same_weights(same.module, other.module)
    np.testing.assert_array_equal(nx.Tensor(x), x.astype(np.float32))
    np.testing.assert_array_equal(nx.Tensor(y), Y)


def test_records_are_no_numbers() -> None:
    with pytest.raises(nx.DataError, match="holds records .* an array of each field"):
        Trainer(MLP(), loss=LOSS).fit(np.zeros(32, [("a", "f4"), ("b", "f4")]), Y)


@pytest.mark.parametrize("steps", [5, 50])
def test_one_pass_over_data_has_as_many_batches_as_there_are(steps: int) -> None:
    trainer = Trainer(MLP(), loss=LOSS)
    message = f"ended after 4 batches of the {steps} asked for. One pass"
    for ask in (
        lambda: trainer.predict(X, batch_size=8, steps=steps),
        lambda: trainer.evaluate(X, Y, batch_size=8, steps=steps),
        lambda: trainer.fit(X, Y, validation_data=(X, Y), validation_steps=steps, batch_size=8),
    ):
        with pytest.raises(nx.DataError, match=message):
            ask()
    assert len(trainer.predict(X, batch_size=8, steps=4)) == 32
    endless = nx.data.Dataset.from_arrays(X, Y).repeat().batch(8)
    assert np.isfinite(trainer.evaluate(endless, steps=steps)["loss"])


class Growing(nnx.Module):
    """Keeps all rows that it has seen."""

    def __init__(self) -> None:
        self.layer, self.seen = nnx.Linear(6, 3, rngs=nnx.Rngs(0)), nnx.BatchStat(jnp.zeros((1, 6)))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.seen.set_value(jnp.concatenate([self.seen[...], x[:1]]))
        return self.layer(x)


class Sums(nx.metrics.Metric):
    """Adds up weights, from ``first`` on."""

    def __init__(self, first: Any) -> None:
        super().__init__("sums")
        self.total = nnx.metrics.MetricState(first)

    def update(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.set_value(
            self.total[...] + (1 if sample_weight is None else sample_weight.sum())
        )

    def result(self) -> jax.Array:
        return self.total[...]


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (
            lambda: Trainer(Growing(), loss=LOSS),
            nx.RecompilationError,
            r"\(1, 6\) to one of \(2, 6\)",
        ),
        (
            lambda: Trainer(MLP(), loss=LOSS, metrics=[Sums(jnp.zeros(3))]),
            nx.ShapeError,
            r"sums has a result of shape \(3,\)",
        ),
        (
            lambda: Trainer(MLP(), loss=LOSS, metrics=[Sums(jnp.int32(0))]),
            nx.ArgumentError,
            r"a sum of int32\[\] one of float32",
        ),
        (
            lambda: Trainer(MLP(), loss=lambda y, p: (p.sum(-1), p)),
            nx.ArgumentTypeError,
            "returned a tuple; it must return",
        ),
    ],
)
def test_what_no_step_can_carry_is_told(made: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        made().fit(X, Y, options=FitOptions(sample_weight=np.ones(32)))


def test_an_output_may_be_a_number() -> None:
    class Penalised(MLP):
        def __call__(self, x: jax.Array) -> Any:
            return super().__call__(x), 0.5

    def loss(y: Any, outputs: Any) -> jax.Array:
        return LOSS.per_example(y, outputs[0]) + outputs[1]

    plain, penalised = Trainer(MLP(), loss=LOSS), Trainer(Penalised(), loss=loss)
    assert penalised.evaluate(X, Y)["loss"] == pytest.approx(plain.evaluate(X, Y)["loss"] + 0.5)


def test_batches_on_another_device_are_moved() -> None:
    here, there = jax.devices()[:2]
    one = nx.distribute.OneDeviceStrategy("tpu:1")
    batch = jax.device_put((X, Y), here)
    moved, expected = (
        Trainer(MLP(), loss=LOSS, options=TrainOptions(strategy=one)) for _ in range(2)
    )
    moved.fit([batch])
    expected.fit([(X, Y)])
    assert_same_weights(moved.module, expected.module)
    assert moved.evaluate([batch]) == expected.evaluate([(X, Y)])
    np.testing.assert_array_equal(moved.predict([batch[0]]), expected.predict(X))
    assert jax.tree.leaves(nnx.state(moved.module))[0].devices() == {there}
