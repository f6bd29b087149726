"""State of callbacks: training that was interrupted is that which never was, them included."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

import neurenix as nx
from neurenix.checkpoint.safetensors_file import read_tensors, write_tensors
from neurenix.train import Trainer
from train_helpers import MLP, Noisy, classification

pytestmark = pytest.mark.cpu8

X, Y = classification(32)
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
# Best after epoch 1; patience of 2 is over after epoch 3, and that of 4 after epoch 5.
SCORES = [3.0, 1.0, 2.0, 2.0, 0.5, 2.0, 2.0, 2.0]


class Scripted(nx.callbacks.Callback):
    """Adds a number to the logs that the epoch alone decides."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        logs["score"] = SCORES[epoch]  # type: ignore[index]


class Counter(nx.callbacks.Callback):
    """A user's, with every kind of value, begun anew as Keras users do."""

    def on_train_begin(self) -> None:
        self.seen: list[float] = []
        self.mean = np.zeros(2)
        self.largest = jnp.zeros(3)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.seen.append(logs["loss"])
        self.mean = self.mean / 3 + np.array([logs["loss"], epoch])
        self.largest = jnp.maximum(self.largest, self.model.outer.bias[...])

    def state(self) -> Any:
        return {"seen": self.seen, "mean": self.mean, "largest": self.largest,
                "odd": {3: (None, "a")}}  # fmt: skip

    def load_state(self, state: Any) -> None:
        assert state["odd"][3] == (None, "a")
        self.seen, self.mean, self.largest = state["seen"], state["mean"], state["largest"]


def early(**options: Any) -> Any:
    return nx.callbacks.EarlyStopping(
        "score", mode="min", **{"patience": 2, "restore_best_weights": True} | options
    )


def plateau() -> Any:
    return nx.callbacks.ReduceLROnPlateau(
        "score", mode="min", factor=0.5, patience=1, cooldown=1, min_delta=0
    )


def best(folder: Path) -> Any:
    return nx.callbacks.ModelCheckpoint(
        folder / "best", monitor="score", mode="min", save_best_only=True
    )


def every(folder: Path) -> Any:
    return nx.callbacks.ModelCheckpoint(folder / "run-{epoch}", save_weights_only=False)


def trainer_of(seed: int = 0) -> Trainer:
    return Trainer(Noisy(seed=seed), optimizer=nx.optim.Adam(0.05), loss=LOSS)


def fit(trainer: Trainer, callbacks: Any, epochs: int = 8, first: int = 0) -> Any:
    return trainer.fit(
        X, Y, epochs=epochs, batch_size=16, initial_epoch=first, callbacks=callbacks, verbose=0
    )


def numbers(tree: Any) -> list[np.ndarray]:
    keys = jax.dtypes.prng_key
    raw = [
        jax.random.key_data(a) if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, keys) else a
        for a in jax.tree.leaves(tree)
    ]
    return [np.asarray(leaf) for leaf in raw]


def assert_same(a: Trainer, b: Trainer) -> None:
    assert a.steps_made == b.steps_made and a.learning_rate == b.learning_rate
    states = [(nnx.state(t.module), t.optimizer_state) for t in (a, b)]
    for mine, other in zip(*map(numbers, states), strict=True):
        np.testing.assert_array_equal(mine, other)


