"""LSTM, GRU and plain recurrent networks of several layers, each layer one ``lax.scan``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neurenix.interop.torch.registry import operator

Array = Any
State = tuple[Array, ...]


def _lstm_cell(state: State, gates: Array, weight: Array, bias: Any) -> State:
    hidden, cell = state
    i, f, g, o = jnp.split(gates + hidden @ weight.T + bias, 4, -1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru_cell(state: State, gates: Array, weight: Array, bias: Any) -> State:
    (hidden,) = state
    reset, update, new = jnp.split(gates, 3, -1)
    reset_h, update_h, new_h = jnp.split(hidden @ weight.T + bias, 3, -1)
    update = jax.nn.sigmoid(update + update_h)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + reset_h) * new_h)
    return ((1 - update) * new + update * hidden,)


def _plain_cell(activation: Callable[[Array], Array]) -> Callable[..., State]:
    def cell(state: State, gates: Array, weight: Array, bias: Any) -> State:
        return (activation(gates + state[0] @ weight.T + bias),)

    return cell


def _run(
    cell: Callable[..., State],
    input: Array,
    start: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    rng: Any,
) -> tuple[Array, ...]:
    """Return outputs, and the last state of each layer and direction."""
    x = jnp.swapaxes(input, 0, 1) if batch_first else input
    directions = 1 + bool(bidirectional)
    last: list[State] = []
    projected = len(params) > num_layers * directions * (4 if has_biases else 2)
    each = (4 if has_biases else 2) + projected
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            own = params[number * each : (number + 1) * each]
            into, again, *more = own
            bias_in, bias_again = more[:2] if has_biases else (0.0, 0.0)
            projection = own[-1] if projected else None
            gates = x @ into.T + bias_in

            def step(
                state: State, gate: Array, again: Any = again, bias: Any = bias_again,
                projection: Any = projection,
            ) -> tuple[State, Array]:  # fmt: skip
                new = cell(state, gate, again, bias)
                if projection is not None:
                    new = (new[0] @ projection.T, *new[1:])
                return new, new[0]

            state, found = lax.scan(
                step, tuple(part[number] for part in start), gates, reverse=direction == 1
            )
            outputs.append(found)
            last.append(state)
        x = jnp.concatenate(outputs, -1) if directions > 1 else outputs[0]
        if dropout and train and layer < num_layers - 1:
            kept = jax.random.bernoulli(jax.random.fold_in(rng(), layer), 1 - dropout, x.shape)
            x = jnp.where(kept, x / (1 - dropout), 0)
    states = [jnp.stack(part) for part in zip(*last, strict=True)]
    return (jnp.swapaxes(x, 0, 1) if batch_first else x, *states)


def _draws(arguments: dict[str, Any]) -> bool:
    return bool(arguments.get("train")) and bool(arguments.get("dropout"))


@operator("lstm.input", random=_draws, product=True)
def lstm(
    input: Array, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool, rng: Any = None,
) -> tuple[Array, ...]:  # fmt: skip
    return _run(_lstm_cell, input, hx, params, has_biases, num_layers, dropout, train,
                bidirectional, batch_first, rng)  # fmt: skip


def _register_of_one_state() -> None:
    cells = {
        "gru.input": _gru_cell,
        "rnn_tanh.input": _plain_cell(jnp.tanh),
        "rnn_relu.input": _plain_cell(jax.nn.relu),
    }
    for name, cell in cells.items():

        def run(
            input: Array, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
            train: bool, bidirectional: bool, batch_first: bool, rng: Any = None, cell: Any = cell,
        ) -> tuple[Array, ...]:  # fmt: skip
            return _run(cell, input, (hx,), params, has_biases, num_layers, dropout, train,
                        bidirectional, batch_first, rng)  # fmt: skip

        operator(name, random=_draws, product=True)(run)


_register_of_one_state()


@operator("lstm_cell", product=True)
def lstm_cell(input: Array, hx: Any, w_ih: Array, w_hh: Array, b_ih: Any = None, b_hh: Any = None):
    gates = input @ w_ih.T + (0.0 if b_ih is None else b_ih)
    return _lstm_cell(tuple(hx), gates, w_hh, 0.0 if b_hh is None else b_hh)


@operator("gru_cell", product=True)
def gru_cell(input: Array, hx: Any, w_ih: Array, w_hh: Array, b_ih: Any = None, b_hh: Any = None):
    gates = input @ w_ih.T + (0.0 if b_ih is None else b_ih)
    return _gru_cell((hx,), gates, w_hh, 0.0 if b_hh is None else b_hh)[0]
