"""Dense layers: Linear, Identity."""

from __future__ import annotations

import jax

from neurenix._nnx import nnx
from neurenix.nn._checks import expect_features, positive
from neurenix.nn._parameters import (
    fan_in_uniform,
    parameter_dtype,
    promote_to_input,
    rngs_or_default,
)
from neurenix.nn.module import Module


class Linear(Module, nnx.Linear):
    """``x @ kernel + bias`` over the last axis: (..., in_features) → (..., out_features).

    Initial values as in PyTorch: kernel and bias from U(-1/√in_features, 1/√in_features)
    (``kaiming_uniform_(a=√5)``). Computes in the dtype of its input.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        bias: whether to add a bias.
        dtype: of the parameters; float32 by default.
        rngs: random streams; those of the process (``neurenix.seed``) by default.

    Attributes:
        kernel: (in_features, out_features), the transpose of PyTorch's ``weight``.
        bias: (out_features,) or None.

    Raises:
        ShapeError: the last axis of the input is not ``in_features``.

    Example:
        >>> nn.Linear(3, 2)(nx.ones((4, 3))).shape
        (4, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        in_features, out_features = positive(in_features=in_features, out_features=out_features)
        init = fan_in_uniform(in_features)
        nnx.Linear.__init__(
            self,
            in_features,
            out_features,
            use_bias=bias,
            param_dtype=parameter_dtype(dtype),
            kernel_init=init,
            bias_init=init,
            promote_dtype=promote_to_input,
            rngs=rngs_or_default(rngs),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x @ kernel + bias``, shape (..., out_features)."""
        expect_features("Linear", x, self.in_features)
        return super().__call__(x)


class Identity(Module):
    """Return the input unchanged."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x``."""
        return x
