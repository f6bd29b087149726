"""Dropout."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from neurenix._jit.training_mode import evaluates
from neurenix._nnx import nnx
from neurenix.nn._checks import as_inexact, axes_of, expect_axes, share
from neurenix.nn._parameters import rngs_or_default
from neurenix.nn.module import Module


class Dropout(Module, nnx.Dropout):
    """In training, zero each element with probability ``p`` and scale the rest by 1 / (1 - p).

    ``model.eval()`` turns it off. The random stream is part of the module's state, so every call
    draws a new mask, also under ``nx.jit``. Integers and booleans become float32, in evaluation
    too.

    Args:
        p: the probability of zero, in [0, 1].
        inplace: accepted for PyTorch code and ignored; arrays are immutable.
        broadcast_dims: an axis, or a sequence of axes, along which the mask is shared.
        rngs: random streams; those of the process by default.

    Raises:
        ArgumentError: ``p`` is outside [0, 1].
        ArgumentTypeError: ``broadcast_dims`` is not an axis or a sequence of axes.
        ShapeError: the input has no such axis.

    Example:
        >>> layer = nn.Dropout(0.5).eval()
        >>> print(layer(nx.ones(3)))
        [1. 1. 1.]
    """

    def __init__(
        self,
        p: float = 0.5,
        *,
        inplace: bool = False,
        broadcast_dims: int | Sequence[int] = (),
        rngs: nnx.Rngs | None = None,
    ) -> None:
        share("p", p)
        rngs = rngs_or_default(rngs)
        shared = axes_of("broadcast_dims", broadcast_dims)
        nnx.Dropout.__init__(self, float(p), broadcast_dims=shared, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Return ``x``, masked in training.

        Args:
            x: any shape.
            deterministic: True for no mask; by default the mode set by ``train()`` or ``eval()``.
            rngs: random stream of the mask; the layer's stream by default.
        """
        x = as_inexact(self, x)
        expect_axes(self, x, tuple(self.broadcast_dims), name="broadcast_dims")
        if deterministic is None:
            deterministic = evaluates(self, self.deterministic)
        return super().__call__(x, deterministic=deterministic, rngs=rngs)
