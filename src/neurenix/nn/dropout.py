"""Dropout.

Owns random masking in training.
"""

from __future__ import annotations

import jax

from neurenix._nnx import nnx
from neurenix.nn._checks import probability
from neurenix.nn._parameters import rngs_or_default
from neurenix.nn.module import Module


class Dropout(Module, nnx.Dropout):
    """In training, zero each number with probability ``p`` and scale the rest by 1 / (1 - p).

    ``model.eval()`` turns it off. The masks come from a stream of its own, which is part of the
    module's state, so every call draws anew under ``nx.jit`` as well.

    Args:
        p: the probability of zero, in [0, 1].
        broadcast_dims: axes along which one mask is shared.
        rngs: random streams; the process's own by default.

    Example:
        >>> import jax.numpy as jnp
        >>> layer = Dropout(0.5).eval()
        >>> print(layer(jnp.ones(3)))
        [1. 1. 1.]
    """

    def __init__(
        self,
        p: float = 0.5,
        *,
        broadcast_dims: tuple[int, ...] = (),
        rngs: nnx.Rngs | None = None,
    ) -> None:
        probability("p", p)
        rngs = rngs_or_default(rngs)
        nnx.Dropout.__init__(self, float(p), broadcast_dims=tuple(broadcast_dims), rngs=rngs)

    def __call__(self, x: jax.Array, **options) -> jax.Array:
        """Return ``x``, masked in training; options are those of ``nnx.Dropout``."""
        return super().__call__(x, **options)
