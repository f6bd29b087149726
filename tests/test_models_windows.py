"""Layers with a window among layers without: Gemma 3, and the loss in tiles that it needs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import model_reference as ref
import neurenix as nx
from neurenix import models
from neurenix._core.errors import ArgumentError, ShapeError
from neurenix._nnx import nnx
from neurenix.models.rope import LinearScaling, angles

pytestmark = pytest.mark.cpu8

RNG = np.random.default_rng(0)
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
# Two patterns of three and a rest of two.
SMALL: dict[str, Any] = {
    "num_layers": 8, "embed_dim": 32, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8,
    "mlp_dim": 48, "vocab_size": 64, "max_length": 32, "window": 4, "global_every": 3,
    "query_pre_attn_scalar": 5, "dtype": "float32",
}  # fmt: skip


def small(**changes: Any) -> models.Decoder:
    """Gemma 3 with parameters that all matter: norms that scale."""
    model = models.build("gemma3-12b", **{**SMALL, **changes})
    state = nnx.state(model, nnx.Param)
    moved = jax.tree.map(lambda p: p + jnp.asarray(RNG.normal(0, 0.2, p.shape), p.dtype), state)
    nnx.update(model, moved)
    return model


@nnx.jit
def logits(model: models.Decoder, ids: jax.Array) -> jax.Array:
    return model(ids)


def tokens(count: int = 2, length: int = 16) -> jax.Array:
    return jnp.asarray(RNG.integers(0, 64, (count, length)), jnp.int32)


def test_gemma_gives_what_numpy_gives() -> None:
    model, ids = small(), tokens(1, 14)
    wanted = ref.gemma_3(model, np.asarray(ids[0]))
    np.testing.assert_allclose(logits(model, ids)[0], wanted, rtol=1e-3, atol=1e-3)


def test_a_local_layer_sees_its_window_and_no_more() -> None:
    model = models.build("tiny", num_layers=1, window=3)
    ids = tokens(1, 12)
    moved = jnp.abs(model(ids) - model(ids.at[0, 4].add(1))).max((0, 2))
    assert [bool(m > 0) for m in moved] == [4 <= t < 7 for t in range(12)]


def test_the_pattern_repeats_and_may_be_cut_off() -> None:
    def windows(name: str) -> list[int]:
        return [layer.window for layer in models.get(name).pattern]

    assert windows("mistral-7b") == [4096]
    assert windows("llama3.1-8b") == [0]
    assert windows("gemma3-27b") == [1024] * 5 + [0]
    with pytest.raises(ArgumentError, match="window must be a whole number of at least 0"):
        models.get("tiny").replace(window=-1)


def test_every_wave_is_slowed_alike() -> None:
    ratio = angles(4, 8, 1e4, LinearScaling(4.0))[1:] / angles(4, 8, 1e4, None)[1:]
    np.testing.assert_allclose(ratio, 0.25, rtol=1e-6)


VARIANTS: dict[str, dict[str, Any]] = {
    "unrolled": {"scan_layers": False},
    "full": {"remat": "full"},
    "saved by name": {"remat": models.Remat(save=("decoder_layer_input", "context"))},
    "shorter than the pattern": {"num_layers": 2},
    "no rest": {"num_layers": 6, "remat": "full"},
}


def gradients(model: models.Decoder, ids: jax.Array) -> dict[str, jax.Array]:
    state = nnx.jit(nnx.grad(lambda model: LOSS(ids, model(ids))))(model)
    return {".".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(state)}


@functools.cache
def scanned(layers: int) -> tuple[models.Decoder, jax.Array, np.ndarray, dict[str, jax.Array]]:
    """The model as it is by default, tokens, the logits of the first, and gradients of all."""
    model, ids = small(num_layers=layers), tokens()
    return model, ids, ref.gemma_3(model, np.asarray(ids[0])), gradients(model, ids)


@pytest.mark.parametrize("name", VARIANTS)
def test_loops_over_patterns_change_no_number(name: str) -> None:
    plain, ids, wanted, of_plain = scanned(VARIANTS[name].get("num_layers", 8))
    model = small(**VARIANTS[name])
    nnx.update(model, nnx.state(plain))
    np.testing.assert_allclose(logits(model, ids)[0], wanted, rtol=1e-3, atol=1e-3)
    for path, found in gradients(model, ids).items():
        np.testing.assert_allclose(found, of_plain[path], rtol=1e-3, atol=1e-4, err_msg=path)


STRATEGIES = {
    "one CPU": lambda: nx.distribute.OneDeviceStrategy("cpu"),
    "fsdp and tensor": lambda: nx.distribute.TPUStrategy(mesh={"fsdp": 4, "tensor": 2}),
    "data, fsdp and tensor": lambda: nx.distribute.TPUStrategy(
        mesh={"data": 2, "fsdp": 2, "tensor": 2}
    ),
}


def test_gemma_trains_with_fit() -> None:
    rows = (np.arange(17)[None] + np.arange(64)[:, None]) % 8
    x, y = rows[:, :-1].astype(np.int32), rows[:, 1:].astype(np.int32)
    with STRATEGIES["fsdp and tensor"]().scope():
        model = models.build("gemma3-12b", **SMALL, remat="full")
        model.compile(optimizer=nx.optim.Adam(1e-2), loss=LOSS, metrics=["accuracy"])
        history = model.fit(x, y, epochs=6, batch_size=32, verbose=0)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["accuracy"][-1] > 0.9


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("one CPU", True),
        ("one CPU", False),
        ("fsdp and tensor", True),
        ("data, fsdp and tensor", False),
    ],
)
def test_a_loss_in_tiles_trains_as_the_loss_of_all_logits(name: str, tied: bool) -> None:
    ids, targets = np.array(tokens(8, 16)), np.array(tokens(8, 16))
    losses, parameters = [], []
    for kind in (models.Decoder, models.TokenLosses):
        with STRATEGIES[name]().scope():
            nx.seed(0)
            model = kind(models.get("tiny").replace(loss_tiles=4, tie_embeddings=tied))
            whole = kind is models.Decoder
            loss = LOSS if whole else (lambda targets, losses: losses)
            model.compile(optimizer=nx.optim.SGD(0.5), loss=loss)
            x = ids if whole else (ids, targets)
            losses.append(model.fit(x, targets, epochs=2, batch_size=8, verbose=0)["loss"])
        parameters.append({path: np.array(p[...]) for path, p in model.parameters().items()})
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for path, found in parameters[1].items():
        np.testing.assert_allclose(found, parameters[0][path], atol=1e-5, err_msg=path)


def test_tiles_that_do_not_divide_are_refused() -> None:
    model = models.TokenLosses(models.get("tiny").replace(loss_tiles=4))
    with pytest.raises(ShapeError, match="T a multiple of loss_tiles=4"):
        model(tokens(2, 6), tokens(2, 6))
    with pytest.raises(ShapeError, match="of one shape"):
        model(tokens(2, 8), tokens(2, 4))
