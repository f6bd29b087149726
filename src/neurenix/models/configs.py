"""Configurations of published models, by name.

Sizes of the MaxText models are those of its ``configs/models/*.yml`` and of its scaling rule
(``global_parameter_scale``); the v4 models have a plain MLP, MaxText's default at that time.
"""

from __future__ import annotations

from typing import Any

from neurenix._core.errors import unknown_name
from neurenix.models.decoder import Decoder, DecoderConfig
from neurenix.models.encoder import Encoder, EncoderConfig
from neurenix.models.resnet import ResNet, ResNetConfig
from neurenix.models.rope import LinearScaling, RopeScaling, YarnScaling
from neurenix.models.stack import FullAttention, Latent
from neurenix.models.vision import VisionConfig, VisionTransformer


def _llama(name: str, layers: int, embed: int, heads: int, mlp: int, **more: Any) -> DecoderConfig:
    return DecoderConfig(
        name=name, num_layers=layers, embed_dim=embed, num_heads=heads, mlp_dim=mlp,
        **{"head_dim": 128, "vocab_size": 32000, "max_length": 4096, **more},
    )  # fmt: skip


def _gemma_3(
    name: str, layers: int, embed: int, heads: int, mlp: int, **more: Any
) -> DecoderConfig:
    return _llama(name, layers, embed, heads, mlp, **{**_GEMMA_3, **more})


def _gemma_2(
    name: str, layers: int, embed: int, heads: int, mlp: int, **more: Any
) -> DecoderConfig:
    return _llama(name, layers, embed, heads, mlp, **{**_GEMMA_2, **more})


def _gemma_4(
    name: str, layers: int, embed: int, heads: int, mlp: int, **more: Any
) -> DecoderConfig:
    return _llama(name, layers, embed, heads, mlp, **{**_GEMMA_4, **more})


def _gemma_4_full(**more: Any) -> FullAttention:
    return FullAttention(head_dim=512, rope_proportion=0.25, **more)


def _qwen_3(name: str, layers: int, embed: int, heads: int, mlp: int, **more: Any) -> DecoderConfig:
    return _llama(name, layers, embed, heads, mlp, **{**_QWEN_3, **more})


def _gpt_oss(name: str, layers: int, experts: int) -> DecoderConfig:
    """GPT-OSS: OpenAI 2025, model card, table 1, and the published config.json."""
    return DecoderConfig(
        name=name, num_layers=layers, embed_dim=2880, num_heads=64, num_kv_heads=8, head_dim=64,
        mlp_dim=2880, mlp="clamped", bias=True, sinks=True, window=128, global_every=2,
        num_experts=experts, experts_per_token=4, vocab_size=201088, max_length=131072,
        rope_theta=150000.0, rope_scaling=YarnScaling(truncate=False),
    )  # fmt: skip


# Grattafiori et al. 2024, table 3, and the published config.json of each size.
_LLAMA_3_1: dict[str, Any] = {
    "num_kv_heads": 8, "vocab_size": 128256, "max_length": 131072, "rope_theta": 500000.0,
    "rope_scaling": RopeScaling(),
}  # fmt: skip
_LLAMA_3_2 = {**_LLAMA_3_1, "rope_scaling": RopeScaling(factor=32.0), "tie_embeddings": True}
# Gemma Team 2024, and the published config.json of each size: the first Gemma, and Gemma 2.
_GEMMA: dict[str, Any] = {
    "head_dim": 256, "vocab_size": 256000, "max_length": 8192, "activation": "gelu_tanh",
    "norm_eps": 1e-6, "scale_embeddings": True, "tie_embeddings": True,
}  # fmt: skip
_GEMMA_2: dict[str, Any] = {
    **_GEMMA, "post_norm": True, "window": 4096, "global_every": 2, "attention_softcap": 50.0,
    "logits_softcap": 30.0,
}  # fmt: skip
# Qwen Team 2025, tables 1 and 2, and the published config.json of each size.
_QWEN_3: dict[str, Any] = {
    "num_kv_heads": 8, "vocab_size": 151936, "max_length": 40960, "norm_eps": 1e-6,
    "qk_norm": True, "rope_theta": 1e6,
}  # fmt: skip
_QWEN_3_MOE: dict[str, Any] = {"num_kv_heads": 4, "num_experts": 128, "experts_per_token": 8,
                               "balance": 0.001}  # fmt: skip
