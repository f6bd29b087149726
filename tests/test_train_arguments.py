"""What ``fit``, ``evaluate`` and ``predict`` are told: weights, validation, callbacks, numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
from neurenix import nn
from neurenix.train import FitOptions, Trainer, TrainOptions
from train_helpers import MLP, assert_same_weights, classification

pytestmark = pytest.mark.cpu8

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = classification(48)
ONE_HOT = np.eye(3, dtype=np.float32)[Y]
WEIGHTS = {0: 1.0, 1: 5.0, 2: 0.0}


def compiled(loss: Any = LOSS, **options: Any) -> Any:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return model.compile(nx.optim.SGD(0.1), loss, **options)


def steps_made(model: Any) -> int:
    return model.trainer.steps_made


# Data without end


@pytest.mark.parametrize("batch", [7, 8])
def test_endless_data_needs_a_length_whatever_its_batch(batch: int) -> None:
    endless = nx.data.Dataset.from_arrays(X, Y).repeat().batch(batch)
    with nx.distribute.TPUStrategy().scope():
        model = compiled()
        with pytest.raises(nx.ArgumentError, match="never ends.*steps_per_epoch"):
            model.fit(endless)
        model.fit(endless, steps_per_epoch=3)
        with pytest.raises(nx.ArgumentError, match="never ends.*validation_steps"):
            model.fit(X, Y, validation_data=endless)
    assert steps_made(model) == 3


def test_validation_without_end_goes_on_where_it_stopped() -> None:
    given: list[int] = []

    def batches() -> Any:
        while True:
            given.append(len(given))
            yield X[:8], Y[:8]

    model = compiled()
    history = model.fit(X, Y, epochs=3, validation_data=batches(), validation_steps=2)
    assert len(history["val_loss"]) == 3 and len(given) <= 8


# What Keras has too


@pytest.mark.parametrize("verbose", [0, False, "auto", True, 1, 2])
def test_evaluate_and_predict_show_progress_when_asked(verbose: Any, capsys: Any) -> None:
    model = compiled()
    model.evaluate(X, Y, verbose=verbose)
    model.predict(X, verbose=verbose)
    shown = capsys.readouterr().out.splitlines()
    if verbose in (0, "auto"):  # this is no terminal
        assert not shown
    else:
        evaluating, predicting = shown
        assert evaluating.startswith("Evaluating  ") and "loss" in evaluating
        assert predicting.startswith("Predicting  ")
    with pytest.raises(nx.ArgumentError, match="verbose is"):
        model.predict(X, verbose="quiet")


def test_a_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    model = compiled()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    model.predict(X, verbose=1)
    model.evaluate(X, Y, verbose=1)
    out = capsys.readouterr().out
    assert "Predicting" in out and "2/2" in out and "loss" in out


def test_options_of_fit_go_by_themselves_to_a_trainer() -> None:
    trainer = Trainer(MLP(), loss=LOSS)
    options = FitOptions(shuffle=False, initial_epoch=1)
    history = trainer.fit(X, Y, epochs=3, verbose=0, initial_epoch=2, options=options)
    assert history.epochs == [2]
    with pytest.raises(nx.ArgumentTypeError, match="no option 'verbos'.*verbose"):
        trainer.fit(X, Y, verbos=0)


def test_validation_split_holds_out_the_last_rows() -> None:
    weights = np.linspace(0, 1, 48, dtype=np.float32)
    split, apart = MLP(), MLP()
    trainer = Trainer(split, optimizer="sgd", loss=LOSS)
    found = trainer.fit(X, Y, validation_split=0.25, sample_weight=weights, batch_size=12)
    expected = Trainer(apart, optimizer="sgd", loss=LOSS).fit(
        X[:36],
        Y[:36],
        sample_weight=weights[:36],
        batch_size=12,
        validation_data=(X[36:], Y[36:], weights[36:]),
    )
    assert found.history == expected.history
    assert_same_weights(split, apart)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.fit(X, Y, validation_split=1.0), nx.ArgumentError, "fraction from 0"),
        (lambda m: m.fit(X, Y, validation_split="a"), nx.ArgumentError, "fraction from 0"),
        (lambda m: m.fit(X[:1], Y[:1], validation_split=0.5), nx.DataError, "leaves 0 to train"),
        (lambda m: m.fit([(X, Y)], validation_split=0.5), nx.ArgumentError, "is a dataset"),
        (lambda m: m.fit(X, Y[:9], validation_split=0.5), nx.DataError, "48 rows and y has 9"),
        (
            lambda m: m.fit(X, Y, validation_split=0.5, validation_data=(X, Y)),
            nx.ArgumentError,
            "both given",
        ),
    ],
)
def test_validation_split_says_what_it_cannot_do(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(compiled())


class Indexed:
    """As Keras's PyDataset: a length and batches by index, and no iteration."""

    def __init__(self) -> None:
        self.ended = 0

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return X[16 * index : 16 * index + 16], Y[16 * index : 16 * index + 16]

    def on_epoch_end(self) -> None:
        self.ended += 1


