"""The table of operators: from an ONNX operator and its version to the function that computes it.

Owns the table and how an operator is looked up. Does not own the functions (``operators``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from neurenix._core.errors import ArgumentError, ArgumentTypeError

__all__ = ["Operator", "find", "names", "operator", "register_onnx_op"]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operator:
    """How an operator of ONNX is computed.

    Attributes:
        function: takes the inputs by position, None for one that is left out, and the attributes
            by name. It returns the result, or a list of several.
        since: the first version of the operator set that it holds for.
        known: positions of inputs whose values decide shapes: they must be known when the program
            is traced, and come as NumPy arrays.
        also_known: for an operator where further inputs decide shapes at some nodes only: a
            function of the node that returns their positions.
        folds: whether it takes NumPy arrays and then returns such: so a value that is known stays
            known. Of what does not fold, every input comes as a JAX array.
        counts: whether it takes ``num_results``, how many results the node asks for.
        random: whether it takes ``rng``, a function that returns a random key.
        nested: whether it takes ``run``, a function of a graph and its inputs that returns the list
            of its results.
    """

    function: Callable[..., Any]
    since: int = 1
    known: tuple[int, ...] = ()
    also_known: Callable[[Any], tuple[int, ...]] | None = None
    folds: bool = False
    counts: bool = False
    random: bool = False
    nested: bool = False

    def positions_known(self, node: Any) -> tuple[int, ...]:
        """Return the positions of the inputs of a node that decide shapes."""
        return self.known + (self.also_known(node) if self.also_known is not None else ())

    @property
    def attributes(self) -> frozenset[str] | None:
        """Names of the attributes that it knows; None where it takes any."""
        parameters = inspect.signature(self.function).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return None
        return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


_OPERATORS: dict[tuple[str, str], list[Operator]] = {}


def operator(
    *names: str,
    since: int = 1,
    known: tuple[int, ...] = (),
    also_known: Callable[[Any], tuple[int, ...]] | None = None,
    folds: bool = False,
    counts: bool = False,
    random: bool = False,
    nested: bool = False,
) -> Callable[[Function], Function]:
    """Register a function for operators, ``"Relu"`` or ``"ai.onnx.ml::Scaler"``.

    The arguments are those of ``Operator``.
    """

    def register(function: Function) -> Function:
        for name in names:
            _add(
                name,
                Operator(function, since, known, also_known, folds, counts, random, nested),
            )
        return function

    return register


def find(domain: str, op: str, version: int) -> Operator | None:
    """Return the operator for a version of its set: the newest that is not newer.

    Example:
        >>> import neurenix.interop.onnx.operators
        >>> find("", "Softmax", 11).since, find("", "Softmax", 22).since
        (1, 13)
    """
    found = None
    for each in _OPERATORS.get((domain, op), ()):
        if each.since <= version:
            found = each
    return found


def names() -> list[str]:
    """Return the names of all operators, those of other domains with it in front."""
    return sorted(f"{domain}::{op}" if domain else op for domain, op in _OPERATORS)


def register_onnx_op(
    name: str, function: Callable[..., Any], *, known: tuple[int, ...] = ()
) -> None:
    """Say how an operator of your own is computed, for every later ``nx.from_onnx``.

    Args:
        name: ``"my.domain::MyOp"``. An operator of ONNX itself, ``"Relu"``, is replaced.
        function: takes JAX arrays by position, None for an input that is left out, and the
            attributes of the node by name. It returns the result, or a list of several.
        known: positions of inputs whose values must be known when the program is traced, because
            they decide shapes. They come as NumPy arrays.

    Raises:
        ArgumentError: ``name`` is empty.
        ArgumentTypeError: ``function`` is not callable.

    Example:
        >>> nx.register_onnx_op("my.domain::Double", lambda x: 2 * x)
    """
    if not isinstance(name, str) or not all(name.split("::")) or name.count("::") > 1:
        raise ArgumentError(
            f'The name of an operator is "domain::Name", or "Name" for ONNX\'s own; got {name!r}.'
        )
    if not callable(function):
        raise ArgumentTypeError(
            f"register_onnx_op({name!r}, …) takes a function; got {type(function).__name__}."
        )
    domain, _, op = name.rpartition("::")
    _OPERATORS[domain, op] = [Operator(function, known=known)]


def _add(name: str, added: Operator) -> None:
    domain, _, op = name.rpartition("::")
    versions = _OPERATORS.setdefault((domain, op), [])
    versions[:] = sorted(
        [each for each in versions if each.since != added.since] + [added],
        key=lambda each: each.since,
    )