# Gemma Team 2025, and the published config.json of each size; text input only.
_GEMMA_3: dict[str, Any] = {
    "head_dim": 256, "vocab_size": 262144, "max_length": 131072, "activation": "gelu_tanh",
    "norm_eps": 1e-6, "post_norm": True, "qk_norm": True, "window": 1024, "global_every": 6,
    "rope_theta": 1e6, "rope_local_theta": 1e4, "rope_scaling": LinearScaling(8.0),
    "scale_embeddings": True, "tie_embeddings": True,
}  # fmt: skip
# Gemma Team 2026, the published config.json of each size, and ``Gemma4TextConfig`` of Transformers;
# text input only.
_GEMMA_4: dict[str, Any] = {
    "head_dim": 256, "vocab_size": 262144, "max_length": 131072, "activation": "gelu_tanh",
    "norm_eps": 1e-6, "post_norm": True, "qk_norm": True, "value_norm": True,
    "query_pre_attn_scalar": 1, "output_scale": True, "logits_softcap": 30.0, "rope_theta": 1e6,
    "rope_local_theta": 1e4, "scale_embeddings": True, "tie_embeddings": True,
}  # fmt: skip
_GEMMA_4_SMALL = {**_GEMMA_4, "window": 512, "full_attention": _gemma_4_full(),
                  "per_layer_input_dim": 256}  # fmt: skip
# Meta 2025, the published config.json of each size, and ``Llama4TextConfig`` of Transformers; text
# input only. The balance is Transformers' ``router_aux_loss_coef``.
_LLAMA_4: dict[str, Any] = {
    "num_kv_heads": 8, "vocab_size": 202048, "rope_theta": 500000.0, "attention_chunk": 8192,
    "global_every": 4, "full_attention": FullAttention(rope_proportion=0.0),
    "temperature_length": 8192, "experts_per_token": 1, "num_shared_experts": 1,
    "router": "sigmoid_input", "balance": 0.001,
}  # fmt: skip
# MaxText's base.yml: one vocabulary; max_length is the length used in the published runs.
_MAXTEXT: dict[str, Any] = {"max_length": 8192}
_MAXTEXT_V4: dict[str, Any] = {**_MAXTEXT, "head_dim": 256, "mlp": "plain"}
_MOE: dict[str, Any] = {"num_kv_heads": 8, "num_experts": 8, "experts_per_token": 2,
                        "rope_theta": 1e6}  # fmt: skip

