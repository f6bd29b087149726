"""Modules of PyTorch that became modules here, as files of ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import neurenix as nx
from onnx_export import compare, run

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]

F = torch.nn.functional


class Text(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.table = torch.nn.Embedding(20, 16)
        self.layers = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = torch.nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.out(self.layers(self.table(x)).mean(1))


class Speech(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
        self.out = torch.nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        y, (hidden, _) = self.layers(x)
        return self.out(y), hidden


class Image(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        )
        self.up = torch.nn.ConvTranspose2d(8, 8, 2, 2)
        self.last = torch.nn.Sequential(
            torch.nn.Conv2d(11, 4, 3, padding=1), torch.nn.GroupNorm(2, 4), torch.nn.MaxPool2d(2)
        )

    def forward(self, x: Any) -> Any:
        wide = F.interpolate(self.up(self.down(x)), scale_factor=2, mode="bilinear")
        return self.last(torch.cat([wide, F.interpolate(x, scale_factor=2)], 1))


MODULES: dict[str, tuple[Any, Any]] = {
    "text": (Text, lambda rows: torch.arange(7 * rows).reshape(rows, 7) % 20),
    "speech": (Speech, lambda rows: torch.randn(rows, 5, 6)),
    "image": (Image, lambda rows: torch.randn(rows, 3, 8, 8)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_converted_module_agrees_with_pytorch(name: str, tmp_path: Path) -> None:
    make, inputs = MODULES[name]
    torch.manual_seed(0)
    module = make().eval()
    converted = nx.from_torch(module, (inputs(2),), check=False)
    path = tmp_path / "model.onnx"
    nx.to_onnx(converted, path, example_inputs=inputs(2).numpy(), check=False)
    x = inputs(5)
    with torch.no_grad():
        wanted = jax.tree.map(lambda y: y.numpy(), module(x), is_leaf=torch.is_tensor)
    given = x.numpy()
    found = run(path, given.astype(np.int32) if given.dtype == np.int64 else given)
    compare(found, wanted, 1e-4)
