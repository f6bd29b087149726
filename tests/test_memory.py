"""Arrays and programs that need more memory than there is: one error of ours, where it was asked.

A terabyte is more than any machine of these tests has, swap space included.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import nn
from neurenix._nnx import nnx
from neurenix.hardware import allocation
from neurenix.hardware.allocation import allocated, out_of_memory

pytestmark = pytest.mark.cpu8

N = 10**6
BIG = np.broadcast_to(np.float32(1), (N, N))
MAKES = {
    "zeros": (lambda: nx.zeros((N, N)), r"\(1000000, 1000000\), float32, takes 3.64 TiB"),
    "ones, bfloat16": (lambda: nx.ones((N, N), "bfloat16"), "bfloat16, takes 1.82 TiB"),
    "empty": (lambda: nx.empty((N, N)), "3.64 TiB"),
    "full": (lambda: nx.full((N, N), 7), "int32, takes 3.64 TiB"),
    "zeros_like": (lambda: nx.zeros_like(nx.ones(2), shape=(N, N)), "3.64 TiB"),
    "ones_like": (lambda: nx.ones_like(nx.ones(2), "int8", (N, N)), "int8, takes 931"),
    "full_like": (lambda: nx.full_like(nx.ones(2), 3, shape=(N, N)), "3.64 TiB"),
    "eye": (lambda: nx.eye(N), "3.64 TiB"),
    "linspace": (lambda: nx.linspace(0, 1, 10**12), "3.64 TiB"),
    "rand": (lambda: nx.rand(N, N), "3.64 TiB"),
    "randn": (lambda: nx.randn(N, N), "3.64 TiB"),
    "randint": (lambda: nx.randint(0, 3, (N, N)), "int32, takes 3.64 TiB"),
    "on a device": (lambda: nx.zeros((N, N), device="cpu"), "3.64 TiB"),
    "array": (lambda: nx.array(BIG), "3.64 TiB"),
    "array, cast": (lambda: nx.array(BIG, dtype="bfloat16"), "1.82 TiB"),
    "to": (lambda: nx.to(BIG, "tpu:1"), "takes 3.64 TiB, and this machine has"),
    "to, cast": (lambda: nx.to(BIG, dtype="bfloat16"), "1.82 TiB"),
    "to, a tree": (lambda: nx.to({"a": [BIG]}, "cpu"), "3.64 TiB"),
    "Linear": (lambda: nn.Linear(N, N), r"\(1000000, 1000000\), float32, takes 3.64 TiB"),
    "Linear, in a model": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(N, N)), "3.64 TiB"),
    "Embedding": (lambda: nn.Embedding(N, N, dtype="bfloat16"), "bfloat16, takes 1.82 TiB"),
    "Conv2d": (lambda: nn.Conv2d(N, N, 3), "32.74 TiB"),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(N, N, 1), "3.64 TiB"),
    "LSTM": (lambda: nn.LSTM(N, N), "14.55 TiB"),
    "GRU": (lambda: nn.GRU(N, N), "10.91 TiB"),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(N, 1), "3.64 TiB"),
    "LayerNorm": (lambda: nn.LayerNorm(10**12), "3.64 TiB at once"),
    "BatchNorm": (lambda: nn.BatchNorm(10**12), "3.64 TiB at once"),
}


@pytest.mark.parametrize("name", MAKES)
def test_an_array_larger_than_memory_is_our_error(name) -> None:
    make, said = MAKES[name]
    with pytest.raises(nx.OutOfMemoryError, match=said) as caught:
        make()
    assert len(str(caught.value).splitlines()) == 1
    assert isinstance(caught.value, RuntimeError)


def test_predict_and_fit_say_that_their_program_is_too_large() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            self.a = nn.Linear(1, N)

        def __call__(self, x):
            wide = self.a(x)
            return jnp.sum(jnp.cumsum(wide[:, :, None] * wide[:, None, :], axis=1), axis=(1, 2))

    model, x, y = Wide(), np.ones((4, 1), np.float32), np.ones(4, np.float32)
    with pytest.raises(nx.OutOfMemoryError, match="predict needs more memory.*TiB at once"):
        model.predict(x)
    with pytest.raises(nx.OutOfMemoryError, match="fit needs more memory.*nx.preflight"):
        model.compile("sgd", "mse").fit(x, y, batch_size=4, verbose=0)


def test_nothing_is_asked_for_where_nothing_is_made() -> None:
    assert jax.eval_shape(lambda: nx.zeros((N, N))).shape == (N, N)
    assert jax.eval_shape(lambda: nx.randn(N, N, key=jax.random.key(0))).shape == (N, N)
    abstract = nnx.eval_shape(lambda: nn.Linear(N, N))
    assert abstract.kernel.shape == (N, N)
    assert nx.zeros((0, N, N)).size == 0


def test_a_large_array_is_awaited_and_is_what_it_was(monkeypatch) -> None:
    shapes = [(3, 5), (), (0, 2)]
    expected = [np.asarray(nx.ones(shape)) for shape in shapes]
    monkeypatch.setattr(allocation, "_LARGE_BYTES", 0)
    for shape, wanted in zip(shapes, expected, strict=True):
        np.testing.assert_array_equal(nx.ones(shape), wanted)
    assert allocated(lambda: jax.random.key(0), (), jax.random.key(0).dtype).shape == ()
    tree = nx.to({"n": np.arange(3), "key": jax.random.key(1)}, "tpu:1")
    assert tree["n"].devices() == {jax.devices()[1]}
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    parts = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    assert len(nx.to(np.ones(8), parts).devices()) == 8

    def memory_stats(self):
        return {"bytes_in_use": 0, "bytes_limit": 1000}


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 4000000000000 bytes.", "3.64 TiB"),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.00GiB.", "2.00GiB"),
        ("INTERNAL: Error dispatching computation: Out of memory allocating 4096 bytes.", "4.0"),
    ],
)
def test_what_runtimes_say_for_want_of_memory_is_known(text, asked) -> None:
    told = out_of_memory(RuntimeError(text), "Too large.")
    assert told is not None and asked in str(told)
    assert out_of_memory(RuntimeError("INVALID_ARGUMENT: shapes"), "Too large.") is None
    assert out_of_memory(told, "Too large.") is None
    assert str(out_of_memory(MemoryError(), "Too large.")) == "Too large."