_DECODERS = (
    DecoderConfig(
        name="tiny", num_layers=2, embed_dim=64, num_heads=4, num_kv_heads=2, mlp_dim=128,
        vocab_size=256, max_length=256, dtype="float32",
    ),
    # Radford et al. 2019; the smallest of four.
    DecoderConfig(
        name="gpt2", num_layers=12, embed_dim=768, num_heads=12, mlp_dim=3072, vocab_size=50257,
        max_length=1024, mlp="plain", activation="gelu_tanh", norm="layer", bias=True,
        positions="learned", tie_embeddings=True,
    ),
    # Brown et al. 2020, table 2.1, with MaxText's vocabulary and position table.
    DecoderConfig(
        name="gpt3-175b", num_layers=96, embed_dim=12288, num_heads=96, mlp_dim=49152,
        vocab_size=50304, max_length=16384, mlp="plain", activation="gelu_tanh", norm="layer",
        bias=True, positions="learned", tie_embeddings=True,
    ),
    _llama("llama2-7b", 32, 4096, 32, 11008),
    _llama("llama2-13b", 40, 5120, 40, 13824),
    _llama("llama2-70b", 80, 8192, 64, 28672, num_kv_heads=8),
    _llama("llama3.1-8b", 32, 4096, 32, 14336, **_LLAMA_3_1),
    _llama("llama3.1-70b", 80, 8192, 64, 28672, **_LLAMA_3_1),
    _llama("llama3.1-405b", 126, 16384, 128, 53248, **_LLAMA_3_1),
    # Llama 3.2's model card, and the published config.json of each size; text only.
    _llama("llama3.2-1b", 16, 2048, 32, 8192, **_LLAMA_3_2, head_dim=64),
    _llama("llama3.2-3b", 28, 3072, 24, 8192, **_LLAMA_3_2),
    _llama("llama4-scout", 48, 5120, 40, 8192, **_LLAMA_4, num_experts=16, rotated_qk_norm=True,
           max_length=10485760, rope_scaling=RopeScaling(factor=16.0, high=1.0)),
    _llama("llama4-maverick", 48, 5120, 40, 8192, **_LLAMA_4, num_experts=128, experts_every=2,
           dense_mlp_dim=16384, max_length=1048576),
    _llama("gemma-2b", 18, 2048, 8, 16384, **_GEMMA, num_kv_heads=1),
    _llama("gemma-7b", 28, 3072, 16, 24576, **_GEMMA),
    _gemma_2("gemma2-2b", 26, 2304, 8, 9216, num_kv_heads=4),
    _gemma_2("gemma2-9b", 42, 3584, 16, 14336, num_kv_heads=8),
    _gemma_2("gemma2-27b", 46, 4608, 32, 36864, num_kv_heads=16, head_dim=128,
             query_pre_attn_scalar=144),
    _gemma_3("gemma3-1b", 26, 1152, 4, 6912, num_kv_heads=1, window=512, max_length=32768,
             rope_scaling=None),
    _gemma_3("gemma3-4b", 34, 2560, 8, 10240, num_kv_heads=4),
    _gemma_3("gemma3-12b", 48, 3840, 16, 15360, num_kv_heads=8),
    _gemma_3("gemma3-27b", 62, 5376, 32, 21504, num_kv_heads=16, head_dim=128,
             query_pre_attn_scalar=168),
    _gemma_4("gemma4-e2b", 35, 1536, 8, 6144, **_GEMMA_4_SMALL, num_kv_heads=1, global_every=5,
             num_kv_shared_layers=20, kv_shared_mlp_dim=12288),
    _gemma_4("gemma4-e4b", 42, 2560, 8, 10240, **_GEMMA_4_SMALL, num_kv_heads=2, global_every=6,
             num_kv_shared_layers=18),
    _gemma_4("gemma4-31b", 60, 5376, 32, 21504, num_kv_heads=16, window=1024, global_every=6,
             max_length=262144,
             full_attention=_gemma_4_full(num_kv_heads=4, key_is_value=True)),
    _gemma_4("gemma4-26b-a4b", 30, 2816, 16, 704, num_kv_heads=8, window=1024, global_every=6,
             max_length=262144, num_experts=128, experts_per_token=8, parallel_mlp_dim=2112,
             balance=0.001,
             full_attention=_gemma_4_full(num_kv_heads=2, key_is_value=True)),
    _qwen_3("qwen3-0.6b", 28, 1024, 16, 3072, tie_embeddings=True),
    _qwen_3("qwen3-1.7b", 28, 2048, 16, 6144, tie_embeddings=True),
    _qwen_3("qwen3-4b", 36, 2560, 32, 9728, tie_embeddings=True),
    _qwen_3("qwen3-8b", 36, 4096, 32, 12288),
    _qwen_3("qwen3-14b", 40, 5120, 40, 17408),
    _qwen_3("qwen3-32b", 64, 5120, 64, 25600),
    _qwen_3("qwen3-30b-a3b", 48, 2048, 32, 768, **_QWEN_3_MOE),
    _qwen_3("qwen3-235b-a22b", 94, 4096, 64, 1536, **_QWEN_3_MOE),
    _gpt_oss("gpt-oss-20b", 24, 32),
    _gpt_oss("gpt-oss-120b", 36, 128),
    # DeepSeek-AI 2024, DeepSeek-V3, section 4.2, without multi-token prediction.
    _llama(
        "deepseek3-671b", 61, 7168, 128, 2048, latent=Latent(), vocab_size=129280,
        max_length=163840, norm_eps=1e-6, num_experts=256, experts_per_token=8,
        num_shared_experts=1, num_dense_layers=3, dense_mlp_dim=18432, router="sigmoid",
        expert_groups=8, groups_per_token=4, routed_scaling=2.5,
        rope_scaling=YarnScaling(factor=40.0),
    ),
    # Jiang et al. 2023 and 2024.
    _llama("mistral-7b", 32, 4096, 32, 14336, num_kv_heads=8, max_length=32768, window=4096),
    _llama("mixtral-8x7b", 32, 4096, 32, 14336, max_length=32768, **_MOE),
    _llama("mixtral-8x22b", 56, 6144, 48, 16384, vocab_size=32768, max_length=65536, **_MOE),
    _llama("mt-16b", 32, 4096, 64, 28672, **_MAXTEXT),
    _llama("mt-32b", 32, 8192, 64, 28672, **_MAXTEXT),
    _llama("mt-64b", 64, 8192, 64, 28672, **_MAXTEXT),
    _llama("mt-128b", 64, 8192, 128, 57344, **_MAXTEXT),
    _llama("mt-256b", 64, 16384, 128, 57344, **_MAXTEXT),
    _llama("mt-512b", 128, 16384, 128, 57344, **_MAXTEXT),
    _llama("mt-1024b", 128, 16384, 256, 114688, **_MAXTEXT),
    DecoderConfig(name="mt-22b-v4", num_layers=48, embed_dim=6144, num_heads=24, mlp_dim=24576,
                  vocab_size=32000, **_MAXTEXT_V4),
    DecoderConfig(name="mt-52b-v4", num_layers=32, embed_dim=12288, num_heads=32, mlp_dim=49152,
                  vocab_size=32000, **_MAXTEXT_V4),
)  # fmt: skip

