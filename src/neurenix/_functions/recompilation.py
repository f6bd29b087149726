"""Watch a compiled function and say which argument makes it compile again and again.

Owns the wording and the counting. It compiles nothing.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

FIRST_REPORT = 5


class Fixed:
    """A static argument among those that are described, by its value."""

    def __init__(self, value: Any) -> None:
        self.value = value


class RecompilationWarning(UserWarning):
    """A function has been compiled many times, because an argument changes at every call."""


class RecompilationWatch:
    """Counts the programs that one function was compiled to and reports what changed.

    The report comes at the fifth program and at each doubling after it.

    Example:
        >>> watch = RecompilationWatch("train_step")
        >>> watch.compiled({"batch": np.zeros((2, 3))})
        >>> watch.count
        1
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self._last: dict[str, str] = {}
        self._changes: dict[str, list[str]] = {}
        self._next_report = FIRST_REPORT

    def compiled(self, arguments: Any) -> None:
        """Note one more compilation, with the arguments (any tree) that caused it."""
        self.count += 1
        signature = describe(arguments)
        for path, now in signature.items():
            before = self._last.get(path)
            if before is not None and before != now:
                self._changes.setdefault(path, [before]).append(now)
        self._last = signature
        if self.count >= self._next_report:
            self._next_report *= 2
            warnings.warn(self.report(), RecompilationWarning, stacklevel=4)

    def report(self) -> str:
        """Return what was compiled how often, which argument changed, and what to do."""
        text = f"{self.name} has been compiled {self.count} times. "
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
            "arguments."
        )


class AnewWatch:
    """Counts functions of one code of which each was called once, as a lambda in a loop is.

    Example:
        >>> watch = AnewWatch()
        >>> watch.first_call(lambda x: x)
    """

    def __init__(self) -> None:
        self._watches: dict[Any, RecompilationWatch] = {}

    def first_call(self, function: Any) -> None:
        """Note a function that is compiled for its first call."""
        code = getattr(function, "__code__", None)
        if code is not None:
            watch = self._watches.setdefault(code, RecompilationWatch(function.__name__))
            watch.compiled({})

    def next_call(self, function: Any) -> None:
        """Note that a function is called again: it is not made for each call."""
        self._watches.pop(getattr(function, "__code__", None), None)


def describe(tree: Any) -> dict[str, str]:
    """Return path → ``float32[2,3]`` for every leaf of ``tree``.

    Example:
        >>> describe({"x": np.zeros((2, 3), "float32")})
        {"['x']": 'float32[2,3]'}
    """
    rows = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, Fixed):
            text = f"{leaf.value!r}"
        elif hasattr(leaf, "shape"):
            text = f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        else:
            text = f"{type(leaf).__name__} {np.asarray(leaf).dtype}"
        rows[jax.tree_util.keystr(path)] = text
    return rows
