"""Find which arguments the update of an optax transformation needs besides gradients.

Reads them from the functions the transformation is made of, before the first step; raises for
transformations that a training step cannot use.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import optax

from neurenix._core.errors import ArgumentError


def check_usable(transformation: optax.GradientTransformation) -> None:
    """Check that a step, which has gradients and the loss, can use the transformation.

    Raises:
        ArgumentError: the transformation evaluates the loss itself (``optax.lbfgs``), or needs two
            copies of the parameters (``optax.lookahead``).
    """
    for function in _functions(transformation.update, set()):
        if function.__qualname__.startswith("lookahead."):
            raise ArgumentError(
                "The argument `optimizer` is optax.lookahead, whose update is for pairs of fast "
                "and slow parameters, and a model has one set. Give the optimizer inside of it."
            )
        if "value_fn" in _required(function):
            raise ArgumentError(
                "The argument `optimizer` uses a line search, as optax.lbfgs does: its update "
                "needs value_fn, to evaluate the loss several times, and a step computes it once. "
                "Give another optimizer, or call optax in a custom loop, over "
                "nnx.split(model, nnx.Param, ...)."
            )


def needs_value(transformation: optax.GradientTransformation) -> bool:
    """Return whether an update requires ``value``, the loss.

    Example:
        >>> needs_value(optax.polyak_sgd()), needs_value(optax.sgd(0.1))
        (True, False)
    """
    return any("value" in _required(one) for one in _functions(transformation.update, set()))


def takes_value(transformation: optax.GradientTransformation) -> bool:
    """Return whether an update accepts ``value``, the loss.

    Example:
        >>> takes_value(optax.contrib.reduce_on_plateau()), takes_value(optax.scale(0.1))
        (True, False)
    """
    if not isinstance(transformation, optax.GradientTransformationExtraArgs):
        return False
    parameters = inspect.signature(transformation.update).parameters
    kinds = {one.kind for one in parameters.values()}
    return "value" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _required(function: FunctionType) -> set[str]:
    """Return the keyword-only arguments without default."""
    code, defaults = function.__code__, function.__kwdefaults__ or {}
    first = code.co_argcount
    return {*code.co_varnames[first : first + code.co_kwonlyargcount]} - {*defaults}


def _functions(held: Any, seen: set[int]) -> Iterator[FunctionType]:
    """Yield the functions that a transformation's update is made of, the update first."""
    if id(held) in seen:
        return
    seen.add(id(held))
    if isinstance(held, FunctionType):
        yield held
        for cell in held.__closure__ or ():
            try:
                yield from _functions(cell.cell_contents, seen)
            except ValueError:  # an empty closure cell
                continue
    elif isinstance(held, tuple | list | Mapping):
        for one in held.values() if isinstance(held, Mapping) else held:
            yield from _functions(one, seen)
