"""Activation layers; each calls the ``jax.nn`` function of the same meaning.

Defaults are PyTorch's: ``GELU`` is exact, ``LeakyReLU`` has slope 0.01. Integer and boolean inputs
are cast to float32, except by ``ReLU``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from neurenix._core.errors import unknown_name
from neurenix._nnx import nnx
from neurenix.nn._checks import (
    as_array,
    as_inexact,
    axes_of,
    expect_axes,
    expect_features,
    positive,
)
from neurenix.nn.module import Module


class _Activation(Module):
    def __init__(self, *, inplace: bool = False) -> None:
        """Create the layer; ``inplace`` is accepted for PyTorch code and ignored."""


class ReLU(_Activation):
    """``max(x, 0)``, in the dtype of ``x``, integers included.

    Example:
        >>> print(nn.ReLU()(nx.tensor([-1.0, 2.0])))
        [0. 2.]
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.relu(as_array(self, x))


class ReLU6(_Activation):
    """``min(max(x, 0), 6)``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.relu6(as_inexact(self, x))


class LeakyReLU(Module):
    """``x`` for x > 0, ``negative_slope · x`` otherwise.

    Args:
        negative_slope: slope for x < 0.
        inplace: accepted for PyTorch code and ignored; arrays are immutable.
    """

    def __init__(self, negative_slope: float = 0.01, *, inplace: bool = False) -> None:
        self.negative_slope = negative_slope

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.leaky_relu(as_inexact(self, x), self.negative_slope)


class PReLU(Module):
    """``x`` for x > 0, a learned slope times ``x`` otherwise.

    Args:
        num_parameters: 1, or the size of the last axis for one slope per channel.
        init: initial slope.

    Attributes:
        slope: (num_parameters,).

    Raises:
        ArgumentError: ``num_parameters`` is not an integer of at least 1.
        ShapeError: the input's channel count differs from ``num_parameters`` > 1.

    Example:
        >>> print(nn.PReLU(2, init=0.5)(nx.tensor([[-4, -2], [1, 2]])))
        [[-2. -1.]
         [ 1.  2.]]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        (num_parameters,) = positive(num_parameters=num_parameters)
        self.slope = nnx.Param(jnp.full((num_parameters,), init, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        x = as_inexact(self, x)
        if self.slope.shape != (1,):
            expect_features(type(self).__name__, x, *self.slope.shape, channels=True)
        return jnp.where(x >= 0, x, self.slope[...].astype(x.dtype) * x)


class ELU(Module):
    """``x`` for x > 0, ``alpha · (exp(x) - 1)`` otherwise.

    Args:
        alpha: the output tends to ``-alpha`` as x tends to -∞.
        inplace: accepted for PyTorch code and ignored; arrays are immutable.
    """

    def __init__(self, alpha: float = 1.0, *, inplace: bool = False) -> None:
        self.alpha = alpha

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.elu(as_inexact(self, x), self.alpha)


class SELU(_Activation):
    """ELU scaled to preserve mean and variance from layer to layer (Klambauer et al. 2017)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.selu(as_inexact(self, x))


class GELU(Module):
    """``x · Φ(x)``.

    Args:
        approximate: use the tanh approximation instead of the error function. PyTorch's ``"tanh"``
            and ``"none"`` are accepted.

    Raises:
        UnknownNameError: unknown approximation name.
    """

    def __init__(self, approximate: bool | str = False) -> None:
        names = {"tanh": True, "none": False}
        if isinstance(approximate, str):
            if approximate not in names:
                raise unknown_name("approximation", approximate, names)
            approximate = names[approximate]
        self.approximate = bool(approximate)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.gelu(as_inexact(self, x), approximate=self.approximate)


class SiLU(_Activation):
    """``x · sigmoid(x)``, also called Swish."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.silu(as_inexact(self, x))


class Mish(_Activation):
    """``x · tanh(softplus(x))``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.mish(as_inexact(self, x))


class Tanh(Module):
    """``tanh(x)``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jnp.tanh(as_inexact(self, x))


class Sigmoid(Module):
    """``1 / (1 + exp(-x))``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.sigmoid(as_inexact(self, x))


class Hardsigmoid(_Activation):
    """``relu6(x + 3) / 6``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.hard_sigmoid(as_inexact(self, x))


class Hardswish(_Activation):
    """``x · relu6(x + 3) / 6``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.hard_silu(as_inexact(self, x))


class Softplus(Module):
    """``log(1 + exp(x))``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.softplus(as_inexact(self, x))


class Softsign(Module):
    """``x / (1 + |x|)``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the activation of ``x``."""
        return jax.nn.soft_sign(as_inexact(self, x))


class _AlongAxes(Module):
    def __init__(self, dim: int | Sequence[int] = -1) -> None:
        self.dim = axes_of("dim", dim)

    def _along(self, function: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
        x = as_inexact(self, x)
        expect_axes(self, x, self.dim, name="dim")
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return function(wide, axis=self.dim).astype(x.dtype)


class Softmax(_AlongAxes):
    """``exp(x) / sum(exp(x))`` along one or more axes; computed in float32 or wider.

    Args:
        dim: the axis, or a sequence of axes.

    Raises:
        ArgumentTypeError: ``dim`` is not an axis or a sequence of axes.
        ShapeError: the input has no such axis.

    Example:
        >>> print(nn.Softmax()(nx.zeros(2)))
        [0.5 0.5]
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the probabilities."""
        return self._along(jax.nn.softmax, x)


class LogSoftmax(_AlongAxes):
    """``x - log(sum(exp(x)))`` along one or more axes; arguments and errors as for ``Softmax``."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the log-probabilities."""
        return self._along(jax.nn.log_softmax, x)


Swish = SiLU
_BY_NAME = {
    "relu": ReLU,
    "relu6": ReLU6,
    "leaky_relu": LeakyReLU,
    "elu": ELU,
    "selu": SELU,
    "gelu": GELU,
    "silu": SiLU,
    "swish": SiLU,
    "mish": Mish,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
    "hardswish": Hardswish,
    "softplus": Softplus,
}


def activation(name: str) -> Module:
    """Return a new activation layer by name, such as ``"gelu"``.

    Raises:
        UnknownNameError: unknown activation name; the message suggests similar names.
    """
    if name.lower() not in _BY_NAME:
        raise unknown_name("activation", name, _BY_NAME)
    return _BY_NAME[name.lower()]()
