"""What can be a layer of a container, what can be given to a layer, and what a failed call says."""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
from neurenix import nn

pytestmark = pytest.mark.cpu8

X = np.ones((6, 4), np.float32)


class Scale:
    def __call__(self, x: Any) -> Any:
        return 2 * x


def of_library(module: str, name: str, **members: Any) -> Any:
    """Return an object of a class that says it is of ``module``."""
    return type(name, (), {"__module__": module, "__call__": lambda self, x: x, **members})()


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (of_library("keras.src.layers.core.dense", "Dense"), "Dense of keras.*Use nn.Lin"),
        (of_library("torch.nn.modules.linear", "Linear"), "Linear of torch: its weights would not"),
        (flax.linen.Dense(3), "Dense of flax.linen.*nnx.bridge.ToNNX"),
        (functools.partial(flax.linen.Dense(3)), "function of the partial that is layer 1 of Seq"),
        (Scale(), "a Scale, which is not a module.*Derive Scale from nn.Module.*__call__"),
        ([nn.ReLU(), nn.ReLU()], r"1 of Sequential is a list: .* one by one, Sequential\(\*layers"),
        (nn.ReLU, r"Construct it: ReLU\(...\)"),
        (None, "cannot be called: None"),
    ],
)
def test_what_would_not_be_trained_is_no_layer(layer: Any, said: str) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=said) as caught:
        nn.Sequential(nn.Identity(), layer)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(nx.ArgumentTypeError, match="argument `shortcut` of Residual"):
        nn.Residual(nn.Identity(), layer if layer is not None else 3)


def test_modules_and_functions_are_layers() -> None:
    layers = [
        nn.Linear(4, 4),
        nnx.Linear(4, 4, rngs=nnx.Rngs(0)),
        nnx.relu,
        jnp.tanh,
        jax.nn.relu,
        jax.jit(jnp.sin),
        jax.vmap(jnp.sin),
        jax.checkpoint(jnp.sin),
        jax.custom_jvp(jnp.sin),
        functools.partial(jnp.sum, axis=1, keepdims=True),
        functools.lru_cache(abs),
        nx.jit(jnp.sin),
        Scale().__call__,
        lambda x: (x, x),
        operator.itemgetter(0),
    ]
    assert len(nn.Sequential(*layers)) == len(layers)
    assert nn.Sequential(*layers[:8], *layers[12:])(X).shape == (6, 4)


def test_weights_that_another_step_gave_away_are_told() -> None:
    online, target = nn.Linear(4, 1), nn.Linear(4, 1)
    nnx.update(target, nnx.state(online))
    optimizer = nx.Optimizer(online, "sgd")

    @nx.jit
    def step(model: Any, optimizer: Any, x: Any) -> None:
        optimizer.update(model, nx.grad(lambda m: m(x).mean())(model))

    step(online, optimizer, X)
    for call in (target, nn.Sequential(target)):
        with pytest.raises(nx.ArgumentError, match=r"array (bias|kernel) .* nnx.update share") as e:
            call(X)
        assert "deleted" in str(e.value.__cause__)  # the original follows
        assert "nnx.update(target, jax.tree.map(jnp.copy, nnx.state(module)))" in str(e.value)
    nnx.update(target, jax.tree.map(jnp.copy, nnx.state(online)))
    step(online, optimizer, X)
    assert target(X).shape == (6, 1)


def test_weights_and_inputs_on_different_devices_are_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).to("tpu:3")
    said = r"Linear: .* its weights on tpu:3, x on tpu:1.*nx.to"
    with pytest.raises(nx.DeviceError, match=said):
        model(nx.to(jnp.asarray(X), "tpu:1"))
    assert str(nx.device_of(model(nx.to(jnp.asarray(X), "tpu:3")))) == "tpu:3"


def test_a_tensor_of_another_library_is_told() -> None:
    tensor = of_library(
        "torch", "Tensor", numpy=lambda self: X, ndim=2, shape=(6, 4), dtype="torch.float32"
    )
    for layer in (nn.Linear(4, 1), nn.ReLU(), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 1))):
        with pytest.raises(
            nx.ArgumentTypeError, match=r"x is a Tensor of torch. Write x.numpy\(\)"
        ):
            layer(tensor)
    with pytest.raises(nx.ArgumentTypeError, match=r"x is of type Tensor.*numpy\(\)"):
        nx.jit(nn.Linear(4, 1))(tensor)


def test_a_layer_shows_its_own_signature() -> None:
    assert list(inspect.signature(nn.Linear(4, 1).__call__).parameters) == ["x"]


N, T = 4, 6
PADDING = np.arange(T)[None] >= np.array([6, 3, 1, 5])[:, None]


@pytest.mark.parametrize("dropout", [0.0, 1e-9], ids=["kernel", "with dropout"])
def test_padded_keys_are_what_no_query_looks_at(dropout: float) -> None:
    x = jax.random.normal(jax.random.key(0), (N, T, 8))
    layer = nn.MultiHeadAttention(8, 4, num_kv_heads=2, dropout=dropout).train()
    given = layer(x, key_padding_mask=PADDING)
    keep = jnp.asarray(~PADDING)
    for mask in (keep[:, None, :], keep[:, None, None, :], jnp.repeat(keep[:, None], T, axis=1)):
        np.testing.assert_allclose(layer(x, mask=mask), given, rtol=1e-5, atol=1e-6)
    for row, length in enumerate((~PADDING).sum(axis=1)):
        alone = layer(x[row : row + 1], x[row : row + 1, :length])
        np.testing.assert_allclose(given[row], alone[0], rtol=1e-5, atol=1e-6)
    causal = jnp.tril(jnp.ones((T, T), bool))
    both = layer(x, mask=causal, key_padding_mask=PADDING)
    np.testing.assert_allclose(both, layer(x, mask=causal & keep[:, None]), rtol=1e-5, atol=1e-6)


def test_padded_keys_in_a_block_and_where_there_are_as_many_examples_as_positions() -> None:
    block, square = nn.TransformerBlock(8, 2).eval(), PADDING[:, :N]
    x = jax.random.normal(jax.random.key(0), (N, N, 8))
    given = block(x, key_padding_mask=square)
    np.testing.assert_allclose(given[1, :3], block(x[1:2, :3])[0], rtol=1e-5, atol=1e-6)
    rows_of_queries = block(x, mask=jnp.asarray(~square))  # two axes are (T, S)
    assert not np.allclose(given, rows_of_queries)


def test_masks_of_another_shape_are_told() -> None:
    layer, x = nn.MultiHeadAttention(8, 2), jnp.ones((N, T, 8))
    with pytest.raises(nx.ShapeError, match=r"\(4, 6\).*as mask\[:, None, :\]"):
        layer(x, mask=jnp.asarray(~PADDING))
    for wrong in (PADDING.T, PADDING.astype(np.float32), PADDING[:, None]):
        with pytest.raises(nx.ShapeError, match=r"`key_padding_mask` is boolean, \(4, 6\)"):
            layer(x, key_padding_mask=wrong)
    with pytest.raises(nx.ShapeError, match="mask"):
        layer(x, mask=jnp.ones((1, T), bool))
