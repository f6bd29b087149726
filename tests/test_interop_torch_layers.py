"""Every kind of layer of ``torch.nn``, converted: outputs and gradients are PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from neurenix.interop.torch import from_torch  # noqa: E402  after the skip

pytestmark = pytest.mark.interop
nn = torch.nn


def image(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Calls(nn.Module):
    """A function of tensors as a module with one parameter."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()) * 1.1)
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self.scale * args[0], *args[1:])


X, Y, T = image(3, 6), image(2, 4, 8, 8), image(2, 5, 8)
V = image(2, 4, 4, 4, 4)
ACTIVATIONS = (
    "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU "
    "ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Identity"
).split()
LAYERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **{name: (lambda n=name: Calls(getattr(nn, n)()), (X,)) for name in ACTIVATIONS},
    "Softmax": (lambda: Calls(nn.Softmax(-1)), (X,)),
    "LogSoftmax": (lambda: Calls(nn.LogSoftmax(1)), (X,)),
    "Softmin": (lambda: Calls(nn.Softmin(-1)), (X,)),
    "Softmax2d": (lambda: Calls(nn.Softmax2d()), (Y,)),
    "Threshold": (lambda: Calls(nn.Threshold(0.1, 2.0)), (X,)),
    "RReLU": (lambda: Calls(nn.RReLU()).eval(), (X,)),
    "Linear": (lambda: nn.Linear(6, 4), (X,)),
    "Bilinear": (lambda: nn.Bilinear(6, 6, 3), (X, X + 1)),
    "Conv1d": (lambda: nn.Conv1d(5, 4, 3, stride=2, padding=1), (T,)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, padding="same", dilation=2, groups=2), (Y,)),
    "Conv3d": (lambda: nn.Conv3d(4, 2, 2), (V,)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(5, 4, 3, stride=2, output_padding=1), (T,)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), (Y,)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 2, 2, dilation=2), (V,)),
    "circular": (lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"), (Y,)),
    "reflect": (lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect"), (Y,)),
    "MaxPool1d": (lambda: Calls(nn.MaxPool1d(2)), (T,)),
    "MaxPool2d": (lambda: Calls(nn.MaxPool2d(3, 2, 1, ceil_mode=True)), (Y,)),
    "MaxPool2d indices": (lambda: Calls(nn.MaxPool2d(2, return_indices=True)), (Y,)),
    "MaxPool3d": (lambda: Calls(nn.MaxPool3d(2)), (V,)),
    "AvgPool1d": (lambda: Calls(nn.AvgPool1d(3, 2, 1)), (T,)),
    "AvgPool2d": (lambda: Calls(nn.AvgPool2d(3, 2, 1, True, False)), (Y,)),
    "AvgPool2d ceil": (lambda: Calls(nn.AvgPool2d(3, 2, 1, ceil_mode=True)), (Y,)),
    "AvgPool3d": (lambda: Calls(nn.AvgPool3d(2)), (V,)),
    "LPPool2d": (lambda: Calls(nn.LPPool2d(2, 2)), (Y.abs() + 1,)),
    "AdaptiveAvgPool2d": (lambda: Calls(nn.AdaptiveAvgPool2d((3, 4))), (Y,)),
    "AdaptiveMaxPool2d": (lambda: Calls(nn.AdaptiveMaxPool2d((3, 5))), (Y,)),
    "AdaptiveAvgPool1d": (lambda: Calls(nn.AdaptiveAvgPool1d(3)), (T,)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), (image(9, 6),)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4, momentum=0.3), (Y,)),
    "BatchNorm2d plain": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, affine=False)), (Y,)),
    "BatchNorm no stats": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (Y,)),
    "LayerNorm": (lambda: nn.LayerNorm([8, 8]), (Y,)),
    "RMSNorm": (lambda: nn.RMSNorm(6), (X,)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (Y,)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), (Y,)),
    "LocalResponseNorm": (lambda: Calls(nn.LocalResponseNorm(3)), (Y,)),
    "Embedding": (lambda: nn.Embedding(7, 3, padding_idx=2), (torch.tensor([[1, 2], [6, 0]]),)),
    "EmbeddingBag": (
        lambda: nn.EmbeddingBag(7, 3, mode="mean"),
        (torch.tensor([1, 2, 6, 0]), torch.tensor([0, 3])),
    ),
    "LSTM": (lambda: nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), (T,)),
    "LSTM projected": (lambda: nn.LSTM(8, 6, proj_size=3), (T,)),
    "GRU": (lambda: nn.GRU(8, 6, 2), (T,)),
    "RNN": (lambda: nn.RNN(8, 6, nonlinearity="relu"), (T,)),
    "LSTMCell": (lambda: nn.LSTMCell(6, 4), (X,)),
    "GRUCell": (lambda: nn.GRUCell(6, 4), (X,)),
    "RNNCell": (lambda: nn.RNNCell(6, 4), (X,)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (T, T + 1, T)),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (T,)),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True), 4,
            enable_nested_tensor=False,
        ),
        (T,),
    ),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), (T, T)),
    "Dropout": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)), (X,)),
    "Flatten": (lambda: Calls(nn.Flatten()), (Y,)),
    "Unflatten": (lambda: Calls(nn.Unflatten(1, (2, 2))), (Y,)),
    "Fold": (lambda: Calls(nn.Fold((4, 4), 2)), (image(2, 8, 9),)),
    "Unfold": (lambda: Calls(nn.Unfold(3, padding=1, stride=2)), (Y,)),
    "PixelShuffle": (lambda: Calls(nn.PixelShuffle(2)), (Y,)),
    "PixelUnshuffle": (lambda: Calls(nn.PixelUnshuffle(2)), (Y,)),
    "ChannelShuffle": (lambda: Calls(nn.ChannelShuffle(2)), (Y,)),
    "ReflectionPad2d": (lambda: Calls(nn.ReflectionPad2d((1, 2, 3, 0))), (Y,)),
    "ReplicationPad2d": (lambda: Calls(nn.ReplicationPad2d(2)), (Y,)),
    "ZeroPad2d": (lambda: Calls(nn.ZeroPad2d((1, -1, 0, 2))), (Y,)),
    "CircularPad2d": (lambda: Calls(nn.CircularPad2d(1)), (Y,)),
    "Upsample nearest": (lambda: Calls(nn.Upsample(scale_factor=1.5)), (Y,)),
    "Upsample bilinear": (lambda: Calls(nn.Upsample(scale_factor=2, mode="bilinear")), (Y,)),
    "Upsample corners": (
        lambda: Calls(nn.Upsample((5, 11), mode="bilinear", align_corners=True)), (Y,)),
    "Upsample bicubic": (lambda: Calls(nn.Upsample((6, 12), mode="bicubic")), (Y,)),
    "CosineSimilarity": (lambda: Calls(nn.CosineSimilarity()), (X, X + 1)),
    "PairwiseDistance": (lambda: Calls(nn.PairwiseDistance()), (X, X + 1)),
    "CrossEntropyLoss": (
        lambda: Calls(nn.CrossEntropyLoss(label_smoothing=0.1)), (X, torch.tensor([1, -100, 5]))),
    "NLLLoss": (lambda: Calls(nn.NLLLoss()), (X.log_softmax(-1), torch.tensor([1, 0, 5]))),
    "MSELoss": (lambda: Calls(nn.MSELoss()), (X, X + 1)),
    "L1Loss": (lambda: Calls(nn.L1Loss()), (X, X + 1)),
    "SmoothL1Loss": (lambda: Calls(nn.SmoothL1Loss()), (X, 2 * X)),
    "HuberLoss": (lambda: Calls(nn.HuberLoss()), (X, 2 * X)),
    "BCELoss": (lambda: Calls(nn.BCELoss()), (X.sigmoid() * 0.8, (X > 0).float())),
    "BCEWithLogitsLoss": (lambda: Calls(nn.BCEWithLogitsLoss()), (X, (X > 0).float())),
    "KLDivLoss": (
        lambda: Calls(nn.KLDivLoss(reduction="batchmean")), (X.log_softmax(-1), X.softmax(-1))),
    "PoissonNLLLoss": (lambda: Calls(nn.PoissonNLLLoss()), (X, X.abs())),
    "HingeEmbeddingLoss": (lambda: Calls(nn.HingeEmbeddingLoss()), (X, X.sign())),
    "MarginRankingLoss": (lambda: Calls(nn.MarginRankingLoss()), (X, X + 1, X.sign())),
    "SoftMarginLoss": (lambda: Calls(nn.SoftMarginLoss()), (X, X.sign())),
    "CosineEmbeddingLoss": (
        lambda: Calls(lambda x, y, t: nn.CosineEmbeddingLoss()(x + 0.5, y, t)),
        (X, X + 1, torch.tensor([1, -1, 1])),
    ),
    "TripletMarginLoss": (lambda: Calls(nn.TripletMarginLoss()), (X, X + 1, X - 1)),
    "MultiMarginLoss": (lambda: Calls(nn.MultiMarginLoss()), (X, torch.tensor([1, 0, 5]))),
    "MultiLabelMarginLoss": (
        lambda: Calls(nn.MultiLabelMarginLoss()), (X, torch.tensor([[1, 0, -1, 2, 3, 4]] * 3))),
    "MultiLabelSoftMarginLoss": (
        lambda: Calls(nn.MultiLabelSoftMarginLoss()), (X, (X > 0).float())),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), (X,)),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_pytorch_computes(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    found = from_torch(make(), inputs).verification
    assert found.outputs <= 1e-4 and found.gradients <= 1e-3
    assert found.training is None if name in ("Dropout", "RReLU") else found.training <= 1e-4
    assert found.depends_on_input
