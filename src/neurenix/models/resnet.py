"""Residual networks of bottleneck blocks (He et al. 2016), with the stride in the 3x3 convolution.

The stride is placed as in NVIDIA's "v1.5" and torchvision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError
from neurenix._nnx import nnx
from neurenix.models.base import Model, Rules
from neurenix.models.stack import DTYPES, Replaceable, one_of, positive
from neurenix.nn._parameters import rngs_or_default
from neurenix.nn.batch_norm import BatchNorm
from neurenix.nn.containers import Sequential
from neurenix.nn.conv import Conv2d
from neurenix.nn.linear import Linear
from neurenix.nn.module import Module
from neurenix.nn.pooling import GlobalAvgPool2d, MaxPool2d

_EXPANSION = 4  # output channels per inner channel of a block


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(Replaceable):
    """Options of a residual network.

    Attributes:
        name: for reports.
        blocks: number of blocks in each stage.
        width: inner channels of the first stage; doubled in each stage.
        num_channels: of the images.
        num_classes: number of outputs.
        dtype: of the computation; parameters are float32.
    """

    name: str = "custom"
    blocks: tuple[int, ...]
    width: int = 64
    num_channels: int = 3
    num_classes: int = 1000
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        positive(self, "width", "num_channels", "num_classes")
        one_of(self, "dtype", DTYPES)
        if not self.blocks or min(self.blocks) < 1:
            raise ArgumentError(f"{self.name}: blocks must be numbers from 1; got {self.blocks!r}.")


class Bottleneck(Module):
    """Three convolutions with a narrow middle, and a shortcut: (N, H, W, C) → (N, H', W', C')."""

    def __init__(self, channels: int, width: int, stride: int, *, rngs: nnx.Rngs) -> None:
        out = width * _EXPANSION
        self.reduce = _convolution(channels, width, 1, 1, rngs)
        self.middle = _convolution(width, width, 3, stride, rngs)
        self.expand = _convolution(width, out, 1, 1, rngs)
        changes = stride != 1 or channels != out
        self.shortcut = _convolution(channels, out, 1, stride, rngs) if changes else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the block's output."""
        y = jax.nn.relu(self.middle(jax.nn.relu(self.reduce(x))))
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return jax.nn.relu(self.expand(y) + shortcut)


class ResNet(Model):
    """A classifier: images (N, H, W, C), channels last → logits (N, num_classes), float32.

    Args:
        config: the configuration.
        rngs: random streams; those of the process by default.

    Example:
        >>> model = nx.models.build("resnet50", blocks=(1, 1), width=8, num_classes=10)
        >>> model(nx.zeros((1, 32, 32, 3))).shape
        (1, 10)
    """

    config: ResNetConfig

    def __init__(self, config: ResNetConfig, *, rngs: nnx.Rngs | None = None) -> None:
        super().__init__(config)
        rngs = rngs_or_default(rngs)
        self.stem = _convolution(config.num_channels, config.width, 7, 2, rngs)
        self.pool = MaxPool2d(3, 2, padding=1)
        stages: list[Any] = []
        channels = config.width
        for number, count in enumerate(config.blocks):
            width = config.width * 2**number
            for index in range(count):
                stride = 2 if index == 0 and number > 0 else 1
                stages.append(Bottleneck(channels, width, stride, rngs=rngs))
                channels = width * _EXPANSION
        self.blocks = Sequential(*stages)
        self.average = GlobalAvgPool2d()
        self.head = Linear(channels, config.num_classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the class logits of each image."""
        x = images.astype(self.config.dtype)
        x = self.pool(jax.nn.relu(self.stem(x)))
        x = self.average(self.blocks(x))
        return self.head(x.reshape(x.shape[0], -1)).astype(jnp.float32)

    def sharding_rules(self) -> Rules:
        """FSDP on the output channels of convolutions; no tensor parallelism."""
        return ((r"kernel$", ("fsdp",)),)


def _convolution(channels: int, out: int, size: int, stride: int, rngs: nnx.Rngs) -> Sequential:
    return Sequential(
        Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False, rngs=rngs),
        BatchNorm(out),
    )
