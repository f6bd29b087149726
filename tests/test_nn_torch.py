"""Layers, losses, optimisers and embeddings against PyTorch, with PyTorch's own weights.

PyTorch is in neither lock file, so that CI skips all of this: what must hold there is held against
NumPy in the other files. To run it: ``pip install torch``, then ``pytest tests/test_nn_torch.py``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from neurenix import losses, nn, optim
from neurenix._nnx import nnx

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.interop

RNG = np.random.default_rng(0)


def tensor(x):
    return torch.tensor(np.asarray(x, np.float32))


def last(x):
    """Channels second to channels last."""
    return np.moveaxis(x.detach().numpy(), 1, -1)


def first(x):
    """Channels last to channels second, as a tensor."""
    return tensor(np.moveaxis(x, -1, 1))


def put(variable, value):
    value = np.asarray(value)
    assert variable[...].shape == value.shape
    variable[...] = jnp.asarray(value)


def kernel_of(weight):
    """(out, in, space…) → (space…, in, out)."""
    return np.moveaxis(weight.detach().numpy(), (0, 1), (-1, -2))


def take_conv(ours, theirs):
    put(ours.kernel, kernel_of(theirs.weight))
    if theirs.bias is not None:
        put(ours.bias, theirs.bias.detach().numpy())


def take_transposed(ours, theirs):
    """(in, out / groups, space…) → (space…, in / groups, out)."""
    parts = np.split(theirs.weight.detach().numpy(), ours.groups, axis=0)
    put(ours.kernel, np.concatenate([np.moveaxis(p, (0, 1), (-2, -1)) for p in parts], axis=-1))
    put(ours.bias, theirs.bias.detach().numpy())


def take_linear(ours, theirs):
    put(ours.kernel, theirs.weight.detach().numpy().T)
    put(ours.bias, theirs.bias.detach().numpy())


def nothing(ours, theirs):
    """No parameters, or the same initial ones."""


SPACE = {1: (9,), 2: (8, 7), 3: (5, 6, 4)}
# name: (ours, theirs, how to take the weights, spatial axes, channels)
SPATIAL = {
    "conv1d": (
        lambda: nn.Conv1d(4, 6, 3, 2, 1),
        lambda: torch.nn.Conv1d(4, 6, 3, 2, 1),
        take_conv,
        1,
    ),
    "conv2d": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=(1, 2), groups=2),
        lambda: torch.nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=(1, 2), groups=2),
        take_conv,
        2,
    ),
    "conv2d same": (
        lambda: nn.Conv2d(4, 6, 5, padding="same"),
        lambda: torch.nn.Conv2d(4, 6, 5, padding="same"),
        take_conv,
        2,
    ),
    "conv2d reflect": (
        lambda: nn.Conv2d(4, 6, 3, padding="reflect"),
        lambda: torch.nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        take_conv,
        2,
    ),
    "conv3d": (lambda: nn.Conv3d(4, 3, 2), lambda: torch.nn.Conv3d(4, 3, 2), take_conv, 3),
    "depthwise": (
        lambda: nn.DepthwiseConv2d(4, 3, multiplier=2),
        lambda: torch.nn.Conv2d(4, 8, 3, groups=4),
        take_conv,
        2,
    ),
    "transpose1d": (
        lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1),
        lambda: torch.nn.ConvTranspose1d(4, 6, 3, 2, 1),
        take_transposed,
        1,
    ),
    "transpose2d": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), 2, 1, output_padding=1, groups=2, dilation=2),
        lambda: torch.nn.ConvTranspose2d(
            4, 6, (3, 2), 2, 1, output_padding=1, groups=2, dilation=2
        ),
        take_transposed,
        2,
    ),
    "transpose3d": (
        lambda: nn.ConvTranspose3d(4, 2, 3, 2),
        lambda: torch.nn.ConvTranspose3d(4, 2, 3, 2),
        take_transposed,
        3,
    ),
    "max": (lambda: nn.MaxPool2d(3, 2, 1), lambda: torch.nn.MaxPool2d(3, 2, 1), nothing, 2),
    "avg": (lambda: nn.AvgPool2d(3, 2, 1), lambda: torch.nn.AvgPool2d(3, 2, 1), nothing, 2),
    "adaptive avg": (
        lambda: nn.AdaptiveAvgPool2d((3, 5)),
        lambda: torch.nn.AdaptiveAvgPool2d((3, 5)),
        nothing,
        2,
    ),
    "adaptive avg of one axis": (
        lambda: nn.AdaptiveAvgPool2d((None, 5)),
        lambda: torch.nn.AdaptiveAvgPool2d((None, 5)),
        nothing,
        2,
    ),
    "adaptive max": (
        lambda: nn.AdaptiveMaxPool3d(3),
        lambda: torch.nn.AdaptiveMaxPool3d(3),
        nothing,
        3,
    ),
    "batch norm": (lambda: nn.BatchNorm(4), lambda: torch.nn.BatchNorm2d(4), nothing, 2),
    "batch norm, evaluation": (
        lambda: nn.BatchNorm(4).eval(),
        lambda: torch.nn.BatchNorm2d(4).eval(),
        nothing,
        2,
    ),
    "group norm": (lambda: nn.GroupNorm(2, 4), lambda: torch.nn.GroupNorm(2, 4), nothing, 2),
}


@pytest.mark.parametrize("name", SPATIAL)
def test_a_layer_over_space_agrees_with_pytorch(name):
    make_ours, make_theirs, take, axes = SPATIAL[name]
    ours, theirs = make_ours(), make_theirs()
    take(ours, theirs)
    x = RNG.normal(size=(2, *SPACE[axes], 4)).astype(np.float32)
    theirs_x = first(x).requires_grad_()
    expected = theirs(theirs_x)
    np.testing.assert_allclose(ours(jnp.asarray(x)), last(expected), rtol=1e-4, atol=1e-5)
    weight = RNG.normal(size=last(expected).shape).astype(np.float32)
    (expected * first(weight)).sum().backward()
    graph, state = nnx.split(ours)

    def loss(x):
        return jnp.sum(nnx.merge(graph, state, copy=True)(x) * weight)

    gradient = jax.grad(loss)(jnp.asarray(x))
    np.testing.assert_allclose(gradient, last(theirs_x.grad), rtol=1e-3, atol=2e-4)


def test_batch_norms_running_statistics_agree():
    ours, theirs = nn.BatchNorm(4), torch.nn.BatchNorm1d(4)
    for _ in range(3):
        x = RNG.normal(size=(6, 4)) * 3 + 5
        ours(jnp.asarray(x, jnp.float32))
        theirs(tensor(x))
    np.testing.assert_allclose(ours.mean[...], theirs.running_mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(ours.var[...], theirs.running_var.numpy(), rtol=1e-5)


ROWS = RNG.normal(size=(3, 5, 8)).astype(np.float32) * 3
ACTIVATIONS = (
    "ReLU ReLU6 LeakyReLU PReLU ELU SELU GELU SiLU Mish Tanh Sigmoid Hardsigmoid Hardswish "
    "Softplus Softsign"
).split()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_agrees_with_pytorch(name):
    expected = getattr(torch.nn, name)()(tensor(ROWS)).detach().numpy()
    np.testing.assert_allclose(getattr(nn, name)()(ROWS), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: nn.LayerNorm(8), lambda: torch.nn.LayerNorm(8)),
        (lambda: nn.LayerNorm((5, 8)), lambda: torch.nn.LayerNorm((5, 8))),
        (lambda: nn.RMSNorm(8), lambda: torch.nn.RMSNorm(8)),
        (lambda: nn.Softmax(), lambda: torch.nn.Softmax(-1)),
        (lambda: nn.LogSoftmax(1), lambda: torch.nn.LogSoftmax(1)),
        (lambda: nn.Flatten(), lambda: torch.nn.Flatten()),
        (lambda: nn.Flatten(0, 1), lambda: torch.nn.Flatten(0, 1)),
        (lambda: nn.Flatten(1, -1), lambda: torch.nn.Flatten(1, -1)),
    ],
)
def test_a_layer_over_rows_agrees_with_pytorch(ours, theirs):
    expected = theirs()(tensor(ROWS)).detach().numpy()
    np.testing.assert_allclose(ours()(ROWS), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("start", [False, True], ids=["from zeros", "from a state"])
def test_recurrent_layers_agree_with_pytorch(kind, start):
    ours = getattr(nn, kind)(8, 6)
    theirs = getattr(torch.nn, kind)(8, 6, batch_first=True)
    for mine, name in (
        ("input_kernel", "weight_ih_l0"),
        ("recurrent_kernel", "weight_hh_l0"),
        ("input_bias", "bias_ih_l0"),
        ("recurrent_bias", "bias_hh_l0"),
    ):
        put(getattr(ours, mine), getattr(theirs, name).detach().numpy().T)
    h, c = RNG.normal(size=(2, 3, 6)).astype(np.float32)
    state = {"LSTM": (h, c), "GRU": h}[kind] if start else None
    given = None
    if start:
        given = (tensor(h)[None], tensor(c)[None]) if kind == "LSTM" else tensor(h)[None]
    outputs, final = ours(jnp.asarray(ROWS), jax.tree.map(jnp.asarray, state))
    expected, expected_final = theirs(tensor(ROWS), given)
    np.testing.assert_allclose(outputs, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    for mine, other in zip(
        jax.tree.leaves(final),
        expected_final if kind == "LSTM" else [expected_final],
        strict=True,
    ):
        np.testing.assert_allclose(mine, other[0].detach().numpy(), rtol=1e-4, atol=1e-5)


def take_attention(ours, theirs):
    weights = np.split(theirs.in_proj_weight.detach().numpy(), 3)
    biases = np.split(theirs.in_proj_bias.detach().numpy(), 3)
    for part, weight, bias in zip((ours.query, ours.key, ours.value), weights, biases, strict=True):
        put(part.kernel, weight.T)
        put(part.bias, bias)
    take_linear(ours.out, theirs.out_proj)


def test_attention_agrees_with_pytorch():
    ours, theirs = nn.MultiHeadAttention(8, 2), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    take_attention(ours, theirs)
    keys = RNG.normal(size=(3, 7, 8)).astype(np.float32)
    allowed = RNG.uniform(size=(5, 7)) < 0.7
    allowed[:, 0] = True
    expected, _ = theirs(tensor(ROWS), tensor(keys), tensor(keys), attn_mask=torch.tensor(~allowed))
    found = ours(jnp.asarray(ROWS), jnp.asarray(keys), mask=jnp.asarray(allowed))
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_block_agrees_with_pytorch(norm_first):
    ours = nn.TransformerBlock(8, 2, mlp_dim=16, activation="relu", norm_first=norm_first)
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    take_attention(ours.attention, theirs.self_attn)
    take_linear(ours.mlp[0], theirs.linear1)
    take_linear(ours.mlp[3], theirs.linear2)
    expected = theirs(tensor(ROWS)).detach().numpy()
    np.testing.assert_allclose(ours(jnp.asarray(ROWS)), expected, rtol=1e-4, atol=1e-5)


LOGITS = RNG.normal(size=(6, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 6)
TARGETS = RNG.uniform(size=(6, 4)).astype(np.float32)
LOSSES = {
    "CrossEntropyLoss": (LABELS, {}, {}),
    "CrossEntropyLoss smoothed": (LABELS, {"label_smoothing": 0.1}, {"label_smoothing": 0.1}),
    "MSELoss": (TARGETS, {}, {}),
    "L1Loss": (TARGETS, {}, {}),
    "HuberLoss": (TARGETS, {"delta": 0.5}, {"delta": 0.5}),
    "BCEWithLogitsLoss": (TARGETS, {}, {}),
    "NLLLoss": (LABELS, {}, {}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_agrees_with_pytorch(name):
    target, options, theirs_options = LOSSES[name]
    kind = name.split()[0]
    ours, theirs = getattr(losses, kind)(**options), getattr(torch.nn, kind)(**theirs_options)
    expected = theirs(tensor(LOGITS), torch.tensor(target))
    np.testing.assert_allclose(ours(LOGITS, target), expected.item(), rtol=1e-5)


OPTIMISERS = {
    "SGD": (
        optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
        dict(lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "SGD nesterov": (
        optim.SGD(0.1, momentum=0.9, nesterov=True),
        dict(lr=0.1, momentum=0.9, nesterov=True),
    ),
    "Adam": (optim.Adam(), {}),
    "Adam with L2": (optim.Adam(weight_decay=0.1), dict(weight_decay=0.1)),
    "AdamW": (optim.AdamW(), {}),
    "Adamax": (optim.Adamax(), {}),
    "RAdam": (optim.RAdam(), {}),
    "RMSprop": (optim.RMSprop(), {}),
    "RMSprop centred": (
        optim.RMSprop(centered=True, momentum=0.9),
        dict(centered=True, momentum=0.9),
    ),
    "Adagrad": (optim.Adagrad(), {}),
    "Adadelta": (optim.Adadelta(), {}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_with_its_defaults_agrees_with_pytorch(name):
    spec, options = OPTIMISERS[name]
    start = RNG.normal(size=(3, 4)).astype(np.float32)
    gradients = RNG.normal(size=(12, 3, 4)).astype(np.float32)
    parameter = torch.nn.Parameter(tensor(start))
    theirs = getattr(torch.optim, name.split()[0])([parameter], **options)
    tx = spec.to_optax()
    params, update = jnp.asarray(start), jax.jit(tx.update)
    state = tx.init(params)
    for gradient in gradients:
        parameter.grad = tensor(gradient)
        theirs.step()
        updates, state = update(jnp.asarray(gradient), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params, parameter.detach().numpy(), rtol=1e-4, atol=2e-6)
