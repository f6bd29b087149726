"""Architectures of language and speech for ``torch_zoo.py``: name → what makes a small one.

Each is made of a small configuration of ``transformers`` with random weights, and given inputs as a
training step gives them, labels included: ``() -> (module, args, kwargs)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Builder = Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]
MODELS: dict[str, Builder] = {}

VOCABULARY = 99
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**DECODER, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ENCODER = {**DECODER, "type_vocab_size": 2}
SPEECH = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "conv_dim": (16, 16),
    "layerdrop": 0.0,
    "conv_stride": (4, 2),
    "conv_kernel": (8, 4),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": VOCABULARY,
    "apply_spec_augment": False,
}


def tokens(rows: int = 2, length: int = 8, seed: int = 0) -> Any:
    """Return random token ids, none of them a special one."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, length), generator=generator)


def signal(*shape: int) -> Any:
    """Return random numbers."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def padding(rows: int = 2, length: int = 8) -> Any:
    """Return an attention mask whose last row is padded on the right."""
    import torch

    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[-1, length - 3 :] = 0
    return mask


def _made(model: str, config: str, options: dict[str, Any]) -> Any:
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**options))


def causal(kind: str, model: str | None = None, *, masked: bool = False, **options: Any) -> None:
    """Add a language model that predicts the next token."""

    def build() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        ids = tokens()
        inputs = {"input_ids": ids, "labels": ids}
        if masked:
            inputs["attention_mask"] = padding()
        return _made(model or f"{kind}ForCausalLM", f"{kind}Config", options), (), inputs

    MODELS[kind] = build


def masked(kind: str, model: str | None = None, **options: Any) -> None:
    """Add an encoder that predicts masked tokens of padded sentences."""

    def build() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        inputs = {"input_ids": tokens(), "attention_mask": padding(), "labels": tokens(seed=1)}
        return _made(model or f"{kind}ForMaskedLM", f"{kind}Config", options), (), inputs

    MODELS[kind] = build


def sequences(kind: str, model: str | None = None, **options: Any) -> None:
    """Add an encoder and decoder that map a padded sentence to another."""

    def build() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        inputs = {"input_ids": tokens(), "attention_mask": padding(), "labels": tokens(seed=1)}
        model_kind = model or f"{kind}ForConditionalGeneration"
        return _made(model_kind, f"{kind}Config", options), (), inputs

    MODELS[kind] = build


def speech(kind: str, **options: Any) -> None:
    """Add an encoder of sound that classifies it."""

    def build() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        import torch

        inputs = {"input_values": signal(2, 800), "labels": torch.tensor([0, 1])}
        return _made(f"{kind}ForSequenceClassification", f"{kind}Config", options), (), inputs

    MODELS[kind] = build


def whisper() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Make a small Whisper with spectra of 64 frames."""
    options = {
        **_BART,
        "num_mel_bins": 16,
        "max_source_positions": 32,
        "max_target_positions": 32,
        "decoder_start_token_id": 1,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    model = _made("WhisperForConditionalGeneration", "WhisperConfig", options)
    return model, (), {"input_features": signal(2, 16, 64), "labels": tokens()}


# Decoders.
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
causal("GPT2", "GPT2LMHeadModel", masked=True, **_GPT2)
causal("GPTNeo", vocab_size=VOCABULARY, hidden_size=32, num_layers=4, num_heads=4, window_size=4,
       max_position_embeddings=64, attention_types=[[["global", "local"], 2]])  # fmt: skip
causal("GPTNeoX", **DECODER)
causal("GPTJ", **_GPT2, rotary_dim=4)
causal("GPTBigCode", **_GPT2)
causal("CodeGen", **_GPT2, rotary_dim=4)
causal("OPT", vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=4,
       num_attention_heads=4, max_position_embeddings=64, word_embed_proj_dim=32, pad_token_id=0,
       masked=True)  # fmt: skip
causal("Bloom", vocab_size=VOCABULARY, hidden_size=32, n_layer=4, n_head=4, masked=True)
causal("Falcon", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, num_attention_heads=4)
causal("Mpt", vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=4, max_seq_len=64)
causal("Llama", **GROUPED)
causal("Mistral", **GROUPED, sliding_window=4, masked=True)
causal("Mixtral", **GROUPED, num_local_experts=4, num_experts_per_tok=2)
causal("Qwen2", **GROUPED, masked=True)
causal("Qwen2Moe", **EXPERTS, shared_expert_intermediate_size=24)
causal("Qwen3", **GROUPED, head_dim=8)
causal("Qwen3Moe", **EXPERTS, head_dim=8)
causal("Gemma", **GROUPED, head_dim=8)
causal("Gemma2", **{**GROUPED, "num_hidden_layers": 8}, head_dim=8, sliding_window=4)
causal("Gemma3", "Gemma3ForCausalLM", **GROUPED, head_dim=8, sliding_window=4)
causal("Phi", **DECODER)
causal("Phi3", **GROUPED)
causal("StableLm", **GROUPED)
causal("Olmo", **GROUPED)
causal("Olmo2", **GROUPED)
causal("Olmoe", **GROUPED, num_experts=4, num_experts_per_tok=2)
causal("Cohere", **GROUPED)
causal("Cohere2", **GROUPED, sliding_window=4)
causal("Granite", **GROUPED, masked=True)
causal("GraniteMoe", **GROUPED, num_local_experts=4, num_experts_per_tok=2)
causal("DeepseekV3", **{**DECODER, "num_hidden_layers": 5}, n_routed_experts=4,
       num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=24,
       q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, v_head_dim=8, qk_nope_head_dim=8,
       first_k_dense_replace=1)  # fmt: skip
causal("Starcoder2", **GROUPED)
causal("SmolLM3", **GROUPED)
causal("Glm4", **GROUPED, head_dim=8)
causal("GptOss", **GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2)

# State spaces, and those mixed with attention.
causal("Mamba", vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=4)
causal("Mamba2", vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=4,
       num_heads=8, head_dim=8, n_groups=2, chunk_size=4)  # fmt: skip
causal("FalconMamba", vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=4)
causal("Rwkv", vocab_size=VOCABULARY, hidden_size=32, attention_hidden_size=32,
       num_hidden_layers=4)  # fmt: skip
causal("RecurrentGemma", **GROUPED, lru_width=32, attention_window_size=4)
causal("Jamba", **GROUPED, num_experts=2, num_experts_per_tok=1, mamba_d_state=8, mamba_dt_rank=4,
       attn_layer_period=4, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
       use_mamba_kernels=False)  # fmt: skip

# Encoders.
masked("Bert", **ENCODER)
masked("Roberta", **{**ENCODER, "max_position_embeddings": 66})
masked("XLMRoberta", **{**ENCODER, "max_position_embeddings": 66})
masked("DistilBert", vocab_size=VOCABULARY, dim=32, n_layers=4, n_heads=4, hidden_dim=48,
       max_position_embeddings=64)  # fmt: skip
masked("Albert", **ENCODER, embedding_size=16)
masked("Electra", **ENCODER, embedding_size=16)
masked("DebertaV2", **ENCODER, relative_attention=True, position_buckets=8,
       pos_att_type=["p2c", "c2p"])  # fmt: skip
masked("MPNet", **DECODER)
masked("ModernBert", **DECODER, global_attn_every_n_layers=2, local_attention=4,
       cls_token_id=1, sep_token_id=2)  # fmt: skip
masked("Longformer", **{**ENCODER, "max_position_embeddings": 66}, attention_window=4)

# Encoders with decoders.
_T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 5,
       "num_heads": 4, "decoder_start_token_id": 0}  # fmt: skip
_BART = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 4, "decoder_layers": 4,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
         "decoder_ffn_dim": 48, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
_TEXT = {**_BART, "max_position_embeddings": 64, "decoder_start_token_id": 1}
sequences("T5", **_T5)
sequences("MT5", **_T5, feed_forward_proj="gated-gelu")
sequences("Bart", **_TEXT)
sequences("MBart", **_TEXT)
sequences("Pegasus", **_TEXT)
sequences("Marian", "MarianMTModel", **_TEXT)

# Speech.
MODELS["Whisper"] = whisper
speech("Wav2Vec2", **SPEECH)
speech("Hubert", **SPEECH)
speech("WavLM", **SPEECH)
