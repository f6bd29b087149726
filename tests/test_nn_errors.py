"""What layers say to wrong shapes, channels, sizes and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
from neurenix import nn
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    ShapeError,
    UnknownNameError,
)

CALLS = {
    "NCHW": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8), r"looks like NCHW.*transpose\(0, 2, 3, 1\)"),
    "NCL": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 8), r"looks like NCL.*transpose\(0, 2, 1\)"),
    "NCDHW": (lambda: nn.Conv3d(3, 4, 3), (2, 3, 8, 8, 8), "looks like NCDHW"),
    "NCHW transposed": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 8, 8), "looks like NCHW"),
    "NCHW depthwise": (lambda: nn.DepthwiseConv2d(3, 3), (2, 3, 8, 8), "looks like NCHW"),
    "channels": (lambda: nn.Conv2d(3, 4, 3), (2, 8, 8, 5), "3 channels.*so 5"),
    "no channel axis": (lambda: nn.Conv2d(1, 4, 3), (2, 8, 8), r"x\[..., None\]"),
    "no batch axis": (lambda: nn.Conv2d(3, 4, 3), (8, 8, 3), r"x\[None\]"),
    "rank of a pool": (lambda: nn.MaxPool2d(2), (2, 8, 8), "NHWC, 4 axes"),
    "window too large": (lambda: nn.AvgPool2d(9), (2, 8, 8, 1), "larger than its input"),
    "rank of a global pool": (lambda: nn.GlobalAvgPool2d(), (2, 8), "NHWC"),
    "rank of an adaptive pool": (lambda: nn.AdaptiveAvgPool2d(2), (2, 8), "NHWC"),
    "features": (lambda: nn.Linear(4, 2), (3, 5), r"\(\.\.\., 4\).*\(3, 5\)"),
    "not flattened": (lambda: nn.Linear(64, 2), (3, 8, 8, 1), r"Flatten\(\)"),
    "batch norm": (lambda: nn.BatchNorm(3), (2, 3, 8, 8), "channels last.*NCHW"),
    "one value per channel": (lambda: nn.BatchNorm(3), (1, 3), "more than one value"),
    "layer norm": (lambda: nn.LayerNorm((3, 4)), (2, 4), r"\(\.\.\., 3, 4\)"),
    "rms norm": (lambda: nn.RMSNorm(3), (2, 4), r"\(\.\.\., 3\)"),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 3, 8, 8), "channels last"),
    "group norm NCL": (lambda: nn.GroupNorm(2, 4), (2, 4, 8), r"NCL.*transpose\(0, 2, 1\)"),
    "attention": (lambda: nn.MultiHeadAttention(8, 2), (2, 8), "query"),
    "attention features": (lambda: nn.MultiHeadAttention(8, 2), (2, 3, 6), "as query"),
    "lstm rank": (lambda: nn.LSTM(3, 4), (2, 3), r"\(N, T, 3\)"),
    "gru features": (lambda: nn.GRU(3, 4), (2, 5, 4), r"\(\.\.\., 3\)"),
    "conv kernel": (lambda: nn.Conv2d(3, 4, 5), (2, 4, 8, 3), r"spans \(5, 5\).*same"),
    "conv padding": (lambda: nn.Conv1d(3, 4, 7, padding=1), (2, 4, 3), "6,.* with padding"),
    "conv valid": (lambda: nn.Conv1d(3, 4, 3, padding="valid"), (1, 2, 3), "spans"),
    "conv dilation": (lambda: nn.Conv1d(3, 4, 3, dilation=3), (2, 6, 3), r"spans \(7,\)"),
    "residual": (lambda: nn.Residual(nn.Linear(4, 3)), (2, 4), "shortcut"),
    "flatten": (lambda: nn.Flatten(3), (2, 4), "start_dim=3"),
    "slopes": (lambda: nn.PReLU(4), (2, 3), r"PReLU takes \(\.\.\., 4\) channels last.*\(2, 3\)"),
    "slopes of one channel": (lambda: nn.PReLU(4), (2, 1), "PReLU"),
    "axis of softmax": (lambda: nn.Softmax(3), (2, 3), r"Softmax has `dim` = 3.*2 axes.*is 1, or"),
    "axes of softmax": (lambda: nn.Softmax((0, -3)), (2, 3), "`dim` = -3"),
    "axis of log softmax": (lambda: nn.LogSoftmax(2), (2, 3), "LogSoftmax has `dim` = 2"),
    "axis of nothing": (lambda: nn.Softmax(), (), "0 axes"),
    "axis of dropout": (
        lambda: nn.Dropout(0.5, broadcast_dims=(5,)),
        (2, 3),
        r"Dropout has `broadcast_dims` = 5; its input has 2 axes.*\(2, 3\)",
    ),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_shape_is_told(name, compiled):
    make, shape, text = CALLS[name]
    layer = make()
    call = jax.jit(lambda x: layer(x)) if compiled else layer
    with pytest.raises(ShapeError, match=text):
        call(jnp.zeros(shape))


OPTIONS = {
    "no channels": (lambda: nn.Conv2d(0, 4, 3), ArgumentError, "in_channels"),
    "a fraction": (lambda: nn.Linear(4.0, 2), ArgumentError, "in_features"),
    "groups": (lambda: nn.Conv2d(3, 4, 3, groups=2), ArgumentError, "groups"),
    "kernel of three": (lambda: nn.Conv2d(3, 4, (3, 3, 3)), ArgumentError, "kernel_size"),
    "kernel of words": (lambda: nn.Conv2d(3, 4, "3"), ArgumentTypeError, "kernel_size"),
    "both strides": (lambda: nn.Conv2d(3, 4, 3, 2, strides=2), ArgumentError, "mean the same"),
    "padding name": (lambda: nn.Conv2d(3, 4, 3, padding="sane"), UnknownNameError, "'same'"),
    "causal image": (lambda: nn.Conv2d(3, 4, 3, padding="causal"), UnknownNameError, "causal"),
    "padding of a pool": (lambda: nn.MaxPool2d(2, padding=2), ArgumentError, "half"),
    "groups of a transpose": (
        lambda: nn.ConvTranspose2d(3, 4, 3, groups=2),
        ArgumentError,
        "groups",
    ),
    "output padding": (lambda: nn.ConvTranspose2d(3, 4, 3, output_padding=1), ArgumentError, "out"),
    "dropout": (lambda: nn.Dropout(1.5), ArgumentError, "`p`"),
    "dropout a word": (lambda: nn.Dropout("0.5"), ArgumentTypeError, "`p`.*number"),
    "momentum a word": (
        lambda: nn.BatchNorm(3, momentum="a"),
        ArgumentTypeError,
        "`momentum`.*number",
    ),
    "axes of dropout": (
        lambda: nn.Dropout(broadcast_dims="ab"),
        ArgumentTypeError,
        "broadcast_dims.*axis",
    ),
    "no slope": (lambda: nn.PReLU(0), ArgumentError, "`num_parameters`.*at least 1"),
    "axis of softmax": (lambda: nn.Softmax(None), ArgumentTypeError, "`dim`.*axis.*None"),
    "momentum": (lambda: nn.BatchNorm(3, momentum=2), ArgumentError, "momentum"),
    "norm groups": (lambda: nn.GroupNorm(3, 4), ArgumentError, "num_groups"),
    "heads": (lambda: nn.MultiHeadAttention(8, 3), ArgumentError, "num_heads"),
    "kv heads": (lambda: nn.MultiHeadAttention(8, 4, num_kv_heads=3), ArgumentError, "kv"),
    "activation": (lambda: nn.TransformerBlock(8, 2, activation="gellu"), UnknownNameError, "gelu"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrong_option_is_told(name):
    build, error, text = OPTIONS[name]
    with pytest.raises(error, match=text):
        build()


def test_other_wrong_inputs_are_told():
    with pytest.raises(ArgumentTypeError, match="integers"):
        nn.Embedding(4, 2)(jnp.zeros(3))
    with pytest.raises(ShapeError, match="state"):
        nn.GRU(3, 4)(jnp.zeros((2, 5, 3)), jnp.zeros((1, 4)))
    x = jnp.zeros((2, 5, 8))
    attention = nn.MultiHeadAttention(8, 2)
    for mask in (jnp.zeros((5, 5)), jnp.zeros((4, 5), bool), jnp.zeros((3, 5, 5), bool)):
        with pytest.raises(ShapeError, match="mask"):
            attention(x, mask=mask)
    with pytest.raises(ShapeError, match="N and D"):
        nn.dot_product_attention(
            jnp.zeros((2, 5, 2, 4)), jnp.zeros((3, 5, 2, 4)), jnp.zeros((3, 5, 2, 4))
        )


def test_a_mask_may_be_lists():
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    rows, padding = [[True, False, True]] * 3, [[False, False, True]] * 2
    attention = nn.MultiHeadAttention(4, 2)
    given = attention(x, mask=rows, key_padding_mask=padding)
    arrays = attention(x, mask=jnp.asarray(rows), key_padding_mask=jnp.asarray(padding))
    np.testing.assert_array_equal(given, arrays)
    for wrong in ([[True] * 3, [True]], "causal", [[None] * 3] * 3, [[1] * 3] * 3, True):
        for name in ("mask", "key_padding_mask"):
            with pytest.raises(ShapeError, match="boolean"):
                attention(x, **{name: wrong})


def test_attention_without_its_layer_takes_arrays():
    x = jnp.ones((1, 3, 2, 4))
    for arrays in ((x.tolist(), x, x), (x, x.tolist(), x), (x, x, x.tolist())):
        with pytest.raises(ArgumentTypeError, match="takes one array; got a list"):
            nn.dot_product_attention(*arrays)
    with pytest.raises(ArgumentTypeError, match="`sinks` takes one array; got a list"):
        nn.dot_product_attention(x, x, x, sinks=[0.0, 0.0])


LISTED = {
    "MaxPool1d": lambda: nn.MaxPool1d(1),
    "AvgPool1d": lambda: nn.AvgPool1d(1),
    "GlobalAvgPool1d": nn.GlobalAvgPool1d,
    "AdaptiveAvgPool1d": lambda: nn.AdaptiveAvgPool1d(1),
    "Dropout": nn.Dropout,
    "Softmax": nn.Softmax,
    "PReLU": nn.PReLU,
    "ReLU": nn.ReLU,
}


@pytest.mark.parametrize("name", LISTED)
def test_a_list_as_input_is_told(name):
    with pytest.raises(ArgumentTypeError, match=f"{name} takes one array; got a list.*asarray"):
        LISTED[name]()([[[1.0], [2.0]]])


def test_a_tuple_between_layers_is_told_with_the_layer_that_returned_it():
    x = jnp.ones((2, 3, 4))
    model = nn.Sequential(nn.LSTM(4, 8), nn.Linear(8, 1))
    for call in (model, jax.jit(lambda x: model(x))):
        with pytest.raises(ArgumentTypeError, match=r"Layer 0 \(LSTM\).*tuple of 2.*1 \(Linear\)"):
            call(x)
    with pytest.raises(ArgumentTypeError, match=r"Layer 0 \(GRU\).*layer 1 \(tanh\)"):
        nn.Sequential(nn.GRU(4, 8), jnp.tanh)(x)
    picks = nn.Sequential(nn.LSTM(4, 8), lambda results: results[0], nn.Linear(8, 1))
    assert picks(x).shape == (2, 3, 1)
    assert len(nn.Sequential(nn.Identity(), nn.LSTM(4, 8))(x)) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(8, 1),
        lambda: nn.Conv1d(8, 1, 3),
        lambda: nn.LSTM(8, 2),
        lambda: nn.Flatten(),
        lambda: nn.LayerNorm(8),
        lambda: nn.GroupNorm(2, 8),
        lambda: nn.Embedding(8, 2),
        lambda: nn.MultiHeadAttention(8, 2),
    ],
    ids=["linear", "conv", "lstm", "flatten", "layer norm", "group norm", "embedding", "attention"],
)
def test_a_tuple_as_input_is_told(make):
    with pytest.raises(ArgumentTypeError, match=r"takes one array; got a tuple.*x\[0\]"):
        make()(nn.LSTM(4, 8)(jnp.ones((2, 3, 4))))


H = np.zeros((2, 5), np.float32)


@pytest.mark.parametrize(
    ("make", "state", "text"),
    [
        (nn.GRU, (H,), r"GRU takes one array h .*got \(tuple\)"),
        (nn.GRU, [[0.0]], r"one array h .*got \(list\)"),
        (nn.LSTM, (H,), r"LSTM takes a tuple \(h, c\) of arrays .*\(2, 5\)"),
        (nn.LSTM, (H, H, H), r"\(h, c\)"),
        (nn.LSTM, H, r"\(h, c\)"),
        (nn.LSTM, (H, None), r"\(h, c\).*NoneType"),
    ],
)
def test_a_state_of_another_structure_is_told(make, state, text):
    with pytest.raises(ArgumentTypeError, match=text):
        make(3, 5)(jnp.ones((2, 7, 3)), state)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_whole_numbers_of_numpy_are_sizes(kind):
    labels = np.array([0, 2], kind)
    assert nn.Linear(64, labels.max() + 1)(jnp.ones((1, 64))).shape == (1, 3)
    assert nn.Conv2d(3, kind(4), (kind(3), 3))(jnp.ones((1, 8, 8, 3))).shape == (1, 6, 6, 4)
    attention = nn.MultiHeadAttention(kind(200), kind(4))
    assert type(attention.embed_dim) is type(attention.head_dim) is int
    assert attention(jnp.ones((1, 2, 200))).shape == (1, 2, 200)
    assert type(nn.LSTM(kind(3), kind(5)).hidden_size) is int
    assert type(nn.Linear(kind(200), kind(3)).in_features) is int
    assert nn.Embedding(kind(200), kind(3))(jnp.array([199])).shape == (1, 3)
    assert nn.LayerNorm(kind(200))(jnp.ones((2, 200))).shape == (2, 200)
    assert nn.GroupNorm(kind(2), kind(200))(jnp.ones((2, 4, 4, 200))).shape == (2, 4, 4, 200)
    assert nn.ConvTranspose2d(kind(3), kind(4), 3)(jnp.ones((1, 4, 4, 3))).shape[-1] == 4
    for wrong in (np.bool_(True), np.float32(3), np.int64(0)):
        with pytest.raises(ArgumentError, match="whole number of at least 1"):
            nn.Linear(64, wrong)
    with pytest.raises(ArgumentError, match=r"Write int\(out_features\)"):
        nn.Linear(64, jnp.asarray(labels).max() + 1)


def test_to_refuses_a_dtype_that_would_cut_the_weights_to_zero():
    model = nn.Linear(2, 3)
    before = np.asarray(model.kernel)
    for move in (model.to, lambda *a, **options: nx.to(model, *a, **options)):
        with pytest.raises(ArgumentError, match="int8 would truncate"):
            move("cpu", dtype="int8")
    np.testing.assert_array_equal(model.kernel, before)


LAYERS: dict[str, Callable[[Any], Any]] = {
    "Linear": lambda dtype: nn.Linear(2, 3, dtype=dtype),
    "Conv2d": lambda dtype: nn.Conv2d(2, 3, 3, dtype=dtype),
    "ConvTranspose2d": lambda dtype: nn.ConvTranspose2d(2, 3, 3, dtype=dtype),
    "DepthwiseConv2d": lambda dtype: nn.DepthwiseConv2d(2, 3, dtype=dtype),
    "LayerNorm": lambda dtype: nn.LayerNorm(3, dtype=dtype),
    "RMSNorm": lambda dtype: nn.RMSNorm(3, dtype=dtype),
    "GroupNorm": lambda dtype: nn.GroupNorm(1, 3, dtype=dtype),
    "BatchNorm": lambda dtype: nn.BatchNorm(3, dtype=dtype),
    "Embedding": lambda dtype: nn.Embedding(3, 2, dtype=dtype),
    "LSTM": lambda dtype: nn.LSTM(3, 2, dtype=dtype),
    "GRU": lambda dtype: nn.GRU(3, 2, dtype=dtype),
    "MultiHeadAttention": lambda dtype: nn.MultiHeadAttention(4, 2, dtype=dtype),
    "TransformerBlock": lambda dtype: nn.TransformerBlock(4, 2, dtype=dtype),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_every_name_of_a_dtype_of_floats(name: str) -> None:
    parameters = jax.tree.leaves(nnx.state(LAYERS[name]("bf16"), nnx.Param))
    assert {str(leaf.dtype) for leaf in parameters} == {"bfloat16"}
    with pytest.raises(nx.UnknownNameError, match="no dtype named 'b16'"):
        LAYERS[name]("b16")
    with pytest.raises(
        nx.ArgumentError, match="Parameters of a layer must be floating-point; got dtype=int8"
    ):
        LAYERS[name]("int8")


@pytest.mark.parametrize(("start", "shape"), [(-5, (2, 3, 4)), (4, (2, 3, 4)), (2, (3,))])
def test_flatten_names_an_axis_that_there_is(start: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=rf"start_dim={start}"):
        nn.Flatten(start)(jnp.ones(shape))


@pytest.mark.parametrize("axis", ["a", None, 1.5, True, [1]])
def test_flatten_takes_axes(axis) -> None:
    with pytest.raises(nx.ArgumentTypeError, match="`start_dim` must be an axis; got"):
        nn.Flatten(axis)
    with pytest.raises(nx.ArgumentTypeError, match="`end_dim` must be an axis; got"):
        nn.Flatten(1, axis)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ((None, 0), "from 1; got 0"),
        ((None, "a"), "2 of them; got 'a'"),
        ((None, 1, 2), r"2 of them; got \(None, 1, 2\)"),
        (None, "got None"),
    ],
)
def test_adaptive_pools_take_sizes(size, said: str) -> None:
    with pytest.raises(nx.NeurenixError, match=f"`output_size` .*{said}"):
        nn.AdaptiveAvgPool2d(size)


@pytest.mark.parametrize(("start", "end"), [(1, 3), (1, -4), (2, 0)])
def test_flatten_ends_at_an_axis_that_there_is(start: int, end: int) -> None:
    with pytest.raises(ShapeError, match=rf"start_dim={start}, end_dim={end}\) names axes"):
        nn.Flatten(start, end)(jnp.ones((2, 3, 4)))
