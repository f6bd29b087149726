"""Callbacks: what each does to a run, and to the files that it writes."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import neurenix as nx
from neurenix.train import FitOptions, Trainer, TrainOptions, load_weights
from train_helpers import MLP, assert_same_weights, classification, prepared, weights_of

pytestmark = pytest.mark.cpu8

X, Y = classification(48)
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)


class Recorder(nx.callbacks.Callback):
    """Writes down every moment."""

    def __init__(self) -> None:
        self.moments: list[Any] = []

    def on_train_begin(self) -> None:
        self.moments.append("begin")

    def on_epoch_begin(self, epoch: int) -> None:
        self.moments.append(("epoch", epoch))

    def on_train_batch_end(self, step: int, logs: Mapping[str, float]) -> None:
        self.moments.append(("step", step, math.isfinite(logs["loss"])))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.moments.append(("end", epoch, sorted(logs)))

    def on_train_end(self) -> None:
        self.moments.append("done")


class Scripted(nx.callbacks.Callback):
    """Puts numbers of the test's choice into the logs."""

    def __init__(self, name: str, values: list[float]) -> None:
        self.name, self.values = name, values

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        logs[self.name] = self.values[epoch]


def fit(
    module: Any, *callbacks: Any, epochs: int = 2, optimizer: Any = "sgd", **kwargs: Any
) -> Any:
    trainer = Trainer(module, optimizer=optimizer, loss=LOSS, metrics=["accuracy"])
    return trainer.fit(X, Y, epochs=epochs, batch_size=16, callbacks=callbacks, **kwargs)


def test_moments_come_in_order() -> None:
    recorder = Recorder()
    fit(MLP(), recorder, validation_data=(X, Y))
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    epoch = [("step", step, True) for step in (1, 2, 3)]
    assert recorder.moments == [
        "begin", ("epoch", 0), *epoch, ("end", 0, names),
        ("epoch", 1), *epoch, ("end", 1, names), "done",
    ]  # fmt: skip


def test_batch_ends_count_optimizer_steps_of_a_call() -> None:
    recorder = Recorder()
    trainer = Trainer(MLP(), loss=LOSS, options=TrainOptions(steps_per_execution=2))
    trainer.fit(X, Y, batch_size=16, callbacks=[recorder])
    assert [moment[1] for moment in recorder.moments if moment[0] == "step"] == [2, 3]


@pytest.mark.parametrize(
    ("patience", "values", "stopped"),
    [(1, [3.0, 2.0, 2.5, 1.0], 2), (2, [3.0, 2.0, 2.5, 2.2, 1.0], 3), (2, [3.0, 2.0, 1.0], None)],
)
def test_early_stopping(patience: int, values: list[float], stopped: int | None) -> None:
    early = nx.callbacks.EarlyStopping("val_loss", patience=patience)
    history = fit(MLP(), Scripted("val_loss", values), early, epochs=len(values))
    assert early.stopped_epoch == stopped
    assert history.epochs[-1] == (len(values) - 1 if stopped is None else stopped)


def test_less_than_min_delta_is_no_improvement() -> None:
    early = nx.callbacks.EarlyStopping(min_delta=0.5, patience=2)
    numbers = Scripted("val_loss", [3.0, 2.8, 2.6, 2.0])
    assert fit(MLP(), numbers, early, epochs=4).epochs == [0, 1, 2] and early.best == 3.0


def test_early_stopping_waits_for_better_than_a_baseline() -> None:
    early = nx.callbacks.EarlyStopping(patience=2, baseline=1.5)
    numbers = Scripted("val_loss", [3.0, 1.0, 0.9, 2.0, 2.0, 0.1])
    assert fit(MLP(), numbers, early, epochs=6).epochs == [0, 1, 2, 3, 4]
    numbers = Scripted("val_loss", [3.0, 2.0, 1.0])
    assert fit(MLP(), numbers, early, epochs=3).epochs == [0, 1] and early.best == 2.0