def assert_same_states(mine: list[Any], others: list[Any]) -> None:
    for one, other in zip(mine, others, strict=True):
        assert jax.tree.structure(one.state()) == jax.tree.structure(other.state())
        for a, b in zip(numbers(one.state()), numbers(other.state()), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def all_of(folder: Path) -> list[Any]:
    """Return one of every kind; the first and the last change what others look at."""
    folder.mkdir(exist_ok=True)
    return [
        Scripted(),
        best(folder),
        plateau(),
        early(patience=4),
        Counter(),
        nx.callbacks.CSVLogger(folder / "log.csv"),
        nx.callbacks.TensorBoard(folder / "tb"),
    ]


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("epochs", [1, 5, 6])
def test_a_run_goes_on_from_any_checkpoint_with_all_its_callbacks(
    epochs: int, place: str, tmp_path: Path
) -> None:
    def train(trainer: Trainer, folder: Path, **more: Any) -> list[Any]:
        callbacks = all_of(folder)
        at = 1 if place == "first" else len(callbacks)
        fit(trainer, [*callbacks[:at], every(folder), *callbacks[at:]], **more)
        return callbacks[1:]

    whole, begun = trainer_of(), trainer_of()
    ended = train(whole, tmp_path / "whole")
    assert ended[2].stopped_epoch is None or ended[2].stopped_epoch == 5
    folder = tmp_path / "parts"
    train(begun, folder, epochs=epochs + 1)  # a row more than the checkpoint knows
    goes_on = trainer_of(seed=5).load(folder / f"run-{epochs}")
    again = train(goes_on, folder, first=epochs)
    assert_same(whole, goes_on)
    for mine in (*ended[0].saved, *again[0].saved):
        assert mine.name == "best"
    ended[0].saved = again[0].saved = []  # in two folders
    assert_same_states(ended, again)
    assert (folder / "log.csv").read_bytes() == (tmp_path / "whole" / "log.csv").read_bytes()
    files = [safetensors.numpy.load_file(of / "best") for of in (tmp_path / "whole", folder)]
    assert files[0].keys() == files[1].keys()
    for name, array in files[0].items():
        np.testing.assert_array_equal(array, files[1][name])


@pytest.mark.parametrize("process", ["same", "other"])
@pytest.mark.parametrize("restore", [True, False])
def test_a_fit_of_fewer_epochs_goes_on(restore: bool, process: str, tmp_path: Path) -> None:
    whole, parts = trainer_of(), trainer_of()
    ended = [plateau(), early(restore_best_weights=restore)]
    history = fit(whole, [Scripted(), *ended])
    assert history.epochs == [0, 1, 2, 3] and ended[1].stopped_epoch == 3
    seen = []
    for first in range(8):
        callbacks = [plateau(), early(restore_best_weights=restore)]
        seen += fit(parts, [Scripted(), *callbacks], epochs=first + 1, first=first)["loss"]
        if ended[1].stopped_epoch == first:
            break
        if process == "other":
            parts.save(tmp_path / "t")
            parts = trainer_of(seed=first).load(tmp_path / "t")
    assert seen == history["loss"]
    assert_same(whole, parts)
    assert_same_states(ended, callbacks)


def test_a_run_that_was_stopped_ends_at_once(tmp_path: Path) -> None:
    first = trainer_of()
    fit(first, [Scripted(), early()])
    first.save(tmp_path / "t")
    second, again = trainer_of(seed=5).load(tmp_path / "t"), early()
    assert fit(second, [Scripted(), again], first=4).epochs == [] and again.stopped_epoch == 3
    assert_same(first, second)
    patient = early(patience=4)
    second.load(tmp_path / "t")
    assert fit(second, [Scripted(), patient], first=4).epochs == [4, 5, 6, 7]


def test_weights_that_were_set_after_fit_are_gone_on_from() -> None:
    trainer = trainer_of()
    stopping = early()
    fit(trainer, [Scripted(), stopping], epochs=3)
    trainer.module.shift = jnp.zeros(3)
    trainer.module.outer.bias[...] = jnp.full(3, 7.0)
    seen: list[Any] = []
    look = nx.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch: seen.append(np.array(trainer.module.outer.bias[...]))
    )
    fit(trainer, [Scripted(), stopping, look], epochs=4, first=3)
    np.testing.assert_array_equal(seen[0], np.full(3, 7.0, np.float32))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("saves", ["within", "after Ctrl-C"])
def test_a_users_callback_saves_or_fails_at_any_place(
    saves: str, order: tuple[int, int], tmp_path: Path
) -> None:
    def end(epoch: int, logs: Any) -> None:
        if epoch == 2 and saves == "within":
            first.save(tmp_path / "t")
        if epoch == 2:
            raise KeyboardInterrupt

    whole, first, second = trainer_of(), trainer_of(), trainer_of(seed=5)
    ended, stopped, goes_on = early(), early(), early()
    fit(whole, [Scripted(), ended])
    ends = nx.callbacks.LambdaCallback(on_epoch_end=end)
    with pytest.raises(KeyboardInterrupt):
        fit(first, [Scripted(), *([stopped, ends][i] for i in order)])
    if saves != "within":
        first.save(tmp_path / "t")
    fit(second.load(tmp_path / "t"), [Scripted(), goes_on], first=3)
    assert_same(whole, second)
    assert_same_states([ended], [goes_on])


def test_a_fit_from_the_first_epoch_begins_anew() -> None:
    trainer, stopping = trainer_of(), early()
    for _ in range(2):
        assert fit(trainer, [Scripted(), stopping]).epochs == [0, 1, 2, 3]


class Forgetful(nx.callbacks.Callback):
    """Counts, and does not say so."""

    def __init__(self, every: int = 1) -> None:
        self.every, self.names = every, ["a"]
        self.count = 0

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.count += self.every


