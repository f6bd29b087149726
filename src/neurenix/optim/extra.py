"""What optax transformations need at an update besides the gradients: the loss, or more.

Owns finding that out from the functions that a transformation is made of, before any step, and the
refusal of those that no training step here can serve.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import optax

from neurenix._core.errors import ArgumentError


def check_usable(transformation: optax.GradientTransformation) -> None:
    """Check that a step, which knows gradients and the loss, can update with a transformation.

    Raises:
        ArgumentError: it evaluates the loss itself (``optax.lbfgs``), or holds two copies of the
            parameters (``optax.lookahead``).
    """
    for function in _functions(transformation.update, set()):
        if function.__qualname__.startswith("lookahead."):
            raise ArgumentError(
                "The argument `optimizer` is optax.lookahead, whose update is for pairs of fast "
                "and slow parameters, and a model has one set. Give the optimizer inside of it."
            )
        if "value_fn" in _required(function):
            raise ArgumentError(
                "The argument `optimizer` searches along a line, as optax.lbfgs does: its update "
                "needs value_fn, to evaluate the loss several times, and a step computes it once. "
                "Give another optimizer, or call optax in a loop of your own, over "
                "nnx.split(model, nnx.Param, ...)."
            )


def needs_value(transformation: optax.GradientTransformation) -> bool:
    """Tell whether an update fails without ``value``, the loss.

    Example:
        >>> needs_value(optax.polyak_sgd()), needs_value(optax.sgd(0.1))
        (True, False)
    """
    return any("value" in _required(one) for one in _functions(transformation.update, set()))


def takes_value(transformation: optax.GradientTransformation) -> bool:
    """Tell whether an update can be given ``value``, the loss; others know no such argument.

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
    """Return the keyword-only arguments that have no default."""
    code, defaults = function.__code__, function.__kwdefaults__ or {}
    first = code.co_argcount
    return {*code.co_varnames[first : first + code.co_kwonlyargcount]} - {*defaults}


def _functions(held: Any, seen: set[int]) -> Iterator[FunctionType]:
    """Yield the functions that a transformation's update is made of, itself first."""
    if id(held) in seen:
        return
    seen.add(id(held))
    if isinstance(held, FunctionType):
        yield held
        for cell in held.__closure__ or ():
            try:
                yield from _functions(cell.cell_contents, seen)
            except ValueError:  # a cell that is still empty
                continue
    elif isinstance(held, tuple | list | Mapping):
        for one in held.values() if isinstance(held, Mapping) else held:
            yield from _functions(one, seen)
