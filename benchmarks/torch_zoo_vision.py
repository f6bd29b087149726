"""Architectures of vision for ``torch_zoo.py``: name → what makes a small one.

Those of ``transformers`` are made of small configurations, those of ``timm`` by their names there,
narrower or less deep where they are large. All have random weights, 64 x 64 pixels where nothing
else is said, and enough examples for batch statistics that float32 can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_zoo_timm import import_timm

Builder = Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]
MODELS: dict[str, Builder] = {}

CLASSES = 10
WIDTH = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
PATCHES = {**WIDTH, "image_size": 32, "patch_size": 8}
STAGES = {"depths": [1, 1, 2, 1], "hidden_sizes": [8, 16, 24, 32]}


def pixels(rows: int, size: int, channels: int = 3) -> Any:
    """Return random images."""
    import torch

    return torch.randn(rows, channels, size, size, generator=torch.Generator().manual_seed(0))


def image_model(
    model: str, *, config: str = "", rows: int = 4, size: int = 64, labels: bool = True,
    **options: Any,
) -> None:  # fmt: skip
    """Add a model of ``transformers`` that takes images, by the name of its class."""

    def build() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        import torch
        import transformers

        kind = getattr(transformers, model)
        given = {**({"num_labels": CLASSES} if labels else {}), **options}
        made = kind((getattr(transformers, config) if config else kind.config_class)(**given))
        inputs = {"pixel_values": pixels(rows, size)}
        if labels:
            inputs["labels"] = torch.arange(rows) % CLASSES
        return made, (), inputs

    MODELS[model] = build


def segmenting_model(model: str, *, size: int = 64, **options: Any) -> None:
    """Add a model of ``transformers`` that gives each pixel a class."""

    def build() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        import torch
        import transformers

        kind = getattr(transformers, model)
        labels = torch.arange(4 * size * size).reshape(4, size, size) % CLASSES
        made = kind(kind.config_class(num_labels=CLASSES, **options))
        return made, (), {"pixel_values": pixels(4, size), "labels": labels}

    MODELS[model] = build


def timm_model(name: str, *, rows: int = 8, size: int = 64, **options: Any) -> None:
    """Add a model of ``timm`` by its name."""

    def build() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        made = import_timm().create_model(name, num_classes=CLASSES, **options)
        return made, (pixels(rows, size),), {}

    MODELS[f"timm {name}"] = build


def clip_model(model: str, **options: Any) -> None:
    """Add a pair of encoders, of texts and of images."""

    def build() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        import torch
        import transformers

        kind = getattr(transformers, model)
        texts = {**WIDTH, "vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 98,
                 "pad_token_id": 1, "bos_token_id": 0, **options}  # fmt: skip
        made = kind(kind.config_class(text_config=texts, vision_config={**PATCHES}))
        ids = torch.arange(4 * 8).reshape(4, 8) + 2
        ids[:, -1] = 98
        return made, (), {"input_ids": ids, "pixel_values": pixels(4, 32)}

    MODELS[model] = build


for _kind in ("ViT", "DeiT", "Beit", "Data2VecVision", "ViTMSN", "Dinov2", "Dinov2WithRegisters",
              "IJepa"):  # fmt: skip
    image_model(f"{_kind}ForImageClassification", size=32, **PATCHES)
image_model("SwinForImageClassification", image_size=64, embed_dim=16, depths=[2, 2],
            num_heads=[2, 4], window_size=4)  # fmt: skip
image_model("Swinv2ForImageClassification", image_size=64, embed_dim=16, depths=[2, 2],
            num_heads=[2, 4], window_size=4)  # fmt: skip
image_model("ConvNextForImageClassification", **STAGES)
image_model("ConvNextV2ForImageClassification", **STAGES)
image_model("ResNetForImageClassification", rows=8, embedding_size=8, layer_type="basic", **STAGES)
image_model("RegNetForImageClassification", rows=8, embedding_size=8, groups_width=8, **STAGES)
image_model("MobileNetV1ForImageClassification", rows=8, depth_multiplier=0.25)
image_model("MobileNetV2ForImageClassification", rows=8, depth_multiplier=0.25)
image_model("MobileViTForImageClassification", rows=8, image_size=64, hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 64])  # fmt: skip
image_model("MobileViTV2ForImageClassification", rows=8, image_size=64, width_multiplier=0.25)
image_model("EfficientNetForImageClassification", rows=8, width_coefficient=0.25,
            depth_coefficient=0.5, hidden_dim=64)  # fmt: skip
image_model("PoolFormerForImageClassification", depths=[1, 1, 2, 1], hidden_sizes=[8, 16, 24, 32])
image_model("LevitForImageClassification", rows=8, labels=False, image_size=64,
            hidden_sizes=[32, 48, 64], num_attention_heads=[2, 3, 4], depths=[2, 2, 2],
            key_dim=[8, 8, 8])  # fmt: skip
image_model("PvtForImageClassification", image_size=64, hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4])  # fmt: skip
image_model("PvtV2ForImageClassification", image_size=64, hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4])  # fmt: skip
image_model("FocalNetForImageClassification", image_size=64, embed_dim=16, depths=[2, 2],
            focal_levels=[2, 2], focal_windows=[3, 3])  # fmt: skip
image_model("SwiftFormerForImageClassification", rows=8, image_size=64, depths=[1, 1, 2, 1],
            embed_dims=[8, 16, 24, 32])  # fmt: skip
image_model("HieraForImageClassification", image_size=[64, 64], embed_dim=16, depths=[1, 1, 2, 1],
            num_heads=[1, 2, 4, 8])  # fmt: skip
image_model("YolosModel", labels=False, image_size=[32, 32], patch_size=8, num_detection_tokens=5,
            size=32, **WIDTH)  # fmt: skip
image_model("ViTMAEForPreTraining", labels=False, size=32, decoder_hidden_size=32,
            decoder_num_hidden_layers=2, decoder_num_attention_heads=4,
            decoder_intermediate_size=48, **PATCHES)  # fmt: skip
image_model("SiglipVisionModel", labels=False, size=32, **PATCHES)
segmenting_model("SegformerForSemanticSegmentation", hidden_sizes=[8, 16, 24, 32],
                 depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4],
                 decoder_hidden_size=32)  # fmt: skip
segmenting_model("DPTForSemanticSegmentation", image_size=64, patch_size=16,
                 backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 16, 24, 32],
                 fusion_hidden_size=16, **WIDTH)  # fmt: skip
clip_model("CLIPModel")
clip_model("SiglipModel")

for _name in ("resnet18", "resnetv2_18", "mobilenetv3_small_100", "regnetx_002", "ghostnet_050",
              "dla46x_c", "ese_vovnet19b_slim_dw", "repghost_050", "lcnet_050", "efficientvit_b0",
              "starnet_s1", "fasternet_t0", "edgenext_xx_small", "hgnetv2_b0"):  # fmt: skip
    timm_model(_name)
timm_model("convnext_atto", depths=(1, 1, 2, 1))
timm_model("vgg11_bn", rows=16, num_features=64)
timm_model("mixer_s16_224", img_size=64)
timm_model("gmlp_ti16_224", img_size=64)
timm_model("deit_tiny_patch16_224", img_size=64, depth=4, embed_dim=48)
timm_model("vit_srelpos_small_patch16_224", img_size=64, depth=4, embed_dim=48, num_heads=3)
timm_model("cait_xxs24_224", img_size=64, depth=4, embed_dim=48)
timm_model("beit_base_patch16_224", img_size=64, depth=4, embed_dim=48, num_heads=3)