class Lists(Forgetful):
    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.names.append("b")


class Late(nx.callbacks.Callback):
    """Keeps weights under the very name of a method."""

    def on_train_begin(self) -> None:
        self.state = jax.tree.map(jnp.copy, nnx.state(self.model))  # type: ignore[assignment]


class Stops(nx.callbacks.EarlyStopping):
    """One of ours, with a counter more."""

    def __init__(self) -> None:
        super().__init__("loss", patience=9)
        self.more = 0

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        super().on_epoch_end(epoch, logs)
        self.more += 1


class Stateless(Forgetful):
    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "named"),
    [(Forgetful, "Forgetful .* for count"), (Lists, "Lists .* for names"),
     (Late, "Late .* for state"), (Stops, "Stops.loss. .* for more"), (Stateless, None)],
)  # fmt: skip
def test_a_callback_that_cannot_go_on_is_named(
    make: Callable[[], Any], named: str | None, tmp_path: Path
) -> None:
    first = trainer_of()
    fit(first, make(), epochs=1)
    first.save(tmp_path / "t")
    second = trainer_of().load(tmp_path / "t")
    if named is None:
        with warnings.catch_warnings(record=True) as told:
            fit(second, make(), epochs=2, first=1)
        assert not told
        return
    with pytest.warns(UserWarning, match=named):
        fit(second, make(), epochs=2, first=1)


def test_another_number_to_monitor_is_named(tmp_path: Path) -> None:
    first = trainer_of()
    fit(first, [Scripted(), early()], epochs=1)
    first.save(tmp_path / "t")
    second = trainer_of().load(tmp_path / "t")
    other = nx.callbacks.EarlyStopping("loss", patience=3)
    with pytest.warns(UserWarning, match=r"EarlyStopping\(loss\) .*another number"):
        fit(second, [Scripted(), other], epochs=2, first=1)


def test_a_file_of_before_there_were_states_is_named(tmp_path: Path) -> None:
    first = trainer_of()
    fit(first, [Scripted(), early()], epochs=1)
    first.save(tmp_path / "t")
    tensors, about = read_tensors(tmp_path / "t", what="state")
    del about["callbacks"]
    write_tensors(tensors, tmp_path / "t", about, what="state")
    second = trainer_of().load(tmp_path / "t")
    with pytest.warns(UserWarning, match=r"EarlyStopping\(score\) .*earlier version"):
        fit(second, [Scripted(), early()], epochs=2, first=1)


def test_states_of_one_class_keep_their_order(tmp_path: Path) -> None:
    def two(*more: str) -> list[Any]:
        names = ("a", "b", *more)
        return [nx.callbacks.ModelCheckpoint(tmp_path / name, monitor="loss") for name in names]

    first, later = trainer_of(), two("c")
    fit(first, two(), epochs=1)
    first.save(tmp_path / "t")
    second = trainer_of().load(tmp_path / "t")
    fit(second, later, epochs=2, first=1)
    assert [[path.name for path in one.saved] for one in later] == [["a"] * 2, ["b"] * 2, ["c"]]
    assert second.callbacks == tuple(later)


def test_a_loop_of_ones_own_takes_no_weights_away() -> None:
    model = nx.nn.Linear(6, 3).compile(nx.optim.SGD(0.1), LOSS)
    stopping, ema = early(), nx.callbacks.EMA(0.9, swap="end")

    @nx.jit
    def change(model: Any) -> None:
        model.kernel[...] = model.kernel[...] + 1

    for _ in range(2):
        model.fit(X, Y, epochs=3, callbacks=[Scripted(), stopping, ema], verbose=0)
        change(model)
        with ema.swapped():
            change(model)
    for state in (stopping.state(), ema.state()):
        assert all(np.isfinite(array).all() for array in numbers(state))


