"""A run of ``fit``: which steps were made, what is looked at on the way, what it leaves behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix.callbacks import LambdaCallback
from neurenix.train import Trainer, TrainOptions
from neurenix.train.epoch import calls_in_flight
from neurenix.train.progress import BarProgress
from train_helpers import MLP, assert_same_weights, classification, prepared

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = classification(48)


def trainer_of(module: Any = None, **options: Any) -> Trainer:
    chosen = TrainOptions(**options)
    return Trainer(module or MLP(), optimizer="sgd", loss=LOSS, options=chosen)


def with_nan(row: int) -> np.ndarray:
    x = X.copy()
    x[row] = np.nan
    return x


# Steps


def test_the_bad_batch_of_a_later_epoch_is_found_among_several_of_a_call() -> None:
    good, bad = (X[:8], Y[:8]), (with_nan(0)[:8], Y[:8])
    data = iter([good] * 7 + [bad] + [good] * 2)
    with pytest.raises(nx.TrainingDivergedError, match=r"step 7 \(epoch 2\).*batch itself"):
        trainer_of(steps_per_execution=2).fit(data, epochs=2, steps_per_epoch=5)


def test_steps_go_on_from_the_number_that_a_callback_sets() -> None:
    trainer, seen = trainer_of(), []

    def count_on(step: int, logs: Any) -> None:
        seen.append(trainer.steps_made)
        if step == 2:
            trainer.steps_made = 100

    trainer.fit(X, Y, batch_size=8, callbacks=LambdaCallback(on_train_batch_end=count_on))
    assert seen == [1, 2, 101, 102, 103, 104] and trainer.steps_made == 104


def test_steps_after_the_first_bad_batch_do_not_count_in_a_run_that_is_interrupted() -> None:
    def interrupt(step: int, logs: Any) -> None:
        if step == 3:
            raise KeyboardInterrupt

    trainer, stop = trainer_of(), LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(with_nan(9), Y, batch_size=8, shuffle=False, callbacks=stop)
    assert trainer.steps_made == 1


def test_one_program_makes_any_number_of_steps() -> None:
    modules = MLP(), MLP()
    several, single = trainer_of(modules[0], steps_per_execution=3), trainer_of(modules[1])
    for steps in (6, 4):  # 4 are no multiple of 3
        for trainer in (several, single):
            trainer.fit(X, Y, batch_size=8, steps_per_epoch=steps)
    assert several.steps_made == 10
    assert_same_weights(*modules, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_metrics_begin_anew_and_see_examples_in_order(parts: int) -> None:
    options = TrainOptions(accumulate_steps=parts)
    module, right = MLP(), []
    trainer = Trainer(
        module, optimizer=optax.sgd(0.05), loss=LOSS, metrics=["accuracy"], options=options
    )

    def note(epoch: int) -> None:
        right.append((np.asarray(module(X)).argmax(1) == Y).mean())

    note_first = LambdaCallback(on_epoch_begin=note)
    history = trainer.fit(X, Y, epochs=4, batch_size=48, shuffle=False, callbacks=note_first)
    assert len(set(right)) > 1
    assert history["accuracy"] == pytest.approx(right)


def test_weights_of_another_dtype_that_a_callback_sets_are_cast() -> None:
    module = MLP()
    kernel, seen = module.layers[0].kernel, []
    halve = LambdaCallback(
        on_train_batch_end=lambda step, logs: kernel.set_value(kernel[...].astype(jnp.bfloat16)),
        on_epoch_end=lambda epoch, logs: seen.append(kernel[...].dtype.name),
    )
    trainer = trainer_of(module)
    trainer.fit(X, Y, batch_size=8, callbacks=halve)
    assert seen == ["float32"] and prepared(trainer).compiled.step_compilations == 1


def test_a_parameter_set_to_one_of_another_dtype_goes_on() -> None:
    module = MLP()
    trainer = Trainer(module, optimizer="adam", loss=LOSS)
    trainer.fit(X, Y)
    module.layers[0].kernel = nnx.Param(module.layers[0].kernel[...].astype(jnp.bfloat16))
    trainer.fit(X, Y)
    assert trainer.steps_made == 4
    assert trainer.optimizer_state[0].mu["layers"]["0"]["kernel"].dtype == jnp.bfloat16


# What is looked at while steps are computed


def test_a_diverged_step_is_seen_before_much_more_is_read() -> None:
    read: list[int] = []

    def batches() -> Iterator[Any]:
        for number in range(200):
            read.append(number)
            yield (with_nan(0) if number == 0 else X)[:4], Y[:4]

    with pytest.raises(nx.TrainingDivergedError, match="step 0 "):
        trainer_of().fit(batches())
    assert len(read) < 40


def test_what_is_in_flight_is_counted_on_each_device() -> None:
    images = np.zeros((64, 512, 512, 3), np.float32)
    assert calls_in_flight(images, nx.distribute.TPUStrategy()) == 10


@pytest.mark.parametrize(("steps", "calls"), [(1, 16), (8, 16), (16, 8), (50, 2), (1000, 2)])
def test_few_calls_of_many_steps_are_in_flight(steps: int, calls: int) -> None:
    assert calls_in_flight(X, nx.distribute.TPUStrategy(), steps) == calls


# How a run ends


def test_the_end_of_training_is_told_when_it_diverges() -> None:
    ended: list[bool] = []
    end = LambdaCallback(on_train_end=lambda: ended.append(True))
    with pytest.raises(nx.TrainingDivergedError):
        trainer_of().fit(X * np.nan, Y, callbacks=end)
    assert ended == [True]


def test_a_run_that_ends_at_nan_keeps_the_steps_before_it() -> None:
    module, good = MLP(), MLP()
    trainer = trainer_of(module)
    history = trainer.fit(
        with_nan(20), Y, batch_size=8, epochs=3, shuffle=False,
        callbacks=nx.callbacks.TerminateOnNaN(),
    )  # fmt: skip
    assert (trainer.stop_training, trainer.steps_made, history.epochs) == (True, 2, [])
    trainer_of(good).fit(X[:16], Y[:16], batch_size=8, shuffle=False)
    assert_same_weights(module, good)


def test_looking_for_the_cause_of_divergence_leaves_classes_as_they_were() -> None:
    module = MLP()
    kinds = type(module.layers[0]), MLP
    before = [kind.__call__ for kind in kinds]
    module.layers[0].kernel[...] = jnp.full((6, 8), 1e30)
    with pytest.raises(nx.TrainingDivergedError, match="loss mean_squared_error"):
        Trainer(module, optimizer="sgd", loss="mse").fit(X, X[:, :3])
    assert [kind.__call__ for kind in kinds] == before


class Narrow(nx.nn.Module):
    """Is finite in float32 only."""

    def __init__(self) -> None:
        self.layer = nx.nn.Linear(6, 1)

    def __call__(self, x: Any) -> Any:
        return self.layer(x) + (jnp.inf if x.dtype == jnp.bfloat16 else 0.0)


def test_what_is_finite_in_float32_blames_the_precision() -> None:
    options = TrainOptions(precision="bfloat16")
    trainer = Trainer(Narrow(), optimizer="sgd", loss="mse", options=options)
    with pytest.raises(nx.TrainingDivergedError, match="Computed once more.*precision"):
        trainer.fit(X, X[:, :1])


# Precision


def test_outputs_and_losses_of_bfloat16_are_float32() -> None:
    trainer = trainer_of(precision="bfloat16")
    logits = trainer.predict(X)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(48), Y]
    assert logits.dtype == np.float32
    assert trainer.evaluate(X, Y)["loss"] == pytest.approx(losses.mean(), rel=1e-5)


def test_state_that_is_no_parameter_keeps_its_precision() -> None:
    seen: set[str] = set()

    class Average(nnx.Variable): ...

    class Averaged(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.average = Average(jnp.zeros(()))

        def __call__(self, x: Any) -> Any:
            seen.add(self.average[...].dtype.name)
            return super().__call__(x)

    trainer_of(Averaged(), precision="bfloat16").fit(X, Y)
    assert seen == {"float32"}


# Progress


def test_lines_of_progress_number_the_epochs_from_1(capsys: pytest.CaptureFixture[str]) -> None:
    trainer_of().fit(X, Y, epochs=2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["Epoch 1/2", "Epoch 2/2"]


def test_a_bar_moves_by_the_steps_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []

    def end(bar: BarProgress, logs: Any, seconds: float) -> None:
        task = bar._bar.tasks[-1]
        moved.append((task.completed, task.total))

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(BarProgress, "end", end)
    trainer_of(steps_per_execution=4).fit(X, Y, batch_size=8, verbose=1)
    assert moved == [(6, 6)]


def test_every_epoch_is_drawn_while_it_runs_and_stays_as_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    trainer = Trainer(MLP(), loss=LOSS, metrics=["accuracy", "sparse_categorical_accuracy"])
    trainer.fit(X, Y, batch_size=8, epochs=40, validation_data=(X, Y))
    screen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", capsys.readouterr().out)
    for epoch in range(1, 41):
        (line,) = re.findall(rf"Epoch {epoch}/40  6/6  .*?val_sparse\S+\s+\S+", screen, re.DOTALL)
        assert len(re.findall(r"[ \n]\d\.\d{4}\b", line)) == 6  # no number is cut
        after = screen[screen.index(line) + len(line) :].partition(f"Epoch {epoch + 1}/40 ")[2]
        assert f"Epoch {epoch}/40 " not in after  # it is not drawn again with those after it


def test_an_epoch_that_is_interrupted_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(step: int, logs: Any) -> None:
        if step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        trainer_of().fit(X, Y, batch_size=8, callbacks=[LambdaCallback(on_train_batch_end=stop)])
    assert re.search(r"Epoch 1/1  [23]/6", capsys.readouterr().out)


def test_a_callback_that_fails_at_the_end_keeps_no_other_from_it() -> None:
    ended = []

    def fail() -> None:
        raise OSError("no room")

    first = LambdaCallback(on_train_end=fail)
    second = LambdaCallback(on_train_end=lambda: ended.append("second"))
    with pytest.raises(OSError, match="no room"):
        Trainer(MLP(), loss=LOSS).fit(X, Y, callbacks=[first, second])
    assert ended == ["second"]


@pytest.mark.parametrize("before", ["bfloat16", "float32"])
@pytest.mark.parametrize("optimizer", ["adam", nx.optim.SGD(0.1, momentum=0.9)])
def test_training_goes_on_in_another_dtype(before: str, optimizer: Any) -> None:
    after = {"bfloat16": "float32", "float32": "bfloat16"}[before]
    model = nx.nn.Linear(6, 3, dtype=before)
    model.compile(optimizer, LOSS)
    model.fit(X, Y, batch_size=16, verbose=0)
    made = model.trainer.steps_made
    moments = [np.asarray(m, np.float32) for m in jax.tree.leaves(model.trainer.optimizer_state)]
    model.to("cpu", dtype=after)
    model.fit(X, Y, batch_size=16, verbose=0)
    assert model.trainer.steps_made == 2 * made
    state = jax.tree.leaves(model.trainer.optimizer_state)
    assert {leaf.dtype.name for leaf in state if leaf.ndim} == {after}
    assert any(np.abs(old).max() > 0 for old in moments)
