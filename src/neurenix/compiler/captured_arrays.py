"""Arrays that a program holds without having been given them.

Owns finding them, in the program and in every function inside of it that was compiled by itself.
It judges nothing (``findings``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neurenix.compiler.hlo import SourceLine
from neurenix.compiler.jaxpr_facts import inner_jaxprs, source_of


@dataclass(frozen=True)
class Captured:
    """An array that a function closes over: dtype and shape, bytes, and the line that reads it."""

    shape: str
    num_bytes: int
    source: SourceLine | None


def captured(jaxpr: Any) -> tuple[Captured, ...]:
    """Return the arrays that a jaxpr holds, each once, from large to small.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> table = jnp.arange(6.0).reshape(2, 3)
        >>> inner = jax.jit(lambda x: x @ table)
        >>> traced = jax.jit(lambda x: inner(x) + inner(2 * x)).trace(jnp.ones(2))
        >>> [(array.shape, array.num_bytes) for array in captured(traced.jaxpr)]
        [('float32[2,3]', 24)]
    """
    found: dict[int, Captured] = {}
    for value, source in _constants(jaxpr):
        if id(value) not in found and getattr(value, "nbytes", 0):
            sizes = ",".join(map(str, value.shape))
            found[id(value)] = Captured(f"{value.dtype}[{sizes}]", int(value.nbytes), source)
    return tuple(sorted(found.values(), key=lambda array: -array.num_bytes))


def _constants(jaxpr: Any) -> Iterator[tuple[Any, SourceLine | None]]:
    plain = getattr(jaxpr, "jaxpr", jaxpr)
    values = getattr(jaxpr, "consts", ())
    for variable, value in zip(plain.constvars, values, strict=False):
        readers = (e for e in plain.eqns if any(v is variable for v in e.invars))
        reader = next(readers, None)
        yield value, source_of(reader) if reader is not None else None
    for equation in plain.eqns:
        for inner in inner_jaxprs(equation.params):
            yield from _constants(inner)
