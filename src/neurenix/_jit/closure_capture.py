"""Modules that a function captures: lifted to arguments, or rejected.

A compiled function treats captured values as constants, so the weights of a module in a closure, a
global or a default value would silently stay those of the first call. A module, its bound method or
a partial is lifted to a function of that module.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from neurenix._core.errors import ArgumentError
from neurenix._jit.bytecode import loads
from neurenix._jit.flat_modules import is_module
from neurenix._jit.static_keys import closure_variables
from neurenix._nnx import nnx

_ABSENT = object()


def lifted(function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return ``function`` with its modules as leading parameters, and these modules.

    The modules are a called module, the owner of a bound method, or arguments of a
    ``functools.partial``. Any other function is returned unchanged, with no modules.

    Example:
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> plain, (first,) = lifted(model)
        >>> plain.__name__, first is model
        ('Linear', True)
    """
    if is_module(function):
        return call_of_class(type(function)), (function,)
    if inspect.ismethod(function) and is_module(function.__self__):
        return function.__func__, (function.__self__,)
    if isinstance(function, functools.partial):
        return _lifted_partial(function)
    return function, ()


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of a partial's function, or of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def refuse_captured_modules(
    function: Callable[..., Any], args: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
) -> None:
    """Raise if a function captures a module, an optimizer or a metric.

    Searches the names that its code loads: closures, globals, default values, attributes of a
    method's object, and the user's functions among these. Static attributes of a module, such as
    ``model.width``, are allowed.

    Args:
        function: as returned by ``lifted``.
        args: positional arguments, which replace default values.
        named: keyword arguments.

    Raises:
        ArgumentError: the function captures a module; the message names it.
    """
    path, found = next(_of_callable(function, set()), (None, None))
    if path is None:
        path, found = next(_defaults(function, len(args), named or {}), (None, None))
    if path is not None:
        name = name_of(function)
        raise ArgumentError(
            f"{name} uses {path} ({type(found).__name__}) and is not given it: it would be "
            "compiled with the values of the first call, and neither see nor make changes. Give "
            f"{name} a parameter for it and pass it at every call, one that never changes, too."
        )


Found = Iterator[tuple[str, Any]]


def call_of_class(kind: type[Any]) -> Callable[..., Any]:
    """Return a function that calls a module, named like the module's class."""

    @functools.wraps(kind.__call__)
    def call(module: Any, /, *args: Any, **named: Any) -> Any:
        return module(*args, **named)

    call.__name__ = kind.__name__
    return call


