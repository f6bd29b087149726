"""RNN, LSTM and GRU, each direction by one ``lax.scan``.

Letters: ``T`` steps, ``N`` batch, ``I`` width of the input, ``H`` width of the state, ``D``
directions, ``G`` gates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.registry import operator

Array = Any
Activation = Callable[[Array], Array]
# Takes the projected input, (N, G · H), and the states; returns the new states, the output first.
Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]

# Each with its values of alpha and beta; None where the function has no such parameter.
_ACTIVATIONS: dict[str, tuple[Callable[..., Array], float | None, float | None]] = {
    "relu": (lambda x, a, b: jax.nn.relu(x), None, None),
    "tanh": (lambda x, a, b: jnp.tanh(x), None, None),
    "sigmoid": (lambda x, a, b: jax.nn.sigmoid(x), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: jnp.where(x >= 0, x, a * x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: jnp.where(x > a, x, 0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * jnp.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: jnp.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: jnp.where(x >= 0, x, a * jnp.expm1(jnp.minimum(x, 0))), 1.0, None),
    "softsign": (lambda x, a, b: x / (1 + jnp.abs(x)), None, None),
    "softplus": (lambda x, a, b: jax.nn.softplus(x), None, None),
}  # fmt: skip


@operator("RNN")
def rnn(
    x, w, r, b=None, lengths=None, h=None, *, hidden_size=None, activations=None,
    activation_alpha=None, activation_beta=None, clip=None, direction="forward", layout=0,
    output_sequence=None,
):  # fmt: skip
    run = _Directions(x, r, lengths, direction, layout)
    sets = run.activations(activations, ("Tanh",), activation_alpha, activation_beta, clip)

    def step(number: int) -> tuple[Array, Step]:
        ((f,), (w_bias, r_bias)) = sets[number], _bias(b, number, w, r)

        def cell(projected: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            return (f(projected + state[0] @ r[number].T),)

        return run.x @ w[number].T + (w_bias + r_bias), cell

    y, (last,) = run(step, [h])
    return [y, last]


@operator("GRU")
def gru(
    x, w, r, b=None, lengths=None, h=None, *, hidden_size=None, activations=None,
    activation_alpha=None, activation_beta=None, clip=None, direction="forward", layout=0,
    linear_before_reset=0, output_sequence=None,
):  # fmt: skip
    run = _Directions(x, r, lengths, direction, layout)
    usual = ("Sigmoid", "Tanh")
    sets = run.activations(activations, usual, activation_alpha, activation_beta, clip)
    size = r.shape[-1]

    def step(number: int) -> tuple[Array, Step]:
        ((f, g), (w_bias, r_bias)) = sets[number], _bias(b, number, w, r)
        gates, hidden = r[number, : 2 * size].T, r[number, 2 * size :].T

        def cell(projected: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (h,) = state
            given, candidate = jnp.split(projected, [2 * size], axis=-1)
            z, reset = jnp.split(f(given + h @ gates), 2, axis=-1)
            if linear_before_reset:
                new = g(candidate + reset * (h @ hidden + r_bias[2 * size :]))
            else:
                new = g(candidate + (reset * h) @ hidden + r_bias[2 * size :])
            return ((1 - z) * new + z * h,)

        # The reset gate multiplies the last third of the recurrent bias, perhaps.
        return run.x @ w[number].T + w_bias + r_bias.at[2 * size :].set(0), cell

    y, (last,) = run(step, [h])
    return [y, last]


@operator("LSTM")
def lstm(
    x, w, r, b=None, lengths=None, h=None, c=None, p=None, *, hidden_size=None, activations=None,
    activation_alpha=None, activation_beta=None, clip=None, direction="forward", layout=0,
    input_forget=0, output_sequence=None,
):  # fmt: skip
    run = _Directions(x, r, lengths, direction, layout)
    usual = ("Sigmoid", "Tanh", "Tanh")
    gated = run.activations(activations, usual, activation_alpha, activation_beta, clip)
    # onnxruntime limits what the gates see, not the cell's state.
    free = run.activations(activations, usual, activation_alpha, activation_beta, None)
    size = r.shape[-1]

    def step(number: int) -> tuple[Array, Step]:
        (f, g, _), (_, _, hidden) = gated[number], free[number]
        w_bias, r_bias = _bias(b, number, w, r)
        peep = jnp.zeros(3 * size, r.dtype) if p is None else p[number]
        peep_i, peep_o, peep_f = jnp.split(peep, 3)

        def cell(projected: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            h, c = state
            i, o, forget, new = jnp.split(projected + h @ r[number].T, 4, axis=-1)
            i = f(i + peep_i * c)
            forget = 1 - i if input_forget else f(forget + peep_f * c)
            c = forget * c + i * g(new)
            return f(o + peep_o * c) * hidden(c), c

        return run.x @ w[number].T + (w_bias + r_bias), cell

    y, (last, last_c) = run(step, [h, c])
    return [y, last, last_c]


class _Directions:
    """Runs a cell along the steps, in each direction, and puts the results together."""

    def __init__(
        self, x: Array, r: Array, lengths: Array | None, direction: str, layout: int
    ) -> None:
        if direction not in ("forward", "reverse", "bidirectional"):
            raise ConversionError(f"the direction {direction!r} is not known.")
        self._reversed = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
        if r.shape[0] != len(self._reversed):
            raise ConversionError(
                f"it is {direction}, and its weights are for {r.shape[0]} directions."
            )
        self._layout, self._lengths = layout, lengths
        self.x = jnp.swapaxes(x, 0, 1) if layout else x
        self._state = (len(self._reversed), self.x.shape[1], r.shape[-1])

    def activations(
        self, names: Sequence[str] | None, usual: Sequence[str], alphas: Sequence[float] | None,
        betas: Sequence[float] | None, clip: float | None,
    ) -> list[list[Activation]]:  # fmt: skip
        """Return the activations of each direction."""
        count = len(self._reversed)
        names = list(usual) * count if names is None else list(names)
        if len(names) != len(usual) * count:
            raise ConversionError(f"it names {len(names)} activations, not {len(usual) * count}.")
        alpha, beta = iter(alphas or ()), iter(betas or ())
        made = [_activation(name, alpha, beta, clip) for name in names]
        return [made[start : start + len(usual)] for start in range(0, len(made), len(usual))]

    def __call__(
        self, step: Callable[[int], tuple[Array, Step]], starts: Sequence[Array | None]
    ) -> tuple[Array, list[Array]]:
        """Return the outputs, (T, D, N, H), and the last states, (D, N, H); else batch first."""
        states = [self._start(each) for each in starts]
        ran = [
            self._direction(*step(number), tuple(each[number] for each in states), backwards)
            for number, backwards in enumerate(self._reversed)
        ]
        y = jnp.stack([each[0] for each in ran], axis=1)
        last = [jnp.stack(each) for each in zip(*(each[1] for each in ran), strict=True)]
        if self._layout:
            return y.transpose(2, 0, 1, 3), [jnp.swapaxes(each, 0, 1) for each in last]
        return y, last

    def _start(self, state: Array | None) -> Array:
        if state is None:
            return jnp.zeros(self._state, self.x.dtype)
        return jnp.swapaxes(state, 0, 1) if self._layout else state

    def _direction(
        self, projected: Array, cell: Step, state: tuple[Array, ...], backwards: bool
    ) -> tuple[Array, tuple[Array, ...]]:
        lengths = self._lengths
        if lengths is None:
            last, y = jax.lax.scan(_advance(cell), state, projected, reverse=backwards)
            return y, last
        # Backwards, the steps behind the end come first, and change nothing.
        inside = jnp.arange(len(projected))[:, None, None] < lengths[:, None]

        def step(state: tuple[Array, ...], given: tuple[Array, Array]) -> Any:
            there, new = given[1], cell(given[0], state)
            kept = tuple(jnp.where(there, a, b) for a, b in zip(new, state, strict=True))
            return kept, jnp.where(there, new[0], 0)

        last, y = jax.lax.scan(step, state, (projected, inside), reverse=backwards)
        return y, last


def _advance(cell: Step) -> Callable[[tuple[Array, ...], Array], Any]:
    def step(state: tuple[Array, ...], projected: Array) -> Any:
        new = cell(projected, state)
        return new, new[0]

    return step


def _bias(b: Array | None, number: int, w: Array, r: Array) -> tuple[Array, Array]:
    """Return the biases of one direction: of the input and of the state."""
    count = r.shape[1]
    if b is None:
        return jnp.zeros(count, w.dtype), jnp.zeros(count, w.dtype)
    return b[number, :count], b[number, count:]


def _activation(
    name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None
) -> Activation:
    """Return a function, which takes its parameters from the lists if it has any."""
    if name.lower() not in _ACTIVATIONS:
        raise ConversionError(f"the activation {name!r} is not known.")
    function, alpha, beta = _ACTIVATIONS[name.lower()]
    alpha = None if alpha is None else next(alphas, alpha)
    beta = None if beta is None else next(betas, beta)
    if not clip:
        return functools.partial(function, a=alpha, b=beta)
    return lambda x: function(jnp.clip(x, -clip, clip), alpha, beta)
