"""Take a screenshot of a preflight page for the docs: ``python docs/screenshot.py [PICTURE]``.

Compiles a small transformer, whose source the page shows, for v5e-8 with the real TPU compiler, and
renders the page in headless Chromium. Needs Chromium, but no TPU. The default picture is
``docs/preflight.png``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

import neurenix as nx
from neurenix import nn

WIDTH, HEIGHT, SCALE = 1280, 2860, 0.62  # keeps the picture below 300 kB
VOCABULARY, LENGTH, BATCH = 32000, 1024, 64


class Attention(nn.Module):
    """Plain attention, with the whole matrix of scores."""

    def __init__(self, features: int, heads: int) -> None:
        self.heads = heads
        self.project = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (batch, length, features) to the same shape."""
        split = (*x.shape[:2], self.heads, x.shape[2] // self.heads)
        q, k, v = (part.reshape(split) for part in jnp.split(self.project(x), 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / split[-1] ** 0.5
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.out(mixed.reshape(x.shape))


class Block(nn.Module):
    """Attention and a two-layer network, each added to its input."""

    def __init__(self, features: int, heads: int, hidden: int) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.attention = Attention(features, heads)
        self.up, self.down = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (batch, length, features) to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class Writer(nn.Module):
    """Token ids (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, layers: int, features: int, heads: int) -> None:
        self.embed = nn.Embedding(VOCABULARY, features)
        self.blocks = nn.Sequential(
            *(Block(features, heads, 4 * features - 72) for _ in range(layers))
        )
        self.head = nn.Linear(features, VOCABULARY)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return logits, float32."""
        return self.head(self.blocks(self.embed(tokens)))


def report() -> nx.preflight.Report:
    """Compile the training step of a small language model."""
    model = Writer(layers=4, features=768, heads=12)
    loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=nx.optim.Adam(1e-3), loss=loss)
    tokens = nx.spec((BATCH, LENGTH), "int32")
    return nx.preflight(model, tokens, tokens, on="v5e-8")


def photograph(page: Path, picture: Path) -> None:
    """Write a screenshot of a page, rendered by headless Chromium.

    Raises:
        SystemExit: Chromium is missing, or it wrote no picture.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("Chromium is missing; on Debian: apt-get install -y chromium")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}",
             f"--force-device-scale-factor={SCALE}",
             f"--screenshot={picture.resolve()}", page.resolve().as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    if not picture.exists():
        raise SystemExit(f"Chromium wrote no {picture}.")


def main(picture: Path) -> None:
    """Compile, write the page, and take the screenshot."""
    nx.simulate("v5e-8")
    found = report()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "preflight.html"
        found.to_html(page)
        photograph(page, picture)
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("preflight.png"))
