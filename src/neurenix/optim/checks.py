"""Checks of numbers, schedules and decay masks given to optimizers and schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neurenix._core.errors import ArgumentError, ArgumentTypeError

_SMALLEST = float(np.finfo(np.float32).tiny)  # most devices flush smaller values to 0
_WRITE = (
    "Give nx.optim.matrices_only, which excludes biases and norm scales, or build the "
    "result with jax.tree.map_with_path(…, params)."
)
_NOT_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def check_number(
    name: str,
    value: Any,
    *,
    low: float,
    high: float | None = None,
    open_low: bool = False,
) -> None:
    """Check that ``value`` is a finite number in [low, high), or (low, high) with ``open_low``.

    The value is checked as a float32; traced scalars are not checked.

    Raises:
        ArgumentTypeError: ``value`` is not a number.
        ArgumentError: ``value`` is out of range.

    Example:
        >>> check_number("eps", 1e-50, low=0, open_low=True)
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentError: The argument `eps` must be a finite number above 0; \
got 1e-50, which is 0.0 in float32.
    """
    if isinstance(value, Tracer) and value.shape == ():
        return
    scalar = isinstance(value, int | float) or getattr(value, "shape", None) == ()
    kind = getattr(value, "dtype", np.dtype(type(value))) if scalar else np.dtype(object)
    if not (jnp.issubdtype(kind, jnp.floating) or jnp.issubdtype(kind, jnp.integer)):
        raise ArgumentTypeError(
            f"The argument `{name}` must be a number; got {value!r} of type {type(value).__name__}."
        )
    with np.errstate(over="ignore"):
        number = float(np.float32(value))
    number = 0.0 if abs(number) < _SMALLEST else number
    too_low = number <= low if open_low else number < low
    if too_low or not math.isfinite(number) or (high is not None and number >= high):
        bound = f"above {low}" if open_low else f"at least {low}"
        bound += f" and below {high}" if high is not None else ""
        vanishes = too_low and value > low
        why = f", which is {number} in float32" if vanishes else ""
        raise ArgumentError(
            f"The argument `{name}` must be a finite number {bound}; got {value}{why}."
        )


def check_rate(name: str, rate: Any) -> None:
    """Check that ``rate`` is a learning rate: a number of at least 0, or a schedule.

    Raises:
        ArgumentTypeError: ``rate`` is neither, or a function of other arguments than the step.
        ArgumentError: ``rate`` is out of range, or a function that cannot be traced.
    """
    if not callable(rate):
        check_number(name, rate, low=0)
        return
    asked = f"The schedule `{name}` is called with the step, a traced int32 scalar, and"
    try:
        found = jax.eval_shape(rate, jax.ShapeDtypeStruct((), jnp.int32))
    except _NOT_TRACED as error:
        raise ArgumentError(
            f"{asked} needs its value, which is not known while a step is compiled. Compute with "
            "jnp instead of np and math, and write jnp.where(step < 10, a, b) for "
            f"`a if step < 10 else b`. {str(error).splitlines()[0]}"
        ) from error
    except TypeError as error:
        raise ArgumentTypeError(f"{asked} fails: {error}. It takes the step alone.") from error
    numeric = isinstance(found, jax.ShapeDtypeStruct) and jnp.issubdtype(found.dtype, jnp.number)
    if not numeric or found.shape != ():
        raise ArgumentTypeError(f"{asked} must return one number; it returns {found}.")


def checked_mask(mask: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``mask`` with a check of its result against the parameters.

    Raises:
        ArgumentError: when called: the result is not a tree of booleans with the structure of the
            parameters.
    """

    def check(choice: Any, part: Any) -> None:
        del part
        if not isinstance(choice, bool | np.bool_):
            raise ArgumentError(
                f"decay_mask must return True or False for each parameter; it returned {choice!r}. "
                f"{_WRITE}"
            )

    def checked(params: Any) -> Any:
        chosen = mask(params)
        try:
            jax.tree.map(check, chosen, params)
        except (ValueError, TypeError) as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(
                "decay_mask must return booleans in the structure of the parameters: "
                f"{jax.tree.structure(params)}; it returned {jax.tree.structure(chosen)}. "
                f"{_WRITE}"
            ) from error
        return chosen

    return checked
