"""Walk over the equations of a jaxpr and of the jaxprs inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from neurenix._jaxpr.loops import repetitions
from neurenix._jaxpr.structure import open_jaxpr, subjaxprs


class Site(NamedTuple):
    """One equation of a program.

    Attributes:
        equation: of the jaxpr or of a jaxpr inside it.
        count: how often one run of the program runs the equation, on all devices together.
        callers: the equations around it, the outermost first.
    """

    equation: Any
    count: int = 1
    callers: tuple[Any, ...] = ()


def walk(jaxpr: Any, *, into: Callable[[Any], Iterable[Any]] = subjaxprs) -> Iterator[Site]:
    """Yield every equation of a jaxpr, each before the equations inside it.

    Args:
        jaxpr: open or closed.
        into: takes an equation and returns the jaxprs inside it to walk over.

    Example:
        >>> import jax
        >>> def f(x):
        ...     return jax.lax.scan(lambda c, _: (jax.numpy.sin(c), None), x, length=3)[0]
        >>> for site in walk(jax.make_jaxpr(f)(1.0)):
        ...     print(site.equation.primitive, site.count, len(site.callers))
        scan 1 0
        sin 3 1
    """
    return _walk(jaxpr, 1, (), into)


def _walk(
    jaxpr: Any, count: int, callers: tuple[Any, ...], into: Callable[[Any], Iterable[Any]]
) -> Iterator[Site]:
    for equation in open_jaxpr(jaxpr).eqns:
        yield Site(equation, count, callers)
        for inner in into(equation):
            yield from _walk(inner, count * repetitions(equation), (*callers, equation), into)
