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

pytestmark = pytest.mark.cpu8

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


def test_a_map_of_wide_arrays_of_jax_keeps_their_bits(run_python: Any) -> None:
    done = run_python(
        code="import jax.numpy as jnp\n"
        "from neurenix.data import Dataset\n"
        "data = Dataset.from_arrays(jnp.arange(3) + 2**40)\n"
        "for mapped in (data.map(lambda i: i - 1).batch(3), data.batch(3).map(lambda i: i - 1)):\n"
        "    print(next(iter(mapped)) - 2**40)",
        env={"JAX_ENABLE_X64": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["[-1  0  1]"] * 2 + [""]


@pytest.mark.parametrize("first", ["map", "batch"])
def test_text_that_a_map_returns_is_named(first: str) -> None:
    data = ROWS.map(lambda x, y: ("a", y)).batch(8)
    if first == "batch":
        data = ROWS.batch(8).map(lambda x, y: (np.array(["a"] * len(x)), y))
    with pytest.raises(DataError, match=r"result of map\(\) for .* 0 holds text.*encode"):
        model().fit(data)
