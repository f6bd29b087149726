"""The table of primitives: from the name of a primitive of JAX to the function that lowers it.

Owns the table and how equations are lowered one after the other. Does not own the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neurenix._core.errors import ConversionError
from neurenix._core.source_files import SourceLine
from neurenix._jaxpr import open_jaxpr, source_line, subjaxprs
from neurenix.interop.onnx.builder import Builder, Operand
from neurenix.interop.onnx.lowering.folding import fold

Lowering = Callable[..., Any]

_LOWERINGS: dict[str, Lowering] = {}
_RANDOM = ("random_", "threefry", "rng_", "shuffle")


class CannotLowerError(ConversionError):
    """A primitive, or a form of it, that ONNX cannot say."""


@dataclass(frozen=True)
class Problem:
    """What cannot be exported, and the user's line."""

    primitive: str
    why: str
    line: SourceLine | None


@dataclass
class Program:
    """What is collected while a program is lowered.

    Attributes:
        problems: what cannot be exported.
        callers: the equations around the one that is lowered, the outermost first.
    """

    problems: list[Problem] = field(default_factory=list)
    callers: list[Any] = field(default_factory=list)


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a function for primitives.

    The function takes the builder, the equation and its operands, and returns the result, or a list
    of results. One of a primitive with jaxprs inside takes ``program=``, for ``lower``.
    """

    def register(function: Lowering) -> Lowering:
        for name in names:
            _LOWERINGS[name] = function
        return function

    return register


def known_primitives() -> set[str]:
    """Return the names of all primitives that can be exported."""
    return set(_LOWERINGS)


def lower(
    builder: Builder, closed: Any, operands: Sequence[Operand], program: Program
) -> list[Operand]:
    """Add the equations of a closed jaxpr to a graph and return its results.

    What depends on known arrays alone is computed now.

    Args:
        builder: the graph.
        closed: the jaxpr, without calls (``inline_calls``).
        operands: its inputs.
        program: what is collected.
    """
    jaxpr = open_jaxpr(closed)
    known: dict[Any, Operand] = dict(zip(jaxpr.invars, operands, strict=True))
    known |= {v: np.asarray(c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)}

    def read(atom: Any) -> Operand:
        return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        results = _lower_one(builder, equation, inputs, program)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _lower_one(
    builder: Builder, equation: Any, inputs: list[Operand], program: Program
) -> Sequence[Operand]:
    name = equation.primitive.name
    try:
        if name.startswith(_RANDOM):
            raise CannotLowerError("it draws random numbers, in evaluation too")
        nested = bool(subjaxprs(equation))
        known = None if nested else fold(equation, inputs)
        if known is not None:
            return known
        function = _LOWERINGS.get(name)
        if function is None:
            raise CannotLowerError("there is no ONNX for it here")
        if not nested:
            results = function(builder, equation, *inputs)
        else:
            program.callers.append(equation)
            try:
                results = function(builder, equation, *inputs, program=program)
            finally:
                program.callers.pop()
        return results if isinstance(results, (list, tuple)) else [results]
    except CannotLowerError as error:
        line = source_line(equation, program.callers)
        program.problems.append(Problem(name, str(error), line))
        # What follows is lowered too, so that all problems are found; a random key has no dtype.
        kinds = [getattr(np, v.aval.dtype.name, np.float32) for v in equation.outvars]
        return [
            builder.value("", v.aval.shape, kind)
            for v, kind in zip(equation.outvars, kinds, strict=True)
        ]
