"""Calls of the host, taken out of a program so that it can be compiled for devices not here.

Owns the stand-ins: JAX lowers a callback only for devices that exist, so preflight compiles the
program without them. What only prints is dropped; what returns arrays becomes an opaque array of
the same shape that depends on what was sent. ``findings`` says that it was done, and where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from neurenix.compiler.traits import CALLBACKS, walk

_EFFECTS = ("DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect")


def without_callbacks(closed: Any) -> Callable[..., list[Any]]:
    """Return a function of the same flat arguments that never calls the host.

    Source lines and scopes of every operation are kept.

    Example:
        >>> def f(x):
        ...     jax.debug.print("{}", x)
        ...     return 2 * x
        >>> plain = without_callbacks(jax.jit(f).trace(jnp.ones(2)).jaxpr)
        >>> [v.tolist() for v in plain(jnp.ones(2))]
        [[2.0, 2.0]]
    """
    return core.jaxpr_as_fun(_closed(closed))


def has_callbacks(closed: Any) -> bool:
    """Whether a program calls the host anywhere."""
    return any(equation.primitive.name in CALLBACKS for equation, _, _ in walk(closed))


def _closed(closed: Any) -> Any:
    return closed.replace(jaxpr=_open(closed.jaxpr))


def _open(jaxpr: Any) -> Any:
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in CALLBACKS:
            equations.extend(_stand_in(equation))
        else:
            params = {name: _parameter(value) for name, value in equation.params.items()}
            equations.append(equation.replace(params=params, effects=_left(equation.effects)))
    return jaxpr.replace(eqns=equations, effects=_left(jaxpr.effects))


def _parameter(value: Any) -> Any:
    if isinstance(value, core.ClosedJaxpr):
        return _closed(value)
    if isinstance(value, core.Jaxpr):
        return _open(value)
    if isinstance(value, tuple) and any(
        isinstance(part, (core.ClosedJaxpr, core.Jaxpr)) for part in value
    ):
        return tuple(_parameter(part) for part in value)
    return value


def _left(effects: Any) -> Any:
    return frozenset(e for e in effects if type(e).__name__ not in _EFFECTS)


def _stand_in(equation: Any) -> list[Any]:
    if not equation.outvars:
        return []
    wanted = [variable.aval for variable in equation.outvars]

    def stand_in(*sent: Any) -> list[Any]:
        zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in wanted]
        return list(jax.lax.optimization_barrier((*sent, *zeros))[len(sent) :])

    sent = [
        jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)
        for variable in equation.invars
    ]
    (call,) = jax.make_jaxpr(jax.jit(stand_in))(*sent).jaxpr.eqns
    return [
        call.replace(
            invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info
        )
    ]
