"""What the function of ``Dataset.map`` may return, and what of it reaches fit and evaluate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import neurenix as nx
from neurenix import nn
from neurenix._core.errors import DataError
from neurenix.data import Dataset

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

X = np.arange(32.0, dtype=np.float32)[:, None]
ROWS = Dataset.from_arrays(X, X)


def model(**options: Any) -> nn.Module:
    module = nn.Sequential(nn.Linear(1, 1))
    module.compile(nx.optim.SGD(1e-5), "mse", **options)
    return module


def returns_below(limit: float) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        return (x, y) if x.max() < limit else None

    return function


@pytest.mark.parametrize("per_call", [1, 2])
@pytest.mark.parametrize("call", ["fit", "evaluate"])
@pytest.mark.parametrize(("limit", "which"), [(8.0, 1), (0.0, 0)])
def test_a_map_without_a_return_does_not_end_the_data(
    limit: float, which: int, call: str, per_call: int
) -> None:
    data = ROWS.batch(8).map(returns_below(limit))
    with pytest.raises(DataError, match=rf"returned None for batch {which}: is a return missing"):
        getattr(model(steps_per_execution=per_call), call)(data)


def test_a_map_of_rows_without_a_return_names_the_row() -> None:
    data = ROWS.map(returns_below(5.0)).map(lambda x, y: (x, y)).batch(8)
    with pytest.raises(DataError, match=r"map\(\) returned None for row 5"):
        list(data)


class Same(nn.Module):
    def __call__(self, x: Any) -> Any:
        return x


FAR = Dataset.from_arrays(np.arange(8))


@pytest.mark.parametrize(
    "data",
    [
        FAR.map(lambda i: np.int64(i) * 2**32 + 7).batch(8),
        FAR.map(lambda i: int(i) * 2**32 + 7).batch(8),
        FAR.batch(8).map(lambda i: i.astype(np.int64) * 2**32 + 7),
    ],
    ids=["rows", "numbers of Python", "batches"],
)
def test_an_integer_beyond_32_bits_that_a_map_returns_is_refused(data: Dataset) -> None:
    with pytest.raises(DataError, match=r"result of map\(\) for .* do not fit into int32"):
        Same().predict(data)


def test_what_a_map_returns_has_32_bits() -> None:
    wide = ROWS.map(lambda x, y: {"f": x.astype(float), "i": 3, "kept": np.uint8(1)})
    for data in (wide, wide.batch(4), ROWS.batch(4).map(lambda x, y: {"f": np.float64(x)})):
        found = {name: str(spec.dtype) for name, spec in data.element_spec.items()}
        assert found.items() <= {"f": "float32", "i": "int32", "kept": "uint8"}.items()
    assert isinstance(next(iter(wide))["i"], np.int32)


@pytest.mark.parametrize("first", ["map", "batch"])
def test_text_that_a_map_returns_is_named(first: str) -> None:
    data = ROWS.map(lambda x, y: ("a", y)).batch(8)
    if first == "batch":
        data = ROWS.batch(8).map(lambda x, y: (np.array(["a"] * len(x)), y))
    with pytest.raises(DataError, match=r"result of map\(\) for .* 0 holds text.*encode"):
        model().fit(data)


def twice(x: Any, y: Any) -> Any:
    return np.concatenate([x, -x]), np.concatenate([y, -y])


def below(limit: float) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        kept = np.flatnonzero(x[:, 0] % 8 < limit + x[0, 0] // 8)  # one row more in each batch
        return x[kept], y[kept]

    return function


RESIZED = {
    "fewer": lambda x, y: (x[:5], y[:5]),
    "another number each time": below(3),
    "two views": twice,
    "the same": lambda x, y: (x, y),
}


@pytest.mark.parametrize("replicas", [1, 8])
@pytest.mark.parametrize("per_call", [1, 2])
@pytest.mark.parametrize("name", RESIZED)
def test_a_map_may_change_how_many_rows_a_batch_has(
    name: str, per_call: int, replicas: int
) -> None:
    data = ROWS.take(28).batch(8).map(RESIZED[name])
    found = {}
    # A list of the same batches that begins with the largest: only the loss is compared.
    for which, batches in (("mapped", data), ("list", list(data)[2::-1] + list(data)[3:])):
        devices = nx.distribute.OneDeviceStrategy("tpu:0"), nx.distribute.TPUStrategy()
        with devices[replicas == 8].scope():
            nx.seed(0)
            module = model(steps_per_execution=per_call)
        found[which] = module.evaluate(batches, verbose=0)["loss"]
        assert np.isfinite(module.fit(batches, verbose=0).history["loss"][0])
    assert found["mapped"] == pytest.approx(found["list"], rel=1e-5)


def spread(y_true: Any, y_pred: Any) -> Any:
    return nx.tensor.max((y_true - y_pred) ** 2)


def test_batches_that_a_map_leaves_whole_suit_a_loss_of_whole_batches() -> None:
    module = nn.Sequential(nn.Linear(1, 1))
    module.compile(nx.optim.SGD(1e-5), spread)
    module.fit(ROWS.batch(8).map(RESIZED["the same"]), verbose=0)
    for name in ("fewer", "another number each time"):
        with pytest.raises(nx.ArgumentError, match="would be filled up to 8"):
            module.fit(ROWS.batch(8).map(RESIZED[name]), verbose=0)


def test_a_map_that_makes_batches_grow_is_told_the_size() -> None:
    grows = ROWS.batch(8).map(lambda x, y: twice(x, y) if x[0, 0] else (x, y))
    with pytest.raises(nx.ShapeError, match="has 16 examples, and the first ones were .* 8"):
        model().fit(grows, verbose=0)


def test_batches_of_several_sizes_are_stacked_up_to_the_next_size() -> None:
    iterator = ROWS.batch(8).map(lambda x, y: (x[: 5 if x[0, 0] == 16 else 8], y)).iterator()
    assert [len(iterator.next_stacked(4)[0]) for _ in range(3)] == [2, 1, 1]
