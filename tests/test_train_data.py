"""What users give as data: inputs by name, lists of arrays, loaders of others, numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import neurenix as nx
from neurenix import nn
from neurenix.data import DatasetIterator
from neurenix.train.epoch_iterator import EpochIterator

pytestmark = pytest.mark.cpu8

GENERATOR = np.random.default_rng(0)
A, B = (GENERATOR.normal(size=(40, 1)).astype(np.float32) for _ in range(2))
Y = A - B


def compiled(module: Any, **options: Any) -> Any:
    return module.compile(**({"optimizer": "sgd", "loss": "mse"} | options))


# Inputs by name


class Body(nn.Module):
    """Its second input, which it can do without, is called as weights are in other places."""

    def __init__(self) -> None:
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)

    def __call__(self, height: Any, weight: Any = None) -> Any:
        return self.a(height) + (0 if weight is None else self.b(weight))


class Plane(Body):
    """Its second input is called as targets are in other places."""

    def __call__(self, x: Any, y: Any = None) -> Any:
        return super().__call__(x, y)


class Anything(Body):
    """Takes inputs of every name."""

    def __call__(self, **named: Any) -> Any:
        return super().__call__(named["first"], named.get("label"))


@pytest.mark.parametrize(
    ("make", "names"), [(Body, "height weight"), (Plane, "x y"), (Anything, "first label")]
)
def test_predict_loses_no_input_because_of_its_name(make: Any, names: str) -> None:
    model, named = compiled(make()), dict(zip(names.split(), (A, B), strict=True))
    model.fit(named, Y, validation_data=(named, Y))
    for size in (40, 16):
        np.testing.assert_allclose(
            model.predict(named, batch_size=size), model(**named), rtol=1e-5, atol=1e-6
        )
    only = {names.split()[0]: A}
    np.testing.assert_allclose(model.predict(only), model(**only), rtol=1e-5, atol=1e-6)


def test_targets_that_are_no_inputs_are_left_out_of_a_prediction() -> None:
    model = compiled(nn.Linear(1, 1))
    data = {"image": A, "label": Y, "sample_weight": Y[:, 0] ** 2}
    model.fit(data)
    np.testing.assert_allclose(model.predict(data), model(A), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.predict({"image": A}), model.predict(data))
    with pytest.raises(nx.ArgumentTypeError, match="inputs named image, weight"):
        model.predict({"image": A, "weight": B, "label": Y})


def test_a_feature_called_weight_is_no_sample_weight() -> None:
    named = {"height": A, "weight": np.abs(B)}
    nx.seed(0)
    by_name = compiled(Body())
    nx.seed(0)
    apart = compiled(Body())
    data = nx.data.Dataset.from_arrays(named | {"label": Y}).batch(8)
    found = by_name.fit(data, epochs=2)["loss"]
    expected = apart.fit(named, Y, batch_size=8, shuffle=False, epochs=2)["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# Lists of arrays


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.predict([A, B]), r"2 arrays of 40 rows.*2 inputs of Body or 2 batches.*iter"),
        (lambda m: m.fit(A, [Y, Y]), r"y is a list of 2 arrays, each with the 40 rows that x has"),
        (lambda m: m.evaluate(A, [Y, np.eye(40)]), r"Targets of several.*fit\(x, \(a, b\)\)"),
        (lambda m: m.fit({"height": A}, [Y, Y]), "y is a list of 2"),
        (lambda m: m.fit(A, Y, validation_data=(A, [Y, Y])), "validation_data: y is a list of 2"),
        (lambda m: m.fit(A, [Y, Y], validation_split=0.2), "y is a list of 2"),
        (lambda m: m.fit([A, B], Y, validation_split=0.2), "x is a list of 2"),
        (lambda m: m.fit([A, B], [Y, Y, Y]), "x is a list of 2"),
    ],
)
def test_a_list_of_inputs_or_targets_is_told_from_rows(call: Any, message: str) -> None:
    with pytest.raises(nx.DataError, match=message):
        call(compiled(Body()))


def test_lists_of_rows_and_of_batches_are_read_as_ever() -> None:
    model = compiled(nn.Linear(4, 4))
    model.fit([np.ones(4)] * 6, [np.ones(4)] * 6)
    model.fit([np.ones((5, 4))] * 7, [np.ones((5, 4))] * 7)
    assert model.predict([np.ones((8, 4)), np.ones((8, 4))]).shape == (16, 4)  # takes one input
    body = compiled(Body())
    assert body.predict([A[:32], A[32:]]).shape == (40, 1)
    assert body.predict(iter([A[:20], A[20:]])).shape == (40, 1)


# Data of torch


def of_torch(name: str, *, base: str = "Dataset") -> type:
    """Return a class that looks as if torch had made it."""
    above = type(base, (), {"__module__": "torch.utils.data.dataset"})
    return type(name, (above,), {"__module__": __name__})


def test_examples_of_a_torch_dataset_are_not_taken_for_batches() -> None:
    kind = of_torch("Pictures")
    kind.__len__ = lambda self: 3
    kind.__getitem__ = lambda self, index: (np.eye(6), np.eye(6))
    model = compiled(nn.Linear(6, 6))
    for call in (model.fit, model.evaluate, model.predict):
        with pytest.raises(nx.ArgumentTypeError, match="Pictures is a torch Dataset.*DataLoader"):
            call(kind())
    with pytest.raises(nx.ArgumentTypeError, match="validation_data: Pictures is a torch Dataset"):
        model.fit(np.eye(6), np.eye(6), validation_data=kind())
    batches = of_torch("Batches", base="IterableDataset")
    batches.__iter__ = lambda self: iter([(np.eye(6), np.eye(6))])
    assert len(model.fit(batches(), epochs=2)["loss"]) == 2


class Unmeasured:
    """A loader that has a length and does not know it, as over an ``IterableDataset``."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        raise self.error("object of type 'Stream' has no len()")

    def __iter__(self) -> Iterator[Any]:
        return iter([(A[i : i + 16], Y[i : i + 16]) for i in range(0, 40, 16)])