def test_early_stopping_does_not_look_at_the_first_epochs() -> None:
    early = nx.callbacks.EarlyStopping(patience=1, start_from_epoch=2)
    numbers = Scripted("val_loss", [0.1, 3.0, 2.0, 1.0, 1.5, 0.5])
    assert fit(MLP(), numbers, early, epochs=6).epochs == [0, 1, 2, 3, 4] and early.best == 1.0


def test_early_stopping_begins_anew_with_every_fit() -> None:
    early = nx.callbacks.EarlyStopping(patience=2)
    fit(MLP(), Scripted("val_loss", [1.0, 2.0]), early)
    later = fit(MLP(), Scripted("val_loss", [5.0, 4.0, 3.0]), early, epochs=3)
    assert later.epochs == [0, 1, 2] and early.best == 3.0


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_a_number_that_is_none_never_improves(worst: float, tmp_path: Path) -> None:
    early = nx.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    best = nx.callbacks.ModelCheckpoint(tmp_path / "{epoch}", save_best_only=True)
    numbers = Scripted("val_loss", [worst] * 5)
    history = fit(MLP(), numbers, best, early, epochs=5)
    assert history.epochs == [0, 1] and early.stopped_epoch == 1
    assert best.saved == [] and math.isnan(best.best)
    mixed = Scripted("val_loss", [worst, 2.0, worst, 1.0])
    fit(MLP(), mixed, best, epochs=4)
    assert [path.name for path in best.saved] == ["2", "4"] and best.best == 1.0


def test_training_goes_on_from_the_number_of_a_checkpoint(tmp_path: Path) -> None:
    every = nx.callbacks.ModelCheckpoint(tmp_path / "{epoch}")
    fit(MLP(), every, epochs=2)
    fit(MLP(), every, epochs=3, options=FitOptions(initial_epoch=2))
    assert [path.name for path in every.saved] == ["1", "2", "3"]


