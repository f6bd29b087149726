"""The same program without calls, for readers that know operations and loops only."""

from __future__ import annotations

from typing import Any

from neurenix._jaxpr.source_lines import frames
from neurenix._jaxpr.structure import CALLS, called_jaxpr, map_subjaxprs, open_jaxpr


def inline_calls(closed: Any) -> Any:
    """Return a closed jaxpr with the equations of called functions in place of the calls.

    Calls are ``jax.jit``, ``jax.checkpoint``, and functions with their own derivative rules
    (``CALLS``), at the top and in the bodies of loops and conditionals. Kernels and ``shard_map``
    are unchanged. The result has the same inputs, results and source lines. Shardings, donation,
    recomputation and derivative rules of the calls are lost: use it to lower, not to transform.

    Example:
        >>> import jax
        >>> closed = jax.make_jaxpr(lambda x: jax.nn.relu(x) + 1)(1.0)
        >>> [str(equation.primitive) for equation in closed.eqns]
        ['custom_jvp_call', 'add']
        >>> [str(equation.primitive) for equation in inline_calls(closed).eqns]
        ['max', 'add']
    """
    inliner = _Inliner(closed)
    results = inliner.add(closed.jaxpr, {}, None)
    jaxpr = closed.jaxpr.replace(
        constvars=inliner.constvars, eqns=inliner.equations, outvars=results
    )
    return closed.replace(jaxpr=jaxpr, consts=inliner.consts)


class _Inliner:
    """Collects the equations and the constants of a flat jaxpr."""

    def __init__(self, closed: Any) -> None:
        self.constvars, self.consts = list(closed.jaxpr.constvars), list(closed.consts)
        self.equations: list[Any] = []

    def add(self, jaxpr: Any, known: dict[Any, Any], call: Any) -> list[Any]:
        """Add the equations of an open jaxpr and return its results.

        Args:
            jaxpr: to add; several calls may share it, so it gets new variables in each.
            known: the variable or literal that stands for each variable of ``jaxpr``.
            call: the equation that calls it; None at the top, where variables are kept.
        """

        def read(atom: Any) -> Any:
            return atom if hasattr(atom, "val") else known.get(atom, atom)

        for equation in jaxpr.eqns:
            if call is not None:
                equation = equation.replace(source_info=_beneath(call, equation))
            equation = equation.replace(invars=[read(atom) for atom in equation.invars])
            called = called_jaxpr(equation) if equation.primitive.name in CALLS else None
            if called is not None:
                inputs = self._constants_of(called) | dict(
                    zip(open_jaxpr(called).invars, equation.invars, strict=True)
                )
                results = self.add(open_jaxpr(called), inputs, equation)
                known.update(zip(equation.outvars, results, strict=True))
                continue
            outvars = equation.outvars
            if call is not None:
                outvars = [_new(variable) for variable in outvars]
                known.update(zip(equation.outvars, outvars, strict=True))
            params = map_subjaxprs(equation, _inlined_if_closed)
            self.equations.append(equation.replace(outvars=outvars, params=params))
        return [read(atom) for atom in jaxpr.outvars]

    def _constants_of(self, called: Any) -> dict[Any, Any]:
        """Add the constants of a called jaxpr; return the new variable for each of its own."""
        own = open_jaxpr(called).constvars
        new = [_new(variable) for variable in own]
        self.constvars += new
        self.consts += getattr(called, "consts", ())
        return dict(zip(own, new, strict=True))


def _inlined_if_closed(jaxpr: Any) -> Any:
    return jaxpr if open_jaxpr(jaxpr) is jaxpr else inline_calls(jaxpr)


def _new(variable: Any) -> Any:
    return type(variable)(variable.aval)


def _beneath(call: Any, equation: Any) -> Any:
    """Return the source of an inlined equation: its scopes below those of the call.

    Its lines are those of the call where all of its own are JAX's, as in ``jnp.searchsorted``.
    """
    around, own = call.source_info, equation.source_info
    return own.replace(
        traceback=(own.traceback if frames(equation) else None) or around.traceback,
        name_stack=around.name_stack + own.name_stack,
    )
