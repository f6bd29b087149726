"""The models of nx.models as files of ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neurenix import models
from neurenix._nnx import nnx
from onnx_export import agree, array

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]

SMALL: dict[str, Any] = {
    "num_layers": 3, "embed_dim": 32, "num_heads": 4, "mlp_dim": 48, "vocab_size": 40,
    "max_length": 64, "dtype": "float32",
}  # fmt: skip
GROUPED = {**SMALL, "num_kv_heads": 2, "head_dim": 8}
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"dtype": "float32"},
    "gpt2": SMALL,
    "llama3.1-8b": GROUPED,
    "llama4-maverick": {
        **GROUPED, "num_layers": 5, "mlp_dim": 24, "dense_mlp_dim": 40, "num_experts": 6,
        "attention_chunk": 5, "temperature_length": 4,
    },
    "gemma2-2b": {**GROUPED, "window": 4},
    "gemma3-4b": {**GROUPED, "window": 4, "num_layers": 7},
    "gemma4-e2b": {
        **GROUPED, "num_layers": 7, "global_every": 2, "num_kv_shared_layers": 3,
        "kv_shared_mlp_dim": 40, "per_layer_input_dim": 6, "window": 4,
        "full_attention": models.FullAttention(head_dim=16),
    },
    "qwen3-0.6b": GROUPED,
    "gpt-oss-20b": {**GROUPED, "window": 4, "num_experts": 6, "experts_per_token": 2},
    "deepseek3-671b": {
        **SMALL, "num_layers": 4, "mlp_dim": 16, "dense_mlp_dim": 40, "num_dense_layers": 2,
        "num_experts": 8, "experts_per_token": 3, "expert_groups": 4, "groups_per_token": 2,
        "latent": models.Latent(q_lora_rank=20, kv_lora_rank=12, qk_nope_head_dim=16,
                                qk_rope_head_dim=8, v_head_dim=10),
    },
    "mixtral-8x7b": {**GROUPED, "num_experts": 4, "experts_per_token": 2},
    "bert-base": SMALL,
    "vit-b16": {
        **{k: v for k, v in SMALL.items() if k not in ("vocab_size", "max_length")},
        "image_size": 16, "patch_size": 8, "num_classes": 4,
    },
    "resnet50": {"blocks": (1, 2), "width": 8, "num_classes": 4, "dtype": "float32"},
}  # fmt: skip


def inputs_of(name: str) -> np.ndarray:
    if name == "vit-b16":
        return array(2, 16, 16, 3)
    if name == "resnet50":
        return array(2, 32, 32, 3)
    return np.random.default_rng(0).integers(0, 40, (2, 12)).astype(np.int32)


def moved(model: Any) -> Any:
    """Change all weights, so that none is zero or one."""

    def shift(leaf: jax.Array) -> jax.Array:
        noise = np.random.default_rng(leaf.size).uniform(0.01, 0.1, leaf.shape)
        return leaf + jnp.asarray(noise, leaf.dtype)

    nnx.update(model, jax.tree.map(shift, nnx.state(model, nnx.Param)))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_model_agrees(name: str, tmp_path: Path) -> None:
    model = moved(models.build(name, **MODELS[name]))
    exported = agree(model, tmp_path / "model.onnx", inputs_of(name), tolerance=1e-4)
    initializers = {one.name for one in exported.graph.initializer}
    assert {*model.parameters()} <= initializers
