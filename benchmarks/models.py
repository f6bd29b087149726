"""The models of the benchmarks, as plain Flax NNX, in Keras and in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
from flax import nnx


class MLP(nnx.Module):
    """Dense layers with ReLU between them."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        rngs = nnx.Rngs(0)
        pairs = zip(sizes, sizes[1:], strict=False)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: Any) -> Any:
        """Return logits or, for a block, its output."""
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class DigitsCNN(nnx.Module):
    """Two convolutions and two dense layers for 8 x 8 images."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.a = nnx.Conv(1, 32, (3, 3), padding="VALID", rngs=rngs)
        self.b = nnx.Conv(32, 64, (3, 3), padding="VALID", rngs=rngs)
        self.c = nnx.Linear(64 * 2 * 2, 128, rngs=rngs)
        self.d = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Return logits or, for a block, its output."""
        x = nnx.relu(self.b(nnx.relu(self.a(x))))
        x = nnx.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        return self.d(nnx.relu(self.c(x)))


class Block(nnx.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.norm_a, self.norm_b = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """Return logits or, for a block, its output."""
        x = x + self.attention(self.norm_a(x))
        return x + self.down(nnx.gelu(self.up(self.norm_b(x))))


class Transformer(nnx.Module):
    """A classifier of token sequences."""

    def __init__(self, layers: int, width: int, *, heads: int = 4, vocabulary: int = 64) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs) for _ in range(layers)])
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        """Return logits or, for a block, its output."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def data_for(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels for a model of ``build``."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 10, count).astype(np.int32)
    if name in ("mlp", "wide"):
        return generator.normal(size=(count, 1024)).astype(np.float32), y
    if name == "cnn":
        return generator.normal(size=(count, 8, 8, 1)).astype(np.float32), y
    if name == "tiny":
        return generator.normal(size=(count, 64)).astype(np.float32), y
    return generator.integers(0, 64, (count, 32)).astype(np.int32), y


def build(name: str) -> nnx.Module:
    """Return a model by the name that the benchmarks print."""
    if name == "mlp":
        return MLP((1024, 1024, 1024, 10))
    if name == "wide":
        return MLP((1024, 4096, 4096, 4096, 10))
    if name == "cnn":
        return DigitsCNN()
    if name == "tiny":
        return MLP((64, 32, 10))
    return Transformer(6, 64)


def build_keras(name: str) -> Any:
    """Return the same model in Keras 3."""
    import keras
    from keras import layers as k

    if name in ("mlp", "tiny"):
        sizes = (1024, 1024, 1024, 10) if name == "mlp" else (64, 32, 10)
        dense = [k.Dense(size, activation="relu") for size in sizes[1:-1]] + [k.Dense(sizes[-1])]
        return keras.Sequential([keras.Input((sizes[0],)), *dense])
    if name == "cnn":
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                k.Conv2D(32, 3, activation="relu"),
                k.Conv2D(64, 3, activation="relu"),
                k.MaxPooling2D(2),
                k.Flatten(),
                k.Dense(128, activation="relu"),
                k.Dense(10),
            ]
        )
    tokens = keras.Input((32,), dtype="int32")
    x = k.Embedding(64, 64)(tokens)
    for _ in range(6):
        normed = k.LayerNormalization()(x)
        x = x + k.MultiHeadAttention(4, 16)(normed, normed)
        x = x + k.Dense(64)(k.Dense(256, activation="gelu")(k.LayerNormalization()(x)))
    return keras.Model(tokens, k.Dense(10)(k.GlobalAveragePooling1D()(x)))


def build_torch(name: str) -> Any:
    """Return the same model in PyTorch; images are NCHW there."""
    from torch import nn

    if name == "mlp":
        return nn.Sequential(
            nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
    if name == "tiny":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(64, 64)
            layer = nn.TransformerEncoderLayer(
                64, 4, 256, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.blocks = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.head = nn.Linear(64, 10)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.blocks(self.embed(tokens)).mean(1))

    return Classifier()