_PLAIN: dict[str, Any] = {"mlp": "plain", "activation": "gelu", "norm": "layer", "bias": True}
_OTHERS = (
    # Devlin et al. 2019.
    EncoderConfig(
        name="bert-base", num_layers=12, embed_dim=768, num_heads=12, mlp_dim=3072,
        vocab_size=30522, norm_first=False, norm_eps=1e-12, **_PLAIN,
    ),
    # Dosovitskiy et al. 2021, table 1: ViT-Base with patches of 16.
    VisionConfig(
        name="vit-b16", num_layers=12, embed_dim=768, num_heads=12, mlp_dim=3072, norm_eps=1e-6,
        **_PLAIN,
    ),
    # He et al. 2016, table 1.
    ResNetConfig(name="resnet50", blocks=(3, 4, 6, 3)),
)  # fmt: skip

_CONFIGS: dict[str, Any] = {config.name: config for config in (*_DECODERS, *_OTHERS)}
_MODELS: dict[type, Any] = {
    DecoderConfig: Decoder,
    EncoderConfig: Encoder,
    ResNetConfig: ResNet,
    VisionConfig: VisionTransformer,
}


def names() -> tuple[str, ...]:
    """Return the names of all configurations.

    Example:
        >>> "llama3.1-8b" in nx.models.names()
        True
    """
    return tuple(_CONFIGS)


def get(name: str) -> Any:
    """Return a configuration by name.

    Raises:
        UnknownNameError: unknown model name; the message suggests similar names.

    Example:
        >>> nx.models.get("llama3.1-8b").num_kv_heads
        8
    """
    if name not in _CONFIGS:
        raise unknown_name("model", str(name), _CONFIGS)
    return _CONFIGS[name]


def build(model: str | Any, **changes: Any) -> Any:
    """Return the model for a configuration or its name, with options replaced by ``changes``.

    Raises:
        UnknownNameError: unknown model name or option.

    Example:
        >>> nx.models.build("tiny", num_layers=1).num_parameters
        69824
    """
    config = _changed(model, changes)
    return _MODELS[type(config)](config)


def abstract(model: str | Any, **changes: Any) -> Any:
    """Return the model with abstract arrays, which uses no memory; see ``Model.abstract``.

    Example:
        >>> nx.models.abstract("mt-1024b", remat="full").config.remat
        'full'
    """
    config = _changed(model, changes)
    return _MODELS[type(config)].abstract(config)


def _changed(model: str | Any, changes: dict[str, Any]) -> Any:
    config = get(model) if isinstance(model, str) else model
    return config.replace(**changes) if changes else config
