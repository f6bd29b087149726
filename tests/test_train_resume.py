"""``Trainer.save`` and ``load``: training that goes on is the training that never ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax import nnx

import neurenix as nx
from neurenix import nn
from neurenix.train import Trainer, TrainOptions, load_weights, save_weights
from train_helpers import MLP, Noisy, classification

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

X, Y = classification(48)
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
RATE = nx.optim.schedules.CosineDecay(0.05, 20)

STRATEGIES = {
    "one": lambda: nx.distribute.OneDeviceStrategy("tpu:0"),
    "replicas": lambda: nx.distribute.TPUStrategy(),
    "divided": lambda: nx.distribute.TPUStrategy(mesh={"data": 2, "fsdp": 4}),
}


def trainer_of(
    module: Any = None, optimizer: Any = None, *, strategy: str = "one", **options: Any
) -> Trainer:
    """Make a trainer as another process would, with random numbers of its own."""
    module = Noisy() if module is None else module
    optimizer = nx.optim.Adam(RATE) if optimizer is None else optimizer
    where = TrainOptions(strategy=STRATEGIES[strategy](), **options)
    return Trainer(module, optimizer=optimizer, loss=LOSS, metrics=["accuracy"], options=where)


def fit(trainer: Trainer, epochs: int, first: int = 0, **kwargs: Any) -> Any:
    return trainer.fit(X, Y, epochs=epochs, batch_size=16, initial_epoch=first, **kwargs)


def everything(trainer: Trainer) -> list[np.ndarray]:
    """Return the numbers of the module, random streams included, and of the optimizer."""
    leaves = jax.tree.leaves((nnx.state(trainer.module), trainer.optimizer_state))
    keys = jax.dtypes.prng_key
    raw = [jax.random.key_data(a) if jnp.issubdtype(a.dtype, keys) else a for a in leaves]
    return [np.asarray(leaf) for leaf in raw]


def assert_same(a: Trainer, b: Trainer) -> None:
    assert a.steps_made == b.steps_made and a.learning_rate == b.learning_rate
    for mine, other in zip(everything(a), everything(b), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_that_goes_on_is_bit_for_bit_that_which_never_ended(
    strategy: str, tmp_path: Path
) -> None:
    whole = trainer_of(strategy=strategy)
    history = fit(whole, 2)
    first = trainer_of(strategy=strategy)
    fit(first, 1)
    first.save(tmp_path / "t")
    second = trainer_of(Noisy(seed=5), strategy=strategy)
    assert second.load(tmp_path / "t") is second and second.steps_made == 3
    later = fit(second, 2, 1)
    assert_same(whole, second)
    assert later["loss"] == history["loss"][1:]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_state_as_a_tree_is_whole(strategy: str) -> None:
    first = trainer_of(strategy=strategy)
    fit(first, 1)
    tree = first.state.to_tree()
    parts = {name: part for name, part in tree.items() if isinstance(part, dict)}
    assert parts.keys() == {"weights", "random", "optimizer", "callbacks"}
    rest = {name: value for name, value in tree.items() if name not in parts}
    second = trainer_of(Noisy(seed=5), strategy=strategy)
    second.state.load_tree(parts | json.loads(json.dumps(rest)))
    assert_same(first, second)
    fit(second, 2, 1)
    fit(first, 2, 1)  # its arrays are its own: the second has given none of them away
    assert_same(first, second)


def test_a_tree_of_another_model_changes_nothing() -> None:
    trainer, other = trainer_of(), trainer_of(MLP())
    fit(trainer, 1)
    before = other.state.to_tree()
    with pytest.raises(nx.CheckpointError, match="state in the tree is of another model"):
        other.state.load_tree(trainer.state.to_tree())
    jax.tree.map(np.testing.assert_array_equal, before, other.state.to_tree())


@pytest.mark.parametrize(
    ("kind", "per_call"), [("arrays", 1), ("dataset", 2), ("list", 1), ("list", 2)]
)
def test_epochs_of_some_steps_go_on_within_a_pass(kind: str, per_call: int, tmp_path: Path) -> None:
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 48, 8)]
    dataset = nx.data.Dataset.from_arrays(X, Y).shuffle(seed=1).repeat().batch(8)
    data = {"arrays": (X, Y), "dataset": (dataset,), "list": (batches,)}[kind]
    size = {"batch_size": 8} if kind == "arrays" else {}

    def train(trainer: Trainer, epochs: int, first: int = 0) -> None:
        trainer.fit(*data, epochs=epochs, initial_epoch=first, steps_per_epoch=4, **size)

    whole = trainer_of(steps_per_execution=per_call)
    train(whole, 4)
    goes_on = trainer_of(steps_per_execution=per_call)
    for epoch in range(4):
        train(goes_on, epoch + 1, epoch)
        goes_on.save(tmp_path / "t")
        goes_on = trainer_of(steps_per_execution=per_call).load(tmp_path / "t")
    assert_same(whole, goes_on)


def test_a_checkpoint_within_a_pass_goes_on_there(tmp_path: Path) -> None:
    def train(trainer: Trainer, first: int = 0, **options: Any) -> None:
        trainer.fit(X, Y, batch_size=8, steps_per_epoch=4, epochs=3, initial_epoch=first, **options)

    every = nx.callbacks.ModelCheckpoint(tmp_path / "{epoch}", save_weights_only=False)
    whole, goes_on = trainer_of(), trainer_of()
    train(whole, callbacks=every)
    train(goes_on.load(every.saved[0]), 1)
    assert_same(whole, goes_on)


def test_a_fit_that_does_not_go_on_begins_a_pass(tmp_path: Path) -> None:
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 48, 8)]
    again, expected = trainer_of(), trainer_of()
    for _ in range(2):
        again.fit(batches, steps_per_epoch=4)
        expected.fit(batches[:4])
    for mine, other in zip(everything(again), everything(expected), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_generator_is_wound_on_by_whoever_made_it() -> None:
    read: list[int] = []

    def batches() -> Any:
        for start in range(0, 48, 8):
            read.append(start)
            yield X[start : start + 8], Y[start : start + 8]

    trainer, stream = trainer_of(), batches()
    trainer.fit(stream, epochs=1, steps_per_epoch=2)
    trainer.fit(stream, epochs=2, initial_epoch=1, steps_per_epoch=2)
    assert trainer.steps_made == 4 and read[:4] == [0, 8, 16, 24]


@pytest.mark.parametrize(("before", "after"), [("one", "replicas"), ("divided", "one")])
def test_it_goes_on_on_other_devices(before: str, after: str, tmp_path: Path) -> None:
    first = trainer_of(MLP(), strategy=before)
    fit(first, 1)
    first.save(tmp_path / "t")
    second = trainer_of(MLP(seed=5), strategy=after).load(tmp_path / "t")
    assert_same(first, second)
    fit(first, 2, 1)
    fit(second, 2, 1)
    for mine, other in zip(everything(first), everything(second), strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-3, atol=1e-5)


OPTIMIZERS = {
    "momentum": lambda: nx.optim.SGD(RATE, momentum=0.9),
    "bfloat16": lambda: nx.optim.Adam(1e-2, moment_dtype="bfloat16"),
    "noise": lambda: optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.adam(RATE)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on(name: str, tmp_path: Path) -> None:
    trainers = [trainer_of(optimizer=OPTIMIZERS[name](), strategy="replicas") for _ in "ab"]
    fit(trainers[0], 1)
    trainers[0].save(tmp_path / "t")
    trainers[1].load(tmp_path / "t")
    for trainer in trainers:
        fit(trainer, 2, 1)
    for mine, other in zip(*map(everything, trainers), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_rate_that_was_set_is_kept(tmp_path: Path) -> None:
    first = trainer_of()
    fit(first, 1)
    first.learning_rate = 0.0123
    first.save(tmp_path / "t")
    fit(first, 2, 1)
    second = trainer_of().load(tmp_path / "t")
    assert second.learning_rate == pytest.approx(0.0123)
    fit(second, 2, 1)
    assert_same(first, second)


def test_it_can_be_saved_before_training_and_loaded_after_it(tmp_path: Path) -> None:
    first, second = trainer_of(), trainer_of(Noisy(seed=5))
    first.save(tmp_path / "t")
    fit(second, 3)
    second.load(tmp_path / "t")
    assert second.steps_made == 0
    for trainer in (first, second):
        fit(trainer, 1)
    assert_same(first, second)


@pytest.mark.parametrize("moment", ["on_train_begin", "on_epoch_begin"])
def test_a_callback_can_load_it(moment: str, tmp_path: Path) -> None:
    first = trainer_of(strategy="replicas")
    fit(first, 1)
    first.save(tmp_path / "t")
    fit(first, 2, 1)
    second = trainer_of(Noisy(seed=5), strategy="replicas")
    load = nx.callbacks.LambdaCallback(**{moment: lambda *_: second.load(tmp_path / "t") and None})
    fit(second, 2, 1, callbacks=load)
    assert_same(first, second)


@pytest.mark.parametrize("per_call", [1, 2])
@pytest.mark.parametrize("kind", ["arrays", "dataset", "list"])
def test_a_callback_that_loads_goes_on_within_a_pass(
    kind: str, per_call: int, tmp_path: Path
) -> None:
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 48, 8)]
    data = {
        "arrays": (X, Y),
        "dataset": (nx.data.Dataset.from_arrays(X, Y).shuffle(seed=1).batch(8),),
        "list": (batches,),
    }[kind]
    size = {"batch_size": 8} if kind == "arrays" else {}

    def train(trainer: Trainer, epochs: int, first: int = 0, **more: Any) -> None:
        more |= {"steps_per_epoch": 4, "epochs": epochs, "initial_epoch": first}
        trainer.fit(*data, **size, **more)

    whole, first, second = (trainer_of(steps_per_execution=per_call) for _ in range(3))
    train(whole, 4)
    train(first, 2)
    first.save(tmp_path / "t")
    load = nx.callbacks.LambdaCallback(on_train_begin=lambda: second.load(tmp_path / "t") and None)
    train(second, 4, 2, callbacks=load)
    assert_same(whole, second)


@pytest.mark.parametrize("moment", ["on_epoch_end", "on_train_batch_end"])
def test_a_callback_can_save_it(moment: str, tmp_path: Path) -> None:
    first = trainer_of()

    def save(*_: Any) -> None:
        if first.steps_made == 6:  # of the second epoch in a second call of fit
            first.save(tmp_path / "t")

    fit(first, 1)
    fit(first, 3, callbacks=nx.callbacks.LambdaCallback(**{moment: save}))
    second = trainer_of(Noisy(seed=5)).load(tmp_path / "t")
    fit(second, 3, 1)
    assert_same(first, second)


def test_a_checkpoint_of_the_trainer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run-{epoch:02d}.safetensors"
    every = nx.callbacks.ModelCheckpoint(path, save_weights_only=False)
    whole = trainer_of()
    fit(whole, 3, callbacks=every)
    assert [path.name for path in every.saved] == [f"run-0{i}.safetensors" for i in (1, 2, 3)]
    for epochs, saved in enumerate(every.saved[:2], 1):
        second = trainer_of(Noisy(seed=5)).load(saved)
        fit(second, 3, epochs)
        assert_same(whole, second)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".safetensors"]


def test_models_read_the_weights_of_a_trainers_file(tmp_path: Path) -> None:
    first, module = trainer_of(), Noisy(seed=5)
    fit(first, 1)
    first.save(tmp_path / "t")
    load_weights(module, tmp_path / "t")
    for name in ("inner", "outer"):
        mine, other = getattr(module, name), getattr(first.module, name)
        np.testing.assert_array_equal(mine.kernel[...], other.kernel[...])
    np.testing.assert_array_equal(module.norm.mean[...], first.module.norm.mean[...])
    with pytest.raises(nx.CheckpointError, match="do not fit this model"):
        load_weights(MLP(), tmp_path / "t")


def test_the_first_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    save_weights(MLP((6, 3)), tmp_path / "w")
    with pytest.raises(nx.CheckpointError, match="and 4 more"):
        load_weights(MLP((6, *[8] * 5, 3)), tmp_path / "w")


def test_weights_of_another_kind_of_number_do_not_fit(tmp_path: Path) -> None:
    module = nx.nn.Linear(2, 1)
    save_weights(module, tmp_path / "w")
    module.bias = nnx.Param(jnp.zeros(1, jnp.int32))
    with pytest.raises(nx.CheckpointError, match="bias: the model has int32, the file float32"):
        load_weights(module, tmp_path / "w")


def saved(folder: Path) -> Path:
    trainer = trainer_of()
    fit(trainer, 1)
    trainer.save(folder / "t")
    return folder / "t"


class TwoNoises(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.second = nnx.Dropout(0.1, rngs=nnx.Rngs(1))


def frozen() -> Trainer:
    layers = nx.nn.Sequential(nx.nn.Linear(6, 8), nx.nn.Linear(8, 3))
    return trainer_of(layers)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: trainer_of(MLP()), "another model.*layers.0.bias: missing"),
        (lambda: trainer_of(Noisy(), nx.optim.SGD(0.1, momentum=0.9)), "another optimizer.*trace"),
        (lambda: trainer_of(Noisy(), nx.optim.SGD(0.1)), "another optimizer.*not in the optim"),
        (lambda: trainer_of(TwoNoises()), "random streams.*second"),
    ],
    ids=["model", "optimizer", "no moments", "streams"],
)
def test_a_file_of_another_model_or_optimizer_changes_nothing(
    make: Any, message: str, tmp_path: Path
) -> None:
    path, trainer = saved(tmp_path), make()
    fit(trainer, 1)
    before = everything(trainer)
    with pytest.raises(nx.CheckpointError, match=f"(?s){message}"):
        trainer.load(path)
    assert trainer.steps_made == 3
    for mine, other in zip(everything(trainer), before, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_file_of_before_a_layer_was_frozen_is_told(tmp_path: Path) -> None:
    trainer = frozen()
    trainer.save(tmp_path / "t")
    other = frozen()
    other.module[0].freeze()
    with pytest.raises(nx.CheckpointError, match=r"(?s)other layers are frozen.*layers\.0\.kernel"):
        other.load(tmp_path / "t")
    trainer.module[0].freeze()
    fit(trainer, 1)
    trainer.save(tmp_path / "t")
    assert_same(trainer, other.load(tmp_path / "t"))


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    path, trainer = saved(tmp_path), trainer_of()
    before, data = everything(trainer), path.read_bytes()
    wrong = tmp_path / "wrong"
    with pytest.raises(nx.CheckpointError, match="no file of a trainer's state.*wrong"):
        trainer.load(wrong)
    save_weights(trainer.module, wrong)
    with pytest.raises(nx.CheckpointError, match="Trainer.save has not written it.*model.load"):
        trainer.load(wrong)
    safetensors.numpy.save_file({"weights.a": np.ones(3)}, wrong)
    with pytest.raises(nx.CheckpointError, match="Trainer.save has not written it"):
        trainer.load(wrong)
    step = data.index(b'"steps_made":"3"')
    changed = data[:step] + b'"steps_made":"4"' + data[step + 16 :]
    for damaged in (b"", b"no file", data[:-5], data[:40], data[:-1] + b"\xff", changed):
        wrong.write_bytes(damaged)
        with pytest.raises(nx.CheckpointError, match="wrong is damaged"):
            trainer.load(wrong)
    assert trainer.steps_made == 0
    for mine, other in zip(everything(trainer), before, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_file_that_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = saved(tmp_path)
    before, trainer = path.read_bytes(), trainer_of()

    def full(_: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(nx.CheckpointError, match="trainer's state cannot be written.*no space"):
        trainer.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", [3, None, ["weights"]])
def test_what_is_no_path_is_told(path: Any) -> None:
    trainer = Trainer(nx.nn.Linear(2, 1), optimizer="sgd", loss="mse")
    for use in (trainer.save, trainer.load):
        with pytest.raises(nx.ArgumentTypeError, match="`path` is a path, got"):
            use(path)


@pytest.mark.parametrize("path", ["", ".", Path("/")])
def test_a_path_without_a_name_is_told(path: Any) -> None:
    model = nn.Linear(2, 1)
    for use in (model.save, model.load):
        with pytest.raises(nx.CheckpointError, match="names no file"):
            use(path)


class Features(nn.Module):
    """Holds arrays that are no variables: of JAX and NumPy, in a list and in a tuple."""

    def __init__(self, factor: float) -> None:
        self.random = nx.randn(2, 16)
        self.scale = np.full(16, factor, np.float32)
        self.shifts = nnx.List([nx.ones(1) * factor])
        self.more = nnx.data((nx.ones(1) * factor, nx.ones(1)))
        self.out = nn.Linear(16, 1)

    def __call__(self, x: Any) -> Any:
        return self.out(jnp.sin(x @ self.random) * self.scale) + self.shifts[0] + self.more[0]


def test_arrays_that_are_no_variables_are_saved(tmp_path: Path) -> None:
    x, y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)
    first, second, third = (Features(factor) for factor in (1, 2, 3))
    for model in (first, second, third):
        model.compile("sgd", "mse")
        model.fit(x, y, verbose=False)
    first.save(tmp_path / "weights")
    first.trainer.save(tmp_path / "trainer")
    second.load(tmp_path / "weights")
    third.trainer.load(tmp_path / "trainer")
    expected = first.predict(x)
    for model in (second, third):
        np.testing.assert_array_equal(model.predict(x), expected)
        np.testing.assert_allclose(np.asarray(model(x)), expected, rtol=1e-6)
        assert isinstance(model.scale, np.ndarray)
    assert first.fit(x, y, verbose=False)["loss"] == third.fit(x, y, verbose=False)["loss"]
