"""Recurrent layers: LSTM and GRU, as one ``lax.scan`` over time.

Owns the cells' formulas and their order of gates. Sequences are (N, T, features): batch first,
PyTorch's ``batch_first=True``.

Parameters of each layer: ``input_kernel`` (features, G · H), ``recurrent_kernel`` (H, G · H),
``input_bias`` and ``recurrent_bias`` (G · H,), the transposes of PyTorch's ``weight_ih_l0``,
``weight_hh_l0``, ``bias_ih_l0`` and ``bias_hh_l0``, with the gates side by side in PyTorch's
order: LSTM **input, forget, cell, output** (Keras the same); GRU **reset, update, new** (Keras:
update, reset, new). Initial values as in PyTorch: U(-1/√H, 1/√H).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._nnx import nnx
from neurenix.nn._checks import expect_array, expect_features, positive
from neurenix.nn._parameters import (
    parameter_dtype,
    promote_to_input,
    rngs_or_default,
    symmetric_uniform,
)
from neurenix.nn.module import Module


class _Recurrent(Module):
    _gates: ClassVar[int]
    _state: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        batch_first: bool = True,
        reverse: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if not batch_first:
            raise ArgumentError(
                f"{type(self).__name__} takes sequences (N, T, features), batch_first=True; turn "
                "those of (T, N, features) with x.swapaxes(0, 1)."
            )
        input_size, hidden_size = positive(input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.reverse = input_size, hidden_size, reverse
        rngs, dtype = rngs_or_default(rngs), parameter_dtype(dtype)
        init = symmetric_uniform(1 / math.sqrt(hidden_size))
        width = self._gates * hidden_size

        def make(*shape: int) -> nnx.Param:
            return nnx.Param(init(rngs.params(), shape, dtype))

        self.input_kernel = make(input_size, width)
        self.recurrent_kernel = make(hidden_size, width)
        self.input_bias = make(width) if bias else nnx.data(None)
        self.recurrent_bias = make(width) if bias else nnx.data(None)

    @abstractmethod
    def _initial(self, batch: int, dtype: Any) -> Any:
        """Return the state before the first step."""

    def _run(self, x: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        name = type(self).__name__
        expect_array(name, x)
        if x.ndim != 3:
            raise ShapeError(f"{name} takes (N, T, {self.input_size}); got shape {x.shape}.")
        expect_features(name, x, self.input_size)
        input_bias = None if self.input_bias is None else self.input_bias[...]
        recurrent_bias = None if self.recurrent_bias is None else self.recurrent_bias[...]
        x, kernel, input_bias, recurrent, recurrent_bias = promote_to_input(
            (x, self.input_kernel[...], input_bias, self.recurrent_kernel[...], recurrent_bias)
        )
        if state is None:
            state = self._initial(x.shape[0], x.dtype)
        self._expect_state(state, (x.shape[0], self.hidden_size))
        state = jax.tree.map(lambda part: part.astype(x.dtype), state)
        # The input's share of all steps is one large product; only the recurrence is in the loop.
        projected = x @ kernel
        if input_bias is not None:
            projected = projected + input_bias

        return _through_time(
            projected, state, recurrent, recurrent_bias, cell=self._cell, reverse=self.reverse
        )

    def _expect_state(self, state: tuple[Any, ...], shape: tuple[int, int]) -> None:
        name, parts = type(self).__name__, ", ".join(self._state)
        arrays = all(hasattr(part, "shape") for part in state)
        if len(state) != len(self._state) or not arrays:
            takes = f"a tuple ({parts}) of arrays" if len(self._state) > 1 else f"one array {parts}"
            given = ", ".join(type(part).__name__ for part in state)
            raise ArgumentTypeError(
                f"{name} takes {takes} of shape {shape} as its state; got ({given})."
            )
        for part in state:
            if part.shape != shape:
                raise ShapeError(f"{name} takes a state of shape {shape}; got {part.shape}.")

    @staticmethod
    @abstractmethod
    def _cell(now: jax.Array, hidden: jax.Array, state: Any) -> Any:
        """Return the next state from the input's and the hidden state's share of the gates."""


# Compiled by itself: a loop around a function that is made at each call would be compiled at each
# call where nothing around it is.
@partial(jax.jit, static_argnames=("cell", "reverse"))
def _through_time(
    projected: jax.Array,
    state: Any,
    recurrent: jax.Array,
    recurrent_bias: jax.Array | None,
    *,
    cell: Callable[..., Any],
    reverse: bool,
) -> tuple[jax.Array, Any]:
    def step(state: Any, now: jax.Array) -> tuple[Any, jax.Array]:
        hidden = state[0] @ recurrent
        if recurrent_bias is not None:
            hidden = hidden + recurrent_bias
        state = cell(now, hidden, state)
        return state, state[0]

    state, outputs = lax.scan(step, state, projected.swapaxes(0, 1), reverse=reverse)
    return outputs.swapaxes(0, 1), state


class LSTM(_Recurrent):
    """Long short-term memory: (N, T, input_size) → (N, T, hidden_size) and the last state.

    ``i, f, g, o`` = gates; ``c = σ(f) · c + σ(i) · tanh(g)``; ``h = σ(o) · tanh(c)``. For the
    order of gates and the parameters see the module's text.

    Args:
        input_size: size of the last axis of the input.
        hidden_size: size H of the state.
        bias: whether to add biases.
        batch_first: True, the only order of axes.
        reverse: go through time backwards; outputs stay at their places.
        dtype: of the parameters; float32 by default.
        rngs: random streams; the process's own by default.

    Raises:
        ArgumentError: ``batch_first`` is False.

    Example:
        >>> outputs, (h, c) = nn.LSTM(3, 5)(nx.ones((2, 7, 3)))
        >>> outputs.shape, h.shape, c.shape
        ((2, 7, 5), (2, 5), (2, 5))
    """

    _gates = 4
    _state = ("h", "c")

    def __call__(
        self, x: jax.Array, state: tuple[jax.Array, jax.Array] | None = None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Return all outputs (N, T, H) and the last (h, c), each (N, H).

        Args:
            x: (N, T, input_size).
            state: (h, c) to start from; zeros by default.

        Raises:
            ShapeError: the shapes do not go together.
            ArgumentTypeError: ``state`` is no (h, c).
        """
        whole = state if isinstance(state, (tuple, list)) else (state,)
        return self._run(x, None if state is None else tuple(whole))

    def _initial(self, batch: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
        zeros = jnp.zeros((batch, self.hidden_size), dtype)
        return zeros, zeros

    @staticmethod
    def _cell(now, hidden, state):
        i, f, g, o = jnp.split(now + hidden, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


class GRU(_Recurrent):
    """Gated recurrent unit: (N, T, input_size) → (N, T, hidden_size) and the last state.

    ``r, z`` = gates; ``n = tanh(input + r · hidden)``, the reset after the product, as in PyTorch
    and cuDNN; ``h = (1 - z) · n + z · h``. Arguments as for :class:`LSTM`.

    Example:
        >>> outputs, h = nn.GRU(3, 5)(nx.ones((2, 7, 3)))
        >>> outputs.shape, h.shape
        ((2, 7, 5), (2, 5))
    """

    _gates = 3
    _state = ("h",)

    def __call__(self, x: jax.Array, state: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """Return all outputs (N, T, H) and the last h (N, H).

        Args:
            x: (N, T, input_size).
            state: h to start from; zeros by default.

        Raises:
            ShapeError: the shapes do not go together.
            ArgumentTypeError: ``state`` is no array.
        """
        outputs, (h,) = self._run(x, None if state is None else (state,))
        return outputs, h

    def _initial(self, batch: int, dtype: Any) -> tuple[jax.Array]:
        return (jnp.zeros((batch, self.hidden_size), dtype),)

    @staticmethod
    def _cell(now, hidden, state):
        now_r, now_z, now_n = jnp.split(now, 3, axis=-1)
        hidden_r, hidden_z, hidden_n = jnp.split(hidden, 3, axis=-1)
        update = jax.nn.sigmoid(now_z + hidden_z)
        new = jnp.tanh(now_n + jax.nn.sigmoid(now_r + hidden_r) * hidden_n)
        return ((1 - update) * new + update * state[0],)
