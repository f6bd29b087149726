"""Keys that compare static values: values that compute the same have equal keys.

Python compares functions by identity, so a rebuilt optimizer or schedule would recompile the step.
The key of a function holds its code and everything that the code reads: closure, defaults and
globals. The key of an object holds its class and its state. Values that cannot be compared exactly
(a generator, a file, a module with variables) have no such key.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from neurenix._core.source_files import is_library
from neurenix._jit.bytecode import imported, loads
from neurenix._nnx import nnx

_ABSENT = object()
_MAX_VALUES = 20_000  # in one key; larger values are compared by identity
_MAX_BYTES = 1 << 24  # of one array
_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented), np.dtype)
_JITTED = type(jax.jit(len))
_IMMUTABLE = (enum.Enum, np.ufunc, _JITTED)  # compared by identity
_COMPARED = (
    jax.sharding.PartitionSpec,
    jax.sharding.Mesh,
    jax.sharding.Sharding,
    jax.Device,
)  # compared by ``==``
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    types.BuiltinFunctionType: ("__name__", "__self__"),
    types.SimpleNamespace: ("__dict__",),
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    property: ("fget", "fset"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    range: ("start", "stop", "step"),
    slice: ("start", "stop", "step"),
}
"""Attributes that make up the whole value."""
_NOT_PART = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __annotations__ __repr__ __replace__ _abc_impl".split()
)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Same:
    """A key that is equal for the same object only. It keeps the object alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Equal:
    """A key that compares objects of one type by ``==``."""

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


def exact_key(value: Any) -> Any:
    """Return the key of a value, or None if the value cannot be compared exactly.

    Example:
        >>> def scaled(rate):
        ...     return lambda x: rate * x
        >>> one, other, half = scaled(1), scaled(1), scaled(0.5)
        >>> exact_key(one) == exact_key(other), exact_key(one) == exact_key(half)
        (True, False)
        >>> exact_key(iter([1])) is None
        True
    """
    try:
        return _Walk().begin(value)
    except (_NotComparable, RecursionError):
        return None


