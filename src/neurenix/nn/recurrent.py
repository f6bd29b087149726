"""Recurrent layers, LSTM and GRU, each one ``lax.scan`` over time.

Sequences are (N, T, features): batch first, as PyTorch's ``batch_first=True``.

Parameters: ``input_kernel`` (features, G · H), ``recurrent_kernel`` (H, G · H), ``input_bias`` and
``recurrent_bias`` (G · H,): the transposes of PyTorch's ``weight_ih_l0``, ``weight_hh_l0``,
``bias_ih_l0`` and ``bias_hh_l0``. Gates are stacked in PyTorch's order. LSTM: **input, forget,
cell, output** (as in Keras). GRU: **reset, update, new** (Keras: update, reset, new). Initial
values as in PyTorch: U(-1/√H, 1/√H).

Sequences of different lengths are padded to one T. Either of two arguments marks the valid steps:

- ``mask`` (N, T), booleans, as in Keras: True for a valid step, anywhere in the sequence. An
  invalid step keeps the state; its output is the h that is carried over: the output of the previous
  step, or the initial h (zeros) before the first valid step.
- ``lengths`` (N,), integers from 0 to T, as PyTorch's packed sequences: the first ``lengths[n]``
  steps of sequence n are valid; outputs after them are zero.

The returned state is that of the last valid step; with ``reverse=True``, where time runs from T - 1
to 0, that of the first one. A sequence without valid steps returns its initial state. The input of
an invalid step, NaN included, affects neither outputs nor gradients.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError
from neurenix._nnx import nnx
from neurenix.nn._checks import as_mask, expect_array, expect_features, positive
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
                f"{type(self).__name__} takes sequences (N, T, features), batch_first=True; "
                "convert (T, N, features) with x.swapaxes(0, 1)."
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

    def _run(
        self, x: jax.Array, state: Any, mask: Any = None, lengths: Any = None
    ) -> tuple[jax.Array, Any]:
        name = type(self).__name__
        if type(x).__name__ == "PackedSequence":
            raise ArgumentTypeError(
                f"{name} takes padded sequences and their lengths; got a PackedSequence. Write "
                "layer(padded, lengths=lengths) with the two results of "
                "torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True), as NumPy arrays."
            )
        expect_array(name, x)
        if x.ndim != 3:
            raise ShapeError(f"{name} takes (N, T, {self.input_size}); got shape {x.shape}.")
        expect_features(name, x, self.input_size)
        counted = _counted_steps(name, x, mask, lengths)
        if counted is not None:  # before the product: in the gradient, 0 · NaN would be NaN
            x = jnp.where(counted[..., None], x, jnp.zeros((), x.dtype))
        input_bias = None if self.input_bias is None else self.input_bias[...]
        recurrent_bias = None if self.recurrent_bias is None else self.recurrent_bias[...]
        x, kernel, input_bias, recurrent, recurrent_bias = promote_to_input(
            (x, self.input_kernel[...], input_bias, self.recurrent_kernel[...], recurrent_bias)
        )
        if state is None:
            state = self._initial(x.shape[0], x.dtype)
        self._expect_state(state, (x.shape[0], self.hidden_size))
        state = jax.tree.map(lambda part: part.astype(x.dtype), state)
        # One large product for the inputs of all steps; only the recurrence is in the loop.
        projected = x @ kernel
        if input_bias is not None:
            projected = projected + input_bias

        return _through_time(
            projected,
            state,
            recurrent,
            recurrent_bias,
            counted,
            cell=self._cell,
            reverse=self.reverse,
            zero=lengths is not None,
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
            if part.dtype == jnp.bool_:
                raise ArgumentTypeError(
                    f"{name} takes floats as its state; got booleans, shape {part.shape}. Give a "
                    "mask by name: mask=…."
                )
            if part.shape != shape:
                hint = ""
                if part.shape == (1, *shape):
                    hint = " PyTorch's first axis is the layer: give state[0]."
                raise ShapeError(f"{name} takes a state of shape {shape}; got {part.shape}.{hint}")

    @staticmethod
    @abstractmethod
    def _cell(now: jax.Array, hidden: jax.Array, state: Any) -> Any:
        """Return the next state from the gate contributions of the input and the hidden state."""


def _counted_steps(name: str, x: jax.Array, mask: Any, lengths: Any) -> jax.Array | None:
    """Return the valid steps of ``x`` (N, T, …) as booleans (N, T), or None if all are valid.

    Raises:
        ArgumentError: both arguments are given.
        ShapeError: ``mask`` is not boolean (N, T), or ``lengths`` is not (N,).
        ArgumentTypeError: ``lengths`` are not integers.
        DataError: a length whose value is known is outside 0 … T.
    """
    if mask is not None and lengths is not None:
        raise ArgumentError(
            f"{name} takes `mask` or `lengths`, not both. With lengths as a mask: mask & "
            "(jnp.arange(T) < lengths[:, None])."
        )
    if mask is not None:
        mask = as_mask("mask", mask)
        if mask.shape != x.shape[:2] or mask.dtype != jnp.bool_:
            hint = " Write mask != 0." if mask.shape == x.shape[:2] else ""
            raise ShapeError(
                f"{name}: `mask` must be boolean, {x.shape[:2]}, True for a valid step; got "
                f"{mask.dtype}, shape {mask.shape}.{hint}"
            )
        return jnp.asarray(mask)
    if lengths is None:
        return None
    lengths = lengths if hasattr(lengths, "shape") else jnp.asarray(lengths)
    if lengths.dtype == jnp.bool_ or lengths.ndim == 2:
        raise ArgumentTypeError(
            f"{name}: `lengths` must be integers, shape {x.shape[:1]}; got {lengths.dtype}, shape "
            f"{lengths.shape}. Give booleans for every step as `mask`."
        )
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ArgumentTypeError(
            f"{name}: `lengths` must be integers; got {lengths.dtype}. Write lengths.astype(int)."
        )
    if lengths.shape != x.shape[:1]:
        raise ShapeError(f"{name}: `lengths` must have shape {x.shape[:1]}; got {lengths.shape}.")
    steps = x.shape[1]
    if not isinstance(lengths, Tracer) and getattr(lengths, "is_fully_addressable", True):
        known = np.asarray(lengths)
        outside = np.flatnonzero((known < 0) | (known > steps))
        if outside.size:
            place = int(outside[0])
            raise DataError(
                f"{name}: a length must be between 0 and T, here {steps}; got {known[place]} at "
                f"index {place}."
            )
    return jnp.arange(steps) < jnp.asarray(lengths)[:, None]


# Jitted, because an eager call would otherwise compile a scan over a new step function every time.
@partial(jax.jit, static_argnames=("cell", "reverse", "zero"))
def _through_time(
    projected: jax.Array,
    state: Any,
    recurrent: jax.Array,
    recurrent_bias: jax.Array | None,
    counted: jax.Array | None,
    *,
    cell: Callable[..., Any],
    reverse: bool,
    zero: bool,
) -> tuple[jax.Array, Any]:
    def step(state: Any, now: tuple[jax.Array, jax.Array | None]) -> tuple[Any, jax.Array]:
        share, counts = now
        hidden = state[0] @ recurrent
        if recurrent_bias is not None:
            hidden = hidden + recurrent_bias
        new = cell(share, hidden, state)
        if counts is None:
            return new, new[0]
        carried = tuple(jnp.where(counts, n, old) for n, old in zip(new, state, strict=True))
        return carried, jnp.where(counts, new[0], 0) if zero else carried[0]

    steps = None if counted is None else counted.T[..., None]
    by_time = (projected.swapaxes(0, 1), steps)
    state, outputs = lax.scan(step, state, by_time, reverse=reverse)
    return outputs.swapaxes(0, 1), state


class LSTM(_Recurrent):
    """Long short-term memory: (N, T, input_size) → (N, T, hidden_size) and the last state.

    ``i, f, g, o`` = gates; ``c = σ(f) · c + σ(i) · tanh(g)``; ``h = σ(o) · tanh(c)``. Parameters,
    the order of gates and padded sequences are described in ``neurenix.nn.recurrent``.

    Args:
        input_size: size of the last axis of the input.
        hidden_size: size H of the state.
        bias: whether to add biases.
        batch_first: must be True.
        reverse: run from the last step to the first; outputs keep their positions. Concatenate the
            outputs of a forward and a reverse layer for a bidirectional network.
        dtype: of the parameters; float32 by default.
        rngs: random streams; those of the process by default.

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
        self,
        x: jax.Array,
        state: tuple[jax.Array, jax.Array] | None = None,
        *,
        mask: jax.Array | None = None,
        lengths: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Return all outputs (N, T, H) and the last (h, c), each (N, H).

        Args:
            x: (N, T, input_size).
            state: initial (h, c); zeros by default.
            mask: (N, T), booleans, True for a valid step. An invalid step keeps the state; its
                output is the carried h.
            lengths: (N,), integers from 0 to T: valid steps of each sequence; outputs after them
                are zero. In a compiled function, which cannot raise, values above T mean T.

        Raises:
            ShapeError: the shapes are incompatible, or ``mask`` is not boolean.
            ArgumentTypeError: ``state`` is not (h, c), or ``lengths`` are not integers.
            ArgumentError: both ``mask`` and ``lengths`` are given.
            DataError: a length is below 0 or above T.

        Example:
            >>> x, lstm = nx.ones((2, 7, 3)), nn.LSTM(3, 5)
            >>> outputs, (h, c) = lstm(x, lengths=nx.tensor([7, 2]))
            >>> bool((outputs[1, 1] == h[1]).all()), bool((outputs[1, 2:] == 0).all())
            (True, True)
        """
        whole = state if isinstance(state, (tuple, list)) else (state,)
        return self._run(x, None if state is None else tuple(whole), mask, lengths)

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

    ``r, z`` = gates; ``n = tanh(input + r · hidden)``, with the reset gate after the product, as in
    PyTorch and cuDNN; ``h = (1 - z) · n + z · h``. Arguments as for :class:`LSTM`.

    Example:
        >>> outputs, h = nn.GRU(3, 5)(nx.ones((2, 7, 3)))
        >>> outputs.shape, h.shape
        ((2, 7, 5), (2, 5))
    """

    _gates = 3
    _state = ("h",)

    def __call__(
        self,
        x: jax.Array,
        state: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        lengths: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Return all outputs (N, T, H) and the last h (N, H).

        Args:
            x: (N, T, input_size).
            state: initial h; zeros by default.
            mask: (N, T), booleans, as for :class:`LSTM`.
            lengths: (N,), integers, as for :class:`LSTM`.

        Raises:
            ShapeError: the shapes are incompatible, or ``mask`` is not boolean.
            ArgumentTypeError: ``state`` is not an array, or ``lengths`` are not integers.
            ArgumentError: both ``mask`` and ``lengths`` are given.
            DataError: a length is below 0 or above T.
        """
        outputs, (h,) = self._run(x, None if state is None else (state,), mask, lengths)
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