@pytest.mark.parametrize("per_call", [1, 2])
@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_a_loader_that_does_not_know_its_length(per_call: int, error: Any) -> None:
    data, model = Unmeasured(error), compiled(nn.Linear(1, 1), steps_per_execution=per_call)
    assert nx.data.StreamDataset(data).cardinality is None
    assert len(model.fit(data, epochs=3, validation_data=data)["val_loss"]) == 3
    assert model.trainer.steps_made == 9
    expected = model.evaluate(A, Y, batch_size=16)["loss"]
    assert model.evaluate(data)["loss"] == pytest.approx(expected)
    assert model.predict(data).shape == (40, 1)


# Several batches at once


def epochs_of(data: Any, per_chunk: int, steps: int | None) -> list[list[list[float]]]:
    """Return the inputs of three epochs, batch by batch."""
    feed, epochs = EpochIterator(data), []
    for _ in range(3):
        batches: list[Any] = []
        for chunk in feed.chunks(steps, per_chunk):
            stacked = chunk.batch.x if per_chunk > 1 else chunk.batch.x[None]
            assert chunk.examples == 4 * chunk.count
            batches += [batch.tolist() for batch in stacked[: chunk.count]]
        epochs.append(batches)
    return epochs


@pytest.mark.parametrize(("per_chunk", "steps"), [(2, None), (5, None), (9, None), (3, 7), (4, 16)])
def test_chunks_are_the_batches_in_their_order(per_chunk: int, steps: int | None) -> None:
    data = nx.data.Dataset.from_arrays(np.arange(40), np.arange(40)).shuffle(seed=1).batch(4)
    single, several = (epochs_of(data, count, steps) for count in (1, per_chunk))
    assert single == several
    assert len(single[0]) == (steps or 10)


def test_the_first_batch_is_stacked_with_those_after_it(monkeypatch: Any) -> None:
    read, one = [], DatasetIterator.__next__

    def reads(iterator: Any) -> Any:
        read.append(one(iterator))
        return read[-1]

    monkeypatch.setattr(DatasetIterator, "__next__", reads)
    assert len(epochs_of(nx.data.Dataset.from_arrays(A, Y).batch(4), 5, None)[0]) == 10
    assert len(read) == 1


@pytest.mark.parametrize("at", [1, 4])
def test_batches_of_other_shapes_cannot_be_stacked(at: int) -> None:
    def wider(batch: Any) -> Any:
        return np.repeat(batch[0], 2 if batch[0][0, 0] >= 4 * at else 1, axis=1), batch[1]

    rows = np.arange(40, dtype=np.float32)[:, None]
    data = nx.data.Dataset.from_arrays(rows, rows).batch(4).map(wider)
    with pytest.raises(nx.ShapeError, match="needs batches of one shape"):
        epochs_of(data, 5, None)


class Tensor:
    """An array as torch makes them."""

    shape, dtype = (40, 1), "torch.float32"

    def __init__(self, *, requires_grad: bool) -> None:
        self.requires_grad = requires_grad

    def __len__(self) -> int:
        return 40

    def detach(self) -> np.ndarray:
        return A

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu().")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: m.fit(t(requires_grad=True), Y), r"x is a tensor that.*\.detach\(\)"),
        (lambda m, t: m.fit(A, t(requires_grad=True)), r"y is a tensor that.*\.detach\(\)"),
        (lambda m, t: m.predict(t(requires_grad=True)), r"x is a tensor that.*\.detach\(\)"),
        (lambda m, t: m.fit([(A, t(requires_grad=True))]), r"dataset.* is a tensor that"),
        (lambda m, t: m.fit(t(requires_grad=False), Y), r"x cannot be read.*cuda:0.*cpu\(\)"),
    ],
)
def test_tensors_that_cannot_be_read_are_named(call: Any, message: str) -> None:
    with pytest.raises(nx.DataError, match=message):
        call(compiled(nn.Linear(1, 1)), Tensor)


# Numbers to look up