def static_keys(values: Iterable[Any]) -> list[Any]:
    """Return the keys of module attributes. Values without an exact key are compared by ``==``.

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
    """A walk over values and their parts that computes each key once."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._known: dict[int, tuple[Any, Any]] = {}  # holds the object, so that its id stays valid
        self._count = self._again = 0

    def begin(self, value: Any) -> Any:
        """Return the key of a value."""
        self._count = 0
        return self.key(value)

    def key(self, value: Any) -> Any:
        """Return the key of a value or of one of its parts.

        Raises:
            _NotComparable: the value has no exact key.
        """
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind in (float, complex):
            return kind, repr(value)  # 0.0 and -0.0 differ, NaN equals NaN
        if isinstance(value, _IMMUTABLE):
            return Same(value)
        if isinstance(value, _COMPARED):
            return Equal(value)
        if isinstance(value, (nnx.Pytree, nnx.Variable, Tracer)):
            raise _NotComparable
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:  # the value contains itself
            self._again += 1
            return "again", len(self._open) - self._open[id(value)]
        self._count += 1
        if self._count > _MAX_VALUES:
            raise _NotComparable
        self._open[id(value)] = len(self._open)
        before = self._again
        try:
            key = self._of_kind(kind, value)
        finally:
            del self._open[id(value)]
        if self._again == before:  # else the key refers to values around this one
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
        if kind in _ATTRIBUTES:
            return (kind, *[self.key(getattr(value, name)) for name in _ATTRIBUTES[kind]])
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return _array(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            if not _of_library_module(value.__name__):
                raise _NotComparable  # unknown which of its names are read
            return Same(value)
        return self._object(kind, value)

    def _function(self, function: types.FunctionType) -> Any:
        code, held = function.__code__, closure_variables(function)
        parts: list[Any] = [types.FunctionType, code]
        parts.append(self.key((function.__defaults__, function.__kwdefaults__, vars(function))))
        if _of_library(code.co_filename):
            return (*parts, *[(name, self.key(value)) for name, value in held.items()])
        loaded, modules = _reads(code)
        if not all(map(_of_library_module, modules)):
            raise _NotComparable
        reads: dict[Any, Any] = {}
        for root, steps in loaded:
            found = held if root in code.co_freevars else function.__globals__
            value = found.get(root, _ABSENT)
            if value is _ABSENT:  # a builtin, or assigned later
                continue
            if type(value) is list and steps == [("attribute", "append")]:
                continue  # its items are not read
            path, value = _followed(root, value, steps)
            reads[path] = self.key(value)
        return (*parts, *reads.items())

    def _class(self, kind: type) -> Any:
        """Return the key of a class. A user's class includes its attributes and methods."""
        parts: list[Any] = [Same(kind)]
        for base in kind.__mro__:
            if base is object or _of_library_module(base.__module__):
                continue
            for name, held in vars(base).items():
                if name not in _NOT_PART and not name.startswith("__dataclass"):
                    generated = getattr(held, "__code__", None)  # by ``dataclass``
                    if generated is not None and generated.co_filename == "<string>":
                        continue
                    if not isinstance(held, _DESCRIPTORS):
                        parts.append((name, self.key(held)))
        return tuple(parts)

    def _object(self, kind: type, value: Any) -> Any:
        """Return the key of an object: its state, or the object if its class defines ``==``."""
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


def closure_variables(function: types.FunctionType) -> dict[str, Any]:
    """Return the closure variables of a function by name."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


@functools.lru_cache(1024)
def _reads(code: types.CodeType) -> tuple[list[tuple[str, list[Any]]], list[str]]:
    return [*loads(code, set(code.co_freevars))], [*imported(code)]


def _followed(root: str, value: Any, steps: list[Any]) -> tuple[Any, Any]:
    """Return the value that code reads from a user's module: ``config.rate``, not ``config``."""
    path: Any = root
    for kind, name in steps:
        module = isinstance(value, types.ModuleType)
        if kind != "attribute" or not module or _of_library_module(value.__name__):
            break
        path, value = (path, name), getattr(value, name, _ABSENT)
    if value is _ABSENT:
        raise _NotComparable
    return path, value


def _state(kind: type, value: Any) -> Any:
    """Return the whole state of an object of a Python class, or None if it is unknown.

    The state is the one that pickling saves. It is unknown for a class that overrides pickling, and
    for a C class with hidden fields.
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
    except TypeError:  # hidden fields
        return None
    arguments: Any = made[1]
    state, items, pairs = (*made[2:], None, None, None)[:3]
    return None if len(arguments) > 1 else (state, [*(items or ())], [*(pairs or ())])


def _has_equality(kind: type) -> bool:
    return kind.__eq__ is not object.__eq__ and kind.__hash__ is not None


def _array(value: Any) -> Any:
    """Return the key of an array: dtype, sharding, shape and a digest of its values."""
    if isinstance(value, jax.Array):
        if value.is_deleted() or not value.is_fully_addressable:
            raise _NotComparable
        layout: tuple[Any, ...] = str(value.dtype), value.committed, value.sharding
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        layout += (value.weak_type,)
    else:
        layout = (str(value.dtype),)
    if value.nbytes > _MAX_BYTES or value.dtype == object:
        raise _NotComparable
    kind = np.ndarray if isinstance(value, jax.Array) else type(value)
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
    return kind, layout, value.shape, digest


@functools.cache
def _of_library(path: str) -> bool:
    """Return whether code is a library's. Code without a file may read any globals."""
    return is_library(path) and not (path.startswith("<") and not path.startswith("<frozen"))


@functools.cache
def _of_library_module(name: str) -> bool:
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return package != "__main__"
    module = sys.modules.get(package)
    path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
    return bool(path) and is_library(path)
