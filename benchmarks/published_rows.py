"""The published runs that ``neurenix.models`` can rebuild: model, slice, mesh, recomputation.

One entry for each row of ``neurenix/chips/published_runs.csv``; what is not covered, and why, is
in ``NOT_COVERED``. Options are those of the recipes (tpu-recipes and MaxText, see the table).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import neurenix as nx
from neurenix import models
from neurenix.models.remat import Remat

# Collective matmul off, as the v6e and tpu7x recipes have it; with it on the program of every row
# is slower by the compiler's own cycles (T12: 9.3 s in place of 5.1 s).
_GATHER_FIRST = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}
# Options of Llama 3.1 in MaxText's benchmarks/maxtext_trillium_model_configs.py (@02df1543), as its
# xla_flags_library.py groups them: larger tiles; layouts of reduce-scatters, overlap of sums over
# slices, gathers beside products; and for values on the host.
_V6E = {**_GATHER_FIRST, "xla_tpu_scoped_vmem_limit_kib": 98304}
_V6E_OFFLOAD = {
    **_V6E,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_enable_async_all_gather": True,
    "xla_tpu_use_minor_sharding_for_major_trivial_input": True,
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": 1,
    "xla_tpu_assign_all_reduce_scatter_layout": True,
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
    "xla_tpu_enable_all_experimental_scheduler_features": True,
    "xla_tpu_enable_scheduler_memory_pressure_tracking": True,
    "xla_tpu_host_transfer_overlap_limit": 24,
    "xla_tpu_aggressive_opt_barrier_removal": "ENABLED",
    "xla_lhs_prioritize_async_depth_over_stall": "ENABLED",
    "xla_tpu_enable_ag_backward_pipelining": True,
    "xla_should_allow_loop_variant_parameter_in_chain": "ENABLED",
    "xla_should_add_loop_invariant_op_in_chain": "ENABLED",
    "xla_max_concurrent_host_send_recv": 100,
    "xla_tpu_scheduler_percent_shared_memory_limit": 100,
    "xla_latency_hiding_scheduler_rerun": 2,
}

_QKV = ("query_proj", "key_proj", "value_proj")
_OFFLOAD_QKV = Remat(offload=("decoder_layer_input", *_QKV))
_OFFLOAD_OUT_QKV = Remat(offload=("decoder_layer_input", "out_proj", *_QKV))
_KEEP_CONTEXT_QKV = Remat(save=("decoder_layer_input", "context", *_QKV))
_KEEP_INPUT = Remat(save=("decoder_layer_input",))
_OFFLOAD_INPUT = Remat(offload=("decoder_layer_input",))
_OFFLOAD_INPUT_MLP = Remat(offload=("decoder_layer_input", "mlp_down"))
_OFFLOAD_MLP = Remat(save=("key_proj", "value_proj"), offload=("decoder_layer_input", "mlp_down"))

# Rebuilt after the calibration was fitted and left out of the fit: what it has not seen.
HELD_OUT = ("T4", "I3", "I5", "I11")
NOT_COVERED = {"I2": "DeepSeek 3 with 8-bit products"}


@dataclass(frozen=True)
class Row:
    """How to rebuild one published run."""

    model: str
    slice: str
    mesh: Mapping[str, int]
    remat: Any
    options: Mapping[str, Any] = field(default_factory=lambda: _GATHER_FIRST)
    bfloat16_weights: bool = False
    bfloat16_mu: bool = False
    loss_tiles: int = 1


def _v6e(model: str, chips: int, remat: Any, **more: Any) -> Row:
    options = _V6E if remat == "full" else _V6E_OFFLOAD
    return Row(model, f"v6e-{chips}", {"fsdp": chips}, remat, options, **more)


ROWS = {
    "T1": _v6e("gpt3-175b", 256, "full"),
    "T4": Row(
        "gemma3-12b",
        "2x v6e-256",
        {"data": 2, "fsdp": 256},
        _KEEP_INPUT,
        {**_GATHER_FIRST, "xla_tpu_scoped_vmem_limit_kib": 122880},
        loss_tiles=16,
    ),
    "T8": _v6e("llama3.1-70b", 32, _OFFLOAD_QKV, bfloat16_weights=True),
    "T9": _v6e("llama3.1-70b", 64, _OFFLOAD_QKV),
    "T10": _v6e("llama3.1-70b", 128, _OFFLOAD_QKV),
    "T12": _v6e("llama3.1-8b", 8, _OFFLOAD_OUT_QKV),
    "T14": _v6e("llama3.1-8b", 32, _OFFLOAD_OUT_QKV),
    "T16": _v6e("llama3.1-8b", 128, _OFFLOAD_OUT_QKV),
    "I3": Row("deepseek3-671b", "tpu7x-4x8x8", {"fsdp": 512}, _OFFLOAD_INPUT, bfloat16_mu=True),
    "I5": Row("gemma4-e2b", "tpu7x-4x4x4", {"data": 4, "fsdp": 32}, "full", loss_tiles=8),
    "I11": Row("gpt-oss-120b", "tpu7x-4x8x8", {"data": 8, "fsdp": 64}, _OFFLOAD_INPUT_MLP),
    "I12": Row("llama3.1-405b", "tpu7x-4x8x8", {"fsdp": 512}, _OFFLOAD_MLP, bfloat16_mu=True),
    "I14": Row("llama3.1-70b", "tpu7x-4x4x4", {"fsdp": 128}, _KEEP_CONTEXT_QKV, bfloat16_mu=True),
    "I16": Row("llama3.1-70b", "tpu7x-4x8x8", {"fsdp": 512}, _KEEP_CONTEXT_QKV, bfloat16_mu=True),
    "E1": Row("mt-16b", "v5e-256", {"fsdp": 256}, "full"),
    "E4": Row("mt-16b", "8x v5e-256", {"data": 8, "fsdp": 256}, "full"),
    "E7": Row("mt-32b", "v5e-256", {"fsdp": 256}, "full"),
    "E13": Row("mt-64b", "v5e-256", {"fsdp": 256}, "full"),
    "E16": Row("mt-64b", "8x v5e-256", {"data": 8, "fsdp": 256}, "full"),
    "P6": Row("mt-32b", "v5p:4x4x4", {"fsdp": 16, "tensor": 4}, "minimal"),
    "P8": Row("mt-64b", "v5p:4x4x4", {"fsdp": 16, "tensor": 4}, "minimal"),
    "P12": Row("mt-128b", "v5p:4x8x8", {"fsdp": 32, "tensor": 8}, "minimal"),
    "P16": Row("mt-512b", "v5p:8x8x8", {"fsdp": 64, "tensor": 8}, "full"),
    "V1": Row("mt-22b-v4", "v4:4x4x4", {"fsdp": 64}, "full"),
    "V3": Row("mt-22b-v4", "4x v4:4x4x4", {"data": 4, "fsdp": 64}, "full"),
}


def report_of(
    row: Row, batch_size: int, sequence_length: int, compiler: Any
) -> nx.preflight.Report:
    """Compile a row's training step and return its report."""
    config = models.get(row.model).replace(
        remat=row.remat, logits_dtype="bfloat16", loss_tiles=row.loss_tiles
    )
    tokens = nx.spec((batch_size, sequence_length), "int32")
    tiled = row.loss_tiles > 1
    model = (models.TokenLosses if tiled else models.Decoder).abstract(config)
    if row.bfloat16_weights:
        _cast_parameters(model)
    mu_dtype = jnp.bfloat16 if row.bfloat16_mu else None
    trainer = nx.Trainer(
        model,
        # MaxText's defaults: AdamW with decay 0.1, gradients clipped to a norm of 1.
        optimizer=optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.adamw(3e-5, b1=0.9, b2=0.95, weight_decay=0.1, mu_dtype=mu_dtype),
        ),
        loss=_given if tiled else nx.losses.SparseCategoricalCrossentropy(from_logits=True),
        options=nx.train.TrainOptions(check_gradients=False),
    )
    return nx.preflight(
        trainer,
        (tokens, tokens) if tiled else tokens,
        on=row.slice,
        mesh=row.mesh,
        options=nx.preflight.PreflightOptions(
            compiler=replace(compiler, compiler_options=row.options), suggest=False
        ),
    )


def _given(targets: jax.Array, losses: jax.Array) -> jax.Array:
    del targets
    return losses


def _cast_parameters(model: nnx.Module) -> None:
    for _, variable in nnx.iter_graph(model):
        if isinstance(variable, nnx.Param):
            shape = variable.get_raw_value().shape
            variable.set_raw_value(jax.ShapeDtypeStruct(shape, jnp.bfloat16))
