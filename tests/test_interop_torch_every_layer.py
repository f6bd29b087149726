"""Every layer of ``torch.nn`` and every mode of its functions: PyTorch's outputs and gradients.

Functions of equal inputs are converted as one module, and each is compared by itself.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from neurenix.interop.torch import from_torch  # noqa: E402  after the skip
from test_interop_torch_layers import LAYERS  # noqa: E402
from torch_groups import TOLERANCE, differences, image  # noqa: E402

pytestmark = pytest.mark.interop
nn, F = torch.nn, torch.nn.functional
ids = torch.tensor

torch.manual_seed(0)  # the layers below are made once
X, Y, T = image(3, 6), image(2, 4, 8, 8), image(2, 5, 8)
V = image(2, 4, 4, 4, 4)


def sized(layer: Any, **options: Any) -> Any:
    """Return a layer whose forward takes more arguments."""
    layer.forward = lambda *args, forward=layer.forward: forward(*args, **options)
    return layer


def using(layer: Any, function: Any) -> Any:
    """Return a function of the layer and the inputs as one of the inputs."""
    return lambda *inputs: function(layer, *inputs)


def former(name: str, layer: Any) -> Any:
    """Return a layer with a hook of former versions, which are out of favour."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(nn.utils, name)(layer)


def unpooled(rank: int, **options: Any) -> Any:
    pool = getattr(nn, f"MaxPool{rank}d")(2, return_indices=True)
    undo = getattr(nn, f"MaxUnpool{rank}d")(2)
    return lambda x: undo(*pool(x), **options)


