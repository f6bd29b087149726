"""Architectures of ``transformers``, small and with random weights, beside PyTorch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from neurenix.interop.torch import from_torch  # noqa: E402  after the skips

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import torch_zoo

    yield torch_zoo
    for name in [name for name in sys.modules if name.startswith("torch_zoo")]:
        del sys.modules[name]


# A decoder, one of experts, an encoder, one with a decoder, a state space, speech.
NAMES = ("GPT2", "Mixtral", "Bert", "T5", "Rwkv", "Wav2Vec2")


@pytest.mark.parametrize("name", NAMES)
def test_training_is_that_of_pytorch(zoo: Any, name: str) -> None:
    """Outputs, loss and the gradient of every parameter agree to 1e-4."""
    torch.manual_seed(0)
    module, args, kwargs = zoo.MODELS[name]()
    zoo.without_dropout(module)
    model = from_torch(module, args, example_kwargs=kwargs, check=False)
    theirs, slopes, ours, found = zoo.both(module, model, args, kwargs, training=True)
    assert max(map(zoo.difference, ours, theirs)) < 1e-4
    least = 1e-3 * max(map(zoo.norm, slopes.values()))
    assert slopes
    for parameter, slope in slopes.items():
        assert zoo.difference(found[parameter], slope, least) < 1e-4, parameter


def test_a_model_of_timm() -> None:
    """In a process of its own: beside timm's torchvision, transformers may not import."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    command = [sys.executable, str(BENCHMARKS / "torch_zoo.py"), "timm resnet18"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert "1 of 1 agree to 1e-04" in done.stdout, done.stdout + done.stderr


def test_a_model_that_skips_layers_at_random_is_converted_without_that(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A default Wav2Vec2 draws its layers and masks on the host: it is said, and put back."""
    config = transformers.Wav2Vec2Config(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        conv_dim=(8, 8), conv_stride=(4, 2), conv_kernel=(8, 4), num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, vocab_size=9,
    )  # fmt: skip
    module = transformers.Wav2Vec2Model(config).eval()
    x = torch.randn(2, 400)
    model = from_torch(module, (x,), check=False)
    assert "layerdrop=0.0" in capsys.readouterr().err
    assert module.config.layerdrop == 0.1 and module.config.apply_spec_augment
    ours = model(x.numpy()).last_hidden_state
    np.testing.assert_allclose(ours, module(x).last_hidden_state.detach(), rtol=1e-4, atol=1e-5)
