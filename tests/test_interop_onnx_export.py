"""Modules as files of ONNX: every layer and model, compared with onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from neurenix import nn
from onnx_export import agree, array

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]


SEQUENCE, IMAGE, VOLUME = array(2, 12, 6), array(2, 11, 13, 6), array(2, 6, 7, 8, 6)
OF_RANK = {1: SEQUENCE, 2: IMAGE, 3: VOLUME}
ROWS = array(3, 6)


def cases() -> dict[str, list[tuple[Any, tuple[Any, ...]]]]:
    """Return, for every layer by name, functions that make it, and its inputs."""
    found: dict[str, list[tuple[Any, tuple[Any, ...]]]] = {}

    def add(name: str, make: Any, *inputs: Any) -> None:
        found.setdefault(name, []).append((make, inputs))

    for name in (
        "ELU GELU SELU Hardsigmoid Hardswish LeakyReLU LogSoftmax Mish PReLU ReLU ReLU6 Sigmoid "
        "SiLU Softmax Softplus Softsign Swish Tanh Identity Flatten"
    ).split():
        add(name, getattr(nn, name), IMAGE)
    add("GELU", lambda: nn.GELU(approximate="tanh"), ROWS)
    add("Dropout", lambda: nn.Dropout(0.5), ROWS)
    add("Linear", lambda: nn.Linear(6, 5), ROWS)
    add("Linear", lambda: nn.Linear(6, 5, bias=False), SEQUENCE)
    add("Embedding", lambda: nn.Embedding(9, 4), np.array([[1, 8, 0], [3, 3, 2]], np.int32))
    for axes, x in OF_RANK.items():
        of = f"{axes}d"
        for kind in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
            add(kind + of, lambda kind=kind, of=of: getattr(nn, kind + of)(3), x)
        for kind in ("AvgPool", "MaxPool"):
            layer = getattr(nn, kind + of)
            add(kind + of, lambda layer=layer: layer(2), x)
            add(kind + of, lambda layer=layer: layer(3, 2, padding=1), x)
        for kind in ("GlobalAvgPool", "GlobalMaxPool"):
            add(kind + of, getattr(nn, kind + of), x)
            add(kind + of, lambda kind=kind, of=of: getattr(nn, kind + of)(keepdims=True), x)
        conv, turned = getattr(nn, f"Conv{of}"), getattr(nn, f"ConvTranspose{of}")
        add(f"Conv{of}", lambda conv=conv: conv(6, 4, 3), x)
        add(f"Conv{of}", lambda conv=conv: conv(6, 4, 3, stride=2, padding=1, dilation=2), x)
        add(f"Conv{of}", lambda conv=conv: conv(6, 9, 3, groups=3, padding="same", bias=False), x)
        add(f"ConvTranspose{of}", lambda turned=turned: turned(6, 4, 3), x)
        add(f"ConvTranspose{of}", lambda turned=turned: turned(6, 4, 3, stride=2, padding=1), x)
        add(f"BatchNorm{of}", lambda of=of: trained(getattr(nn, f"BatchNorm{of}")(6)), x)
    add("DepthwiseConv2d", lambda: nn.DepthwiseConv2d(6, 3, padding=1), IMAGE)
    add("BatchNorm", lambda: trained(nn.BatchNorm(6)), ROWS)
    add("GroupNorm", lambda: nn.GroupNorm(3, 6), IMAGE)
    add("LayerNorm", lambda: nn.LayerNorm(6), SEQUENCE)
    add("RMSNorm", lambda: nn.RMSNorm(6), SEQUENCE)
    add("LSTM", lambda: nn.LSTM(6, 5), SEQUENCE)
    add("LSTM", lambda: nn.LSTM(6, 5, reverse=True), SEQUENCE)
    add("GRU", lambda: nn.GRU(6, 5), SEQUENCE)
    add("GRU", lambda: Masked(nn.GRU(6, 5)), SEQUENCE, np.array([3, 12], np.int32))
    add("MultiHeadAttention", lambda: nn.MultiHeadAttention(6, 2), SEQUENCE)
    add("TransformerBlock", lambda: nn.TransformerBlock(6, 2, mlp_dim=8), SEQUENCE)
    add("Sequential", lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh()), ROWS)
    add("Residual", lambda: nn.Residual(nn.Linear(6, 6)), ROWS)
    add("ModuleList", Listed, ROWS)
    add("ModuleDict", Named, ROWS)
    return found


def trained(norm: Any) -> Any:
    """Return a batch norm whose statistics are of data."""
    for name, variable in (("mean", norm.mean), ("var", norm.var)):
        variable.set_value(jnp.abs(jnp.asarray(array(*variable.shape, seed=len(name)))) + 0.5)
    return norm


class Masked(nn.Module):
    """A recurrent layer for sequences of several lengths."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Any, lengths: Any) -> Any:
        return self.layer(x, lengths=lengths)


class Listed(nn.Module):
    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 3)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Named(nn.Module):
    def __init__(self) -> None:
        self.layers = nn.ModuleDict({"first": nn.Linear(6, 6), "second": nn.Linear(6, 3)})

    def __call__(self, x: Any) -> Any:
        return {"hidden": (first := self.layers["first"](x)), "out": self.layers["second"](first)}


CASES = cases()
NO_LAYERS = {"Module", "Summary", "dot_product_attention"}


def test_every_layer_is_here() -> None:
    assert {*nn.__all__} - NO_LAYERS == {*CASES}


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, found in CASES.items() for n in range(len(found))]
)
def test_a_layer_agrees(name: str, number: int, tmp_path: Path) -> None:
    make, inputs = CASES[name][number]
    agree(make(), tmp_path / "model.onnx", *inputs)
