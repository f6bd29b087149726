"""Repeated layers of PyTorch models as loops: which are found, and that they compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from neurenix.interop.torch import from_torch  # noqa: E402  after the skip
from neurenix.interop.torch.repeats import Loop  # noqa: E402

pytestmark = pytest.mark.interop
nn = torch.nn
WIDTH = 6


class Mixer(nn.Module):
    """A layer without its residual sum, with a constant of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.linear(x)) * torch.tensor([0.5] * WIDTH)


class Outside(nn.Module):
    """Residual sums and a norm outside of the layers, a head behind them."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mixer() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.norm(x + layer(x))
        return self.head(torch.relu(x))


class Pairs(nn.Module):
    """Two lists of layers in turns."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(Mixer() for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        hidden = []
        for mixer, norm in zip(self.mixers, self.norms, strict=True):
            x = x + mixer(norm(x))
            hidden.append(x)
        return x, hidden


class Stage(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH if width == WIDTH else WIDTH, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        x = self.into(x)
        for block in self.blocks:
            x = x + torch.sin(block(x))
        return x


class Stages(nn.Module):
    """Numbered stages of other widths and depths, with numbered blocks inside."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([Stage(WIDTH, 2), Stage(8, 5)])

    def forward(self, x: Any) -> Any:
        for stage in self.stages:
            x = stage(x)
        return x


class Different(Outside):
    """A layer in the middle does something else between the layers."""

    def forward(self, x: Any) -> Any:
        for number, layer in enumerate(self.layers):
            x = x + layer(x) if number != 2 else x - layer(x)
        return x


MODELS: dict[str, tuple[Any, list[int]]] = {
    "sums outside": (lambda: Outside(5), [5]),
    "two lists": (lambda: Pairs(4), [4]),
    "inside of stages": (Stages, [5]),
    "one layer differs": (lambda: Different(8), [5]),
    "too few": (lambda: Outside(3), []),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers_become_loops_and_compute_the_same(name: str) -> None:
    """The conversion itself compares outputs and gradients with PyTorch's."""
    torch.manual_seed(0)
    build, counts = MODELS[name]
    net = build()
    x = torch.randn(3, WIDTH)
    model = from_torch(net, (x,))
    loops = [s for s in model.program(training=True).steps if isinstance(s, Loop)]
    assert [loop.count for loop in loops] == counts
    found = model.verification
    assert found is not None and found.gradients < 1e-5 and found.outputs < 1e-5
    plain = from_torch(net, (x,), scan=False)
    assert not any(isinstance(s, Loop) for s in plain.program(training=True).steps)
    ours, theirs = model(x.numpy()), plain(x.numpy())
    one = ours if name != "two lists" else ours[0]
    other = theirs if name != "two lists" else theirs[0]
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