def test_a_sequence_of_batches_without_iteration_is_data() -> None:
    data, model = Indexed(), compiled(steps_per_execution=3)
    model.fit(data, epochs=2, validation_data=Indexed())
    assert (data.ended, steps_made(model)) == (2, 6)
    assert model.predict(data).shape == (48, 3)
    np.testing.assert_allclose(
        model.evaluate(data)["loss"], model.evaluate(X, Y, batch_size=16)["loss"], rtol=1e-5
    )


# Several outputs


class TwoHeads(nnx.Module):
    """Returns two outputs, in a dict or a tuple."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.a, self.b = (nnx.Linear(6, n, rngs=nnx.Rngs(0)) for n in (1, 3))

    def __call__(self, x: jax.Array) -> Any:
        a, b = self.a(x), self.b(x)
        return {"a": a, "b": b} if self.kind is dict else (a, b)


@pytest.mark.parametrize(
    ("kind", "loss", "weights", "y"),
    [
        (dict, {"a": "mse", "b": LOSS}, {"a": 0.5}, {"a": X[:, :1], "b": Y}),
        (tuple, ["mse", LOSS], [0.5, 1.0], (X[:, :1], Y)),
    ],
)
@pytest.mark.parametrize("per_call", [1, 2])
def test_a_loss_for_each_output(kind: Any, loss: Any, weights: Any, y: Any, per_call: int) -> None:
    def joined(t: Any, p: Any) -> jax.Array:
        (ta, tb), (pa, pb) = (u.values() if kind is dict else u for u in (t, p))
        return 0.5 * jnp.mean((ta - pa) ** 2, axis=1) + LOSS.per_example(tb, pb)

    modules, options = [TwoHeads(kind), TwoHeads(kind)], TrainOptions(steps_per_execution=per_call)
    trainer = Trainer(
        modules[0],
        optimizer="sgd",
        loss=loss,
        loss_weights=weights,
        metrics={0 if kind is tuple else "a": ["mae", "mse"]},
        options=options,
    )
    other = Trainer(modules[1], optimizer="sgd", loss=joined, options=options)
    found, expected = (t.fit(X, y, epochs=2, batch_size=10) for t in (trainer, other))
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    assert_same_weights(*modules, rtol=1e-5, atol=1e-6)
    key = "0" if kind is tuple else "a"
    output = trainer.predict(X)[0 if kind is tuple else "a"]
    mae = np.abs(output - X[:, :1]).mean()
    logs = trainer.evaluate(X, y, batch_size=10)
    np.testing.assert_allclose(logs[f"{key}_mae"], mae, rtol=1e-5)
    parts = [logs[f"{name}_loss"] for name in (("0", "1") if kind is tuple else ("a", "b"))]
    np.testing.assert_allclose(parts[0], np.square(output - X[:, :1]).mean(), rtol=1e-5)
    np.testing.assert_allclose(0.5 * parts[0] + parts[1], logs["loss"], rtol=1e-5)
    assert f"{key}_mse" in found.history
    spec = jax.ShapeDtypeStruct((8, 6), np.float32)
    program = trainer.step_program(nx.distribute.TPUStrategy().mesh, spec)
    jax.eval_shape(program.function, program.state, program.batch)


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        ({"loss": {"c": "mse"}}, {"a": X, "c": X}, "output 'c'; the model returns a dict of 'a'"),
        ({"loss": {"a": "mse"}}, {"b": Y}, "output 'a'; the targets are a dict of 'b'"),
        ({"loss": {"a": "mse"}}, Y, "output 'a'; the targets are one array"),
        ({"loss": {"b": LOSS}}, {"b": Y + 7}, "y_true"),
        ({"loss": {"b": LOSS}, "loss_weights": {"bb": 1.0}}, {"b": Y}, "bb.*Did you mean 'b'|bb"),
        ({"loss": {"b": LOSS}, "loss_weights": {"b": "much"}}, {"b": Y}, "finite numbers"),
        ({"loss": LOSS, "loss_weights": {"b": 1.0}}, {"b": Y}, "one loss for each output"),
        ({"loss": {}}, {"b": Y}, "loss is empty"),
        ({"loss": {"b": "mze"}}, {"b": Y}, "mse"),
    ],
)
def test_a_wrong_loss_for_an_output(options: Any, y: Any, message: str) -> None:
    with pytest.raises(nx.ArgumentError, match=message):
        Trainer(TwoHeads(dict), **options).fit(X, y)


def test_a_late_bad_label_of_an_output_is_found() -> None:
    late = [(X, {"b": Y}), (X, {"b": Y + 7})]
    with pytest.raises(nx.DataError, match="y_true"):
        Trainer(TwoHeads(dict), loss={"b": LOSS}).fit(late)


# Weights


def trained(y: Any, loss: Any = LOSS, *, w: Any = None, per_call: int = 1) -> nnx.Module:
    module = MLP()
    options = TrainOptions(steps_per_execution=per_call)
    data = nx.data.Dataset.from_arrays(X, y, sample_weight=w).batch(8)
    trainer = Trainer(module, optimizer=nx.optim.SGD(0.1), loss=loss, options=options)
    trainer.fit(data, options=FitOptions(class_weight=WEIGHTS))
    return module


@pytest.mark.parametrize("per_call", [1, 3])
def test_class_weights_read_labels_of_every_kind(per_call: int) -> None:
    by_hand = MLP()
    weights = np.array([1.0, 5.0, 0.0], np.float32)[Y]
    Trainer(by_hand, optimizer=nx.optim.SGD(0.1), loss=LOSS).fit(
        X, Y, batch_size=8, options=FitOptions(sample_weight=weights, shuffle=False)
    )
    categorical = nx.losses.CategoricalCrossentropy(from_logits=True)
    ones = np.ones((48, 1), np.float32)
    for module in (
        trained(Y, per_call=per_call),
        trained(Y.astype(np.float32), per_call=per_call),
        trained(Y[:, None], w=ones, per_call=per_call),
        trained(ONE_HOT, categorical, per_call=per_call),
    ):
        assert_same_weights(module, by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([1.0, 2.0], nx.ArgumentTypeError, "mapping"),
        ({}, nx.ArgumentError, "empty"),
        ({"0": 1.0}, nx.ArgumentError, "key '0'"),
        ({-1: 1.0}, nx.ArgumentError, "key -1"),
        ({0.5: 1.0}, nx.ArgumentError, "key 0.5"),
        ({0: -1.0}, nx.ArgumentError, r"\[0\] is -1.0"),
        ({0: np.nan}, nx.ArgumentError, r"\[0\] is nan"),
        ({0: "much"}, nx.ArgumentError, "much"),
    ],
)
def test_class_weights_that_are_none(weights: Any, error: Any, message: str) -> None:
    model = compiled()
    with pytest.raises(error, match=message):
        model.fit(X, Y, class_weight=weights)
    assert steps_made(model) == 0


def test_class_weights_of_targets_that_name_no_classes() -> None:
    with pytest.raises(nx.DataError, match="fractions"):
        compiled("mse").fit(X, Y + 0.5, class_weight=WEIGHTS)
    with pytest.raises(nx.DataError, match="one class for each example"):
        compiled("mse").fit(X, X[:, :3], class_weight=WEIGHTS)


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_sample_weights_that_are_none(wrong: float) -> None:
    weights = np.ones(48, np.float32)
    weights[40] = wrong
    model = compiled()
    with pytest.raises(nx.DataError, match="index .40"):
        model.fit(X, Y, sample_weight=weights, batch_size=8)
    with pytest.raises(nx.DataError, match="index .40"):
        model.evaluate(X, Y, sample_weight=weights, batch_size=8)
    assert steps_made(model) == 0
    with pytest.raises(nx.DataError, match="sample_weight holds"):
        model.fit([(X, Y, weights)])


def test_sample_weights_in_a_column_and_of_a_wrong_shape() -> None:
    weights = np.linspace(0, 1, 48, dtype=np.float32)
    model = compiled()
    first = model.evaluate(X, Y, sample_weight=weights)
    assert model.evaluate(X, Y, sample_weight=weights[:, None]) == first
    in_one_batch = model.evaluate([(X, Y, weights[:, None])])  # summed in another order
    assert in_one_batch == pytest.approx(first, rel=1e-6)
    with pytest.raises(nx.ShapeError, match="sample_weight has shape"):
        model.fit(X, Y, sample_weight=np.ones((48, 2)))


# Validation


@pytest.mark.parametrize(
    "data",
    [(X, Y), [X, Y], (X, Y, np.ones(48)), [X.tolist(), Y.tolist()], [(X, Y)], {"x": X, "y": Y}],
)
def test_validation_data_of_every_kind(data: Any) -> None:
    model = compiled()
    history = model.fit(X, Y, validation_data=data)
    assert history["val_loss"] == pytest.approx([model.evaluate(X, Y)["loss"]], rel=1e-5)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (X, nx.ArgumentError, "targets"),
        ((X,), nx.ArgumentError, "tuple of 1"),
        ((X, Y, None, None), nx.ArgumentError, "tuple of 4"),
        ((X[:, :5], Y), nx.ShapeError, "takes .* 6"),
        ((X, ONE_HOT), nx.ShapeError, "y_true"),
        ((X, Y + 3), nx.DataError, "y_true"),
        ((X, Y[:5]), nx.DataError, "validation_data: .*48"),
    ],
)
def test_wrong_validation_data_is_told_before_training(
    data: Any, error: type[Exception], message: str
) -> None:
    model = compiled()
    with pytest.raises(error, match=message):
        model.fit(X, Y, validation_data=data)
    assert steps_made(model) == 0


# Callbacks


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (nx.callbacks.EarlyStopping(), "val_loss.*validation_data"),
        (nx.callbacks.ReduceLROnPlateau("val_acuracy"), "val_acuracy.*loss"),
        (nx.callbacks.ModelCheckpoint("w", monitor="acc", save_best_only=True), "acc.*accuracy"),
        (nx.callbacks.ModelCheckpoint("{val_loss:.1f}"), "val_loss"),
    ],
)
def test_what_the_logs_will_lack_is_told_before_training(callback: Any, message: str) -> None:
    model = compiled(metrics=["accuracy"])
    with pytest.raises(nx.UnknownNameError, match=message):
        model.fit(X, Y, callbacks=[callback])
    assert steps_made(model) == 0


def test_callbacks_may_be_one_or_none() -> None:
    stop = nx.callbacks.EarlyStopping("loss")
    compiled().fit(X, Y, callbacks=stop)
    assert np.isfinite(stop.best)
    compiled().fit(X, Y, callbacks=None)


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (nx.callbacks.EarlyStopping, r"Construct it: EarlyStopping\(\)"),
        ([nx.callbacks.EarlyStopping], r"Construct it: EarlyStopping\(\)"),
        ("early_stopping", "'early_stopping'.*no Callback"),
        ([print], "LambdaCallback"),
        ([3], "no Callback"),
        (3, "no Callback"),
    ],
)
def test_what_is_no_callback_is_told(callbacks: Any, message: str) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=message):
        compiled().fit(X, Y, callbacks=callbacks)


# Numbers and options


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2"])
def test_numbers_that_are_none(value: Any) -> None:
    model = compiled()
    calls = {
        "epochs": model.fit,
        "batch_size": model.evaluate,
        "steps_per_epoch": model.fit,
        "validation_steps": model.fit,
        "steps": model.evaluate,
    }
    for name, call in calls.items():
        with pytest.raises(nx.ArgumentError, match=f"{name} must be a whole number"):
            call(X, Y, **{name: value})
    for name in ("steps", "batch_size"):
        with pytest.raises(nx.ArgumentError, match=f"{name} must be a whole number"):
            model.predict(X, **{name: value})
    with pytest.raises(nx.ArgumentError, match="steps_per_execution"):
        TrainOptions(steps_per_execution=value)
    assert steps_made(model) == 0


def test_integers_of_numpy_are_integers() -> None:
    two = np.int64(2)
    model = compiled(steps_per_execution=two)
    history = model.fit(X, Y, epochs=two, batch_size=np.int32(8), steps_per_epoch=two)
    assert len(history["loss"]) == 2
    assert steps_made(model) == 4
    assert model.predict(X, batch_size=np.uint8(16), steps=two).shape == (32, 3)


def test_options_that_do_not_exist() -> None:
    model = compiled()
    for call in (lambda: model.evaluate(X, Y, batchsize=3), lambda: model.predict(X, batchsize=3)):
        with pytest.raises(nx.ArgumentTypeError, match="'batchsize'. Did you mean 'batch_size'"):
            call()
    with pytest.raises(nx.ArgumentError, match="verbose"):
        model.fit(X, Y, verbose="loud")
    with pytest.raises(nx.ArgumentError, match="initial_epoch=3.*epochs=3"):
        model.fit(X, Y, epochs=3, initial_epoch=3)
    compiled(metrics=None).fit(X, Y, verbose=0)


# Inputs and outputs of several arrays


class Two(nn.Module):
    """Takes two inputs and returns two outputs."""

    def __init__(self) -> None:
        self.left, self.right = nn.Linear(6, 3), nn.Linear(2, 3)

    def __call__(self, a: jax.Array, b: jax.Array) -> dict[str, jax.Array]:
        return {"a": self.left(a), "b": self.right(b)}


def test_a_model_of_two_inputs_and_two_outputs() -> None:
    def on_a(y_true: Any, y_pred: Any) -> Any:
        return jnp.mean((y_pred["a"] - y_true) ** 2)

    model = Two().compile(nx.optim.SGD(0.1), on_a)
    pair = X, X[:, :2]
    first = model.evaluate(pair, ONE_HOT, batch_size=20)["loss"]
    after = model.fit(pair, ONE_HOT, epochs=3, batch_size=20)["loss"][-1]  # the last is padded
    assert after < first
    output = model.predict(pair, batch_size=20)
    assert {name: value.shape for name, value in output.items()} == {"a": (48, 3), "b": (48, 3)}
    expected = np.mean((output["a"] - ONE_HOT) ** 2)
    assert model.evaluate(pair, ONE_HOT, batch_size=20)["loss"] == pytest.approx(expected, rel=1e-5)
    model.compile("sgd", "mse")
    with pytest.raises(nx.ArgumentTypeError, match="returns a dict.*function that picks"):
        model.fit(pair, ONE_HOT)


def test_complex_numbers_are_told() -> None:
    with pytest.raises(nx.DataError, match="complex"):
        compiled("mse").fit(X + 1j * X, ONE_HOT)


def test_outputs_may_differ_in_length_from_batch_to_batch() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3)).compile("sgd", LOSS)
    batches = [(np.ones((8, n, 2), np.float32), np.zeros((8, n - 2), np.int32)) for n in (6, 9, 6)]
    assert np.isfinite(model.fit(batches, validation_data=batches[1:])["val_loss"]).all()
    bad = (batches[0][0], np.zeros((8, 5), np.int32))
    with pytest.raises(nx.ShapeError, match="y_true"):
        model.fit([batches[1], bad])


# Learning rates


@pytest.mark.parametrize("rate", [None, -0.1, np.nan, "fast"])
def test_a_schedule_that_returns_no_rate(rate: Any) -> None:
    schedule = nx.callbacks.LearningRateScheduler(lambda epoch, before: rate)
    with pytest.raises(nx.ArgumentError, match=f"returned {rate!r} for epoch 0"):
        compiled().fit(X, Y, callbacks=schedule)
    with pytest.raises(nx.ArgumentTypeError, match="not a function"):
        nx.callbacks.LearningRateScheduler(0.1)


def test_a_rate_that_is_zero_cannot_be_scaled() -> None:
    trainer = Trainer(MLP(), optimizer=nx.optim.SGD(0.0), loss=LOSS)
    assert trainer.learning_rate == 0
    trainer.learning_rate = 0.0
    with pytest.raises(nx.ArgumentError, match="cannot be set to 0.1.*step 0"):
        trainer.learning_rate = 0.1


def test_reducing_never_raises_a_rate_and_begins_anew() -> None:
    reduce = nx.callbacks.ReduceLROnPlateau("loss", patience=2, min_delta=1e9, min_lr=0.5)
    model = compiled()
    model.fit(X, Y, epochs=4, callbacks=reduce)
    assert model.trainer.learning_rate == pytest.approx(0.1)
    reduce.min_lr = 0.0
    for _ in range(2):
        model.fit(X, Y, epochs=2, callbacks=reduce)
    assert model.trainer.learning_rate == pytest.approx(0.1)


# One fit after another


def test_a_second_fit_goes_on_with_the_order_of_shuffled_data() -> None:
    modules = [MLP() for _ in range(3)]
    whole, parts, resumed = (
        Trainer(module, optimizer=nx.optim.SGD(0.1), loss=LOSS) for module in modules
    )
    whole.fit(X, Y, epochs=4, batch_size=8)
    for _ in range(2):
        parts.fit(X, Y, epochs=2, batch_size=8)
    assert_same_weights(modules[1], modules[0])
    resumed.fit(X, Y, epochs=2, batch_size=8)
    again = Trainer(modules[2], optimizer=nx.optim.SGD(0.1), loss=LOSS)
    again.fit(X, Y, epochs=4, batch_size=8, options=FitOptions(initial_epoch=2))
    assert_same_weights(modules[2], modules[0])


def test_a_model_of_a_strategy_trains_outside_of_its_scope() -> None:
    strategy = nx.distribute.TPUStrategy()
    with strategy.scope():
        model = compiled()
    first = model.fit(X, Y, epochs=2)["loss"][-1]
    model.compile(nx.optim.SGD(0.1), LOSS)
    assert model.fit(X, Y)["loss"][0] < first
    assert model.trainer.strategy.devices == strategy.devices


def test_a_model_of_no_scope_whose_weights_are_divided_in_another_way_is_told() -> None:
    mesh, model = jax.sharding.Mesh(np.array(jax.devices("tpu")), ("rows",)), compiled()
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    model.layers[0].bias[...] = jax.device_put(np.zeros(8, np.float32), rows)
    with pytest.raises(nx.ArgumentError, match="divided over 8 devices"):
        model.compile("sgd", LOSS).fit(X, Y)


# Files


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\n", b"0,1.5,2.5\n", b"epoch,loss,loss\n"])
def test_a_damaged_table_is_not_continued(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    with pytest.raises(nx.ArgumentError, match=r"log.csv is damaged, or none of"):
        compiled().fit(X, Y, callbacks=nx.callbacks.CSVLogger(path, append=True))
    assert path.read_bytes() == content


def test_a_table_of_other_columns_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"epoch,loss\r\n0,1.5")  # cut off at the end of its last line
    compiled().fit(X, Y, callbacks=nx.callbacks.CSVLogger(path, append=True))
    lines = path.read_text().split()
    assert lines[:2] == ["epoch,loss", "0,1.5"] and len(lines) == 3
    with pytest.raises(nx.ArgumentError, match="none for accuracy"):
        compiled(metrics=["accuracy"]).fit(
            X, Y, callbacks=nx.callbacks.CSVLogger(path, append=True)
        )


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = compiled()
    for path in (tmp_path, tmp_path / "file" / "log.csv"):
        with pytest.raises(nx.ArgumentError, match="cannot be written"):
            model.fit(X, Y, callbacks=nx.callbacks.CSVLogger(path))
    assert steps_made(model) == 0


@pytest.mark.parametrize("path", ["{epoch:zz}", "{loss:d}", "{epoch", "{}", "{loss.worst}"])
def test_a_name_of_checkpoints_that_is_malformed(path: str) -> None:
    with pytest.raises(nx.ArgumentError, match="ModelCheckpoint"):
        nx.callbacks.ModelCheckpoint(path)


def test_a_trainer_keeps_its_module_and_options() -> None:
    trainer = nx.Trainer(nn.Linear(4, 1), loss="mse")
    with pytest.raises(AttributeError, match="module"):
        trainer.module = nn.Linear(2, 1)  # pyright: ignore
    with pytest.raises(AttributeError, match="options"):
        trainer.options = None  # pyright: ignore
