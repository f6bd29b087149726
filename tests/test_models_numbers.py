"""Models against NumPy, GPT-2 to ResNet; first values, and options that were published."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import model_reference as ref
from neurenix import models
from neurenix._nnx import nnx
from neurenix.models.layers import activate

pytestmark = pytest.mark.cpu8

RNG = np.random.default_rng(0)
SIZES: dict[str, Any] = {
    "num_layers": 2, "embed_dim": 16, "num_heads": 2, "mlp_dim": 24, "dtype": "float32",
}  # fmt: skip
OF_TEXT = {**SIZES, "vocab_size": 30, "max_length": 12}


def stirred(name: str, **changes: Any) -> Any:
    """The model in evaluation, with parameters and statistics that all matter."""
    model = models.build(name, **changes).eval()

    def move(kind: type, draw: Any) -> None:
        state = nnx.state(model, kind)
        nnx.update(model, jax.tree.map(lambda p: p + jnp.float32(draw(0, 0.2, p.shape)), state))

    move(nnx.Param, RNG.normal)
    move(nnx.BatchStat, RNG.uniform)
    return model


@nnx.jit
def called(model: Any, *inputs: jax.Array) -> jax.Array:
    return model(*inputs)


def test_gpt2_gives_what_numpy_gives() -> None:
    model, ids = stirred("gpt2", **OF_TEXT), RNG.integers(0, 30, 9)
    found = called(model, jnp.asarray(ids)[None])[0]
    np.testing.assert_allclose(found, ref.gpt2(model, ids), rtol=1e-3, atol=1e-3)


OF_GROUPS = {**OF_TEXT, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("tiles", [1, 3])
def test_gemma_2_gives_what_numpy_gives(tiles: int) -> None:
    """The bounds are so low that they change every number."""
    small = {"window": 3, "attention_softcap": 0.7, "logits_softcap": 1.5,
             "query_pre_attn_scalar": 5, "loss_tiles": tiles}  # fmt: skip
    model, ids = stirred("gemma2-27b", **OF_GROUPS, **small), RNG.integers(0, 30, 9)
    wanted = ref.gemma_2(model, ids)
    assert np.abs(wanted).max() > 1.2
    if tiles == 1:
        found = called(model, jnp.asarray(ids)[None])[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
        return
    losses = models.TokenLosses(model.config)
    nnx.update(losses, nnx.state(model))
    targets = RNG.integers(0, 30, 9)
    found = called(losses, jnp.asarray(ids)[None], jnp.asarray(targets)[None])[0]
    of_targets = special.logsumexp(wanted, axis=-1) - wanted[np.arange(9), targets]
    np.testing.assert_allclose(found, of_targets, rtol=1e-3, atol=1e-3)


GEMMA_4 = {
    "gemma4-e2b": {"num_layers": 9, "num_kv_shared_layers": 3, "kv_shared_mlp_dim": 40,
                   "per_layer_input_dim": 6,
                   "full_attention": models.FullAttention(head_dim=16, rope_proportion=0.25)},
    "gemma4-e4b": {"num_layers": 8, "num_kv_shared_layers": 2, "per_layer_input_dim": 0,
                   "full_attention": None},
    "gemma4-31b": {"num_layers": 7, "full_attention": models.FullAttention(
                   head_dim=16, num_kv_heads=1, key_is_value=True, rope_proportion=0.5)},
    "gemma4-26b-a4b": {"num_layers": 3, "num_experts": 6, "experts_per_token": 2,
                       "parallel_mlp_dim": 20,
                       "full_attention": models.FullAttention(head_dim=16)},
}  # fmt: skip


@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize("name", GEMMA_4)
def test_gemma_4_gives_what_numpy_gives(name: str, scan_layers: bool) -> None:
    """Also what Transformers gives, whose weights were given to both once (to 1e-5)."""
    small = {"window": 3, "global_every": 3, "logits_softcap": 1.5, "scan_layers": scan_layers}
    model = stirred(name, **{**OF_GROUPS, **small, **GEMMA_4[name]})
    ids = RNG.integers(0, 30, 9)
    found = called(model, jnp.asarray(ids)[None])[0]
    np.testing.assert_allclose(found, ref.gemma_4(model, ids), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["qwen3-4b", "qwen3-30b-a3b"])
def test_qwen_3_gives_what_numpy_gives(name: str) -> None:
    own = {"num_experts": 6, "experts_per_token": 3} if "a3b" in name else {}
    model = stirred(name, **OF_GROUPS, tie_embeddings=True, **own)
    ids = RNG.integers(0, 30, 9)
    found = called(model, jnp.asarray(ids)[None])[0]
    np.testing.assert_allclose(found, ref.qwen_3(model, ids), rtol=1e-3, atol=1e-3)


def test_bert_gives_what_numpy_gives() -> None:
    model = stirred("bert-base", **OF_TEXT)
    ids, kinds = RNG.integers(0, 30, 9), RNG.integers(0, 2, 9)
    found = called(model, jnp.asarray(ids)[None], jnp.asarray(kinds)[None])[0]
    np.testing.assert_allclose(found, ref.bert(model, ids, kinds), rtol=1e-3, atol=1e-3)


def test_a_vision_transformer_gives_what_numpy_gives() -> None:
    model = stirred("vit-b16", **SIZES, image_size=12, patch_size=4, num_classes=5)
    image = RNG.normal(size=(12, 12, 3))
    found = called(model, jnp.asarray(image, jnp.float32)[None])[0]
    np.testing.assert_allclose(found, ref.vit(model, image), rtol=1e-3, atol=1e-3)


def test_a_residual_network_gives_what_numpy_gives() -> None:
    model = stirred("resnet50", blocks=(1, 2), width=2, num_classes=5, dtype="float32")
    images = RNG.normal(size=(1, 20, 20, 3))
    found = called(model, jnp.asarray(images, jnp.float32))
    wanted = ref.resnet(model, images, strides=(1, 2, 1))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_gelu_is_exact_where_no_tanh_is_asked_for() -> None:
    x = np.linspace(-3, 3, 9)
    np.testing.assert_allclose(activate("gelu", jnp.float32(x)), ref.exact_gelu(x), atol=1e-5)
    np.testing.assert_allclose(activate("gelu_tanh", jnp.float32(x)), ref.gelu(x), atol=1e-5)


def test_logits_have_the_dtype_that_is_asked_for() -> None:
    model = models.abstract("tiny", logits_dtype="bfloat16")
    ids = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    assert nnx.eval_shape(lambda model, ids: model(ids), model, ids).dtype == jnp.bfloat16


def test_llamas_waves_are_slowed_by_their_length() -> None:
    frequency, scaling = 5e5 ** -(np.arange(64) / 64), models.RopeScaling()
    wanted = ref.llama_3(frequency, scaling)
    np.testing.assert_allclose(scaling.slowed(frequency), wanted, rtol=1e-6)


def test_what_is_added_to_the_stream_starts_smaller_the_more_layers_there_are() -> None:
    model = models.build("tiny", num_layers=8)
    layers, of_embed, of_mlp = model.layers, 64**-0.5, 128**-0.5
    for parameter, deviation in (
        (model.embedding, 0.02),
        (layers.attention.query.kernel, of_embed),
        (layers.attention.out.kernel, of_embed / 4),
        (layers.mlp.down.kernel, of_mlp / 4),
    ):
        assert float(np.std(parameter[...])) == pytest.approx(deviation, rel=0.05)


# Of the config.json of each release; sizes are held by the counts of parameters.
FACTS: dict[str, dict[str, Any]] = {
    "llama3.1-8b": {"rope_theta": 5e5, "norm_eps": 1e-5, "num_kv_heads": 8},
    "gpt-oss-20b": {"experts_per_token": 4, "window": 128, "rope_theta": 150000.0, "sinks": True},
    "deepseek3-671b": {"experts_per_token": 8, "routed_scaling": 2.5, "expert_groups": 8,
                       "groups_per_token": 4, "num_dense_layers": 3},
    "mixtral-8x7b": {"experts_per_token": 2, "rope_theta": 1e6},
    "gemma3-27b": {"query_pre_attn_scalar": 168, "window": 1024, "global_every": 6,
                   "rope_theta": 1e6, "rope_local_theta": 1e4, "norm_eps": 1e-6},
    "gemma-7b": {"rope_theta": 1e4, "norm_eps": 1e-6, "activation": "gelu_tanh", "window": 0,
                 "post_norm": False, "scale_embeddings": True},
    "gemma2-9b": {"attention_softcap": 50.0, "logits_softcap": 30.0, "window": 4096,
                  "global_every": 2,
                  "rope_theta": 1e4, "query_factor": 1.0},
    "gemma2-27b": {"query_pre_attn_scalar": 144},
    "gemma4-e2b": {"query_pre_attn_scalar": 1, "window": 512, "global_every": 5,
                   "num_kv_shared_layers": 20, "full_attention": models.FullAttention(
                       head_dim=512, rope_proportion=0.25)},
    "llama4-scout": {"rope_theta": 5e5, "attention_chunk": 8192, "temperature_length": 8192,
                     "rotated_qk_norm": True, "experts_every": 1, "max_length": 10 * 2**20,
                     "rope_scaling": models.RopeScaling(16.0, 1.0, 1.0, 8192)},
    "llama4-maverick": {"rotated_qk_norm": False, "experts_every": 2, "global_every": 4,
                        "rope_scaling": None, "max_length": 2**20},
    "gemma4-31b": {"window": 1024, "global_every": 6, "rope_theta": 1e6, "rope_local_theta": 1e4},
    "llama3.2-1b": {"rope_scaling": models.RopeScaling(factor=32.0), "rope_theta": 5e5,
                    "tie_embeddings": True},
    "qwen3-235b-a22b": {"rope_theta": 1e6, "norm_eps": 1e-6, "qk_norm": True, "num_kv_heads": 4,
                        "experts_per_token": 8, "tie_embeddings": False},
    "bert-base": {"norm_eps": 1e-12, "norm_first": False},
    "gpt2": {"activation": "gelu_tanh", "norm_eps": 1e-5},
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_a_published_model_has_its_published_options(name: str) -> None:
    config = models.get(name)
    assert {option: getattr(config, option) for option in FACTS[name]} == FACTS[name]