@pytest.mark.parametrize("patience", [2, 9])
def test_early_stopping_restores_the_best_weights_stopped_or_not(patience: int) -> None:
    kept: list[Any] = []

    class Keep(nx.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
            kept.append(weights_of(self.model))

    module = MLP()
    early = nx.callbacks.EarlyStopping(
        "score", patience=patience, mode="max", restore_best_weights=True
    )
    fit(module, Keep(), Scripted("score", [1.0, 3.0, 2.0, 2.0]), early, epochs=4)
    assert len(kept) == 4 and early.stopped_epoch == (3 if patience == 2 else None)
    for name, value in weights_of(module).items():
        np.testing.assert_array_equal(value, kept[1][name])


def test_an_unknown_number_is_named() -> None:
    with pytest.raises(nx.UnknownNameError, match="val_lossy.*loss"):
        fit(MLP(), nx.callbacks.EarlyStopping("val_lossy"))


def test_a_scheduler_sets_the_rate_of_every_epoch_without_a_compile() -> None:
    rates = [0.1, 0.0, 0.05]
    module, expected = MLP(), MLP()
    trainer = Trainer(module, optimizer=nx.optim.SGD(0.5), loss=LOSS)
    schedule = nx.callbacks.LearningRateScheduler(lambda epoch, rate: rates[epoch])
    trainer.fit(
        X, Y, epochs=3, batch_size=48, callbacks=[schedule], options=FitOptions(shuffle=False)
    )
    assert prepared(trainer).compiled.step_compilations == 1
    assert trainer.learning_rate == pytest.approx(0.05)
    by_hand = optax.piecewise_constant_schedule(0.1, {1: 0.0})
    Trainer(expected, optimizer=optax.sgd(by_hand), loss=LOSS).fit(X, Y, epochs=2, batch_size=48)
    Trainer(expected, optimizer=optax.sgd(0.05), loss=LOSS).fit(X, Y, batch_size=48)
    assert_same_weights(module, expected, rtol=1e-5, atol=1e-6)


def test_reduce_on_plateau() -> None:
    trainer = Trainer(MLP(), optimizer=nx.optim.SGD(1.0), loss=LOSS)
    reduce = nx.callbacks.ReduceLROnPlateau("score_loss", factor=0.5, patience=2, min_lr=0.3)
    values = Scripted("score_loss", [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    trainer.fit(X, Y, epochs=3, callbacks=[values, reduce])
    assert trainer.learning_rate == pytest.approx(0.5)
    trainer.fit(X, Y, epochs=6, callbacks=[values, reduce], options=FitOptions(initial_epoch=3))
    assert trainer.learning_rate == pytest.approx(0.3)


@pytest.mark.parametrize(("cooldown", "rate"), [(0, 0.0625), (1, 0.25), (9, 0.5)])
def test_a_reduced_rate_is_given_time(cooldown: int, rate: float) -> None:
    trainer = Trainer(MLP(), optimizer=nx.optim.SGD(1.0), loss=LOSS)
    reduce = nx.callbacks.ReduceLROnPlateau("score_loss", factor=0.5, patience=1, cooldown=cooldown)
    trainer.fit(X, Y, epochs=5, callbacks=[Scripted("score_loss", [1.0] * 5), reduce])
    assert trainer.learning_rate == pytest.approx(rate)


def test_a_factor_that_lowers_nothing_and_a_mode_that_is_none() -> None:
    with pytest.raises(nx.ArgumentError, match="factor must be between 0 and 1, got 1.0"):
        nx.callbacks.ReduceLROnPlateau(factor=1.0)
    with pytest.raises(nx.UnknownNameError, match="'mim'.*min"):
        nx.callbacks.EarlyStopping(mode="mim")


@pytest.mark.parametrize(
    ("kind", "option", "wrong"),
    [
        (nx.callbacks.EarlyStopping, "patience", "3"),
        (nx.callbacks.EarlyStopping, "patience", -1),
        (nx.callbacks.EarlyStopping, "min_delta", None),
        (nx.callbacks.EarlyStopping, "baseline", "low"),
        (nx.callbacks.EarlyStopping, "start_from_epoch", 1.5),
        (nx.callbacks.ReduceLROnPlateau, "cooldown", -1),
        (nx.callbacks.ReduceLROnPlateau, "patience", True),
        (nx.callbacks.ReduceLROnPlateau, "factor", "0.5"),
        (nx.callbacks.ReduceLROnPlateau, "min_lr", [0.1]),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(kind: Any, option: str, wrong: Any) -> None:
    with pytest.raises((nx.ArgumentError, nx.ArgumentTypeError), match=option):
        kind(**{option: wrong})


def test_the_rate_of_a_bare_optax_transformation_is_not_guessed() -> None:
    with pytest.raises(nx.ArgumentError, match="optax"):
        Trainer(MLP(), optimizer=optax.sgd(0.1), loss=LOSS).learning_rate  # noqa: B018  raises


def test_checkpoints_hold_the_weights_of_their_epoch(tmp_path: Path) -> None:
    kept: list[Any] = []

    class Keep(nx.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
            kept.append(weights_of(self.model))

    every = nx.callbacks.ModelCheckpoint(tmp_path / "w-{epoch:02d}-{loss:.1f}.safetensors")
    best = nx.callbacks.ModelCheckpoint(
        tmp_path / "best.safetensors", monitor="score", save_best_only=True
    )
    fit(MLP(), Scripted("score", [1.0, 3.0, 2.0]), Keep(), every, best, epochs=3)
    assert [path.name[:4] for path in every.saved] == ["w-01", "w-02", "w-03"]
    assert len(best.saved) == 2
    for path, epoch in [*zip(every.saved, range(3), strict=True), (best.saved[-1], 1)]:
        module = MLP(seed=7)
        load_weights(module, path)
        for name, value in weights_of(module).items():
            np.testing.assert_array_equal(value, kept[epoch][name])
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".safetensors"]


def test_a_checkpoint_name_that_cannot_be_filled_in(tmp_path: Path) -> None:
    with pytest.raises(nx.ArgumentError, match="val_loss.*accuracy"):
        fit(MLP(), nx.callbacks.ModelCheckpoint(tmp_path / "{val_loss}.safetensors"))


def test_csv_rows_can_be_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    history = fit(MLP(), nx.callbacks.CSVLogger(path))
    fit(MLP(), nx.callbacks.CSVLogger(path, append=True), epochs=1)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "0"]
    assert [float(row["loss"]) for row in rows[:2]] == pytest.approx(history["loss"])


def test_tensorboard_events_can_be_read(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401  the format they are in

    history = fit(MLP(), nx.callbacks.TensorBoard(tmp_path), validation_data=(X, Y))
    points: dict[str, list[float]] = {}
    for path in (tmp_path / "train").iterdir():
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                points.setdefault(value.tag, []).append(value.simple_value)
    assert points["epoch_loss"] == pytest.approx(history["loss"], rel=1e-6)
    assert any((tmp_path / "validation").iterdir())


def test_a_lambda_callback_knows_its_moments() -> None:
    seen: list[int] = []
    fit(MLP(), nx.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch)))
    assert seen == [0, 1]
    with pytest.raises(nx.UnknownNameError, match="on_epoch_end"):
        nx.callbacks.LambdaCallback(on_epoch_ends=print)


NUMBERS = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
SUMS = NUMBERS.sum(axis=1, keepdims=True)


def doubled_error(y_true: Any, y_pred: Any) -> Any:
    return 2 * abs(y_true - y_pred)


def usefulness(y_true: Any, y_pred: Any) -> Any:
    return abs(y_true - y_pred)


class Usefulness(nx.metrics.MeanMetric):
    direction = "max"

    def values(self, y_true: Any, y_pred: Any) -> Any:
        return y_pred


def trained(metric: Any, *callbacks: Any, epochs: int = 4) -> Trainer:
    """Train on numbers, one of the callbacks putting 3, 1, 2, 4 in the place of the metric."""
    model = nx.nn.Sequential(nx.nn.Linear(4, 1))
    trainer = Trainer(model, optimizer=nx.optim.SGD(1e-3), loss="mse", metrics=[metric])
    name = f"val_{nx.metrics.get(metric).name}"
    script = Scripted(name, [3.0, 1.0, 2.0, 4.0])
    data = (NUMBERS, SUMS)
    trainer.fit(*data, epochs=epochs, validation_data=data, callbacks=(script, *callbacks))
    return trainer


SMALLER = [
    "mae", "mse", "rmse", nx.losses.get("mape"), nx.losses.get("msle"), nx.losses.hinge,
    nx.losses.kl_divergence, nx.losses.cosine_similarity, doubled_error,
]  # fmt: skip


@pytest.mark.parametrize("metric", SMALLER, ids=lambda metric: getattr(metric, "__name__", metric))
def test_a_smaller_error_is_better(metric: Any, tmp_path: Path) -> None:
    name = f"val_{nx.metrics.get(metric).name}"
    best = nx.callbacks.ModelCheckpoint(
        tmp_path / "w-{epoch}.safetensors", monitor=name, save_best_only=True
    )
    early = nx.callbacks.EarlyStopping(name, patience=2)
    reduce = nx.callbacks.ReduceLROnPlateau(name, factor=0.5, patience=1)
    trainer = trained(metric, best, early, reduce)
    assert [path.name for path in best.saved] == ["w-1.safetensors", "w-2.safetensors"]
    assert early.best == reduce.best == 1.0 and early.stopped_epoch == 3
    assert trainer.learning_rate == pytest.approx(0.25e-3)


@pytest.mark.parametrize("metric", ["r2", "binary_accuracy", Usefulness], ids=str)
def test_a_larger_score_is_better(metric: Any) -> None:
    early = nx.callbacks.EarlyStopping(f"val_{nx.metrics.get(metric).name}", patience=9)
    trained(metric, early)
    assert early.best == 4.0


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("loss", 1.0), ("val_perplexity", 1.0), ("token_error_rate", 1.0), ("mae_1", 1.0),
        ("top5", 4.0), ("top5_acc", 4.0), ("mean_iou", 4.0), ("error_score", 4.0), ("f1", 4.0),
        ("pr_auc", 4.0), ("recall@5", 4.0),
    ],
)  # fmt: skip
def test_the_last_word_of_a_name_that_is_known_decides(name: str, better: float) -> None:
    early = nx.callbacks.EarlyStopping(name, patience=9)
    fit(MLP(), Scripted(name, [3.0, 1.0, 2.0, 4.0]), early, epochs=4)
    assert early.best == better


def test_a_name_that_does_not_tell_asks_for_the_mode(tmp_path: Path) -> None:
    with pytest.raises(nx.ArgumentError, match="'val_usefulness'.*mode="):
        trained(usefulness, nx.callbacks.EarlyStopping("val_usefulness"))
    early = nx.callbacks.EarlyStopping("val_usefulness", mode="max", patience=9)
    every = nx.callbacks.ModelCheckpoint(tmp_path / "w", monitor="val_usefulness")
    trained(usefulness, early, every)
    assert early.best == 4.0 and len(every.saved) == 4


def test_a_metric_with_a_direction_that_is_none() -> None:
    class Sideways(Usefulness):
        direction = "down"

    with pytest.raises(nx.UnknownNameError, match="sideways.*'down'.*max, min"):
        trained(Sideways, nx.callbacks.EarlyStopping("val_sideways"))


@pytest.mark.parametrize(
    "schedule",
    [lambda epoch: 0.1 / (1 + epoch), optax.schedules.polynomial_schedule(0.1, 0.05, 1, 1)],
    ids=["function", "optax"],
)
def test_a_schedule_may_take_the_epoch_alone(schedule: Any) -> None:
    trainer = Trainer(MLP(), optimizer=nx.optim.SGD(0.5), loss=LOSS)
    rates = nx.callbacks.LearningRateScheduler(schedule)
    trainer.fit(X, Y, epochs=2, batch_size=48, callbacks=rates)
    assert trainer.learning_rate == pytest.approx(0.05)


@pytest.mark.parametrize("schedule", [lambda: 0.1, lambda epoch, rate, more: 0.1])
def test_a_schedule_of_other_arguments_is_told(schedule: Any) -> None:
    with pytest.raises(nx.ArgumentTypeError, match="schedule takes.*epoch, learning_rate"):
        nx.callbacks.LearningRateScheduler(schedule)


@pytest.mark.parametrize("name", ["on_train_batch_begin", "on_test_end", "on_batch_end"])
def test_a_method_that_is_never_called_is_told(name: str) -> None:
    def method(self: Any, *args: Any) -> None: ...

    with pytest.raises(nx.UnknownNameError, match=f"Mine.*{name}.*on_epoch_end"):
        type("Mine", (nx.callbacks.Callback,), {name: method})
    with pytest.raises(nx.UnknownNameError, match=name):
        type("Mine", (type("Mixin", (), {name: method}), nx.callbacks.Callback), {})


class StopsAsInKeras(nx.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.model.stop_training = True


def test_training_stops_as_in_keras() -> None:
    model = nx.nn.Sequential(nx.nn.Linear(4, 1)).compile("sgd", "mse")
    history = model.fit(NUMBERS, SUMS, epochs=5, callbacks=StopsAsInKeras())
    assert len(history["loss"]) == 1 and model.stop_training
    assert "stop_training" not in vars(model)
    assert len(model.fit(NUMBERS, SUMS, epochs=2)["loss"]) == 2
    trainer = Trainer(nx.nn.Sequential(nx.nn.Linear(4, 1)), optimizer="sgd", loss="mse")
    with pytest.raises(nx.NotCompiledError, match="self.trainer.stop_training = True"):
        trainer.fit(NUMBERS, SUMS, epochs=5, callbacks=StopsAsInKeras())
