"""GPT-OSS, DeepSeek 3 and Llama 4: their numbers, what their routers learn, and that they train."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import model_reference as ref
import neurenix as nx
from neurenix import models
from neurenix._core.errors import ArgumentError
from neurenix._nnx import nnx
from neurenix.models import rope
from neurenix.models.experts import Experts

pytestmark = pytest.mark.cpu8

RNG = np.random.default_rng(0)
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
SIZES: dict[str, Any] = {"embed_dim": 32, "num_heads": 4, "vocab_size": 64, "max_length": 64,
                         "dtype": "float32"}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "gpt-oss-20b": {
        **SIZES, "num_layers": 3, "num_kv_heads": 2, "head_dim": 8, "mlp_dim": 24, "window": 4,
        "num_experts": 6, "experts_per_token": 2,
        "rope_scaling": models.YarnScaling(8.0, original_length=4096, truncate=False),
    },
    "deepseek3-671b": {
        **SIZES, "num_layers": 4, "mlp_dim": 16, "dense_mlp_dim": 40, "num_dense_layers": 2,
        "num_experts": 8, "experts_per_token": 3, "expert_groups": 4, "groups_per_token": 2,
        "latent": models.Latent(q_lora_rank=20, kv_lora_rank=12, qk_nope_head_dim=16,
                                qk_rope_head_dim=8, v_head_dim=10),
        "rope_scaling": models.YarnScaling(40.0, original_length=4096),
    },
    "llama4-maverick": {
        **SIZES, "num_layers": 5, "num_kv_heads": 2, "head_dim": 8, "mlp_dim": 24,
        "dense_mlp_dim": 40, "num_experts": 6, "attention_chunk": 5, "temperature_length": 4,
    },
}  # fmt: skip
REFERENCES = {"gpt-oss-20b": ref.gpt_oss, "deepseek3-671b": ref.deepseek_3,
              "llama4-maverick": ref.llama_4}  # fmt: skip


def moved(model: models.Decoder) -> models.Decoder:
    """The model with parameters that all matter: biases and sinks that are not 0."""
    state = nnx.state(model, nnx.Param)
    nnx.update(
        model, jax.tree.map(lambda p: p + RNG.normal(0, 0.3, p.shape).astype(np.float32), state)
    )
    return model


@pytest.mark.parametrize("name", SMALL)
def test_a_decoder_gives_what_numpy_gives(name: str) -> None:
    model = moved(models.build(name, **SMALL[name]))
    ids = jnp.asarray(RNG.integers(0, 64, (1, 14)), jnp.int32)
    wanted = REFERENCES[name](model, np.asarray(ids[0]))
    found = nnx.jit(lambda model, ids: model(ids))(model, ids)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-3, atol=1e-3)


# Also what Transformers gives, whose weights were given to both once (to 1.4e-5): with several
# experts to a token too, whole chunks, and fewer positions than a chunk has.
LLAMA_4: dict[str, dict[str, Any]] = {
    "llama4-scout": {"rope_scaling": models.RopeScaling(16.0, 1.0, 1.0, 16)},
    "llama4-maverick": {"experts_per_token": 2, "rotated_qk_norm": True, "scan_layers": False},
}


@pytest.mark.parametrize("length", [3, 10, 12])
@pytest.mark.parametrize("name", LLAMA_4)
def test_llama_4_gives_what_numpy_gives(name: str, length: int) -> None:
    model = moved(models.build(name, **{**SMALL["llama4-maverick"], **LLAMA_4[name]}))
    ids = RNG.integers(0, 64, length)
    found = nnx.jit(lambda model, ids: model(ids))(model, jnp.asarray(ids)[None])[0]
    np.testing.assert_allclose(found, ref.llama_4(model, ids), rtol=1e-3, atol=1e-3)


def test_chunks_of_an_encoder_see_each_other_as_little() -> None:
    """Nothing that a position of another chunk says, nor what fills up the last, matters."""
    model = models.build(
        "bert-base", **{**SIZES, "num_layers": 2, "mlp_dim": 32}, attention_chunk=5
    )
    ids = jnp.asarray(RNG.integers(0, 64, (2, 12)), jnp.int32)
    found = model(ids)
    for first in (0, 5, 10):
        chunk = slice(first, first + 5)
        others = (ids + 1) % 64
        np.testing.assert_allclose(
            model(others.at[:, chunk].set(ids[:, chunk]))[:, chunk], found[:, chunk], atol=1e-5
        )
    assert np.abs(model((ids + 1) % 64) - found).max() > 0.1
    whole = models.build("bert-base", **{**SIZES, "num_layers": 2, "mlp_dim": 32})
    nnx.update(whole, nnx.state(model))
    np.testing.assert_allclose(whole(ids[:, :5]), found[:, :5], atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_recomputation_changes_no_gradient(name: str) -> None:
    plain = moved(models.build(name, **SMALL[name]))
    ids = jnp.asarray(RNG.integers(0, 64, (2, 12)), jnp.int32)

    def gradients(model: models.Decoder) -> Any:
        return nnx.jit(nnx.grad(lambda model: LOSS(ids, model(ids))))(model)

    wanted = jax.tree.leaves(gradients(plain))
    remat = models.Remat(save=("decoder_layer_input", "mlp_down"))
    model = models.build(name, **SMALL[name], remat=remat)
    nnx.update(model, nnx.state(plain))
    for one, other in zip(jax.tree.leaves(gradients(model)), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("truncate", [False, True])
def test_yarn_slows_the_waves_of_few_turns(truncate: bool) -> None:
    scaling = models.YarnScaling(32.0, original_length=4096, truncate=truncate)
    found = rope.angles(2, 64, 150000.0, scaling)[1]
    np.testing.assert_allclose(found, ref.yarn(64, 150000.0, scaling), rtol=1e-5)


STRATEGIES = {
    "one CPU": lambda: nx.distribute.OneDeviceStrategy("cpu"),
    "fsdp and tensor": lambda: nx.distribute.TPUStrategy(mesh={"fsdp": 4, "tensor": 2}),
}


@pytest.mark.parametrize("name", SMALL)
def test_it_trains_alike_with_fit_on_one_device_and_on_eight(name: str) -> None:
    rows = (np.arange(17)[None] + np.arange(64)[:, None]) % 8
    x, y = rows[:, :-1].astype(np.int32), rows[:, 1:].astype(np.int32)
    losses = []
    for strategy in STRATEGIES.values():
        with strategy().scope():
            nx.seed(0)
            model = models.build(name, **SMALL[name])
            model.compile(optimizer=nx.optim.Adam(1e-2), loss=LOSS, metrics=["accuracy"])
            history = model.fit(x, y, epochs=6, batch_size=32, shuffle=False, verbose=0)
        losses.append(history["loss"])
        assert history["accuracy"][-1] > 0.9
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-2)


def test_only_the_bias_of_the_choice_balances_experts_by_sigmoid() -> None:
    config = models.get("deepseek3-671b").replace(**SMALL["deepseek3-671b"])
    x = jnp.asarray(RNG.normal(size=(2, 16, 32)), jnp.float32)

    def gradient(balance: float) -> Any:
        layer = Experts(config.replace(balance=balance), 16, lead=(), rngs=nnx.Rngs(1))
        return layer, nnx.grad(lambda layer: jnp.sum(layer(x) ** 2))(layer)

    (layer, with_it), (_, without) = gradient(0.5), gradient(0.0)
    chosen = np.asarray(layer.route(x)[1]).reshape(-1)
    fell_on = np.bincount(chosen, minlength=8) / chosen.size
    np.testing.assert_allclose(with_it.choice_bias[...], 0.5 * (fell_on - 1 / 8), atol=1e-6)
    np.testing.assert_array_equal(without.choice_bias[...], 0)
    np.testing.assert_array_equal(with_it.router.kernel[...], without.router.kernel[...])


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_replicas_balance_experts_as_one_device_does(router: str) -> None:
    config = models.get("mixtral-8x7b").replace(
        embed_dim=8, num_heads=2, num_kv_heads=2, mlp_dim=8, num_layers=1, num_experts=4,
        router=router, balance=1.0,
    )  # fmt: skip
    x = RNG.normal(size=(16, 6, 8)).astype(np.float32)

    def step(layer: Experts, optimizer: nx.Optimizer, x: jax.Array) -> None:
        def no_loss(layer: Experts) -> jax.Array:
            return nx.distribute.compute_average_loss(0.0 * jnp.sum(layer(x), axis=(1, 2)))

        optimizer.update(layer, nx.grad(no_loss)(layer))

    strategy, after = nx.distribute.TPUStrategy(), []
    for run in (nx.jit(step), lambda *args: strategy.run(step, args=args)):
        layer = Experts(config, 8, lead=(), rngs=nnx.Rngs(1))
        before = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(layer, nnx.Param)))
        batch = x if not after else next(iter(strategy.distribute([x])))
        run(layer, nx.Optimizer(layer, nx.optim.SGD(1.0)), batch)
        now = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
        after.append(jax.tree.map(lambda a, b: np.asarray(a) - b, now, before))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(after[0])) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *after)


def test_sizes_that_cannot_be_are_refused() -> None:
    deepseek = models.get("deepseek3-671b")
    with pytest.raises(ArgumentError, match="expert_groups=7 must divide"):
        deepseek.replace(expert_groups=7)
    with pytest.raises(ArgumentError, match="must leave some of num_layers=61"):
        deepseek.replace(num_dense_layers=61)
    for option in ({"sinks": True}, {"attention_softcap": 50.0}, {"attention_chunk": 64}):
        with pytest.raises(ArgumentError, match=f"latent attention has no {next(iter(option))}"):
            deepseek.replace(**option)
    llama = models.get("llama4-maverick")
    with pytest.raises(ArgumentError, match="has a window or chunks; got window=8 and"):
        llama.replace(window=8)
    with pytest.raises(ArgumentError, match="dense_mlp_dim must be a whole number of at least 1"):
        llama.replace(dense_mlp_dim=0)
    with pytest.raises(ArgumentError, match="experts_every must be a whole number of at least 1"):
        llama.replace(experts_every=0)
    with pytest.raises(ArgumentError, match="experts_every=2 needs layers with experts"):
        models.get("tiny").replace(experts_every=2)
    with pytest.raises(ArgumentError, match="combined with global_every or experts_every"):
        deepseek.replace(experts_every=2)
    with pytest.raises(ArgumentError, match="routed_scaling=2.5 is the sum of the weights"):
        llama.replace(routed_scaling=2.5)
    for bound in ("attention_softcap", "logits_softcap"):
        for value in (-1.0, float("nan"), "50", True):
            with pytest.raises(ArgumentError, match=f"{bound} must be a number of at least 0"):
                models.get("tiny").replace(**{bound: value})
    with pytest.raises(ArgumentError, match="experts_per_token=8 must be in 1 … 4, .* of 8 groups"):
        deepseek.replace(num_experts=8)
    with pytest.raises(ArgumentError, match="expert_groups=8 needs router='sigmoid'"):
        deepseek.replace(router="softmax")
    with pytest.raises(ArgumentError, match="num_shared_experts=1 needs experts"):
        models.get("tiny").replace(num_shared_experts=1)