def _lifted_partial(
    function: functools.partial[Any],
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    inner, modules = lifted(function.func)
    held = {key: value for key, value in enumerate(function.args) if is_module(value)}
    held_by_name = {key: value for key, value in function.keywords.items() if is_module(value)}
    modules = (*modules, *held.values(), *held_by_name.values())
    if not modules:
        return function, ()
    keywords = {k: v for k, v in function.keywords.items() if k not in held_by_name}
    if len(held) == len(function.args) and not held_by_name:
        return (functools.partial(inner, **keywords) if keywords else inner), modules
    count, places, names = len(modules), tuple(held), tuple(held_by_name)
    args = [None if key in held else value for key, value in enumerate(function.args)]

    def call(*given: Any, **named: Any) -> Any:
        first, rest = list(given[:count]), given[count:]
        by_name = {key: first.pop() for key in reversed(names)}
        filled = list(args)
        for place in reversed(places):
            filled[place] = first.pop()
        return inner(*first, *filled, *rest, **{**keywords, **by_name, **named})

    call.__name__ = name_of(function)
    return call, modules


def _of_callable(
    function: Any, seen: set[Any], path: str = "an argument of functools.partial"
) -> Found:
    """Yield the modules that ``function`` captures.

    Args:
        function: any callable.
        seen: functions that were searched.
        path: the name of modules that a partial holds.
    """
    if isinstance(function, functools.partial):
        for value in (*function.args, *function.keywords.values()):
            yield from _in_value(path, value, seen)
        yield from _of_callable(function.func, seen, path)
    elif isinstance(function, MethodType):
        yield from _of_method(function.__func__, function.__self__, seen)
    elif isinstance(function, FunctionType):
        yield from _of_function(function, {}, seen)
    elif hasattr(function, "__wrapped__"):
        yield from _of_callable(function.__wrapped__, seen)
    else:
        yield from _of_method(_attribute(function, "__call__")[1], function, seen)


def _of_method(function: Any, owner: Any, seen: set[Any]) -> Found:
    """Yield the modules that a method of ``owner`` captures."""
    function = getattr(function, "__wrapped__", function)
    if isinstance(function, FunctionType) and function.__code__.co_argcount:
        first = function.__code__.co_varnames[0]
        yield from _of_function(function, {first: owner}, seen)


def _of_function(function: FunctionType, known: dict[str, Any], seen: set[Any]) -> Found:
    key = (function, *map(id, known.values()))
    if key in seen:
        return
    seen.add(key)
    names = known | closure_variables(function)
    others = {} if _is_library(function) else function.__globals__
    for root, steps in loads(function.__code__, set(names)):
        value = names.get(root, others.get(root, _ABSENT))
        yield from _followed(root, value, steps, seen)


def _is_library(function: FunctionType) -> bool:
    package = (function.__module__ or "").partition(".")[0]
    installed = "site-packages" in function.__code__.co_filename
    return installed or package == "neurenix" or package in sys.stdlib_module_names


def _defaults(function: Any, num_args: int, named: Mapping[str, Any]) -> Found:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # not written in Python
        return
    for position, (name, one) in enumerate(parameters.items()):
        by_position = position < num_args and one.kind is not inspect.Parameter.KEYWORD_ONLY
        if not by_position and name not in named and is_module(one.default):
            yield f"the default of {name}", one.default


def _followed(path: str, value: Any, steps: list[Any], seen: set[Any]) -> Found:
    """Yield the modules at the end of an access path such as ``value.a[0].b``."""
    for kind, key in steps:
        if type(value) in (dict, list, tuple) and key in ("values", "items"):
            break
        if kind == "item" and type(value) not in (dict, list, tuple):
            break
        if kind == "item":
            try:
                path, value = f"{path}[{key!r}]", value[key]
            except (LookupError, TypeError):
                return
            continue
        is_own, held = _attribute(value, key)
        method = held.fget if isinstance(held, property) else held
        if not is_own and isinstance(method, FunctionType):
            if is_module(value):
                yield path, value
            else:
                yield from _of_method(method, value, seen)
            return
        path, value = f"{path}.{key}", held
    yield from _in_value(path, value, seen)


def _attribute(value: Any, name: str) -> tuple[bool, Any]:
    """Return whether an attribute is the object's own, and its value, without running code."""
    own = getattr(value, "__dict__", {})
    if name in own:
        return True, own[name]
    if isinstance(value, (ModuleType, type)):
        return True, _ABSENT
    return False, inspect.getattr_static(type(value), name, _ABSENT)


def _in_value(path: str, value: Any, seen: set[Any]) -> Found:
    """Yield the modules in a value and, if it is a function, those that it captures."""
    if is_module(value) or isinstance(value, nnx.Variable):
        yield path, value
    elif isinstance(value, MethodType) and is_module(value.__self__):
        yield path, value.__self__
    elif type(value) in (list, tuple, dict):
        held: Any = value
        for key, item in held.items() if type(value) is dict else enumerate(held):
            if type(item) in (list, tuple, dict) or is_module(item):
                yield from _in_value(f"{path}[{key!r}]", item, seen)
    elif isinstance(value, (FunctionType, MethodType, functools.partial)) or (
        callable(value) and not isinstance(value, type) and hasattr(value, "__wrapped__")
    ):
        yield from _of_callable(value, seen, path)
