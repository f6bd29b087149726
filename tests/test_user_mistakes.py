"""Mistakes that users make: each ends in one clear error, and the model stays usable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neurenix as nx
from neurenix import nn
from train_helpers import assert_same_weights, classification, weights_of

pytestmark = pytest.mark.cpu8

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = classification(200)


def compiled(**options: Any) -> Any:
    with nx.distribute.TPUStrategy().scope():
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).compile(
            **({"optimizer": "sgd", "loss": LOSS} | options)
        )


def batches(*rows: int) -> Iterator[Any]:
    return iter([(X[:count], Y[:count]) for count in rows])


@pytest.mark.parametrize("per_call", [1, 4])
def test_a_bad_value_on_eight_devices_names_its_step_and_keeps_the_weights(per_call: int) -> None:
    bad = X.copy()
    bad[16 * 7 + 3] = np.inf
    good = compiled(steps_per_execution=per_call)
    nx.seed(0)  # as before each test: the same first weights
    model = compiled(steps_per_execution=per_call)
    good.fit(X[: 16 * 7], Y[: 16 * 7], batch_size=16, shuffle=False)
    with pytest.raises(nx.TrainingDivergedError, match=r"step 7 \(epoch 1\).*batch itself.* x\."):
        model.fit(bad, Y, batch_size=16, shuffle=False)
    assert model.trainer.steps_made == 7
    assert_same_weights(model, good, rtol=1e-6, atol=1e-7)
    model.fit(X, Y)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.fit(Y, X), nx.ShapeError, "takes .* 6"),
        (lambda m: m.fit((X, Y)), nx.ArgumentError, "targets"),
        (lambda m: m.fit((X, X), Y), nx.ArgumentTypeError, r"Sequential\(x\), .* has 2 inputs"),
        (lambda m: m.predict({"a": X, "b": X}), nx.ArgumentTypeError, "inputs named a, b: .*'x'"),
        (lambda m: m.fit(None), nx.ArgumentTypeError, "NoneType"),
        (lambda m: m.fit(lambda: batches(16)), nx.ArgumentTypeError, "makes the generator"),
        (lambda m: m.fit(iter([])), nx.DataError, "empty"),
        (lambda m: m.fit(X, Y, verbos=1), nx.ArgumentTypeError, "verbose"),
        (lambda m: m.fit(X, Y, validation_data=(X, Y[:3])), nx.DataError, "200.*3"),
        (lambda m: m.fit(X, Y, validation_data=(X, Y + 7)), nx.DataError, "y_true"),
        (lambda m: m.fit(X, Y, validation_data=(X[:0], Y[:0])), nx.DataError, "empty"),
        (lambda m: m.evaluate(X), nx.ArgumentError, "targets"),
        (lambda m: m.predict(X[:0]), nx.DataError, "empty"),
        (lambda m: m.predict(X[0]), nx.ShapeError, "takes .* 6"),
    ],
)
def test_a_wrong_argument_is_named(call: Any, error: type[Exception], message: str) -> None:
    model = compiled()
    with pytest.raises(error, match=message):
        call(model)
    assert model.predict(X[:3]).shape == (3, 3)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (lambda: batches(8, 16), nx.ShapeError, "must not grow"),
        (lambda: iter([(X[:8], Y[:8]), (X[:8], Y[:7])]), nx.DataError, "do not match"),
        (lambda: iter([(X[:8], Y[:8]), (X[:8, :5], Y[:8])]), nx.ShapeError, "takes .* 6"),
        (lambda: iter([(X[:8], Y[:8]), (X[:8], Y[:8] + 9)]), nx.DataError, "y_true"),
    ],
)
def test_a_bad_batch_after_good_ones(data: Any, error: type[Exception], message: str) -> None:
    model = compiled()
    with pytest.raises(error, match=message):
        model.fit(data())
    assert all(np.isfinite(value).all() for value in weights_of(model).values())
    model.fit(X, Y)


def test_a_generator_lasts_for_one_pass() -> None:
    model = compiled()
    assert len(model.fit(batches(16, 16, 10))["loss"]) == 1
    assert len(model.fit(batches(*[16] * 6), epochs=2, steps_per_epoch=3)["loss"]) == 2
    with pytest.raises(nx.DataError, match="read once"):
        model.fit(batches(16, 16), epochs=2)
    assert np.isfinite(model.predict(X)).all()


def test_images_with_channels_first_are_told_from_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GlobalAvgPool2d(), nn.Linear(4, 3))
    model.compile("sgd", LOSS)
    labels = np.zeros(8, np.int32)
    with pytest.raises(nx.ShapeError, match=r"NHWC.*NCHW.*transpose\(0, 2, 3, 1\)"):
        model.fit(np.ones((8, 3, 9, 9), np.float32), labels)
    model.fit(np.ones((8, 9, 9, 3), np.uint8), labels)


def test_a_damaged_file_leaves_the_model_alone(tmp_path: Path) -> None:
    model = compiled()
    model.save(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    flipped = bytearray(data)
    flipped[-3] ^= 255
    other = compiled()
    before = weights_of(other)
    cuts = [data[:size] for size in (0, 5, 100, len(data) // 2, len(data) - 1)]
    for damaged in (*cuts, bytes(flipped), data + b"xx"):
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(nx.CheckpointError, match="damaged"):
            other.load(tmp_path / "damaged")
    after = weights_of(other)
    assert all((after[name] == value).all() for name, value in before.items())
    assert_same_weights(other.load(tmp_path / "whole"), model)


def test_batches_that_do_not_divide_in_loops_of_ones_own() -> None:
    strategy = nx.distribute.TPUStrategy()
    data = nx.data.Dataset.from_arrays(X, Y)
    with pytest.raises(nx.ShapeError, match="15 examples.*8 replicas"):
        next(iter(strategy.distribute(data.batch(15))))
    with pytest.raises(nx.ShapeError, match="50 does not divide by 8"):
        strategy.distribute_from_function(
            lambda context: data.batch(context.per_replica_batch_size(50))
        )
    with pytest.raises(nx.UnknownNameError, match="mean"):
        strategy.reduce("avg", strategy.run(lambda: np.float32(1)))


def test_metrics_beside_a_loss_of_logits_take_them_for_logits() -> None:
    logits, labels = np.linspace(-3, 3, 40, dtype=np.float32), np.arange(40) % 3 == 0
    says, named = logits > 0, ["accuracy", "binary_accuracy", "precision", "recall", "f1"]
    loss = nx.losses.BinaryCrossentropy(from_logits=True)
    own = nx.metrics.BinaryAccuracy(threshold=0.5, name="own")
    model = nn.Sequential(nn.Identity()).compile("sgd", loss, metrics=[*named, own])
    found = model.evaluate(logits[:, None], labels.astype(np.float32))
    right, both = (says == labels).mean(), (says & labels).sum()
    wanted = [right, right, both / says.sum(), both / labels.sum(),
              2 * both / (says.sum() + labels.sum())]  # fmt: skip
    np.testing.assert_allclose([found[name] for name in named], wanted, rtol=1e-6)
    np.testing.assert_allclose(found["own"], ((logits > 0.5) == labels).mean(), rtol=1e-6)
    assert right != ((logits > 0.5) == labels).mean()
