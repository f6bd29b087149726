"""Argument and input checks of layers: rank, channels, axes, sizes, dtypes."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._core.number_checks import check_number

# Layouts by number of spatial axes.
LAYOUTS = {1: "NLC", 2: "NHWC", 3: "NDHWC"}
_TORCH_LAYOUTS = {1: "NCL", 2: "NCHW", 3: "NCDHW"}


def expect_array(layer: str, x: Any) -> None:
    """Check that the input of a layer is one array.

    Raises:
        ArgumentTypeError: ``x`` is a list, or a tuple such as a recurrent layer returns.
    """
    if hasattr(x, "ndim"):
        return
    hint = "Convert it with jnp.asarray."
    if isinstance(x, tuple):
        hint = "Pick one, such as x[0] for the outputs of an LSTM or a GRU."
    raise ArgumentTypeError(f"{layer} takes one array; got a {type(x).__name__}. {hint}")


def as_array(layer: object, x: Any) -> jax.Array:
    """Return the input of a layer, an array or a number, as an array of the same dtype.

    Raises:
        ArgumentTypeError: ``x`` is a list or a tuple.
    """
    if isinstance(x, np.ndarray | np.generic | numbers.Number):
        return jnp.asarray(x)
    expect_array(type(layer).__name__, x)
    return x


def as_mask(name: str, mask: Any) -> jax.Array:
    """Return a mask, an array or nested lists, as an array.

    Raises:
        ShapeError: the lists are ragged or hold values that are not numbers.
    """
    if hasattr(mask, "shape"):
        return mask
    try:
        return jnp.asarray(mask)
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"`{name}` must be a boolean array, or lists of True and False of equal length; got "
            f"{type(mask).__name__} {mask!r:.80}."
        ) from error


def as_inexact(layer: object, x: Any) -> jax.Array:
    """Return the input of a layer as a floating-point array.

    Args:
        layer: the layer whose class the error names.
        x: array of any shape, or a number. Float and complex dtypes are kept; integers and booleans
            become float32.

    Raises:
        ArgumentTypeError: ``x`` is a list or a tuple.

    Example:
        >>> as_inexact(None, jnp.array([1, 2])).dtype
        dtype('float32')
    """
    x = as_array(layer, x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.float32)


def expect_channels(layer: str, x: jax.Array, *, spatial: int, channels: int | None) -> None:
    """Check that ``x`` is (N, spatial axes, C) with C = ``channels`` (None accepts any C).

    Raises:
        ArgumentTypeError: ``x`` is not an array.
        ShapeError: the rank or C differs. The message recognises PyTorch's channels-first layout.
    """
    expect_array(layer, x)
    layout, rank = LAYOUTS[spatial], spatial + 2
    if x.ndim != rank:
        hint = ""
        if x.ndim == rank - 1 and channels == 1:
            hint = " If the channel axis is missing, add it: `x[..., None]`."
        elif x.ndim == rank - 1:
            hint = " If the batch axis is missing, add it: `x[None]`."
        raise ShapeError(
            f"{layer} takes {layout}, {rank} axes; its input has {x.ndim}, shape {x.shape}.{hint}"
        )
    if channels is None or x.shape[-1] == channels:
        return
    message = (
        f"{layer} takes {layout} with {channels} channels (the last axis); its input has shape "
        f"{x.shape}, so {x.shape[-1]}."
    )
    raise ShapeError(message + _of_torch(x, channels))


def _of_torch(x: jax.Array, channels: int) -> str:
    """Return a hint if ``x`` has PyTorch's channels-first layout, else an empty string."""
    layout = _TORCH_LAYOUTS.get(x.ndim - 2)
    if layout is None or x.shape[1] != channels:
        return ""
    axes = (0, *range(2, x.ndim), 1)
    return f" This looks like {layout}, PyTorch's layout: transpose it with `x.transpose{axes}`."


def expect_features(
    layer: str, x: jax.Array, features: int, *, name: str = "features", channels: bool = False
) -> None:
    """Check that the last axis of ``x`` has size ``features``.

    Raises:
        ArgumentTypeError: ``x`` is not an array.
        ShapeError: the size differs. The message suggests Flatten where it helps; with
            ``channels`` it recognises PyTorch's channels-first layout.
    """
    expect_array(layer, x)
    if x.ndim and x.shape[-1] == features:
        return
    size = 1
    for n in x.shape[1:]:
        size *= n
    hint = " Put a Flatten() before it." if x.ndim > 2 and size == features else ""
    if channels:
        name, hint = "channels last", _of_torch(x, features)
    raise ShapeError(
        f"{layer} takes (..., {features}) {name}; its input has shape {x.shape}.{hint}"
    )


def per_axis(name: str, value: int | Sequence[int], count: int, *, low: int) -> tuple[int, ...]:
    """Return one integer per axis from an integer or a sequence.

    Raises:
        ArgumentTypeError: ``value`` is neither an integer nor a sequence of integers.
        ArgumentError: the count is wrong, or a number is below ``low``.
    """
    given = value if isinstance(value, Sequence) else (value,) * count
    whole = tuple(int(one) for one in given if _is_whole(one))
    if len(whole) != len(given):
        raise ArgumentTypeError(
            f"The argument `{name}` must be a whole number or {count} of them; got {value!r}."
        )
    if len(whole) != count or min(whole) < low:
        raise ArgumentError(
            f"The argument `{name}` must be a whole number, or {count} of them, from {low}; got "
            f"{value!r}."
        )
    return whole


def axes_of(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    """Return an axis or a sequence of axes as a tuple.

    Raises:
        ArgumentTypeError: ``value`` is neither an integer nor a sequence of integers.
    """
    given = tuple(value) if isinstance(value, Sequence) else (value,)
    if not all(map(_is_whole, given)):
        raise ArgumentTypeError(
            f"The argument `{name}` must be an axis or a sequence of axes; got {value!r}."
        )
    return tuple(map(int, given))


def axis_of(name: str, value: int) -> int:
    """Return ``value`` as an axis.

    Raises:
        ArgumentTypeError: ``value`` is not an integer.
    """
    if not _is_whole(value):
        raise ArgumentTypeError(f"The argument `{name}` must be an axis; got {value!r}.")
    return int(value)


def expect_axes(layer: object, x: jax.Array, axes: tuple[int, ...], *, name: str) -> None:
    """Check that ``x`` has every axis in ``axes``.

    Raises:
        ShapeError: an axis is out of range for ``x``.
    """
    for axis in axes:
        if not -x.ndim <= axis < x.ndim:
            last = f" (the last is {x.ndim - 1}, or -1)" if x.ndim else ""
            raise ShapeError(
                f"{type(layer).__name__} has `{name}` = {axis}; its input has {x.ndim} axes{last}, "
                f"shape {x.shape}."
            )


def positive(**sizes: Any) -> tuple[int, ...]:
    """Return sizes, Python or NumPy integers, as a tuple of ints in the given order.

    Raises:
        ArgumentError: a size is not an integer, or is below 1.
    """
    for name, value in sizes.items():
        if not _is_whole(value) or value < 1:
            hint = f" Write int({name})." if hasattr(value, "dtype") else ""
            raise ArgumentError(
                f"The argument `{name}` must be a whole number of at least 1; got {value!r}.{hint}"
            )
    return tuple(map(int, sizes.values()))


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def share(name: str, value: float) -> None:
    """Raise ArgumentTypeError unless ``value`` is a number, ArgumentError unless in [0, 1]."""
    check_number(f"The argument `{name}`", value)
    if not 0 <= value <= 1:
        raise ArgumentError(f"The argument `{name}` must be in [0, 1]; got {value!r}.")
