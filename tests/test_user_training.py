"""Training as its users write it: callbacks together, moves between calls, models of all kinds."""

from __future__ import annotations

import copy
import csv
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix import nn
from train_helpers import assert_same_weights, classification, weights_of

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = classification(50)


def compiled(**options: Any) -> Any:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return model.compile(**({"optimizer": nx.optim.Adam(1e-2), "loss": LOSS} | options))


class KerasStyle(nx.callbacks.Callback):
    """Written for Keras: every method takes ``logs=None``."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.seen.append("begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(f"epoch {epoch}")

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        assert np.isfinite(logs["loss"])
        self.seen.append(f"step {step}")

    def on_train_end(self, logs: Any = None) -> None:
        self.seen.append("end")


def test_callbacks_that_write_files_work_together(tmp_path: Path) -> None:
    model = compiled(metrics=["accuracy"])
    style = KerasStyle()
    history = model.fit(
        X,
        Y,
        epochs=3,
        batch_size=32,
        validation_data=(X, Y),
        callbacks=[
            style,
            nx.callbacks.CSVLogger(tmp_path / "log.csv"),
            nx.callbacks.ModelCheckpoint(tmp_path / "{epoch:02d}.safetensors"),
            nx.callbacks.TensorBoard(tmp_path / "board"),
            nx.callbacks.ReduceLROnPlateau(patience=1),
            nx.callbacks.TerminateOnNaN(),
        ],
    )
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_accuracy"]) for row in rows] == history["val_accuracy"]
    assert [path.name for path in sorted(tmp_path.glob("*.safetensors"))] == [
        f"0{number}.safetensors" for number in (1, 2, 3)
    ]
    assert_same_weights(compiled().load(tmp_path / "03.safetensors"), model)
    for part in ("train", "validation"):
        assert any((tmp_path / "board" / part).iterdir())
    assert style.seen[:4] == ["begin", "epoch 0", "step 1", "step 2"]
    assert style.seen[-1] == "end"


def test_a_model_can_be_used_inside_of_a_callback() -> None:
    """Validation, prediction and even ``fit`` of the same model, between its steps."""
    model, sizes = compiled(), []

    def use(step: int, logs: Any) -> None:
        sizes.append(model.predict(X).shape)

    def validate(epoch: int, logs: Any) -> None:
        sizes.append(model.evaluate(X, Y)["loss"])
        model.fit(X, Y, epochs=1)

    callback = nx.callbacks.LambdaCallback(on_train_batch_end=use, on_epoch_end=validate)
    history = model.fit(X, Y, epochs=2, callbacks=[callback])
    assert len(history["loss"]) == 2
    assert len(sizes) == 2 * 3
    assert np.isfinite(model.predict(X)).all()


def test_stopping_inside_of_an_epoch_counts_the_steps_made() -> None:
    model = compiled()

    class Stop(nx.callbacks.Callback):
        def on_train_batch_end(self, step: int, logs: Any) -> None:
            self.trainer.stop_training = step >= 2

    model.fit(X, Y, epochs=3, batch_size=8, callbacks=[Stop()])
    assert model.trainer.steps_made == 2
    history = model.fit(X, Y, epochs=4, initial_epoch=2, batch_size=10)
    assert history.epochs == [2, 3]
    assert model.trainer.steps_made == 2 + 2 * 5


@pytest.mark.parametrize(("target", "replicated"), [("cpu", False), ("tpu:1", True)])
def test_a_model_moves_between_two_calls_of_fit(target: str, replicated: bool) -> None:
    strategy = nx.distribute.TPUStrategy() if replicated else None
    if strategy is None:
        model = compiled()
    else:
        with strategy.scope():
            model = compiled()
    first = model.fit(X, Y)["loss"][-1]
    model.to(target)
    assert model.fit(X, Y, epochs=3)["loss"][-1] < first
    assert np.isfinite(model.evaluate(X, Y)["loss"])
    if not replicated:
        assert nx.device_of(model.layers[0].kernel[...]) == nx.Device(target)


def test_a_model_that_is_moved_before_compile_trains_there() -> None:
    model = nn.Sequential(nn.Linear(6, 3)).to("tpu:1").compile("sgd", LOSS)
    model.fit(X, Y)
    assert nx.device_of(model.layers[0].kernel[...]) == nx.Device("tpu:1")


def test_a_model_changes_between_two_calls_of_fit() -> None:
    model = compiled()
    model.fit(X, Y)
    model.layers.append(nn.Linear(3, 3))
    before = weights_of(model)
    model.fit(X, Y)
    changed = {name for name, value in weights_of(model).items() if (value != before[name]).any()}
    assert changed == before.keys()


def test_a_trained_model_can_be_copied_and_pickled() -> None:
    model = compiled()
    model.fit(X, Y)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), nnx.clone(model)):
        assert_same_weights(twin, model)
        with pytest.raises(nx.NotCompiledError, match="compile"):
            twin.fit(X, Y)


class TwoInputs(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(6, 3, rngs=nnx.Rngs(0))

    def __call__(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return self.layer(a - 0.5 * b)


def test_several_inputs_by_name_and_by_position() -> None:
    by_name, by_position = TwoInputs(), TwoInputs()
    nx.Trainer(by_name, loss=LOSS).fit({"a": X, "b": X}, Y)
    nx.Trainer(by_position, loss=LOSS).fit((X, X), Y)
    assert_same_weights(by_name, by_position)
    assert nx.Trainer(by_name).predict({"a": X, "b": X}).shape == (50, 3)


TRANSFORMATIONS = {
    "chain": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 20))
    ),
    "every_second": optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_optax_transformations_of_all_kinds(name: str) -> None:
    with nx.distribute.TPUStrategy().scope():
        model = compiled(optimizer=TRANSFORMATIONS[name], steps_per_execution=2)
    history = model.fit(X, Y, epochs=4, batch_size=16)
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bfloat16"},
        {"precision": "bfloat16", "accumulate_steps": 2, "steps_per_execution": 2},
    ],
)
def test_batch_norm_and_dropout_with_every_option_on_eight_devices(options: Any) -> None:
    with nx.distribute.TPUStrategy().scope():
        model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        ).compile(nx.optim.Adam(1e-2), LOSS, **options)
    history = model.fit(X, Y, epochs=2, batch_size=16, validation_data=(X, Y))
    assert np.isfinite(history["val_loss"]).all()
    assert {value.dtype.name for value in weights_of(model).values()} == {"float32"}


@dataclasses.dataclass
class Settings:
    scale: float = 1.0


class Configured(nn.Module):
    """With attributes that can change in place: a list, a dict, a dataclass."""

    def __init__(self) -> None:
        self.linear = nn.Linear(6, 3)
        self.sizes: list[Any] = [32, {"factors": [1]}]
        self.config = {"gain": 1.0}
        self.settings = Settings()

    def __call__(self, x: Any) -> Any:
        factor = self.sizes[1]["factors"][0]
        return self.linear(x) * self.config["gain"] * self.settings.scale * factor


def test_a_change_inside_of_an_attribute_is_seen() -> None:
    x, y = X, Y
    model = Configured().compile(optimizer="sgd", loss=LOSS)
    model.fit(x, y)
    call = nx.jit(lambda model, x: model(x))
    plain = model.predict(x)
    np.testing.assert_allclose(call(model, x), plain, rtol=1e-5)

    def check(factor: float) -> None:
        np.testing.assert_allclose(model.predict(x), factor * plain, rtol=1e-5)
        np.testing.assert_allclose(call(model, x), factor * plain, rtol=1e-5)

    model.config["gain"] = 2.0
    check(2)
    model.settings.scale = 3.0
    model.sizes[1]["factors"][0] = 2
    check(12)
    compilations = call.compilations
    model.config["gain"] = 1.0
    model.settings.scale = 1.0
    model.sizes[1]["factors"][0] = 1
    check(1)  # as at first: that program is still there
    assert call.compilations == compilations


# Transfer learning


class Backbone(nn.Module):
    """A trained part with batch statistics, one matrix that is used twice, and a new head."""

    def __init__(self) -> None:
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm(6), nn.ReLU(), nn.Dropout(0.1))
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.kernel = self.body[0].kernel
        self.head = nn.Linear(6, 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.tied(self.body(x)))


def arrays_of(module: Any) -> dict[str, np.ndarray]:
    flat = nnx.to_flat_state(nnx.state(module, nnx.Not(nnx.RngState)))
    return {".".join(map(str, path)): np.array(leaf.get_value()) for path, leaf in flat}


def changed(before: dict[str, np.ndarray], module: Any) -> set[str]:
    after = arrays_of(module)
    assert after.keys() == before.keys()
    return {name for name, value in before.items() if (after[name] != value).any()}


HEAD = {"head.bias", "head.kernel"}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("replicas", [1, 8])
def test_what_is_frozen_stays_as_it_is_in_fit(replicas: int, precision: str) -> None:
    strategy = nx.distribute.TPUStrategy() if replicas == 8 else None
    model = Backbone()
    model.body.freeze()
    before = arrays_of(model)
    options = nx.train.TrainOptions(strategy=strategy, precision=precision)
    trainer = nx.Trainer(model, optimizer="adam", loss=LOSS, options=options)
    trainer.fit(X, Y, epochs=2, batch_size=16)
    assert changed(before, model) == HEAD
    outputs = trainer.predict(X)
    assert changed(before, model.train()) == HEAD
    model.body[3].eval()
    close = 0.1 if precision == "bfloat16" else 1e-5
    np.testing.assert_allclose(np.asarray(model(X)), outputs, rtol=close, atol=close)
    assert changed(before, model) == HEAD  # a frozen BatchNorm leaves its statistics alone


def test_trainable_is_set_as_in_keras() -> None:
    model = Backbone()
    model.body.trainable = False
    assert {*model.parameters()} == HEAD
    assert model.trainable and not model.body.trainable
    model.trainable = True
    assert {*model.parameters()} > HEAD
    with pytest.raises(nx.ArgumentTypeError, match="True or False"):
        model.trainable = "no"


def test_freezing_and_thawing_between_calls_of_fit() -> None:
    model = Backbone().compile("adam", LOSS)
    model.fit(X, Y, batch_size=16)
    model.body.freeze()
    before = arrays_of(model)
    model.fit(X, Y, batch_size=16)
    assert changed(before, model) == HEAD and model.trainer.steps_made == 4
    model.unfreeze()
    assert vars(model).keys() == vars(Backbone()).keys()
    model.fit(X, Y, batch_size=16)
    assert changed(before, model) == set(before)
    model.freeze()
    with pytest.raises(nx.ArgumentError, match="nothing to train.*unfreeze"):
        model.fit(X, Y)
    assert np.isfinite(model.evaluate(X, Y)["loss"])


def test_what_is_frozen_stays_as_it_is_in_loops_of_ones_own() -> None:
    model = Backbone()
    model.body.freeze()
    before, optimizer = arrays_of(model), nx.Optimizer(model, "adam")

    @nx.jit
    def step(model: Any, optimizer: Any, x: Any) -> jax.Array:
        loss, gradients = nx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return loss

    step(model, optimizer, X)
    assert changed(before, model) == HEAD
    model.unfreeze().train()
    step(model, nx.Optimizer(model, "adam"), X)
    assert changed(before, model) == set(before)


def test_a_frozen_model_is_saved_counted_shown_and_moved_as_ever(tmp_path: Path) -> None:
    model, other = Backbone(), Backbone()
    shown, count = str(model.summary((1, 6))), model.num_parameters
    model.body.freeze()
    assert model.num_parameters == count and {*model.parameters()} == HEAD
    summary = str(model.summary((1, 6)))
    assert summary.startswith(shown) and summary.endswith("21 trainable, 54 frozen")
    assert {*model.parameters()} == HEAD  # looking has thawed nothing
    model.save(tmp_path / "frozen")
    assert not changed(arrays_of(model), other.load(tmp_path / "frozen"))
    other.save(tmp_path / "thawed")
    model.load(tmp_path / "thawed").to("cpu:0" if jax.default_backend() == "cpu" else "tpu:0")
    assert model.tied.kernel is model.body[0].kernel
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), nnx.clone(model)):
        assert {*again.parameters()} == HEAD
        assert {*again.unfreeze().parameters()} > HEAD
    assert {*model.parameters()} == HEAD


def test_a_frozen_parameter_of_another_kind_comes_back_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    model[0].lora = nnx.LoRAParam(np.zeros((6, 2), np.float32))
    model.freeze().unfreeze()
    assert type(model[0].lora) is nnx.LoRAParam and type(model[0].kernel) is nnx.Param
    assert not model[0].lora.has_metadata("thawed_kind")


def test_preflight_takes_a_frozen_model() -> None:
    model = Backbone()
    model.body.freeze()
    trainer = nx.Trainer(model, optimizer="adam", loss=LOSS)
    spec = jax.ShapeDtypeStruct((8, 6), np.float32)
    program = trainer.step_program(nx.distribute.TPUStrategy().mesh, spec)
    state, _ = jax.eval_shape(program.function, program.state, program.batch)
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [
        leaf.shape for leaf in jax.tree.leaves(program.state)
    ]


@pytest.mark.parametrize("replicas", [1, 8])
def test_the_rate_of_an_optimizer_is_set_without_a_compile(replicas: int) -> None:
    model = nn.Sequential(nn.Linear(6, 1))
    optimizer = nx.Optimizer(model, nx.optim.SGD(0.1))
    batch = X[:48]
    if replicas == 8:
        batch = next(iter(nx.distribute.TPUStrategy().distribute([batch])))

    def loss(model: Any, x: Any) -> Any:
        return (model(x) ** 2).mean()

    @nx.jit
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        rate = optimizer.learning_rate
        optimizer.update(model, nx.grad(loss)(model, x))
        return rate

    def kernel() -> Any:
        return np.array(model.layers[0].kernel[...])

    assert optimizer.learning_rate == 0.1
    assert float(step(model, optimizer, batch)) == pytest.approx(0.1)
    step(model, optimizer, batch)
    compiled, before = step.compilations, kernel()
    optimizer.learning_rate = 0.0
    assert float(step(model, optimizer, batch)) == 0
    np.testing.assert_array_equal(kernel(), before)
    optimizer.learning_rate = np.float32(0.25)
    gradient = np.asarray(nx.grad(loss)(model, X[:48]).layers[0].kernel[...])
    step(model, optimizer, batch)
    np.testing.assert_allclose(kernel(), before - 0.25 * gradient, rtol=1e-4, atol=1e-6)
    assert optimizer.learning_rate == pytest.approx(0.25) and step.compilations == compiled


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rate_set_where_a_schedule_is_at_0_changes_no_weight(compiled: bool) -> None:
    model = nn.Linear(6, 1)
    optimizer = nx.Optimizer(model, nx.optim.SGD(optax.linear_schedule(0.0, 0.1, 10)))

    def step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.learning_rate = optimizer.learning_rate * 0.5
        optimizer.update(model, nx.grad(lambda model: (model(x) ** 2).mean())(model))

    before = weights_of(model)
    (nx.jit(step) if compiled else step)(model, optimizer, X)
    for name, value in weights_of(model).items():
        np.testing.assert_array_equal(value, before[name])
    assert optimizer.learning_rate == pytest.approx(0.01)  # no factor was set
