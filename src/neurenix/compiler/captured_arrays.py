"""Find the arrays that a program captures by closure, in it and in the jitted functions inside it.

Whether they matter is a finding's decision (``findings``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neurenix._core.source_files import SourceLine
from neurenix._jaxpr import open_jaxpr, source_line, subjaxprs, walk


@dataclass(frozen=True)
class Captured:
    """An array captured by closure: dtype and shape, bytes, and the line that reads it."""

    shape: str
    num_bytes: int
    source: SourceLine | None


def captured(jaxpr: Any) -> tuple[Captured, ...]:
    """Return the arrays that a jaxpr captured by closure, each once, the largest first.

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
    """Yield the constants of a jaxpr and of those inside it, and the first line that reads each."""
    inside = (inner for equation, _, _ in walk(jaxpr) for inner in subjaxprs(equation))
    for one in (jaxpr, *inside):
        plain, values = open_jaxpr(one), getattr(one, "consts", ())
        for variable, value in zip(plain.constvars, values, strict=False):
            readers = (e for e in plain.eqns if any(v is variable for v in e.invars))
            reader = next(readers, None)
            yield value, source_line(reader) if reader is not None else None
