"""Every layer × dtype against plain NumPy; gradients; compiled or not; PyTorch's initial values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import nn_reference as ref
from neurenix import nn
from neurenix._nnx import nnx
from neurenix.nn import activations
from nn_reference import array

pytestmark = pytest.mark.newest

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 7, 6, 4))
SEQUENCE = RNG.normal(size=(2, 9, 4))
VOLUME = RNG.normal(size=(2, 4, 5, 3, 4))
ROWS = RNG.normal(size=(5, 4))
TOKENS = RNG.normal(size=(2, 5, 8))
LOWEST = -np.inf


def conv(layer, x, **options):
    return ref.conv(x, array(layer.kernel), layer.bias and array(layer.bias), **options)


def transposed(layer, x, **options):
    return ref.conv_transpose(x, array(layer.kernel), layer.bias and array(layer.bias), **options)


def around(x, mode):
    return np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], mode=mode)


def block(layer, x):
    def norm(part, x):
        return ref.layer_norm(x, array(part.scale), array(part.bias))

    def mlp(x):
        first, last = layer.mlp[0], layer.mlp[3]
        hidden = x @ array(first.kernel) + array(first.bias)
        hidden = hidden * special.ndtr(hidden)
        return hidden @ array(last.kernel) + array(last.bias)

    if layer.norm_first:
        x = x + ref.multi_head(layer.attention, norm(layer.attention_norm, x))
        return x + mlp(norm(layer.mlp_norm, x))
    x = norm(layer.attention_norm, x + ref.multi_head(layer.attention, x))
    return norm(layer.mlp_norm, x + mlp(x))


# name: (make, input, reference(layer, input))
PARAMETRIC = {
    "linear": (
        lambda: nn.Linear(4, 3),
        ROWS,
        lambda m, x: x @ array(m.kernel) + array(m.bias),
    ),
    "linear no bias, 3 axes": (
        lambda: nn.Linear(4, 3, bias=False),
        SEQUENCE,
        lambda m, x: x @ array(m.kernel),
    ),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), SEQUENCE, conv),
    "conv2d circular": (
        lambda: nn.Conv2d(4, 3, 3, padding="circular"),
        IMAGES,
        lambda m, x: conv(m, around(x, "wrap")),
    ),
    "conv2d reflect": (
        lambda: nn.Conv2d(4, 3, 3, padding="reflect"),
        IMAGES,
        lambda m, x: conv(m, around(x, "reflect")),
    ),
    "conv1d causal": (
        lambda: nn.Conv1d(4, 6, 3, padding="causal", dilation=2),
        SEQUENCE,
        lambda m, x: conv(m, x, pads=[(4, 0)], dilation=2),
    ),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3), IMAGES, conv),
    "conv2d stride, padding": (
        lambda: nn.Conv2d(4, 6, (3, 2), strides=(2, 1), padding=(1, 0)),
        IMAGES,
        lambda m, x: conv(m, x, stride=(2, 1), pads=(1, 0)),
    ),
    "conv2d same": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding="same"),
        IMAGES,
        lambda m, x: conv(m, x, stride=2, pads=[(1, 1), (0, 1)]),
    ),
    "conv2d groups, dilation, no bias": (
        lambda: nn.Conv2d(4, 6, 2, groups=2, dilation=2, bias=False),
        IMAGES,
        lambda m, x: conv(m, x, groups=2, dilation=2),
    ),
    "conv1d valid": (lambda: nn.Conv1d(4, 6, 3, padding="valid"), SEQUENCE, conv),
    "conv3d": (
        lambda: nn.Conv3d(4, 3, 2, padding=1),
        VOLUME,
        lambda m, x: conv(m, x, pads=1),
    ),
    "depthwise": (
        lambda: nn.DepthwiseConv2d(4, 3, padding=1, multiplier=2),
        IMAGES,
        lambda m, x: conv(m, x, pads=1, groups=4),
    ),
    "transpose1d": (
        lambda: nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1),
        SEQUENCE,
        lambda m, x: transposed(m, x, stride=2, padding=1),
    ),
    "transpose2d": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=2, output_padding=1, groups=2),
        IMAGES,
        lambda m, x: transposed(m, x, stride=2, output_padding=1, groups=2),
    ),
    "transpose2d dilation": (
        lambda: nn.ConvTranspose2d(4, 3, 2, padding=1, dilation=2, bias=False),
        IMAGES,
        lambda m, x: transposed(m, x, padding=1, dilation=2),
    ),
    "transpose1d dilation, output padding": (
        lambda: nn.ConvTranspose1d(4, 3, 3, dilation=2, output_padding=1),
        SEQUENCE,
        lambda m, x: transposed(m, x, dilation=2, output_padding=1),
    ),
    "transpose3d": (
        lambda: nn.ConvTranspose3d(4, 2, 2, stride=(1, 2, 2)),
        VOLUME,
        lambda m, x: transposed(m, x, stride=(1, 2, 2)),
    ),
    "layer norm": (
        lambda: nn.LayerNorm(4),
        SEQUENCE * 3 + 5,
        lambda m, x: ref.layer_norm(x, array(m.scale), array(m.bias)),
    ),
    "layer norm, two axes, no bias": (
        lambda: nn.LayerNorm((9, 4), bias=False),
        SEQUENCE,
        lambda m, x: ref.layer_norm(x, array(m.scale), axes=(1, 2)),
    ),
    "rms norm": (
        lambda: nn.RMSNorm(4),
        SEQUENCE,
        lambda m, x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1.2e-7) * array(m.scale),
    ),
    "group norm": (
        lambda: nn.GroupNorm(2, 4),
        IMAGES * 3 + 5,
        lambda m, x: ref.group_norm(x, array(m.scale), array(m.bias), 2),
    ),
    "batch norm, training": (
        lambda: nn.BatchNorm(4),
        IMAGES * 3 + 5,
        lambda m, x: ref.layer_norm(x, array(m.scale), array(m.bias), axes=(0, 1, 2)),
    ),
    "batch norm, evaluation": (
        lambda: nn.BatchNorm(4).eval(),
        IMAGES,
        lambda m, x: x / np.sqrt(1 + 1e-5) * array(m.scale) + array(m.bias),
    ),
    "prelu": (
        lambda: nn.PReLU(4),
        ROWS,
        lambda m, x: np.where(x > 0, x, array(m.slope) * x),
    ),
    "attention": (lambda: nn.MultiHeadAttention(8, 2), TOKENS, ref.multi_head),
    "attention causal, grouped, no bias": (
        lambda: nn.MultiHeadAttention(8, 4, num_kv_heads=2, causal=True, bias=False),
        TOKENS,
        ref.multi_head,
    ),
    "lstm": (
        lambda: nn.Sequential(nn.LSTM(4, 3), lambda y: y[0]),
        SEQUENCE,
        lambda m, x: ref.lstm(m[0], x)[0],
    ),
    "lstm reverse, no bias": (
        lambda: nn.Sequential(nn.LSTM(4, 3, reverse=True, bias=False), lambda y: y[0]),
        SEQUENCE,
        lambda m, x: ref.lstm(m[0], x)[0],
    ),
    "gru": (
        lambda: nn.Sequential(nn.GRU(4, 3), lambda y: y[0]),
        SEQUENCE,
        lambda m, x: ref.gru(m[0], x)[0],
    ),
    "transformer": (lambda: nn.TransformerBlock(8, 2, causal=True), TOKENS, block),
    "transformer, norm last": (
        lambda: nn.TransformerBlock(8, 2, mlp_dim=12, norm_first=False),
        TOKENS,
        block,
    ),
    "residual with shortcut": (
        lambda: nn.Residual(nn.Linear(4, 3), nn.Linear(4, 3, bias=False)),
        ROWS,
        lambda m, x: x @ (array(m.layer.kernel) + array(m.shortcut.kernel)) + array(m.layer.bias),
    ),
}
PLAIN = {
    "max1d": (
        lambda: nn.MaxPool1d(2),
        SEQUENCE,
        lambda m, x: ref.pool(x, 2, reduce=np.max, fill=LOWEST),
    ),
    "max2d": (
        lambda: nn.MaxPool2d((3, 2), strides=2, padding=1),
        IMAGES,
        lambda m, x: ref.pool(x, (3, 2), 2, 1, reduce=np.max, fill=LOWEST),
    ),
    "max3d": (
        lambda: nn.MaxPool3d(2, 1),
        VOLUME,
        lambda m, x: ref.pool(x, 2, 1, reduce=np.max, fill=LOWEST),
    ),
    "avg1d": (
        lambda: nn.AvgPool1d(3, 2, 1),
        SEQUENCE,
        lambda m, x: ref.pool(x, 3, 2, 1, reduce=np.mean, fill=0),
    ),
    "avg2d": (
        lambda: nn.AvgPool2d((2, 3)),
        IMAGES,
        lambda m, x: ref.pool(x, (2, 3), reduce=np.mean, fill=0),
    ),
    "avg3d": (
        lambda: nn.AvgPool3d(2),
        VOLUME,
        lambda m, x: ref.pool(x, 2, reduce=np.mean, fill=0),
    ),
    "global avg1d": (lambda: nn.GlobalAvgPool1d(), SEQUENCE, lambda m, x: x.mean(1)),
    "global avg2d": (lambda: nn.GlobalAvgPool2d(), IMAGES, lambda m, x: x.mean((1, 2))),
    "global avg3d": (
        lambda: nn.GlobalAvgPool3d(keepdims=True),
        VOLUME,
        lambda m, x: x.mean((1, 2, 3), keepdims=True),
    ),
    "global max1d": (lambda: nn.GlobalMaxPool1d(), SEQUENCE, lambda m, x: x.max(1)),
    "global max2d": (lambda: nn.GlobalMaxPool2d(), IMAGES, lambda m, x: x.max((1, 2))),
    "global max3d": (lambda: nn.GlobalMaxPool3d(), VOLUME, lambda m, x: x.max((1, 2, 3))),
    "global max2d kept": (
        lambda: nn.GlobalMaxPool2d(keepdims=True),
        IMAGES,
        lambda m, x: x.max((1, 2), keepdims=True),
    ),
    "adaptive avg1d": (
        lambda: nn.AdaptiveAvgPool1d(4),
        SEQUENCE,
        lambda m, x: ref.adaptive(x, 4, reduce=np.mean),
    ),
    "adaptive avg2d": (
        lambda: nn.AdaptiveAvgPool2d((3, 2)),
        IMAGES,
        lambda m, x: ref.adaptive(x, (3, 2), reduce=np.mean),
    ),
    "adaptive avg2d of one axis": (
        lambda: nn.AdaptiveAvgPool2d((None, 2)),
        IMAGES,
        lambda m, x: ref.adaptive(x, (x.shape[1], 2), reduce=np.mean),
    ),
    "adaptive avg3d": (
        lambda: nn.AdaptiveAvgPool3d((2, 3, 2)),
        VOLUME,
        lambda m, x: ref.adaptive(x, (2, 3, 2), reduce=np.mean),
    ),
    "adaptive max1d": (
        lambda: nn.AdaptiveMaxPool1d(4),
        SEQUENCE,
        lambda m, x: ref.adaptive(x, 4, reduce=np.max),
    ),
    "adaptive max2d to more": (
        lambda: nn.AdaptiveMaxPool2d((9, 4)),
        IMAGES,
        lambda m, x: ref.adaptive(x, (9, 4), reduce=np.max),
    ),
    "adaptive max3d": (
        lambda: nn.AdaptiveMaxPool3d(2),
        VOLUME,
        lambda m, x: ref.adaptive(x, 2, reduce=np.max),
    ),
    "flatten": (lambda: nn.Flatten(), IMAGES, lambda m, x: x.reshape(2, -1)),
    "flatten to 2": (lambda: nn.Flatten(1, -2), IMAGES, lambda m, x: x.reshape(2, -1, x.shape[3])),
    "flatten the batch": (
        lambda: nn.Flatten(0, 1),
        IMAGES,
        lambda m, x: x.reshape(14, *x.shape[2:]),
    ),
    "flatten from 2": (lambda: nn.Flatten(2), IMAGES, lambda m, x: x.reshape(2, 7, -1)),
    "identity": (lambda: nn.Identity(), ROWS, lambda m, x: x),
    "residual": (lambda: nn.Residual(jnp.tanh), ROWS, lambda m, x: x + np.tanh(x)),
    "dropout, evaluation": (lambda: nn.Dropout(0.5).eval(), ROWS, lambda m, x: x),
    "relu": (lambda: nn.ReLU(), ROWS, lambda m, x: np.maximum(x, 0)),
    "relu6": (lambda: nn.ReLU6(), ROWS * 9, lambda m, x: np.clip(x, 0, 6)),
    "leaky": (lambda: nn.LeakyReLU(), ROWS, lambda m, x: np.where(x > 0, x, 0.01 * x)),
    "leaky slope": (lambda: nn.LeakyReLU(0.2), ROWS, lambda m, x: np.where(x > 0, x, 0.2 * x)),
    "elu": (lambda: nn.ELU(0.7), ROWS, lambda m, x: np.where(x > 0, x, 0.7 * np.expm1(x))),
    "selu": (
        lambda: nn.SELU(),
        ROWS,
        lambda m, x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    ),
    "gelu": (lambda: nn.GELU(), ROWS, lambda m, x: x * special.ndtr(x)),
    "gelu tanh": (
        lambda: nn.GELU(approximate=True),
        ROWS,
        lambda m, x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "silu": (lambda: nn.SiLU(), ROWS, lambda m, x: x * special.expit(x)),
    "mish": (lambda: nn.Mish(), ROWS, lambda m, x: x * np.tanh(np.log1p(np.exp(x)))),
    "tanh": (lambda: nn.Tanh(), ROWS, lambda m, x: np.tanh(x)),
    "sigmoid": (lambda: nn.Sigmoid(), ROWS, lambda m, x: special.expit(x)),
    "hardsigmoid": (lambda: nn.Hardsigmoid(), ROWS * 5, lambda m, x: np.clip(x + 3, 0, 6) / 6),
    "hardswish": (
        lambda: nn.Hardswish(),
        ROWS * 5,
        lambda m, x: x * np.clip(x + 3, 0, 6) / 6,
    ),
    "softplus": (lambda: nn.Softplus(), ROWS, lambda m, x: np.log1p(np.exp(x))),
    "softsign": (lambda: nn.Softsign(), ROWS, lambda m, x: x / (1 + np.abs(x))),
    "softmax": (lambda: nn.Softmax(), ROWS, lambda m, x: special.softmax(x, -1)),
    "softmax along 0": (lambda: nn.Softmax(0), ROWS, lambda m, x: special.softmax(x, 0)),
    "log softmax": (lambda: nn.LogSoftmax(), ROWS, lambda m, x: special.log_softmax(x, -1)),
}
CASES = PARAMETRIC | PLAIN


def stir(layer):
    """Give every parameter random values, so that scales of 1 and biases of 0 are seen."""
    rng = np.random.default_rng(1)
    state = nnx.state(layer, nnx.Param)
    nnx.update(
        layer,
        jax.tree.map(lambda p: p + jnp.asarray(0.3 * rng.normal(size=p.shape), p.dtype), state),
    )
    return layer


@jax.jit
def applied(graph_and_state, x):
    graph, state = graph_and_state
    return nnx.merge(graph, state)(x)


def call(layer, x):
    return applied(nnx.split(layer), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_a_layer_agrees_with_numpy(name, dtype):
    make, x, reference = CASES[name]
    x = jnp.asarray(x, dtype)
    layer = stir(make())
    found = call(layer, x)
    expected = reference(layer, np.asarray(x).astype(np.float64))
    assert found.dtype == dtype and found.shape == expected.shape
    tolerance = 2e-5 if dtype == "float32" else 0.04
    scale = max(1, np.abs(expected).max())
    np.testing.assert_allclose(
        np.asarray(found).astype(np.float64) / scale, expected / scale, atol=tolerance
    )


@pytest.mark.parametrize("name", PARAMETRIC)
def test_gradients_reach_every_parameter_and_the_input(name):
    make, x, _ = PARAMETRIC[name]
    layer = stir(make())
    graph, params, rest = nnx.split(layer, nnx.Param, ...)
    x = jnp.asarray(x, jnp.float32)
    weight = jnp.asarray(RNG.normal(size=call(layer, x).shape), jnp.float32)

    @jax.jit
    def loss(params, x):
        return jnp.sum(nnx.merge(graph, params, rest, copy=True)(x) * weight)

    of_params, of_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, x)
    for path, gradient in jax.tree_util.tree_leaves_with_path(of_params):
        assert bool(jnp.isfinite(gradient).all()), path
        # A bias of the keys moves all scores of a query alike, which softmax does not see.
        if "key" not in str(path) or "bias" not in str(path):
            assert float(jnp.abs(gradient).max()) > 1e-6, path
    # Half along the gradient: there the difference is no sum of what cancels.
    random = jnp.asarray(np.random.default_rng(2).normal(size=x.shape), jnp.float32)
    direction = 1e-1 * (of_x / jnp.linalg.norm(of_x) + random / jnp.linalg.norm(random))
    difference = loss(params, x + direction) - loss(params, x - direction)
    np.testing.assert_allclose(2 * jnp.sum(of_x * direction), difference, rtol=0.1)


@pytest.mark.parametrize("name", ["conv2d", "batch norm, training", "attention", "lstm"])
def test_compiled_and_not_compiled_agree(name):
    make, x, _ = PARAMETRIC[name]
    layer, x = make(), jnp.asarray(x, jnp.float32)
    np.testing.assert_allclose(layer(x), call(layer, x), rtol=1e-5, atol=1e-5)


def test_integers_are_taken_by_layers_of_numbers():
    assert nn.Linear(3, 2)(jnp.ones((1, 3), jnp.int32)).dtype == jnp.float32
    pooled = nn.MaxPool2d(2)(jnp.arange(16, dtype=jnp.int32).reshape(1, 4, 4, 1))
    np.testing.assert_array_equal(pooled.reshape(-1), [5, 7, 13, 15])
    pooled = nn.MaxPool1d(2)(jnp.array([True, False, False, False]).reshape(1, 4, 1))
    assert pooled.reshape(-1).tolist() == [True, False]


ACTIVATIONS = [
    layer
    for name, layer in vars(activations).items()
    if isinstance(layer, type) and layer.__module__ == activations.__name__ and name[0] != "_"
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_an_activation_of_whole_numbers_is_that_of_the_fractions(activation):
    layer = activation()
    for x in (jnp.array([-4, 0, 1, 7]), np.array([True, False]), jnp.array([1, 200], jnp.uint8)):
        expected = layer(jnp.asarray(x, jnp.float32))
        for found in (layer(x), jax.jit(lambda x, layer=layer: layer(x))(x)):
            np.testing.assert_allclose(np.float32(found), expected, rtol=1e-5, atol=1e-6)
            assert found.dtype == jnp.float32 or activation is nn.ReLU
    assert activation()(jnp.ones((1, 2), jnp.bfloat16)).dtype == jnp.bfloat16


def test_relu_keeps_integers():
    assert nn.ReLU()(jnp.array([-4, 2**24 + 1])).tolist() == [0, 2**24 + 1]


@pytest.mark.parametrize("kind", ["int32", "uint8", "bool"])
def test_dropout_takes_whole_numbers_in_training_and_evaluation(kind):
    layer, x = nn.Dropout(0.5), jnp.ones((40, 5), kind)
    assert set(np.unique(layer(x))) == {0.0, 2.0}
    for same in (layer.eval()(x), nn.Dropout(0.0)(x)):
        assert same.dtype == jnp.float32 and bool((same == 1).all())


def test_dropout_shares_its_mask_along_axes():
    x = jnp.ones((8, 64))
    for axes in (0, (0,), [-2]):
        masked = nn.Dropout(0.5, broadcast_dims=axes)(x)
        assert bool((masked == masked[:1]).all()) and len(np.unique(masked)) == 2


def test_softmax_takes_several_axes():
    x = jnp.array([[[1, 2], [3, 4]]])
    np.testing.assert_allclose(nn.Softmax((1, 2))(x).sum(axis=(1, 2)), [1.0], rtol=1e-6)
    np.testing.assert_allclose(nn.Softmax(0)(x), jnp.ones((1, 2, 2)))


def test_prelu_has_one_slope_for_all_or_one_a_channel():
    x = jnp.array([[-4.0, -2.0, 3.0]])
    np.testing.assert_allclose(nn.PReLU()(x), [[-1.0, -0.5, 3.0]])
    layer = nn.PReLU(3)
    layer.slope[...] = jnp.array([0.5, 1.0, 2.0])
    np.testing.assert_allclose(layer(x), [[-2.0, -2.0, 3.0]])


def test_embedding_looks_up_and_attends():
    layer = nn.Embedding(10, 4)
    table, index = array(layer.embedding), np.array([[1, 9], [0, 1]])
    np.testing.assert_allclose(layer(jnp.asarray(index)), table[index], rtol=1e-6)
    np.testing.assert_allclose(
        layer.attend(jnp.asarray(ROWS, jnp.float32)), ROWS @ table.T, rtol=2e-5
    )
    assert abs(array(nn.Embedding(1000, 50).embedding).std() - 1) < 0.02


def uniform_bound(values, bound):
    """Whether ``values`` look drawn from U(-bound, bound)."""
    flat = np.asarray(values).reshape(-1)
    return np.abs(flat).max() <= bound and abs(flat.std() / (bound / np.sqrt(3)) - 1) < 0.1


INITIAL = {
    "linear": (lambda: nn.Linear(100, 200), "kernel", 1 / 10),
    "linear bias": (lambda: nn.Linear(100, 2000), "bias", 1 / 10),
    "conv": (lambda: nn.Conv2d(16, 64, 3), "kernel", 1 / 12),
    "conv groups": (lambda: nn.Conv2d(16, 64, 3, groups=4), "kernel", 1 / 6),
    "transpose": (lambda: nn.ConvTranspose2d(64, 16, 3), "kernel", 1 / 12),
    "transpose groups": (lambda: nn.ConvTranspose2d(64, 16, 3, groups=4), "kernel", 1 / 6),
    "lstm": (lambda: nn.LSTM(30, 64), "recurrent_kernel", 1 / 8),
    "gru bias": (lambda: nn.GRU(30, 400), "input_bias", 1 / 20),
}


@pytest.mark.parametrize("name", INITIAL)
def test_initial_values_are_pytorchs(name):
    make, attribute, bound = INITIAL[name]
    assert uniform_bound(getattr(make(), attribute)[...], bound)


def test_attention_starts_from_xavier_and_zero_biases():
    layer = nn.MultiHeadAttention(64, 4)
    assert uniform_bound(layer.query.kernel[...], np.sqrt(6 / (64 + 3 * 64)))
    assert not any(np.any(part.bias[...]) for part in (layer.query, layer.key, layer.out))
    grouped = nn.MultiHeadAttention(64, 4, num_kv_heads=1)  # 64 and twice 16 outputs
    assert uniform_bound(grouped.query.kernel[...], np.sqrt(6 / (64 + 96)))


def test_all_names_are_exported():
    assert all(hasattr(nn, name) for name in nn.__all__)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_is_compiled_once_where_nothing_around_it_is(layer, caplog) -> None:
    made, x = layer(3, 5), jnp.ones((2, 7, 3))
    made(x)
    with jax.log_compiles():
        made(x)
    assert not [record for record in caplog.records if "Finished XLA compilation" in record.message]
    with jax.log_compiles():
        made(jnp.ones((2, 8, 3)))
    assert [record for record in caplog.records if "Finished XLA compilation" in record.message]
