"""The vision transformer (Dosovitskiy et al. 2021): images to class logits.

Owns the configuration, patches, positions and the head; the layers are in ``stacked``. There is no
dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ShapeError
from neurenix._nnx import nnx
from neurenix.distribute.rules import constrain
from neurenix.models.base import Model, Rules
from neurenix.models.layers import BATCH, SEQUENCE, Norm, Projection, normal
from neurenix.models.stack import StackConfig, positive
from neurenix.models.stacked import STACK_RULES, stack_of
from neurenix.nn._parameters import rngs_or_default

_POSITION_DEVIATION = 0.02  # as in the paper's code


@dataclass(frozen=True, kw_only=True)
class VisionConfig(StackConfig):
    """Options of a vision transformer; see ``StackConfig`` for those of its layers.

    Attributes:
        image_size: height and width in pixels.
        patch_size: height and width of a patch; must divide ``image_size``.
        num_channels: of the images.
        num_classes: number of outputs.
    """

    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    num_classes: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "image_size", "patch_size", "num_channels", "num_classes")
        if self.image_size % self.patch_size:
            raise ArgumentError(
                f"{self.name}: patch_size={self.patch_size} does not divide "
                f"image_size={self.image_size}."
            )


class VisionTransformer(Model):
    """A classifier: images (N, S, S, C), channels last → logits (N, num_classes), float32.

    Each patch is flattened and projected; a learned class token is prepended, and the head reads
    its output.

    Args:
        config: the configuration.
        rngs: random streams; those of the process by default.

    Raises:
        ShapeError: when called with images of another shape.

    Example:
        >>> model = nx.models.build("vit-b16", num_layers=1, image_size=32)
        >>> model(nx.zeros((2, 32, 32, 3))).shape
        (2, 1000)
    """

    config: VisionConfig

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs | None = None) -> None:
        super().__init__(config)
        rngs, embed = rngs_or_default(rngs), config.embed_dim
        pixels = config.patch_size**2 * config.num_channels
        patches = (config.image_size // config.patch_size) ** 2
        self.patch = Projection(pixels, embed, bias=True, rngs=rngs)
        self.class_token = nnx.Param(jnp.zeros((1, embed)))
        self.positions = normal(rngs, (patches + 1, embed), _POSITION_DEVIATION)
        self.layers = stack_of(config, config.num_layers, causal=False, rngs=rngs)
        self.norm = Norm(config)
        self.head = Projection(embed, config.num_classes, bias=True, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the class logits of each image."""
        config = self.config
        side, channels, patch = config.image_size, config.num_channels, config.patch_size
        if images.shape[1:] != (side, side, channels) or images.ndim != 4:
            raise ShapeError(
                f"{config.name} takes images (N, {side}, {side}, {channels}), channels last; got "
                f"the shape {images.shape}."
            )
        rows, count = side // patch, images.shape[0]
        x = images.astype(config.compute_dtype).reshape(count, rows, patch, rows, patch, channels)
        x = self.patch(x.swapaxes(2, 3).reshape(count, rows * rows, -1))
        token = jnp.broadcast_to(self.class_token[...].astype(x.dtype), (count, 1, x.shape[-1]))
        x = jnp.concatenate([token, x], axis=1) + self.positions[...].astype(x.dtype)
        x, _ = self.layers(constrain(x, BATCH, SEQUENCE, None))
        x = self.norm(x)
        return self.head(x[:, 0]).astype(jnp.float32)

    def sharding_rules(self) -> Rules:
        """FSDP on the axis of the residual stream, tensor on heads and hidden axis."""
        return (
            *STACK_RULES,
            (r"^patch\.kernel$", (None, "fsdp")),
            (r"^positions$", (None, "fsdp")),
            (r"^head\.kernel$", ("fsdp", "tensor")),
        )
