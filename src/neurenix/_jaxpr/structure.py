"""Where the equations of a jaxpr hold further jaxprs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

CHECKPOINTS = frozenset({"checkpoint", "remat", "remat2"})
"""Names of the primitive of ``jax.checkpoint``, in several versions of JAX."""

CALLS = CHECKPOINTS | {
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "jit",
    "pjit",
}
"""Names of primitives that run one jaxpr once, on their own operands."""


def is_jaxpr(value: Any) -> bool:
    """Return whether a value is a jaxpr, open or closed.

    Example:
        >>> import jax
        >>> is_jaxpr(jax.make_jaxpr(abs)(1.0)), is_jaxpr(abs)
        (True, False)
    """
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def open_jaxpr(jaxpr: Any) -> Any:
    """Return the jaxpr inside a closed one; an open jaxpr is returned unchanged.

    A closed jaxpr (``jax.make_jaxpr``) holds the values of its constants, an open one does not.
    """
    return getattr(jaxpr, "jaxpr", jaxpr)


def subjaxprs(equation: Any) -> list[Any]:
    """Return the jaxprs, open or closed, that an equation runs; empty for most equations.

    A linear solver also holds jaxprs for its gradients. It does not run them.

    Example:
        >>> import jax
        >>> (branch,) = jax.make_jaxpr(lambda x: jax.lax.cond(x > 0, abs, abs, x))(1.0).eqns[-1:]
        >>> branch.primitive.name, len(subjaxprs(branch))
        ('cond', 2)
    """
    if equation.primitive.name == "custom_linear_solve":
        return [equation.params["jaxprs"].solve]
    return [
        candidate
        for value in equation.params.values()
        for candidate in (value if isinstance(value, (tuple, list)) else (value,))
        if is_jaxpr(candidate)
    ]


def map_subjaxprs(equation: Any, function: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the parameters of an equation, with ``function`` applied to each jaxpr among them.

    Args:
        equation: of a jaxpr.
        function: takes a jaxpr, open or closed, and returns one of the same kind.

    Example:
        >>> import jax
        >>> (call,) = jax.make_jaxpr(jax.jit(lambda x: -x))(1.0).eqns
        >>> map_subjaxprs(call, lambda jaxpr: jaxpr.replace())["name"]
        '<lambda>'
    """

    def mapped(value: Any) -> Any:
        if is_jaxpr(value) or (isinstance(value, tuple) and any(map(is_jaxpr, value))):
            return jax.tree.map(lambda part: function(part) if is_jaxpr(part) else part, value)
        return value

    return {name: mapped(value) for name, value in equation.params.items()}


def called_jaxpr(equation: Any) -> Any | None:
    """Return the jaxpr whose inputs and results are those of the equation, one by one; else None.

    Such are the jaxprs of calls (``CALLS``), and of ``shard_map``, with the shapes of one device.

    Example:
        >>> import jax
        >>> (call,) = jax.make_jaxpr(jax.jit(lambda x: -x))(1.0).eqns
        >>> called_jaxpr(call).eqns[0].primitive.name
        'neg'
    """
    found = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if found is None or equation.primitive.name == "scan":
        return None
    plain = open_jaxpr(found)
    same_inputs = len(plain.invars) == len(equation.invars)
    return found if same_inputs and len(plain.outvars) == len(equation.outvars) else None
