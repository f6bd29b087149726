"""Models under the real TPU compiler: sharded, with experts, with activations on the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

import neurenix as nx
from neurenix import models
from neurenix.compiler.flops import model_flops
from neurenix.nn import splash_attention
from neurenix.preflight import CompileOptions, PreflightOptions, Report

pytestmark = [pytest.mark.tpu_compile, pytest.mark.newest]

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
BATCH = (8, 256)
SIZES = {"num_layers": 2, "embed_dim": 256, "num_heads": 4, "num_kv_heads": 2, "head_dim": 128,
         "mlp_dim": 512, "vocab_size": 512, "max_length": 256, "dtype": "bfloat16"}  # fmt: skip


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> PreflightOptions:
    directory = tmp_path_factory.mktemp("cache")
    return PreflightOptions(compiler=CompileOptions(cache_directory=directory))


def preflight(options: PreflightOptions, on: str, mesh: dict[str, int], **changes: Any) -> Report:
    model = models.abstract("tiny", **{**SIZES, **changes})
    model.compile(optimizer=nx.optim.AdamW(1e-3), loss=LOSS)
    return nx.preflight(model, nx.spec(BATCH, "int32"), on=on, mesh=mesh, options=options)


def test_a_decoder_of_shapes_compiles_divided_over_two_axes(options: PreflightOptions) -> None:
    report = preflight(options, "v5e-8", {"fsdp": 4, "tensor": 2})
    assert report.fits
    share = 4 * models.abstract("tiny", **SIZES).num_parameters / 8
    assert report.hbm.roles["parameters"] == pytest.approx(share, rel=0.02)
    kernels = {o.name.split("_")[2]: o.flops for o in report.operations if "splash" in o.name}
    batch, length = BATCH
    product = 2 * batch * SIZES["num_heads"] * length**2 * SIZES["head_dim"] / 8
    layers = SIZES["num_layers"]
    assert kernels == {"fwd": 2 * product * layers, "dkv": 5 * product * layers}


def test_named_values_wait_on_the_host(options: PreflightOptions) -> None:
    names = ("decoder_layer_input", "query_proj", "key_proj", "value_proj", "out_proj")
    report = preflight(
        options, "v6e-8", {"fsdp": 8}, remat=models.Remat(save=("context",), offload=names)
    )
    assert report.fits


@pytest.mark.parametrize("on", ["v3-8", "v4-8"])
def test_bfloat16_attention_where_kernels_cannot_multiply_it(
    options: PreflightOptions, on: str
) -> None:
    report = preflight(options, on, {"data": 8 if on == "v3-8" else 4})
    assert report.fits, report.refused
    kernels = [o.name for o in report.operations if "splash" in o.name]
    assert bool(kernels) == (on == "v4-8")


@pytest.mark.parametrize("causal", [True, False])
def test_model_flops_of_attention_count_a_causal_mask_half_and_no_recomputation(
    causal: bool,
) -> None:
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,))
    query = jnp.zeros((2, 512, 8, 128), jnp.bfloat16)
    key = jnp.zeros((2, 512, 4, 128), jnp.bfloat16)

    def total(query: Any, key: Any, value: Any) -> Any:
        return (
            splash_attention.attention(query, key, value, causal=causal).astype(jnp.float32).sum()
        )

    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(query, key, key)
    forward = 2 * (2 * 2 * 8 * 512 * 512 * 128)
    wanted = 3 * forward * (0.5 if causal else 1.0)
    assert model_flops(traced) == pytest.approx(wanted, rel=2e-3)


def test_model_flops_of_attention_count_what_lies_in_a_window() -> None:
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,))
    query = jnp.zeros((2, 512, 8, 192), jnp.bfloat16)
    value = jnp.zeros((2, 512, 8, 128), jnp.bfloat16)

    def total(query: Any, key: Any, value: Any) -> Any:
        found = splash_attention.attention(query, key, value, causal=True, window=100)
        return found.astype(jnp.float32).sum()

    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(query, query, value)
    seen = sum(min(t + 1, 100) for t in range(512))
    wanted = 3 * 2 * 2 * 8 * seen * (192 + 128)
    assert model_flops(traced) == pytest.approx(wanted, rel=2e-3)


def test_windows_of_a_pattern_have_kernels_of_their_own(options: PreflightOptions) -> None:
    report = preflight(
        options, "v5e-8", {"fsdp": 4, "tensor": 2}, num_layers=3, window=100, global_every=2
    )
    assert report.fits
    kernels = [o for o in report.operations if "splash" in o.name and "fwd" in o.name]
    product = 2 * BATCH[0] * SIZES["num_heads"] * BATCH[1] ** 2 * SIZES["head_dim"] / 8
    assert sum(o.flops for o in kernels) == 2 * product * 3


def test_heads_of_two_sizes_have_kernels_of_their_own(options: PreflightOptions) -> None:
    sizes = {"num_layers": 4, "global_every": 2, "embed_dim": 256, "num_heads": 2, "mlp_dim": 256,
             "kv_shared_mlp_dim": 512, "num_kv_shared_layers": 2, "window": 128, "max_length": 256,
             "vocab_size": 512, "per_layer_input_dim": 128}  # fmt: skip
    model = models.abstract("gemma4-e2b", **sizes)
    model.compile(optimizer="sgd", loss=LOSS)
    mesh = {"fsdp": 4, "tensor": 2}
    report = nx.preflight(model, nx.spec(BATCH, "int32"), on="v5e-8", mesh=mesh, options=options)
    assert report.fits, report.refused
    kernels = [o.flops for o in report.operations if "splash" in o.name and "fwd" in o.name]
    product = 2 * BATCH[0] * sizes["num_heads"] * BATCH[1] ** 2 / 8
    layers = 2 * 256 + 2 * 512  # two of each size
    assert sum(kernels) == 2 * product * layers


@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek3-671b", "llama4-maverick"])
def test_models_of_experts_compile_divided(options: PreflightOptions, name: str) -> None:
    sizes = {"num_layers": 2, "embed_dim": 256, "num_heads": 4, "vocab_size": 512,
             "mlp_dim": 128, "num_experts": 8, "max_length": 256}  # fmt: skip
    own = {"gpt-oss-20b": {"num_kv_heads": 2, "remat": "full"},
           "deepseek3-671b": {"num_dense_layers": 1, "dense_mlp_dim": 512,
                              "experts_per_token": 3},
           "llama4-maverick": {"num_kv_heads": 2, "head_dim": 128, "dense_mlp_dim": 512,
                               "global_every": 2, "attention_chunk": 128}}  # fmt: skip
    model = models.abstract(name, **{**sizes, **own[name]})
    model.compile(optimizer="sgd", loss=LOSS)
    mesh = {"fsdp": 4, "tensor": 2}
    report = nx.preflight(model, nx.spec(BATCH, "int32"), on="v5e-8", mesh=mesh, options=options)
    assert report.fits, report.refused
    assert any("splash" in o.name for o in report.operations)
