"""Static values among the arguments of a compiled function, compared by value.

Owns which values are static (functions such as a loss, strings, enums, dtypes, dataclasses of
these), and splitting them from the arrays and merging them again.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from neurenix._core.libraries import library_of
from neurenix._jit.closure_capture import refuse_captured_modules
from neurenix._jit.flat_modules import is_module
from neurenix._jit.recompilation import Fixed, parts_of
from neurenix._jit.static_keys import exact_key, static_keys

_ARRAYS = (jax.Array, np.ndarray, np.generic)
_TRACED = (*_ARRAYS, Tracer, bool, int, float, complex)
_WORDS = (str, bytes, enum.Enum, np.dtype, range, slice)
_FUNCTIONS = (types.FunctionType, type(jax.jit(len)))
_MOST_READ = 64


class Constant:
    """A static value, equal to other static values that compute the same."""

    __slots__ = ("_hash", "_key", "value")

    def __init__(self, value: Any) -> None:
        self.value, (self._key,) = value, static_keys([value])
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and (other is self or other._key == self._key)

    def __hash__(self) -> int:
        return self._hash


class Constants:
    """The static values of one compiled function.

    The key of a function is computed once, that of any other object at every call.
    """

    def __init__(self) -> None:
        self._read: dict[int, Constant] = {}
        self._checked: set[Constant] = set()

    def of(self, value: Any) -> Constant:
        """Return the constant of a value.

        Raises:
            ArgumentError: it is a function that captures a module.
        """
        known = self._read.get(id(value))
        if known is not None and known.value is value:
            return known
        constant = Constant(value)
        if callable(value) and constant not in self._checked:
            if not isinstance(value, type):
                refuse_captured_modules(value)
            _bounded(self._checked)
            self._checked.add(constant)
        if isinstance(value, _FUNCTIONS):
            _bounded(self._read)
            self._read[id(value)] = constant
        return constant


def _bounded(held: dict[int, Constant] | set[Constant]) -> None:
    if len(held) >= _MOST_READ:
        held.clear()


@dataclasses.dataclass(frozen=True)
class Taken:
    """The constants among the leaves of a tree, with their positions."""

    treedef: Any
    places: tuple[int, ...]
    constants: tuple[Constant, ...]

    def back(self, leaves: Iterable[Any]) -> Any:
        """Return the tree from its other leaves, in order."""
        whole = [*leaves]
        for place, constant in zip(self.places, self.constants, strict=True):
            whole.insert(place, constant.value)
        return jax.tree.unflatten(self.treedef, whole)


def apart(leaves: list[Any], treedef: Any, known: Constants) -> tuple[list[Any], Taken]:
    """Split the leaves of a tree into arrays and constants.

    Raises:
        ArgumentError: a constant captures a module.

    Example:
        >>> leaves, treedef = jax.tree.flatten([1.0, {"mode": "fast"}])
        >>> kept, taken = apart(leaves, treedef, Constants())
        >>> kept, taken.back([2.0])
        ([1.0], [2.0, {'mode': 'fast'}])
    """
    places = tuple([place for place, leaf in enumerate(leaves) if is_constant(leaf)])
    if not places:
        return leaves, Taken(treedef, (), ())
    constants = tuple([known.of(leaves[place]) for place in places])
    kept = [leaf for place, leaf in enumerate(leaves) if place not in places]
    return kept, Taken(treedef, places, constants)


def without_constants(tree: Any, known: Constants) -> tuple[Any, Taken | None]:
    """Return a tree with its constants replaced by None, and these, or None if it has none.

    Raises:
        ArgumentError: a constant captures a module.
    """
    leaves, treedef = jax.tree.flatten(tree)
    _, taken = apart(leaves, treedef, known)
    if not taken.places:
        return tree, None
    for place in taken.places:
        leaves[place] = None
    return jax.tree.unflatten(treedef, leaves), taken


@functools.cache
def _is_traced(kind: type) -> bool:
    return issubclass(kind, _TRACED)


def is_constant(value: Any) -> bool:
    """Return whether a leaf of the arguments is static, not traced.

    Example:
        >>> [is_constant(value) for value in (len, "mean", 2.0, np.ones(2))]
        [True, True, False, False]
    """
    if _is_traced(type(value)) or hasattr(value, "shape"):
        return False
    if isinstance(value, (*_WORDS, type)):
        return True
    if is_module(value) or library_of(value, ("tensorflow", "torch", "keras")):
        return False
    held = getattr(value, "__dict__", {}).values()
    if any(map(is_module, held)):
        return False
    if callable(value):
        return True
    arrays = any(isinstance(leaf, _ARRAYS) for one in held for leaf in jax.tree.leaves(one))
    return dataclasses.is_dataclass(value) and not arrays and exact_key(value) is not None


def described(value: Any, kept: Any) -> Any:
    """Return the description of an argument for ``RecompilationWatch``.

    Args:
        value: the argument.
        kept: the argument without modules.
    """
    if is_module(value):
        return parts_of(value)
    return jax.tree.map(lambda leaf: Fixed(leaf) if is_constant(leaf) else leaf, kept)
