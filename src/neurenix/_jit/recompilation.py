"""Count the compilations of a function and report the argument that causes them."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from neurenix._core.source_files import users_call
from neurenix._jit.static_keys import exact_key
from neurenix._nnx import nnx

FIRST_REPORT = 5
_LONGEST = 60  # characters of a shown value


class Fixed:
    """A static argument, compared by value."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = exact_key(value) or repr(value)  # not the object, which may hold arrays

    def __repr__(self) -> str:
        text = repr(self.value)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"


class RecompilationWarning(UserWarning):
    """A function was compiled many times because an argument changes at every call."""


class RecompilationWatch:
    """Counts the compilations of one function and reports which argument changed.

    Warns at the fifth compilation and each time the count doubles.

    Example:
        >>> watch = RecompilationWatch("train_step")
        >>> watch.compiled({"batch": np.zeros((2, 3))})
        >>> watch.count
        1
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self._last: dict[str, tuple[Any, str]] = {}
        self._changes: dict[str, list[str]] = {}
        self._next_report = FIRST_REPORT

    def compiled(self, arguments: Any) -> None:
        """Record a compilation and the arguments (any tree) that caused it."""
        self.count += 1
        found = _rows(arguments)
        for path, (key, text) in found.items():
            before = self._last.get(path)
            if before is not None and before[0] != key:
                self._changes.setdefault(path, [before[1]]).append(text)
        self._last = found
        if self.count >= self._next_report:
            self._next_report *= 2
            level, line = users_call()
            warnings.warn(self.report(line), RecompilationWarning, stacklevel=level)

    def report(self, line: str) -> str:
        """Return the warning: how often, which argument changed, and what to do.

        Args:
            line: the user's line of the last call.
        """
        text = f"{self.name} has been compiled {self.count} times, lately at {line}. "
        if not self._changes:
            return text + (
                "No argument changed its shape or type: a function or an object that the call "
                "depends on is made anew each time. Define functions once, outside the loop."
            )
        path, seen = max(self._changes.items(), key=lambda item: len(item[1]))
        shown = " → ".join(seen[-5:])
        return text + (
            f"Argument {path} changed {len(seen) - 1} times, lately {shown}. Every new shape or "
            "dtype compiles a new program: pad to one size or a few sizes, batch with "
            "drop_remainder=True, and pass Python numbers that vary as arrays, not as static "
            "arguments. Functions and objects that are not arrays are made once, outside the loop."
        )


class AnewWatch:
    """Counts functions with the same code that are called once each, as a lambda in a loop.

    Example:
        >>> watch = AnewWatch()
        >>> watch.first_call(lambda x: x)
    """

    def __init__(self) -> None:
        self._watches: dict[Any, RecompilationWatch] = {}

    def first_call(self, function: Any) -> None:
        """Record the first call of a function."""
        code = getattr(function, "__code__", None)
        if code is not None:
            watch = self._watches.setdefault(code, RecompilationWatch(function.__name__))
            watch.compiled({})

    def next_call(self, function: Any) -> None:
        """Record a later call: the function is not made anew for each call."""
        self._watches.pop(getattr(function, "__code__", None), None)


def parts_of(module: Any) -> dict[str, Any]:
    """Return the shapes of a module's arrays and its static attributes, by path.

    Example:
        >>> parts = parts_of(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> parts["kernel"].shape, parts["in_features"]
        ((2, 3), 2)
    """
    parts: dict[str, Any] = {}
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Variable):
            parts[".".join(map(str, path))] = jax.eval_shape(lambda x: x, node.get_value())
        elif isinstance(node, nnx.Pytree):
            for name, value in vars(node).items():
                if not name.startswith("_pytree__") and not _is_looked_into(value):
                    parts[".".join(map(str, (*path, name)))] = Fixed(value)
    return parts


_LOOKED_INTO = (nnx.Pytree, nnx.Variable, jax.Array, np.ndarray)


def _is_looked_into(value: Any) -> bool:
    leaves = jax.tree.leaves(value, is_leaf=lambda part: isinstance(part, _LOOKED_INTO))
    return any(isinstance(leaf, _LOOKED_INTO) for leaf in leaves)


def _rows(tree: Any) -> dict[str, tuple[Any, str]]:
    """Return path → (comparison key, text)."""
    rows = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, Fixed):
            row = leaf.key, repr(leaf)
        elif hasattr(leaf, "shape"):
            row = (f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]",) * 2
        else:
            row = (f"{type(leaf).__name__} {np.asarray(leaf).dtype}",) * 2
        rows[jax.tree_util.keystr(path)] = row
    return rows
