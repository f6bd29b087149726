"""Find how a program uses the leading axis of each input: whole, or in a loop.

Reads a jaxpr for loops over the rows of an input, as gradient accumulation splits a batch into
microbatches. ``preflight.batch_units`` interprets it for a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from neurenix._jax import scan_counts
from neurenix._jaxpr import called_jaxpr, open_jaxpr

_KEEP = frozenset(
    {"convert_element_type", "copy", "sharding_constraint", "add", "div", "mul", "sub"}
)
_TAKE = frozenset({"dynamic_slice", "gather", "slice"})


@dataclass(frozen=True)
class RowByRow:
    """A use that takes one row at a time.

    ``carried`` are the shapes of the enclosing loop's state, ``None`` without a loop. ``backwards``
    is whether it runs from the last row to the first. ``within`` are the uses of a row, if all of
    them take it apart in turn.
    """

    carried: tuple[tuple[int, ...], ...] | None = None
    backwards: bool = False
    within: tuple[RowByRow, ...] = ()


Uses = tuple[RowByRow, ...]
"""All uses of an input, or none of them where one leaves the leading axis whole."""


def uses_of_inputs(jaxpr: Any) -> tuple[Uses, ...]:
    """Return the uses of each input of a jaxpr without dead code, in order.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def total(start, rows):
        ...     return jax.lax.scan(lambda sum, row: (sum + row.mean(), None), start, rows)[0]
        >>> uses_of_inputs(jax.jit(total).trace(0.0, jnp.ones((8, 4))).jaxpr)
        ((), (RowByRow(carried=((),), backwards=False, within=()),))
    """
    reader = _Reader()
    plain = open_jaxpr(jaxpr)
    found = [reader.uses(plain, variable) for variable in plain.invars]
    return tuple(_together(uses) for uses in found if uses)


def _together(uses: list[RowByRow | None]) -> Uses:
    known = tuple(use for use in uses if use is not None)
    return known if len(known) == len(uses) else ()


class _Variables:
    """Users of the variables of a jaxpr, by identity, and which are results."""

    def __init__(self, jaxpr: Any) -> None:
        self.results = set(map(id, jaxpr.outvars))
        self.users: dict[int, list[tuple[Any, int]]] = defaultdict(list)
        for equation in jaxpr.eqns:
            for position, operand in enumerate(equation.invars):
                self.users[id(operand)].append((equation, position))


class _Reader:
    """Finds uses of variables. It reads each jaxpr and follows each variable once."""

    def __init__(self) -> None:
        self._read: dict[int, _Variables] = {}
        self._found: dict[tuple[int, int], list[RowByRow | None]] = {}

    def uses(self, jaxpr: Any, variable: Any) -> list[RowByRow | None]:
        """Return the uses of a variable; ``None`` if one keeps its leading axis whole."""
        known = self._found.setdefault((id(jaxpr), id(variable)), [])
        if not known:
            for use in self._walk(jaxpr, variable):
                known.append(use)
                if use is None:
                    break
        return known

    def _walk(self, jaxpr: Any, variable: Any) -> Iterator[RowByRow | None]:
        """Yield the uses of a variable and of values with its shape, each once."""
        variables = self._variables(jaxpr)
        seen, reached = {id(variable)}, [variable]
        for now in reached:  # which grows
            if id(now) in variables.results:
                yield None
            for equation, position in variables.users[id(now)]:
                if not _keeps(equation, position):
                    yield from self._use(equation, position)
                elif id(equation.outvars[0]) not in seen:
                    seen.add(id(equation.outvars[0]))
                    reached.append(equation.outvars[0])

    def _variables(self, jaxpr: Any) -> _Variables:
        if id(jaxpr) not in self._read:
            self._read[id(jaxpr)] = _Variables(jaxpr)
        return self._read[id(jaxpr)]

    def _use(self, equation: Any, position: int) -> Iterator[RowByRow | None]:
        name, params = equation.primitive.name, equation.params
        shape = equation.invars[position].aval.shape
        outs = [out.aval.shape for out in equation.outvars]
        consts, carried = scan_counts(equation) if name == "scan" else (0, 0)
        if name == "scan" and position >= consts + carried:
            body = params["jaxpr"].jaxpr
            within = _together(self.uses(body, body.invars[position]))
            yield replace(_loop(equation), within=within)
        elif name in _TAKE and position == 0 and shape[:1] != (1,) and outs[0] in _rows(shape):
            yield RowByRow()
        elif (inner := _called(equation, position)) is None:
            yield None
        else:
            loop = _loop(equation) if name in ("scan", "while") else None
            for use in self.uses(*inner):
                yield loop if loop and use == RowByRow() else use


def _keeps(equation: Any, position: int) -> bool:
    outs = [out.aval.shape for out in equation.outvars]
    return equation.primitive.name in _KEEP and outs == [equation.invars[position].aval.shape]


def _rows(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return ((1, *shape[1:]), shape[1:])


def _loop(equation: Any) -> RowByRow:
    """Return the use that a loop makes of an input by rows."""
    params = equation.params
    if equation.primitive.name == "scan":
        first, count = scan_counts(equation)
        carried = equation.invars[first : first + count]
    else:
        carried = equation.invars[params["cond_nconsts"] + params["body_nconsts"] :]
    return RowByRow(tuple(v.aval.shape for v in carried), bool(params.get("reverse")))


def _called(equation: Any, position: int) -> tuple[Any, Any] | None:
    """Return the jaxpr that receives an operand whole, and its variable there."""
    name, params = equation.primitive.name, equation.params
    if name == "while":
        first, count = params["cond_nconsts"], params["body_nconsts"]
        body = params["body_jaxpr"].jaxpr
        inside = first <= position < first + count
        return (body, body.invars[position - first]) if inside else None
    if name == "scan":
        body = params["jaxpr"].jaxpr
        return (body, body.invars[position]) if position < scan_counts(equation)[0] else None
    if (called := called_jaxpr(equation)) is None:
        return None
    plain = open_jaxpr(called)
    return plain, plain.invars[position]
