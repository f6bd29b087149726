"""Keys by which static values are compared: two that compute the same have equal keys.

Python compares functions by identity, so an optimizer or a schedule that is built anew would
compile anew. A key holds a function's code and all that the code reads: its closure, defaults and
globals; and of an object its class and state. What cannot be compared exactly (a generator, a file,
a module with variables) has a key of its own, which no other value equals.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from neurenix._core.source_files import is_library
from neurenix._jit.bytecode import cells, imported, loads
from neurenix._nnx import nnx

_ABSENT = object()
_MOST_VALUES = 20_000  # of one key; more are compared by identity
_DEEPEST = 200
_MOST_BYTES = 1 << 24  # of one array
_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented), np.dtype)
_JITTED = type(jax.jit(len))
_FIXED = (enum.Enum, np.ufunc, _JITTED)  # of one meaning for ever
_COMPARED = (
    jax.sharding.PartitionSpec,
    jax.sharding.Mesh,
    jax.sharding.Sharding,
    jax.Device,
)  # by ``==``, or each value is there once
_NO_PART = (
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__annotations__",
    "__repr__",
    "__replace__",
    "_abc_impl",
)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Same:
    """A key that equals only that of the very same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Equal:
    """A key that equals that of an object of the same type which ``==`` says is equal."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Equal) or type(other.value) is not type(self.value):
            return False
        return other.value is self.value or bool(other.value == self.value)

    def __hash__(self) -> int:
        try:
            return hash(self.value)
        except TypeError:
            return hash(type(self.value))


class _NotComparable(Exception):
    """A value cannot be compared exactly."""


def key_of(value: Any) -> Any:
    """Return a key that is equal for values which compute the same, by value where that is exact.

    Example:
        >>> def scaled(rate):
        ...     return lambda x: rate * x
        >>> key_of(scaled(0.1)) == key_of(scaled(0.1)), key_of(scaled(0.1)) == key_of(scaled(0.2))
        (True, False)
    """
    return exact_key(value) or Same(value)


def exact_key(value: Any) -> Any:
    """Return the key of a value that can be compared exactly, or None.

    Example:
        >>> exact_key(iter([1])) is None
        True
    """
    try:
        return _Walk().begin(value)
    except (_NotComparable, RecursionError):
        return None


def static_keys(values: Iterable[Any]) -> list[Any]:
    """Return the keys of attributes of modules; of one that is not exact it is as ``==`` says.

    Example:
        >>> one, other = static_keys([len, len])
        >>> one == other
        True
    """
    walk, keys = _Walk(), []
    for value in values:
        try:
            keys.append(walk.begin(value))
        except (_NotComparable, RecursionError):
            keys.append(Equal(value))
    return keys


class _Walk:
    """A walk over values and all that they are made of; what was seen is not read again."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._known: dict[int, tuple[Any, Any]] = {}  # with the object, whose id stays its own
        self._count = self._again = 0

    def begin(self, value: Any) -> Any:
        """Return the key of a value by itself."""
        self._count = 0
        return self.key(value)

    def key(self, value: Any) -> Any:
        """Return the key of a value, or of a part of one.

        Raises:
            _NotComparable: it has none that is exact.
        """
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind in (float, complex):
            return kind, repr(value)  # 0.0 is not -0.0, and NaN is NaN
        if isinstance(value, _FIXED):
            return Same(value)
        if isinstance(value, _COMPARED):
            return Equal(value)
        if isinstance(value, (nnx.Pytree, nnx.Variable, Tracer)):
            raise _NotComparable
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:  # it holds itself
            self._again += 1
            return "again", len(self._open) - self._open[id(value)]
        self._count += 1
        if self._count > _MOST_VALUES or len(self._open) > _DEEPEST:
            raise _NotComparable
        self._open[id(value)] = len(self._open)
        before = self._again
        try:
            key = self._of_kind(kind, value)
        finally:
            del self._open[id(value)]
        if self._again == before:  # else the key holds only here, inside of those that it names
            self._known[id(value)] = value, key
        return key

    def _of_kind(self, kind: type, value: Any) -> Any:
        if isinstance(value, type):
            return self._class(value)
        if kind in (tuple, list) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            return (kind, *map(self.key, value))
        if kind in (dict, types.MappingProxyType):
            return (kind, *[(self.key(name), self.key(held)) for name, held in value.items()])
        if kind in (set, frozenset):
            return kind, frozenset(map(self.key, value))
        if kind in (range, slice):
            return kind, self.key((value.start, value.stop, value.step))
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return _array(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return kind, self.key(value.__func__), self.key(value.__self__)
        if kind is functools.partial:
            return kind, self.key((value.func, value.args, value.keywords))
        if isinstance(value, types.BuiltinFunctionType):
            return kind, value.__name__, self.key(value.__self__)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if kind is types.SimpleNamespace:
            return kind, self.key(vars(value))
        return self._object(kind, value)

    def _function(self, function: types.FunctionType) -> Any:
        code, held = function.__code__, cells(function)
        library = _of_library(code.co_filename)
        parts: list[Any] = [types.FunctionType, code]
        parts.append(self.key((function.__defaults__, function.__kwdefaults__, vars(function))))
        if library:
            return (*parts, *[(name, self.key(value)) for name, value in held.items()])
        if not all(map(_of_library_module, _imports(code))):
            raise _NotComparable
        reads: dict[Any, Any] = {}
        for root, steps in _loads(code):
            found = held if root in code.co_freevars else function.__globals__
            value = found.get(root, _ABSENT)
            if value is _ABSENT:  # of Python itself, or assigned later than now
                continue
            if type(value) is list and steps == [("attribute", "append")]:
                continue  # what it holds is not read
            path, value = _followed(root, value, steps)
            reads[path] = self.key(value)
        return (*parts, *reads.items())

    def _module(self, module: types.ModuleType) -> Any:
        if not _of_library_module(module.__name__):
            raise _NotComparable  # which of its names are read is not known
        return Same(module)

    def _class(self, kind: type) -> Any:
        """Return the key of a class: of a user's, also what its methods read, and its values."""
        parts: list[Any] = [Same(kind)]
        for base in kind.__mro__:
            if base is object or _of_library_module(base.__module__):
                continue
            for name, held in vars(base).items():
                if name not in _NO_PART and not name.startswith("__dataclass"):
                    parts.extend((name, self.key(one)) for one in _parts_of_class(held))
        return tuple(parts)

    def _object(self, kind: type, value: Any) -> Any:
        """Return the key of an object of a class: its state, or itself where ``==`` is its own."""
        try:
            state = _state(kind, value)
            if state is not None:
                return self._class(kind), self.key(state)
        except _NotComparable:
            if not _has_equality(kind):
                raise
        if _has_equality(kind):
            return Equal(value)
        raise _NotComparable


@functools.lru_cache(1024)
def _loads(code: types.CodeType) -> list[tuple[str, list[Any]]]:
    return [*loads(code, set(code.co_freevars))]


@functools.lru_cache(1024)
def _imports(code: types.CodeType) -> list[str]:
    return [*imported(code)]


def _followed(root: str, value: Any, steps: list[Any]) -> tuple[Any, Any]:
    """Return what the code reads of a user's own module: ``config.rate``, not all of ``config``."""
    path: Any = root
    for kind, name in steps:
        module = isinstance(value, types.ModuleType)
        if kind != "attribute" or not module or _of_library_module(value.__name__):
            break
        path, value = (path, name), getattr(value, name, _ABSENT)
    if value is _ABSENT:
        raise _NotComparable
    return path, value


def _parts_of_class(held: Any) -> Iterator[Any]:
    """Yield the functions and values that an attribute of a class stands for."""
    if isinstance(held, property):
        yield from (one for one in (held.fget, held.fset) if one is not None)
    elif isinstance(held, (staticmethod, classmethod)):
        yield held.__func__
    elif isinstance(held, functools.cached_property):
        yield held.func
    elif isinstance(held, types.FunctionType):
        if held.__code__.co_filename != "<string>":  # what a dataclass was given
            yield held
    elif not isinstance(held, _DESCRIPTORS):
        yield held


def _state(kind: type, value: Any) -> Any:
    """Return all that an object of a class written in Python holds, or None.

    It is the state that pickling would keep: there is none for a class with other ways of its own,
    and none for one of C that holds more than it shows.
    """
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        held = {name: getattr(value, name) for name in names if hasattr(value, name)}
        return held | getattr(value, "__dict__", {})
    own: list[Callable[..., Any]] = [kind.__reduce_ex__, kind.__reduce__, kind.__getstate__]
    usual = [object.__reduce_ex__, object.__reduce__, object.__getstate__]
    if kind is object or own != usual or hasattr(kind, "__getnewargs__"):
        return None
    try:
        made = object.__reduce_ex__(value, 2)
    except TypeError:  # it holds what Python cannot see
        return None
    arguments: Any = made[1]
    state, items, pairs = (*made[2:], None, None, None)[:3]
    return None if len(arguments) > 1 else (state, [*(items or ())], [*(pairs or ())])


def _has_equality(kind: type) -> bool:
    return kind.__eq__ is not object.__eq__ and kind.__hash__ is not None


def _array(value: Any) -> Any:
    """Return the key of an array: how it is laid out, and a digest of its numbers."""
    if isinstance(value, jax.Array):
        if value.is_deleted() or not value.is_fully_addressable:
            raise _NotComparable
        laid: tuple[Any, ...] = str(value.dtype), value.committed, value.sharding
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        laid += (value.weak_type,)
    else:
        laid = (str(value.dtype),)
    if value.nbytes > _MOST_BYTES or value.dtype == object:
        raise _NotComparable
    kind = np.ndarray if isinstance(value, jax.Array) else type(value)
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
    return kind, laid, value.shape, digest


@functools.cache
def _of_library(path: str) -> bool:
    """Tell whether code is a library's; code without a file may read anybody's globals."""
    return is_library(path) and not (path.startswith("<") and not path.startswith("<frozen"))


@functools.cache
def _of_library_module(name: str) -> bool:
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return package != "__main__"
    module = sys.modules.get(package)
    path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return bool(path) and is_library(path)