@pytest.mark.parametrize(
    ("value", "words"),
    [({"a": {1, 2}}, r"\['a'\] is a set"), ([object()], r"\[0\] is a object"),
     ({(1, 2): 3}, "has the key"), ({"a": np.array([None])}, "array of object")],
)  # fmt: skip
def test_a_state_that_no_file_holds_is_told(value: Any, words: str, tmp_path: Path) -> None:
    class Odd(nx.callbacks.Callback):
        def state(self) -> Any:
            return value

        def load_state(self, state: Any) -> None:
            raise AssertionError

    trainer = trainer_of()
    fit(trainer, Odd(), epochs=1)
    with pytest.raises(nx.ArgumentTypeError, match=rf"Odd\.state\(\).*{words}"):
        trainer.save(tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    values = {
        "none": None, "numbers": [1, -(2**70), 0.1, math.inf, True], "text": "ä\n", 7: (1, [2]),
        "wide": np.array([0.1, math.pi]), "long": np.array([2**60]), "scalar": np.float32(0.1),
        "words": np.array(["a", "bc"]), "empty": np.zeros((0, 3)), "bits": np.array([True, False]),
        "complex": np.array([1 + 2j]), "half": jnp.ones(3, jnp.bfloat16), "zero": np.array(3.0),
        "nested": {"a": {"a": [np.float64(0.1)]}}, "7": np.arange(3), "": {}, "date": np.array(
            ["2020-01-02"], "datetime64[D]"),
    }  # fmt: skip
    back: list[Any] = []

    class Holds(nx.callbacks.Callback):
        def state(self) -> Any:
            return values | {"key": jax.random.key(3)}

        def load_state(self, state: Any) -> None:
            back.append(state)

    first = Trainer(MLP(), optimizer="sgd", loss=LOSS)
    fit(first, Holds(), epochs=1)
    first.save(tmp_path / "t")
    second = Trainer(MLP(), optimizer="sgd", loss=LOSS).load(tmp_path / "t")
    second.save(tmp_path / "again")  # before anybody took them
    fit(second.load(tmp_path / "again"), Holds(), epochs=2, first=1)
    (found,) = back
    key = found.pop("key")
    assert jax.random.key_data(key).tolist() == jax.random.key_data(jax.random.key(3)).tolist()
    assert list(found) == list(values)
    for name, value in values.items():
        if isinstance(value, (np.ndarray, jax.Array)):
            assert type(found[name]) is type(value) and found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
        else:
            assert found[name] == value and repr(type(found[name])) == repr(type(value))


@pytest.mark.parametrize(("threshold", "files"), [(2.5, ["2", "5"]), (0.7, ["5"]), (0.1, [])])
def test_a_checkpoint_has_to_be_better_than_a_threshold(
    threshold: float, files: list[str], tmp_path: Path
) -> None:
    def checkpoint() -> Any:
        return nx.callbacks.ModelCheckpoint(
            tmp_path / "{epoch}", monitor="score", mode="min", save_best_only=True,
            initial_value_threshold=threshold,
        )  # fmt: skip

    trainer, saves = trainer_of(), checkpoint()
    fit(trainer, [Scripted(), saves])
    assert [path.name for path in saves.saved] == files
    first, before, after = trainer_of(), checkpoint(), checkpoint()
    fit(first, [Scripted(), before], epochs=3)
    first.save(tmp_path / "t")
    fit(trainer_of().load(tmp_path / "t"), [Scripted(), after], first=3)
    assert [path.name for path in after.saved] == files
    with pytest.raises(nx.ArgumentTypeError, match="initial_value_threshold"):
        nx.callbacks.ModelCheckpoint("a", initial_value_threshold="best")  # type: ignore[arg-type]


def test_a_table_that_is_another_one_is_left_alone(tmp_path: Path) -> None:
    first = trainer_of()
    fit(first, nx.callbacks.CSVLogger(tmp_path / "log.csv"), epochs=2)
    first.save(tmp_path / "t")
    other = tmp_path / "other.csv"
    other.write_text("epoch,loss\n0,1.0\n")
    log = nx.callbacks.CSVLogger(other, append=True)
    fit(trainer_of().load(tmp_path / "t"), log, epochs=3, first=2)
    lines = other.read_text().splitlines()
    assert lines[:2] == ["epoch,loss", "0,1.0"] and [line[0] for line in lines[2:]] == ["2"]


def test_events_of_epochs_that_are_done_again_are_not_shown(tmp_path: Path) -> None:
    """TensorBoard leaves out earlier points from the step on with which a file says it starts."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    def board() -> Any:
        return nx.callbacks.TensorBoard(tmp_path / "logs")

    first = trainer_of()
    fit(first, [board(), every(tmp_path)], epochs=3)
    fit(trainer_of().load(tmp_path / "run-2"), board(), epochs=4, first=2)
    steps, starts = [], []
    for path in sorted((tmp_path / "logs" / "train").iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
            steps += [event.step for value in event.summary.value if value.tag == "epoch_loss"]
            if event.session_log.status == SessionLog.START:
                starts.append(event.step)
    assert steps == [0, 1, 2, 2, 3] and starts == [2]