LINES = {
    "AdaptiveAvgPool1d": nn.AdaptiveAvgPool1d(3),
    "AdaptiveMaxPool1d": nn.AdaptiveMaxPool1d(3),
    "BatchNorm1d of lengths": nn.BatchNorm1d(5),
    "CircularPad1d": nn.CircularPad1d((2, 3)),
    "ConstantPad1d": nn.ConstantPad1d((1, -2), 3.5),
    "Conv1d even": nn.Conv1d(5, 4, 4, padding="same"),
    "Conv1d replicate": nn.Conv1d(5, 4, 3, padding=2, padding_mode="replicate"),
    "Conv1d weight_norm before": former("weight_norm", nn.Conv1d(5, 4, 3)),
    "ConvTranspose1d": nn.ConvTranspose1d(5, 4, 5, stride=3, padding=4, dilation=2,
                                          output_padding=1),
    "GRU": nn.GRU(8, 6, 2, bidirectional=True, batch_first=True, bias=False),
    "InstanceNorm1d": nn.InstanceNorm1d(5, affine=True),
    "LSTM one": nn.Sequential(nn.Flatten(0, 1), nn.LSTM(8, 6)),
    "LPPool1d": nn.LPPool1d(2, 3, 2),
    "LayerNorm": nn.LayerNorm(8, bias=False),
    "MaxPool1d": nn.MaxPool1d(3, 1, dilation=2),
    "MaxUnpool1d": unpooled(1),
    "RMSNorm": nn.RMSNorm([5, 8], eps=1e-3, elementwise_affine=False),
    "RNN": nn.RNN(8, 6, 2),
    "ReflectionPad1d": nn.ReflectionPad1d((3, 0)),
    "ReplicationPad1d": nn.ReplicationPad1d((3, 1)),
    "TransformerEncoder": nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2),
    "ZeroPad1d": nn.ZeroPad1d(2),
    "conv without batch": using(nn.Conv1d(5, 4, 3), lambda c, x: c(x[0])),
    "interpolate area": lambda x: F.interpolate(x, 3, mode="area"),
    "interpolate linear": lambda x: F.interpolate(x, scale_factor=1.3, mode="linear"),
    "interpolate by its size": lambda x: F.interpolate(
        x, scale_factor=1.3, mode="linear", recompute_scale_factor=True),
    "modes of pad": lambda x: [F.pad(x, (1, 2), mode) for mode in
                               ("reflect", "replicate", "circular", "constant")],
}  # fmt: skip
IMAGES = {
    "AdaptiveAvgPool2d": nn.AdaptiveAvgPool2d((None, 1)),
    "AdaptiveAvgPool2d up": nn.AdaptiveAvgPool2d((11, 9)),
    "AdaptiveMaxPool2d": nn.AdaptiveMaxPool2d((2, 3), return_indices=True),
    "AvgPool2d": nn.AvgPool2d(3, 2, divisor_override=5),
    "BatchNorm2d mean of all batches": nn.BatchNorm2d(4, momentum=None),
    "Conv2d valid": nn.Conv2d(4, 8, (3, 2), padding="valid", stride=(2, 1), groups=4),
    "Conv2d spectral_norm before": former("spectral_norm", nn.Conv2d(4, 5, 3)),
    "Conv2d spectral_norm": nn.utils.parametrizations.spectral_norm(
        nn.Conv2d(4, 5, 3), n_power_iterations=3),
    "Conv2d weight_norm whole": nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3), dim=None),
    "ConstantPad2d": nn.ConstantPad2d((1, 2, 3, 0), -1.5),
    "ConvTranspose2d of a size": sized(nn.ConvTranspose2d(4, 4, 3, stride=2), output_size=(18, 18)),
    "CrossMapLRN2d": nn.CrossMapLRN2d(3, k=2),
    "Fold": lambda x: nn.Fold((5, 6), (2, 3), stride=(1, 2), padding=1)(
        x.flatten(1)[:, :216].reshape(2, 12, 18)),
    "FractionalMaxPool2d": nn.FractionalMaxPool2d(
        2, output_size=(3, 4), _random_samples=image(2, 4, 2).abs() % 1),
    "GLU": nn.GLU(1),
    "GroupNorm": nn.GroupNorm(4, 4, affine=False),
    "InstanceNorm2d": nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "LPPool2d": lambda x: nn.LPPool2d(3, 2, ceil_mode=True)(x.abs() + 1),
    "LocalResponseNorm": nn.LocalResponseNorm(4, alpha=0.1, beta=0.5, k=2.0),
    "MaxPool2d without batch": lambda x: nn.MaxPool2d(2)(x[0]),
    "MaxUnpool2d": unpooled(2),
    "MaxUnpool2d of a size": unpooled(2, output_size=(9, 9)),
    "PReLU": nn.PReLU(4),
    "ReflectionPad2d": nn.ReflectionPad2d((-1, 2, -3, 1)),
    "ReplicationPad2d": nn.ReplicationPad2d((1, -2, 3, -1)),
    "SyncBatchNorm": nn.SyncBatchNorm(4),
    "Unfold": nn.Unfold((2, 3), dilation=2, padding=(1, 2), stride=(2, 1)),
    "UpsamplingBilinear2d": nn.UpsamplingBilinear2d(scale_factor=2),
    "UpsamplingNearest2d": nn.UpsamplingNearest2d(scale_factor=2),
    "einsum": lambda x: [torch.einsum("bchw,bdhw->bcd", x, x), torch.einsum("bcii->bc", x)],
    "roll": lambda x: [torch.roll(x, (1, -2), (2, 3)), torch.roll(x, 5)],
    "standard deviations": lambda x: [x.std(), x.std(1), torch.std_mean(x, 1), torch.std_mean(x),
                                      torch.var_mean(x, (1, 2), keepdim=True),
                                      x.var((2, 3), correction=0)],
    "standardised weights": lambda x: F.batch_norm(
        x.reshape(1, 8, -1), None, None, training=True, momentum=0.0, eps=1e-6),
    "windows": lambda x: x.unfold(2, 3, 2).unfold(3, 2, 1),
}  # fmt: skip
SIZES = {
    "area": lambda x: F.interpolate(x, (3, 5), mode="area"),
    "area up": lambda x: F.interpolate(x, scale_factor=1.7, mode="area"),
    "nearest": lambda x: F.interpolate(x, (3, 11)),
    **{
        f"{mode} {corners} {antialias}": lambda x, m=mode, c=corners, a=antialias: [
            F.interpolate(x, (3, 5), mode=m, align_corners=c, antialias=a),
            F.interpolate(x, (11, 13), mode=m, align_corners=c, antialias=a),
            F.interpolate(x, scale_factor=1.7, mode=m, align_corners=c, antialias=a),
        ]
        for mode in ("bilinear", "bicubic") for corners in (False, True)
        for antialias in (False, True)
    },
    "nearest-exact": lambda x: [F.interpolate(x, scale_factor=1.7, mode="nearest-exact"),
                                F.interpolate(x, (3, 5), mode="nearest-exact")],
}  # fmt: skip
VOLUMES = {
    "AdaptiveAvgPool3d": nn.AdaptiveAvgPool3d((2, 3, None)),
    "AdaptiveMaxPool3d": nn.AdaptiveMaxPool3d((2, 3, 1)),
    "AvgPool3d": nn.AvgPool3d(3, 2, 1, count_include_pad=False, ceil_mode=True),
    "BatchNorm3d": nn.BatchNorm3d(4),
    "CircularPad3d": nn.CircularPad3d((1, 2, 0, 1, 3, 0)),
    "ConstantPad3d": nn.ConstantPad3d(1, 2.0),
    "Conv3d": nn.Conv3d(4, 4, 2, dilation=(1, 2, 1), groups=2, padding=1, stride=(1, 2, 1)),
    "Conv3d circular": nn.Conv3d(4, 4, 3, padding=1, padding_mode="circular"),
    "ConvTranspose3d": nn.ConvTranspose3d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
    "FractionalMaxPool3d": nn.FractionalMaxPool3d(
        2, output_size=2, _random_samples=image(2, 4, 3).abs() % 1),
    "InstanceNorm3d": nn.InstanceNorm3d(4),
    "LPPool3d": lambda x: nn.LPPool3d(2, 2)(x.abs() + 1),
    "LocalResponseNorm": nn.LocalResponseNorm(2),
    "MaxPool3d": nn.MaxPool3d(3, 2, 1, return_indices=True, ceil_mode=True),
    "MaxUnpool3d": unpooled(3),
    "ReflectionPad3d": nn.ReflectionPad3d((1, 2, 3, 0, 2, 1)),
    "ReplicationPad3d": nn.ReplicationPad3d((1, 2, 3, 0, 2, 1)),
    "ZeroPad3d": nn.ZeroPad3d(1),
    "area": lambda x: F.interpolate(x, 3, mode="area"),
    "trilinear": lambda x: F.interpolate(x, scale_factor=(1.3, 2.0, 0.5), mode="trilinear"),
    "trilinear corners": lambda x: F.interpolate(x, (3, 7, 1), mode="trilinear",
                                                 align_corners=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=0.6),
    "nearest-exact": lambda x: F.interpolate(x, (3, 5, 9), mode="nearest-exact"),
}  # fmt: skip
ROWS = {
    "AdaptiveLogSoftmaxWithLoss": using(
        nn.AdaptiveLogSoftmaxWithLoss(6, 10, [3, 6], div_value=2.0),
        lambda m, x, y, t: tuple(m(x, t))),
    "CosineEmbeddingLoss": lambda x, y, t: nn.CosineEmbeddingLoss(0.2)(x, y, ids([1, -1, 1])),
    "GaussianNLLLoss": lambda x, y, t: nn.GaussianNLLLoss()(x, y, (x * y).abs()),
    "GaussianNLLLoss full": lambda x, y, t: nn.GaussianNLLLoss(full=True, reduction="none")(
        x, y, (x * y)[:, 0].abs()),
    "GaussianNLLLoss number": lambda x, y, t: F.gaussian_nll_loss(x, y, 0.5, reduction="sum"),
    "HuberLoss": lambda x, y, t: nn.HuberLoss(delta=0.3, reduction="none")(x, y),
    "KLDivLoss": lambda x, y, t: nn.KLDivLoss(log_target=True, reduction="sum")(
        x, y.log_softmax(-1)),
    "LinearCrossEntropyLoss": using(
        nn.LinearCrossEntropyLoss(6, 10), lambda m, x, y, t: m(x, t)),
    "MultiMarginLoss": lambda x, y, t: nn.MultiMarginLoss(p=2, weight=y[0].abs(), margin=0.5)(
        x, t % 6),
    "PairwiseDistance": lambda x, y, t: [nn.PairwiseDistance(p=p)(x, y) for p in (1, 3, np.inf)],
    "PoissonNLLLoss": lambda x, y, t: nn.PoissonNLLLoss(log_input=False, full=True)(
        x.abs() + 1, (y.abs() * 3).round()),
    "RNNCell": using(nn.RNNCell(6, 4, nonlinearity="relu"), lambda m, x, y, t: m(x)),
    "SmoothL1Loss": lambda x, y, t: nn.SmoothL1Loss(beta=0.0)(x, y),
    "TripletMarginLoss": lambda x, y, t: nn.TripletMarginLoss(swap=True, p=1)(x, y, x * y),
    "TripletMarginWithDistanceLoss": lambda x, y, t: nn.TripletMarginWithDistanceLoss(
        distance_function=nn.PairwiseDistance(), swap=True)(x, y, x * y),
    "cross entropy of probabilities": lambda x, y, t: F.cross_entropy(
        x, y.softmax(-1), weight=y[0].abs(), label_smoothing=0.1),
    "distances": lambda x, y, t: [F.pdist(x), torch.cdist(x, y), F.pdist(x, 1.0)],
    "normal distribution": lambda x, y, t: torch.distributions.Normal(
        x, y.abs()).log_prob(x * y),
    "categorical distribution": lambda x, y, t: torch.distributions.Categorical(
        logits=x).log_prob(t % 6),
    "normalize": lambda x, y, t: [F.normalize(x), F.normalize(x, p=1, dim=0)],
    "activations": lambda x, y, t: [
        F.celu(x, 0.3), F.elu(x, 0.2), F.hardtanh(x, -0.2, 0.3), F.softplus(x, 2, 1), F.rrelu(x),
        F.threshold(x, 0.2, 0.1), F.hardswish(x), F.gelu(x, approximate="tanh")],
    **{
        f"orthogonal {name}": using(
            nn.utils.parametrizations.orthogonal(nn.Linear(6, width), orthogonal_map=name),
            lambda m, x, y, t: m(x))
        for name, width in (("matrix_exp", 4), ("cayley", 6), ("householder", 4))
    },
}  # fmt: skip
PAIRS = {
    "Transformer": nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True),
    "TransformerDecoder": nn.TransformerDecoder(
        nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), 2),
    "MultiheadAttention": using(
        nn.MultiheadAttention(8, 2, kdim=4, vdim=6, batch_first=True, add_bias_kv=True,
                              add_zero_attn=True),
        lambda m, x, y: m(x, y[..., :4], y[..., :6])),
}  # fmt: skip
SAMPLED = {
    f"{mode} {padding} {corners}": lambda x, grid, m=mode, p=padding, c=corners: F.grid_sample(
        x, grid, mode=m, padding_mode=p, align_corners=c
    )
    for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")
    for corners in (False, True)
}  # fmt: skip
GROUPS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "lines": (LINES, (T,)),
    "images": (IMAGES, (Y,)),
    "sizes": (SIZES, (Y,)),
    "volumes": (VOLUMES, (V,)),
    "rows": (ROWS, (X, image(3, 6, seed=1), ids([4, 9, 0]))),
    "pairs": (PAIRS, (T, image(2, 5, 8, seed=1))),
    "sampled": (SAMPLED, (Y, image(2, 5, 6, 2) * 0.8)),
    "sampled volumes": (
        {name: f for name, f in SAMPLED.items() if "bicubic" not in name},
        (V, image(2, 3, 5, 6, 3) * 0.8)),
    "transformed": (
        {"affine_grid": lambda t, x: [F.affine_grid(t, (2, 3, 4, 5), align_corners=c)
                                      for c in (False, True)],
         "spatial transformer": lambda t, x: F.grid_sample(
             x, F.affine_grid(t, (2, 4, 6, 5), align_corners=False), align_corners=False)},
        (image(2, 2, 3), Y)),
    "log probabilities": (
        {name: lambda x, t, o=options, k=kind: F.ctc_loss(
            x.log_softmax(-1), t if k == "padded" else t.flatten()[ids([0, 1, 2, 3, 4, 6, 7, 8])],
            ids([12, 10, 9]) if k == "padded" else (12, 10, 9),
            ids([3, 2, 3]) if k == "padded" else (3, 2, 3), **o)
         for name, (options, kind) in {
             "CTCLoss": ({}, "padded"), "CTCLoss joined": ({"reduction": "sum"}, "joined"),
             "CTCLoss each": ({"reduction": "none", "blank": 2, "zero_infinity": True}, "padded"),
         }.items()} | {"CTCLoss of one": lambda x, t: F.ctc_loss(
             x[:, 0].log_softmax(-1), t[0], ids(12), ids(3))},
        (image(12, 3, 6), ids([[1, 3, 3], [3, 4, 5], [1, 1, 5]]))),
    "time first": (
        {"conv_tbc": lambda x, w, b: torch.conv_tbc(x, w, b, 1)},
        (image(7, 2, 4), image(3, 4, 5), image(5))),
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
def test_functions_compute_what_pytorch_computes(group: str) -> None:
    functions, inputs = GROUPS[group]
    found = differences(functions, *inputs)
    assert not {name: worst for name, worst in found.items() if not worst <= TOLERANCE}


