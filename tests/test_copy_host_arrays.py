"""Arrays of NumPy's that are filled again as soon as a call has returned."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix._core.keys import keys_explained
from neurenix.hardware.tpu import TPUBackend

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

SIZE = 2**16


def zeros() -> np.ndarray:
    """Return an array that lies as XLA wants it, so that a CPU can compute on it where it lies."""
    raw = np.zeros(SIZE * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + SIZE * 4].view(np.float32)


def late(x: jax.Array) -> jax.Array:
    """Return the largest of ``x``, some milliseconds after the call."""
    busy = jax.lax.fori_loop(0, 40, lambda _, w: jnp.tanh(w @ w), jnp.ones((256, 256)) * x[0])
    return x.max() + 0 * busy[0, 0]


@pytest.mark.parametrize("device", ["cpu", "tpu:0", "tpu:1"])
def test_what_is_moved_is_a_copy(device: str) -> None:
    for given in (zeros(), [zeros()]):
        moved = nx.to(given, device)
        jax.tree.leaves(given)[0][:] = 7
        assert float(jax.tree.leaves(moved)[0].max()) == 0


def test_what_a_transfer_moves_is_a_copy() -> None:
    given, backend = zeros(), TPUBackend()
    backend.initialize()
    transfer = backend.transfer(given, nx.devices("tpu")[1])
    given[:] = 7
    assert float(transfer.result().max()) == 0


@pytest.mark.parametrize("one_device", [False, True])
def test_arguments_of_compiled_functions_are_copies(one_device: bool) -> None:
    strategy = nx.distribute.OneDeviceStrategy("cpu") if one_device else nx.distribute.auto()
    calls: list[Any] = [nx.jit(late), lambda x: strategy.run(late, args=(x,))]
    for call in calls:
        given = zeros()
        call(given)  # compiled
        found = call(given)
        given[:] = 7
        assert float(np.max(jax.tree.leaves(found)[0])) == 0


def test_a_mask_is_not_lost_in_silence() -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    for call in (nx.jit(jnp.sum), lambda x: nx.to(x, "cpu")):
        with pytest.raises((ValueError, nx.ArgumentTypeError), match="masked"):
            call(masked)


UNORDERED: dict[Any, np.ndarray] = {1: np.ones((8, 2), np.float32), "a": np.ones((8, 2))}


def fitted(x: Any) -> Any:
    model = nx.nn.Linear(2, 1)
    model.compile("sgd", "mse")
    return model.fit(x, np.ones((8, 1), np.float32))


@pytest.mark.parametrize(
    "use",
    [
        nx.jit(lambda tree: tree["a"]),
        lambda tree: nx.distribute.OneDeviceStrategy("cpu").run(lambda t: t["a"], (tree,)),
        lambda tree: nx.to([tree], "cpu"),
        lambda tree: nx.data.Dataset.from_arrays(tree),
        lambda tree: next(iter(nx.data.Dataset.from_arrays(np.ones(8)).map(lambda _: tree))),
        fitted,
    ],
    ids=["jit", "run", "to", "from_arrays", "map", "fit"],
)
def test_keys_that_have_no_order_are_named(use: Any) -> None:
    said = r"keys 1 \(int\) and 'a' \(str\), which have no order"
    with pytest.raises(nx.ArgumentTypeError, match=said):
        use(UNORDERED)


def test_other_mistakes_beside_an_ordered_dict_are_not_its_keys() -> None:
    kept = OrderedDict([(1, np.ones(2)), ("a", np.ones(2))])
    assert list(nx.to(kept, "cpu")) == [1, "a"]

    with pytest.raises(ValueError, match="^of the user's own$"), keys_explained(kept):
        raise ValueError("of the user's own")


def test_keys_of_one_type_without_an_order_are_named() -> None:
    with pytest.raises(
        nx.ArgumentTypeError, match="keys 1j .complex. and 2j .complex., which have no"
    ):
        nx.to({1j: np.ones(2), 2j: np.ones(2)}, "cpu")
