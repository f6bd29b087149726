"""Options of layers: what each changes, and in which dtype numbers are added up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

import nn_reference as ref
from neurenix import ArgumentError, UnknownNameError, nn
from neurenix._nnx import nnx
from neurenix.nn import splash_attention

RNG = np.random.default_rng(0)

# --- norms --------------------------------------------------------------------------------------

NORMS = {
    "layer": (lambda **options: nn.LayerNorm(4, **options), "elementwise_affine"),
    "rms": (lambda **options: nn.RMSNorm(4, **options), "elementwise_affine"),
    "group": (lambda **options: nn.GroupNorm(2, 4, **options), "affine"),
    "batch": (lambda **options: nn.BatchNorm(4, **options), "affine"),
}
WITH_EPS = {
    "layer": lambda x, eps: ref.layer_norm(x, eps=eps),
    "rms": lambda x, eps: x / np.sqrt((x**2).mean(-1, keepdims=True) + eps),
    "group": lambda x, eps: ref.group_norm(x, 1, 0, 2, eps),
    "batch": lambda x, eps: ref.layer_norm(x, axes=(0, 1), eps=eps),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_adds_its_own_eps(name):
    x = RNG.normal(size=(6, 5, 4)) * 1e-2
    found = NORMS[name][0](eps=1e-4)(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, WITH_EPS[name](x, 1e-4), rtol=1e-4, atol=1e-5)


def test_the_eps_of_an_rms_norm_is_that_of_float32():
    found = nn.RMSNorm(4)(jnp.full((1, 4), 1e-3))
    np.testing.assert_allclose(found, 1e-3 / np.sqrt(1e-6 + 2.0**-23), rtol=1e-4)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_may_have_no_parameters(name):
    make, option = NORMS[name]
    assert make(**{option: False}).num_parameters == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LayerNorm(512),
        lambda: nn.GroupNorm(2, 512),
        lambda: nn.RMSNorm(512),
        lambda: nn.BatchNorm(512),
    ],
    ids=["layer", "group", "rms", "batch"],
)
def test_norms_of_bfloat16_compute_in_float32(make):
    x = jnp.asarray(RNG.normal(size=(4, 512)) + 100, jnp.bfloat16)
    wide = make()(x.astype("float32"))
    np.testing.assert_array_equal(make()(x), wide.astype("bfloat16"))


@pytest.mark.parametrize("momentum", [0.0, 0.3, 1.0])
def test_momentum_is_the_share_of_the_batch(momentum):
    layer, x = nn.BatchNorm(2, momentum=momentum), RNG.normal(size=(8, 2)) + 3
    layer(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(layer.mean[...], momentum * x.mean(0), rtol=1e-5)


def test_a_view_of_a_batch_norm_has_a_mode_of_its_own():
    layer = nn.BatchNorm(2)
    assert nnx.view(layer, use_running_average=True).use_running_average
    assert not layer.use_running_average


# --- sums of many numbers -----------------------------------------------------------------------


@pytest.mark.parametrize("layer", [nn.AvgPool1d(4096), nn.GlobalAvgPool1d()])
def test_means_of_bfloat16_add_up_in_float32(layer):
    x = jnp.ones((1, 4096, 1), jnp.bfloat16).at[0, 0].set(300)
    assert float(layer(x).reshape(())) == float(jnp.bfloat16((4095 + 300) / 4096))


def test_softmax_of_bfloat16_adds_up_in_float32():
    x = jnp.asarray(RNG.normal(size=(8, 512)), jnp.bfloat16)
    wide = jax.nn.softmax(x.astype("float32"), -1)
    np.testing.assert_array_equal(nn.Softmax()(x), wide.astype("bfloat16"))


# --- recurrent layers ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_sequence_may_go_on_from_a_state(kind):
    layer, x = kind(4, 3), jnp.asarray(RNG.normal(size=(2, 9, 4)), jnp.float32)
    whole, last = layer(x)
    first, state = layer(x[:, :4])
    rest, end = layer(x[:, 4:], state)
    np.testing.assert_allclose(jnp.concatenate([first, rest], 1), whole, rtol=1e-5, atol=1e-6)
    for one, other in zip(jax.tree.leaves(end), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(jax.tree.leaves(last)[0], whole[:, -1])
    assert layer(x.astype("bfloat16"), state)[0].dtype == jnp.bfloat16


# --- transformers and attention -----------------------------------------------------------------

ACTIVATIONS = {
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "mish": nn.Mish,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "hardswish": nn.Hardswish,
    "softplus": nn.Softplus,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_found_by_its_name(name):
    assert type(nn.TransformerBlock(4, 2, activation=name).mlp[1]) is ACTIVATIONS[name]


def test_dropout_of_a_block_is_that_of_its_parts():
    block = nn.TransformerBlock(8, 2, dropout=0.5)
    rates = [node.rate for _, node in nnx.iter_graph(block) if isinstance(node, nn.Dropout)]
    assert rates == [0.5] * 4


@pytest.mark.parametrize(
    ("axes", "batch", "kv_heads", "fits"),
    [
        ({"data": 2, "tensor": 2}, 4, 2, True),
        ({"data": 2, "tensor": 2}, 2, 1, False),
        ({"data": 2}, 3, 4, False),
    ],
    ids=["divides all", "one head of keys over two", "three examples over two"],
)
def test_the_tpu_kernel_is_taken_where_the_mesh_divides_batch_and_heads(
    axes, batch, kv_heads, fits
):
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    query, key = (
        jax.ShapeDtypeStruct((batch, 128, heads, 64), jnp.float32) for heads in (4, kv_heads)
    )
    with jax.sharding.use_abstract_mesh(mesh):
        assert splash_attention.fits(query, key, key) is fits


# --- PyTorch's arguments ------------------------------------------------------------------------


def test_arguments_stand_where_pytorch_has_them():
    assert nn.GroupNorm(2, 4, 1e-3, False).num_parameters == 0
    assert nn.GroupNorm(2, 4, 1e-3).eps == 1e-3
    norm = nn.BatchNorm2d(4, 1e-3, 0.2, False)
    assert (norm.eps, norm.momentum, norm.num_parameters) == (1e-3, 0.2, 0)
    attention = nn.MultiHeadAttention(8, 2, 0.1, False)
    assert attention.dropout.rate == 0.1 and attention.query.bias is None
    x = jnp.arange(-3.0, 3.0)
    np.testing.assert_array_equal(nn.GELU("none")(x), nn.GELU()(x))
    np.testing.assert_array_equal(nn.GELU("tanh")(x), nn.GELU(True)(x))
    for layer in (nn.ReLU, nn.ReLU6, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Hardswish, nn.Dropout):
        assert layer(inplace=True).eval()(x).shape == x.shape


def test_arguments_that_say_nothing_are_refused():
    with pytest.raises(TypeError, match=r"Tanh\(\) takes no arguments"):
        nn.Tanh(1.0)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="beta"):
        nn.ReLU(beta=2)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ArgumentError, match="batch_first=True"):
        nn.GRU(2, 3, batch_first=False)
    assert nn.LSTM(2, 3, batch_first=True)(jnp.ones((1, 4, 2)))[0].shape == (1, 4, 3)
    with pytest.raises(UnknownNameError, match="'erf'"):
        nn.GELU("erf")