def test_functions_of_integers_compute_what_pytorch_computes() -> None:
    bags = ids([[1, 2, 2], [6, 0, 1]])
    layers = {
        "EmbeddingBag": nn.EmbeddingBag(7, 3, mode="sum", padding_idx=1),
        "EmbeddingBag most": nn.EmbeddingBag(7, 3, mode="max"),
        "Embedding by frequency": nn.Embedding(7, 3, scale_grad_by_freq=True),
        "Embedding": nn.Embedding(7, 3, padding_idx=0),
        "NLLLoss2d": lambda x, t: nn.NLLLoss(weight=x.new_tensor([1.0, 2, 3, 4, 5, 6, 7]))(
            x.log_softmax(1), t),
    }  # fmt: skip
    functions = {
        name: Indexed(layer) if isinstance(layer, nn.Module) else layer
        for name, layer in layers.items()
    }
    found = differences(functions, image(2, 7, 3), bags)
    assert not {name: worst for name, worst in found.items() if not worst <= TOLERANCE}


class Indexed(nn.Module):
    """A layer of integers, which takes the parameter of its part as well."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, t: Any) -> Any:
        return self.layer(t) * x.sum()


DROPOUTS = {
    "Dropout": (nn.Dropout(0.5), X), "Dropout1d": (nn.Dropout1d(0.5), T),
    "Dropout2d": (nn.Dropout2d(0.5), Y), "Dropout3d": (nn.Dropout3d(0.5), V),
    "AlphaDropout": (nn.AlphaDropout(0.5), Y),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout(0.5), Y),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_drops_what_pytorch_drops(name: str) -> None:
    """Elements or whole channels; what is kept is scaled, or keeps mean and variance."""
    layer, like = DROPOUTS[name]
    x = torch.ones(16, *like.shape[1:])
    model = from_torch(nn.Sequential(layer), (x,))
    model.eval()
    np.testing.assert_array_equal(model(jnp.asarray(x.numpy())), x.numpy())
    model.train()
    found = np.asarray(model(jnp.asarray(x.numpy())))
    wanted = sorted(set(layer.train()(x).unique().tolist()))
    np.testing.assert_allclose(np.unique(found), wanted, rtol=1e-5, atol=1e-6)
    assert 0.3 < np.isclose(found, wanted[0]).mean() < 0.7
    if name not in ("Dropout", "AlphaDropout"):
        flat = found.reshape(*found.shape[:2], -1)
        assert (flat == flat[..., :1]).all()  # whole channels


def test_no_layer_of_torch_nn_is_forgotten() -> None:
    """All but containers, bases, and layers that know their sizes after the first call only."""
    cases = [*LAYERS, *(name for functions, _ in GROUPS.values() for name in functions), *DROPOUTS]
    covered = {name.split()[0] for name in cases} | {
        "EmbeddingBag", "NLLLoss2d",  # of integers
    }  # fmt: skip
    containers = {
        "Container", "DataParallel", "Module", "ModuleDict", "ModuleList", "ParameterDict",
        "ParameterList", "RNNBase", "RNNCellBase", "Sequential",
    }  # fmt: skip
    layers = {
        name for name, kind in vars(nn).items()
        if inspect.isclass(kind) and issubclass(kind, nn.Module) and not name.startswith("Lazy")
    }  # fmt: skip
    assert not layers - covered - containers
