"""Find functions that a script compiles with ``jax.jit``, ``jax.pmap`` or ``nnx.jit``, by name.

``nx.jit`` reports its first call itself. The others are replaced while a script runs whose step is
given by name, so that they report the first call of that function too.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import jax

from neurenix._core.source_files import is_library, is_neurenix
from neurenix._jax import trace_state_clean
from neurenix._jit import hooks
from neurenix._nnx import nnx

_JITS = frozenset(
    "jit jax.jit nnx.jit flax.nnx.jit filter_jit eqx.filter_jit equinox.filter_jit".split()
)
_UNNAMED = "<unnamed function>"
"""The name that ``jax.jit`` gives a callable object without a name."""


def name_of(function: Any) -> str:
    """Return a function's qualified name; for a partial, that of its function.

    Other callable objects have the name of their class.
    """
    while isinstance(function, functools.partial):
        function = function.func
    names = (getattr(function, name, "") for name in ("__qualname__", "__name__"))
    if name := next((name for name in names if name not in ("", _UNNAMED)), ""):
        return name
    inner = getattr(function, "__wrapped__", None)
    return type(function).__qualname__ if inner is None else name_of(inner)


def is_named(function: str, name: str) -> bool:
    """Return whether ``name`` is a function's qualified name or the end of it.

    Example:
        >>> is_named("main.<locals>.train_step", "train_step"), is_named("Run.step", "Run.step")
        (True, True)
        >>> is_named("pretrain_step", "train_step")
        False
    """
    return f".{function}".endswith(f".{name}")


@contextmanager
def watching(name: str) -> Iterator[list[str]]:
    """Report calls of a compiled function of that name to ``hooks.first_call`` while entered.

    Yields a list of the names of the functions that the script compiles, and of those of that name
    that libraries compile.
    """
    compiled: list[str] = []
    before = jax.jit, jax.pmap, nnx.jit
    jax.jit, jax.pmap, nnx.jit = (_watched(jit, name, compiled) for jit in before)
    try:
        yield compiled
    finally:
        jax.jit, jax.pmap, nnx.jit = before


def compiled_in(source: str) -> list[tuple[str, str]]:
    """Return the names of the functions that a script compiles, each with the jit that it uses.

    Leaves out ``nx.jit`` and other libraries. Returns nothing if the text is not Python.

    Example:
        >>> compiled_in('''
        ... @partial(jax.jit, donate_argnums=0)
        ... def train_step(state, batch): ...
        ... evaluate = nnx.jit(model_loss)
        ... ''')
        [('train_step', 'jax.jit'), ('model_loss', 'nnx.jit')]
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found += [(node.name, by) for part in node.decorator_list if (by := _jit(part))]
        elif isinstance(node, ast.Call) and node.args and (by := _jit(node.func)):
            found += [(name, by)] if (name := _name(node.args[0])) else []
    return found


def _jit(node: ast.expr) -> str:
    """Return the name of a decorator or function that compiles, such as ``jax.jit``, else empty."""
    if isinstance(node, ast.Call):
        return _jit(node.args[0] if _is_partial(node) else node.func)
    name = _dotted(node)
    return name if name in _JITS else ""


def _name(node: ast.expr) -> str:
    """Return the name of a function in an argument, comparable with the end of ``name_of``."""
    if isinstance(node, ast.Lambda):
        return "<lambda>"
    if isinstance(node, ast.Call):
        return _name(node.args[0]) if _is_partial(node) else ""
    return _dotted(node).rpartition(".")[2]


def _is_partial(node: ast.Call) -> bool:
    return bool(node.args) and _dotted(node.func).rpartition(".")[2] == "partial"


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _watched(jit: Callable[..., Any], name: str, compiled: list[str]) -> Callable[..., Any]:
    """Return ``jit`` that records the functions it compiles and reports calls of ``name``."""

    def watch(function: Any, made: Any, caller: str) -> Any:
        code = getattr(function, "__code__", None)
        if is_neurenix(caller) or (code is not None and is_neurenix(code.co_filename)):
            return made
        own = name_of(function)
        meant = is_named(own, name)
        if meant or not is_library(caller):
            compiled.append(own)
        return _Watched(function, made) if meant else made

    @functools.wraps(jit)
    def watched(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        made = jit(*args, **options)
        given = args[0] if args else options.get("fun")
        if given is None:  # a decorator with options
            return lambda function: watch(function, made(function), caller)
        return watch(given, made, caller)

    return watched


class _Watched:
    """A compiled function that reports its calls, except those inside a trace."""

    def __init__(self, function: Any, compiled: Any) -> None:
        functools.update_wrapper(self, function, updated=())
        self._compiled = compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    @property
    def __class__(self) -> Any:
        """The class of the wrapped function, for ``isinstance``."""
        return type(self._compiled)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __repr__(self) -> str:
        return repr(self._compiled)

    def __get__(self, owner: Any, kind: type[Any] | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self._tell(args, options)
        return self._compiled(*args, **options)

    def lower(self, *args: Any, **options: Any) -> Any:
        """Lower; a script may lower and compile in two calls."""
        self._tell(args, options)
        return self._compiled.lower(*args, **options)

    def _tell(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if trace_state_clean():
            function = functools.partial(self._compiled, **options) if options else self._compiled
            hooks.first_call(function, args)