IDS = np.arange(160).reshape(40, 4) % 10


def with_number(number: int) -> np.ndarray:
    ids = IDS.copy()
    ids[21, 2] = number
    return ids


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("number", [-1, 10])
def test_a_number_that_has_no_row_is_told_by_every_call(number: int, replicated: bool) -> None:
    strategy = nx.distribute.TPUStrategy() if replicated else nx.distribute.get_strategy()
    layers = nn.Embedding(10, 4), nn.Flatten(), nn.Linear(16, 1)
    if strategy is None:
        model = compiled(nn.Sequential(*layers))
    else:
        with strategy.scope():
            model = compiled(nn.Sequential(*layers))
    wrong, told = with_number(number), rf"10 rows, 0 … 9.* {number} at index \(5, 2\).*"
    with pytest.raises(nx.DataError, match=told + "step 1"):
        model.fit(wrong, Y, batch_size=16, shuffle=False)
    for call in (
        lambda: model.predict(wrong, batch_size=16),
        lambda: model.evaluate(wrong, Y, batch_size=16),
        lambda: model.fit(IDS, Y, batch_size=16, validation_data=(wrong, Y)),
    ):
        with pytest.raises(nx.DataError, match=told + "the batch 1 of the data"):
            call()
    assert model.predict(IDS).shape == (40, 1)


def test_a_late_number_without_a_row_is_told_among_many_batches() -> None:
    model = compiled(nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(16, 1)))
    for at in (1, 38):
        ids = IDS.copy()
        ids[at] = 77
        with pytest.raises(nx.DataError, match=rf"77 at index \(0, 0\).*batch {at} of the data"):
            model.predict(ids, batch_size=1)
        with pytest.raises(nx.DataError, match=rf"batch {at} of the data"):
            model.evaluate(ids, Y, batch_size=1)


class Hole(nn.Module):
    """Returns NaN for one number, and takes it."""

    def __call__(self, x: Any) -> Any:
        return jax.numpy.where(x == 3, np.nan, 1.0)


def test_what_is_not_a_number_for_another_reason_is_returned() -> None:
    found = compiled(Hole()).predict(np.arange(12)[:, None], batch_size=2)
    assert np.isnan(found[:, 0]).tolist() == [row == 3 for row in range(12)]
    assert np.isnan(compiled(Hole()).evaluate(np.arange(12), np.ones(12))["loss"])


# Generators that fill the same arrays again


def refilled(count: int, rows: int) -> Iterator[Any]:
    x, y = np.empty((rows, 1), np.float32), np.empty((rows, 1), np.float32)
    for number in range(count):
        x[:], y[:] = number, 2 * number
        yield x, y


@pytest.mark.parametrize("per_call", [1, 4])
def test_a_batch_is_as_it_was_when_it_was_yielded(per_call: int) -> None:
    model = nn.Linear(1, 1)
    model.kernel[...], model.bias[...] = np.zeros((1, 1)), np.zeros(1)
    model.compile(nx.optim.SGD(0.0), "mse", steps_per_execution=per_call)
    expected = np.mean([(2 * number) ** 2 for number in range(8)])
    assert model.fit(refilled(8, 32), verbose=False)["loss"] == pytest.approx([expected])
    assert model.evaluate(refilled(8, 32))["loss"] == pytest.approx(expected)


def test_predictions_are_of_the_arrays_that_were_yielded() -> None:
    wide = nn.Linear(1, 2048)
    model = nn.Sequential(wide, nn.Linear(2048, 2048), nn.Linear(2048, 1))
    found = model.predict(x for x, _ in refilled(16, 1024))
    expected = [model(np.full((1, 1), number, np.float32)).item() for number in range(16)]
    np.testing.assert_allclose(found.reshape(16, 1024), np.tile(expected, (1024, 1)).T, rtol=1e-3)


def test_a_strategy_keeps_what_a_generator_yielded() -> None:
    strategy = nx.distribute.TPUStrategy()
    first = [np.asarray(x)[0, 0] for x, _ in list(strategy.distribute(refilled(4, 8)))]
    assert first == [0, 1, 2, 3]
    many = nx.multi_step(lambda batch: batch[0][0, 0], steps=4)
    assert many(refilled(4, 8)).tolist() == [0, 1, 2, 3]


def test_a_list_of_batches_is_not_copied() -> None:
    batch = np.ones((4, 2), np.float32)
    assert next(nx.data.StreamDataset([batch]).iterator()) is batch
    assert next(nx.data.StreamDataset(iter([batch])).iterator()) is not batch


def test_the_devices_hold_the_outputs_of_few_batches() -> None:
    held: list[int] = []
    with nx.distribute.TPUStrategy().scope():
        model = nn.Linear(1, 50_000)

    def batches() -> Iterator[Any]:
        for _ in range(40):
            held.append(sum(array.nbytes for array in jax.live_arrays()))
            yield np.ones((8, 1), np.float32)

    assert model.predict(batches()).shape == (320, 50_000)
    assert max(held) - held[0] < 25 * 8 * 50_000 * 4
