"""LSTM and GRU over padded sequences: against loops in NumPy, one sequence and one step at a time.

The loops of ``nn_reference`` run each sequence alone, on the steps that count; what the padding
returns is written here from the two definitions: Keras's ``mask``, PyTorch's packed sequences.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
import nn_reference as ref
from neurenix import nn
from neurenix._core.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError

N, T, F, H = 5, 6, 3, 4
LENGTHS = np.array([6, 1, 0, 4, 3])
BY_LENGTHS = np.arange(T) < LENGTHS[:, None]
HOLES = np.array(
    [
        [1, 0, 1, 1, 0, 1],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1],
        [0, 1, 1, 0, 1, 0],
    ],
    bool,
)
LAYERS = {"LSTM": nn.LSTM, "GRU": nn.GRU}


def sequences(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N, T, F)).astype(np.float32)


def initial(kind: str) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(7)
    return tuple(draw.normal(size=(N, H)) for _ in range(2 if kind == "LSTM" else 1))


def make(kind: str, **options):
    return LAYERS[kind](F, H, rngs=nnx.Rngs(1), **options)


def alone(kind: str, layer, x: np.ndarray, state: tuple[np.ndarray, ...]):
    """Return outputs (1, steps, H) and the last state of one sequence, whose steps all count."""
    if kind == "LSTM":
        outputs, *last = ref.lstm(layer, x, state)
    else:
        outputs, *last = ref.gru(layer, x, *state)
    return outputs, last


def padded(kind: str, layer, x, counted, state, *, zero: bool):
    """Return what the layer is to: sequence by sequence, and of padding by its definition."""
    outputs = np.zeros((N, T, H))
    last = [np.zeros((N, H)) for _ in state]
    for n in range(N):
        start = tuple(part[n : n + 1] for part in state)
        places = np.flatnonzero(counted[n])
        own, ended = alone(kind, layer, x[n : n + 1, places], start)
        for part, value in zip(last, ended if places.size else start, strict=True):
            part[n] = value[0]
        outputs[n, places] = own[0]
        carried = start[0][0]
        order = range(T - 1, -1, -1) if layer.reverse else range(T)
        for t in order:
            if counted[n, t]:
                carried = outputs[n, t]
            elif not zero:
                outputs[n, t] = carried
    return outputs, last


def states(kind: str, given) -> list:
    return list(given) if kind == "LSTM" else [given]


def given_state(kind: str, state):
    arrays = tuple(jnp.asarray(part, jnp.float32) for part in state)
    return arrays if kind == "LSTM" else arrays[0]


HOW = {
    "lengths": (BY_LENGTHS, {"lengths": LENGTHS}, True),
    "mask, right": (BY_LENGTHS, {"mask": BY_LENGTHS}, False),
    "mask, left": (BY_LENGTHS[:, ::-1], {"mask": BY_LENGTHS[:, ::-1]}, False),
    "mask, holes": (HOLES, {"mask": HOLES}, False),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("start", [False, True], ids=["zeros", "state"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", LAYERS)
def test_padded_sequences_are_those_that_run_alone(kind, how, reverse, start, compiled) -> None:
    counted, options, zero = HOW[how]
    layer, x = make(kind, reverse=reverse), sequences()
    state = initial(kind) if start else tuple(np.zeros((N, H)) for _ in initial(kind))
    expected, expected_last = padded(kind, layer, x, counted, state, zero=zero)
    given = given_state(kind, state) if start else None
    call = nx.jit(lambda layer, x, state, options: layer(x, state, **options)) if compiled else None
    options = {name: jnp.asarray(value) for name, value in options.items()}
    outputs, last = call(layer, x, given, options) if call else layer(x, given, **options)
    np.testing.assert_allclose(outputs, expected, atol=2e-6)
    for found, wanted in zip(states(kind, last), expected_last, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_whole_lengths_and_a_whole_mask_change_nothing(kind) -> None:
    layer, x = make(kind), sequences()
    expected = jax.tree.leaves(layer(x))
    for options in ({"lengths": [T] * N}, {"mask": np.ones((N, T), bool)}):
        for found, wanted in zip(jax.tree.leaves(layer(x, **options)), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["lengths", "mask"])
@pytest.mark.parametrize("kind", LAYERS)
def test_no_gradient_flows_through_padding_whatever_it_holds(kind, name) -> None:
    counted, options, _ = HOW["lengths" if name == "lengths" else "mask, holes"]
    layer, x = make(kind), sequences()
    filled = np.where(counted[..., None], x, np.nan).astype(np.float32)

    def loss(layer, x):
        outputs, last = layer(x, **options)
        square = sum(jnp.sum(jnp.square(part)) for part in jax.tree.leaves(last))
        return square + jnp.sum(jnp.where(counted[..., None], outputs, 0.0))

    of_layer, of_x = nnx.grad(loss, argnums=(0, 1))(layer, x)
    again, of_filled = nnx.grad(loss, argnums=(0, 1))(layer, jnp.asarray(filled))
    assert not np.any(np.asarray(of_x)[~counted])
    assert np.all(np.any(np.asarray(of_x)[counted] != 0, axis=-1))
    np.testing.assert_array_equal(of_filled, of_x)
    for found, wanted in zip(jax.tree.leaves(again), jax.tree.leaves(of_layer), strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_those_of_sequences_that_run_alone(kind) -> None:
    layer, x = make(kind, reverse=True), jnp.asarray(sequences())

    def together(layer):
        outputs, last = layer(x, lengths=LENGTHS)
        return jnp.sum(jnp.sin(outputs)) + sum(jnp.sum(p**2) for p in jax.tree.leaves(last))

    def one_by_one(layer):
        total = 0.0
        for n, length in enumerate(LENGTHS):
            outputs, last = layer(x[n : n + 1, :length])
            total += jnp.sum(jnp.sin(outputs))
            total += sum(jnp.sum(part**2) for part in jax.tree.leaves(last))
        return total

    found, wanted = nnx.grad(together)(layer), nnx.grad(one_by_one)(layer)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_bfloat16_stays_and_carries_over_the_padding(kind) -> None:
    layer, x = make(kind, dtype="bfloat16"), jnp.asarray(sequences(), jnp.bfloat16)
    outputs, last = layer(x, lengths=LENGTHS)
    assert outputs.dtype == jnp.bfloat16
    assert all(part.dtype == jnp.bfloat16 for part in jax.tree.leaves(last))
    assert not np.any(np.asarray(outputs, np.float32)[~BY_LENGTHS])
    h = states(kind, last)[0]
    np.testing.assert_array_equal(outputs[0, -1], h[0])
    np.testing.assert_array_equal(outputs[3, 3], h[3])


class Classifier(nn.Module):
    def __init__(self, by: str) -> None:
        self.by = by
        self.forwards = nn.GRU(F, 8, rngs=nnx.Rngs(0))
        self.backwards = nn.LSTM(F, 8, reverse=True, rngs=nnx.Rngs(1))
        self.out = nn.Linear(16, 1, rngs=nnx.Rngs(2))

    def __call__(self, x, told):
        _, h = self.forwards(x, **{self.by: told})
        _, (back, _) = self.backwards(x, **{self.by: told})
        return self.out(jnp.concatenate([h, back], axis=-1))[:, 0]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("by", ["lengths", "mask"])
def test_fit_is_the_same_whatever_the_padding_holds(by, precision) -> None:
    draw = np.random.default_rng(3)
    lengths = draw.integers(0, T + 1, 11)  # 11 examples in batches of 4: the last is filled up
    mask = np.arange(T) < lengths[:, None]
    clean = np.where(mask[..., None], draw.normal(size=(11, T, F)), 0.0).astype(np.float32)
    y = clean.sum((1, 2))
    told = lengths if by == "lengths" else mask
    predictions = []
    for x in (clean, np.where(mask[..., None], clean, 1e3).astype(np.float32)):
        model = Classifier(by).compile(nx.optim.Adam(1e-2), "mse", precision=precision)
        history = model.fit((x, told), y, epochs=3, batch_size=4, shuffle=False, verbose=0)
        assert history["loss"][-1] < history["loss"][0]
        predictions.append(model.predict((x, told), batch_size=4))
    np.testing.assert_array_equal(*predictions)


WRONG = {
    "both": ({"mask": HOLES, "lengths": LENGTHS}, ArgumentError, "`mask` or `lengths`, not both"),
    "mask of numbers": ({"mask": HOLES.astype(int)}, ShapeError, r"\(5, 6\).*mask != 0"),
    "mask of another shape": ({"mask": HOLES[:, :-1]}, ShapeError, r"boolean, \(5, 6\)"),
    "mask, ragged": ({"mask": [[True], [True, False]]}, ShapeError, "`mask`"),
    "lengths that are a mask": ({"lengths": HOLES}, ArgumentTypeError, "as `mask`"),
    "lengths of fractions": ({"lengths": LENGTHS / 1}, ArgumentTypeError, "integers; got float"),
    "lengths of others": ({"lengths": [1, 2]}, ShapeError, r"shape \(5,\); got \(2,\)"),
    "equal length": ({"lengths": 3}, ShapeError, r"shape \(5,\)"),
    "a length above T": (
        {"lengths": [1, 2, 7, 3, 1]},
        DataError,
        "0 and T, here 6; got 7 at in.* 2",
    ),
    "a length below 0": ({"lengths": [1, 2, 3, 3, -1]}, DataError, "got -1 at index 4"),
    "a mask in the state's place": ({"state": np.ones((N, H), bool)}, ArgumentTypeError, "mask="),
    "PyTorch's state": ({"state": np.ones((1, N, H))}, ShapeError, r"\(5, 4\).*state\[0\]"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_mask_and_no_length_is_told(wrong) -> None:
    options, kind, text = WRONG[wrong]
    with pytest.raises(kind, match=text):
        nn.GRU(F, H)(sequences(), **options)


def test_a_packed_sequence_is_told_of_lengths() -> None:
    PackedSequence = type("PackedSequence", (tuple,), {})
    with pytest.raises(ArgumentTypeError, match="lengths=lengths.*pad_packed_sequence"):
        nn.LSTM(F, H)(PackedSequence())


def test_a_length_that_is_traced_counts_from_0_to_t() -> None:
    layer, x = nn.GRU(F, H), sequences()
    call = nx.jit(lambda layer, x, lengths: layer(x, lengths=lengths))
    outputs, h = call(layer, x, np.array([T + 3, -2, 1, 1, 1]))
    np.testing.assert_allclose(outputs[0], layer(x)[0][0], atol=1e-6)
    assert not np.any(outputs[1]) and not np.any(h[1])
