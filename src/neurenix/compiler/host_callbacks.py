"""Remove host callbacks from a program, so that it compiles for absent devices.

JAX lowers callbacks only for devices that exist. Callbacks without results are dropped. One that
returns arrays becomes an opaque array of the same shape that depends on the callback's arguments.
``findings`` reports each removal.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix._jaxpr import map_subjaxprs, open_jaxpr, walk
from neurenix.compiler.jaxpr_facts import CALLBACKS

_UNLIKELY = -1.2345e-33
_EFFECTS = ("DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect")


def without_callbacks(closed: Any) -> Any:
    """Return a closed jaxpr of the same arguments that never calls the host.

    Source lines and scopes of every operation are kept.

    Example:
        >>> from neurenix._jax import jaxpr_as_fun
        >>> def f(x):
        ...     jax.debug.print("{}", x)
        ...     return 2 * x
        >>> plain = without_callbacks(jax.jit(f).trace(jnp.ones(2)).jaxpr)
        >>> [v.tolist() for v in jaxpr_as_fun(plain)(jnp.ones(2))]
        [[2.0, 2.0]]
    """
    return _without(closed)


def has_callbacks(closed: Any) -> bool:
    """Return whether a program contains a host callback."""
    return any(equation.primitive.name in CALLBACKS for equation, _, _ in walk(closed))


def _without(jaxpr: Any) -> Any:
    """Return a jaxpr, open or closed, of stand-ins."""
    if (plain := open_jaxpr(jaxpr)) is not jaxpr:
        return jaxpr.replace(jaxpr=_without(plain))
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in CALLBACKS:
            equations.extend(_stand_in(equation))
        else:
            params = map_subjaxprs(equation, _without)
            equations.append(equation.replace(params=params, effects=_left(equation.effects)))
    return jaxpr.replace(eqns=equations, effects=_left(jaxpr.effects))


def _left(effects: Any) -> Any:
    return frozenset(e for e in effects if type(e).__name__ not in _EFFECTS)


def _stand_in(equation: Any) -> list[Any]:
    if not equation.outvars:
        return []
    wanted = [variable.aval for variable in equation.outvars]

    def stand_in(*sent: Any) -> list[Any]:
        sent = jax.lax.optimization_barrier(sent)
        if len(sent) == 1 and all(_alike(sent[0], aval) for aval in wanted):
            return list(sent) * len(wanted)
        zero = _zero_after(sent)
        zeros = [jnp.full(aval.shape, zero.astype(aval.dtype), aval.dtype) for aval in wanted]
        return list(jax.lax.optimization_barrier(zeros))

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


def _alike(one: Any, other: Any) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _zero_after(sent: tuple[Any, ...]) -> Any:
    """Return a zero that depends on all arguments of a callback.

    It compares the sum of one element of each argument with an unlikely number, which the compiler
    cannot fold; the barrier before it keeps the other elements.
    """
    numbers = [x for x in sent if x.size and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    picked = [x[(0,) * x.ndim].real.astype(jnp.float32) for x in numbers]
    return sum(picked, start=jnp.float32(0)) == _UNLIKELY
