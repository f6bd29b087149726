"""Models that ``torch.onnx`` exports: outputs and gradients are PyTorch's."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import neurenix as nx

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
torch = pytest.importorskip("torch")

from neurenix.interop.onnx import from_onnx  # noqa: E402  after the skip

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]

F = torch.nn.functional


class Residual(torch.nn.Module):
    """A block with two convolutions and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(3)
        self.second = torch.nn.Conv2d(3, 3, 3, padding=1, groups=3)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


class Upsampled(torch.nn.Module):
    """Down, up, and joined: half a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.up = torch.nn.ConvTranspose2d(6, 3, 2, stride=2)
        self.last = torch.nn.Conv2d(9, 2, 1)

    def forward(self, x: Any) -> Any:
        low = F.silu(self.down(x))
        near = F.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.last(torch.cat([self.up(low), near], 1))


class Recurrent(torch.nn.Module):
    """The last state of a recurrent layer."""

    def __init__(self, kind: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.cell = kind(4, 5, batch_first=True, **options)

    def forward(self, x: Any) -> Any:
        return self.cell(x)[0]


class Attends(torch.nn.Module):
    """Causal attention with rotated positions left out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class Embeds(torch.nn.Module):
    """Token ids to logits, with a norm and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.gate, self.up = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)
        self.head = torch.nn.Linear(16, 11)

    def forward(self, ids: Any) -> Any:
        x = self.norm(self.embed(ids))
        return self.head(F.gelu(self.gate(x)) * self.up(x))


def language_model(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 32, "max_position_embeddings": 32, "num_hidden_layers": 2}
    if name == "bert":
        config = transformers.BertConfig(
            hidden_size=16, num_attention_heads=2, intermediate_size=32, **small
        )
        inner = transformers.BertModel(config, add_pooling_layer=False)
    else:
        config = transformers.LlamaConfig(
            hidden_size=16, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
            use_cache=False, **small,
        )  # fmt: skip
        inner = transformers.LlamaModel(config)

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: Any) -> Any:
            return self.inner(input_ids=ids).last_hidden_state

    return Hidden()


IMAGE, ROWS, WORDS = (2, 3, 8, 8), (2, 6, 4), (2, 7)
MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "perceptron": (
        lambda: torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3), torch.nn.Softmax(-1)
        ),
        ROWS,
    ),
    "convolutional": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 6, 3, stride=2),
            torch.nn.BatchNorm2d(6),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(6, 5),
        ),  # fmt: skip
        IMAGE,
    ),
    "residual": (Residual, IMAGE),
    "upsampled": (Upsampled, IMAGE),
    "pooled": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, dilation=2),
            torch.nn.GroupNorm(2, 4),
            torch.nn.Hardswish(),
            torch.nn.AvgPool2d(2),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
        ),  # fmt: skip
        IMAGE,
    ),
    "lstm": (lambda: Recurrent(torch.nn.LSTM, bidirectional=True), ROWS),
    "gru": (lambda: Recurrent(torch.nn.GRU, num_layers=2), ROWS),
    "rnn": (lambda: Recurrent(torch.nn.RNN), ROWS),
    "encoder": (
        lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        ROWS,
    ),
    "attention": (Attends, (2, 6, 8)),
    "embedding": (Embeds, WORDS),
    "bert": (lambda: language_model("bert"), WORDS),
    "llama": (lambda: language_model("llama"), WORDS),
    "audio": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"),
            torch.nn.PReLU(6),
            torch.nn.InstanceNorm1d(6, affine=True),
            torch.nn.ConvTranspose1d(6, 2, 3, stride=2),
        ),  # fmt: skip
        (2, 4, 9),
    ),
}


def exported(name: str) -> tuple[Any, Any, bytes]:
    build, shape = MODELS[name]
    torch.manual_seed(0)
    net = build().eval()
    # Equal tensors (new norms' ones and zeros) may become one in a file, which is trained as one.
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    # Not the word that pads, whose row PyTorch does not train, which a file does not say.
    x = torch.randint(1, 11, shape) if shape is WORDS else torch.randn(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        program = torch.onnx.export(net, (x,), dynamo=True, verbose=False, optimize=False)
        file = io.BytesIO()
        program.save(file)
    return net, x, file.getvalue()


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_pytorchs(name: str) -> None:
    net, x, data = exported(name)
    model = from_onnx(data)
    wanted = net(x)
    np.testing.assert_allclose(
        nx.jit(lambda model, x: model(x))(model, x.numpy()), wanted.detach(), rtol=1e-4, atol=1e-5
    )
    factors = torch.randn(wanted.shape)
    (wanted * factors).sum().backward()

    def loss(model: Any) -> Any:
        return (model(x.numpy()) * factors.numpy()).sum()

    slopes = nx.grad(loss)(model)
    found = {path: leaf for path, leaf in nx_leaves(slopes)}
    compared = 0
    largest = max(float(p.grad.abs().max()) for p in net.parameters() if p.grad is not None)
    for path, parameter in net.named_parameters():
        if path in found and parameter.grad is not None:
            # Of a key's bias, whose gradient is zero but for rounding, a thousandth of the largest.
            scale = max(float(parameter.grad.abs().max()), 1e-3 * largest)
            np.testing.assert_allclose(
                np.asarray(found[path]) / scale, parameter.grad / scale, atol=1e-4
            )
            compared += 1
    assert compared >= 2 or name in ("lstm", "gru", "rnn")


def nx_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return arrays with their paths as dotted names."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        found.append((".".join(name for name in names if name and name != "value"), leaf))
    return found


@pytest.mark.tpu_compile
@pytest.mark.parametrize("name", ["convolutional", "encoder", "llama"])
def test_it_compiles_for_a_tpu(name: str) -> None:
    _, x, data = exported(name)
    model = from_onnx(data, check=False)
    report = nx.preflight(nx.jit(lambda model, x: model(x)), model, x.numpy(), on="v5e-1")
    assert report.fits
