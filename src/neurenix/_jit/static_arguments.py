"""The arguments of a compiled function by name: static arguments, and errors that name them.

JAX's errors name an argument ``rest[2]``; these name the user's parameter.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    NeurenixError,
    unknown_name,
)
from neurenix._core.libraries import library_of
from neurenix._core.source_files import users_line
from neurenix._jit.flat_modules import is_module
from neurenix._jit.loop_errors import refuse_pytorchs
from neurenix.device import device_of

_NUMBERS = (bool, int, float, complex)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""JAX's errors for traced code that needs the values of an array."""
_TRACED = re.compile(r"\b(?:rest|leaves)((?:\[[^\]]+\]|\.\w+)+)")


@dataclass(frozen=True)
class Static:
    """Static arguments, as for ``jax.jit``.

    Attributes:
        static_argnums: positions, from 0.
        static_argnames: names; a parameter may be in both.
    """

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()

    def places(self, num_args: int, named: Iterable[str]) -> tuple[int, ...]:
        """Return the indices of a call's static arguments, positional arguments first."""
        first = [place for place in self.static_argnums if place < num_args]
        rest = [num_args + i for i, name in enumerate(named) if name in self.static_argnames]
        return (*first, *rest)


def static_of(
    function: Callable[..., Any],
    names: str | Iterable[str] | None,
    numbers: int | Iterable[int] | None,
    *,
    skipped: int = 0,
) -> Static:
    """Return the static arguments of ``function``, both by position and by name.

    Args:
        function: the function to compile.
        names: of parameters.
        numbers: positions; negative numbers count from the last.
        skipped: number of leading parameters that positions do not count.

    Raises:
        ArgumentError: ``function`` has no such parameter.

    Example:
        >>> static_of(lambda x, mode: x, "mode", None)
        Static(static_argnums=(1,), static_argnames=('mode',))
    """
    by_name = [names] if isinstance(names, str) else [*(names or ())]
    by_number = [numbers] if isinstance(numbers, int) else [*(numbers or ())]
    if not by_name and not by_number:
        return Static()
    parameters = inspect.signature(function).parameters
    ordered = [name for name, one in parameters.items() if one.kind in _POSITIONAL]
    kinds = {one.kind for one in parameters.values()}
    for name in by_name:
        if name not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise unknown_name("parameter", name, parameters)
    count = len(ordered) - skipped
    places = {ordered.index(name) for name in by_name if name in ordered}
    for number in by_number:
        if not -count <= number < count and inspect.Parameter.VAR_POSITIONAL not in kinds:
            raise ArgumentError(
                f"static_argnums names argument {number}, and there are {count} by position."
            )
        places.add(skipped + (number if number >= 0 else number + count))
    found = {ordered[place] for place in places if place < len(ordered)}
    return Static(tuple(sorted(places)), tuple(sorted({*by_name, *found})))


def labels(function: Callable[..., Any], num_args: int, named: Iterable[str]) -> list[str]:
    """Return the parameter name of each argument, or ``argument 2`` if it has none.

    Example:
        >>> labels(lambda x, *rest, size: x, 2, ["size"])
        ['x', 'argument 1', 'size']
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        parameters = ()
    known = [one.name for one in parameters if one.kind in _POSITIONAL][:num_args]
    return [*known, *(f"argument {i}" for i in range(len(known), num_args)), *named]


def check_static(name: str, label: str, value: Any) -> None:
    """Check that a static argument is hashable.

    Raises:
        ArgumentTypeError: it is not.
    """
    try:
        hash(value)
    except TypeError as error:
        raise ArgumentTypeError(
            f"{name}: the static argument {label} is a {type(value).__name__}, which cannot be "
            "hashed: no later call could tell whether it is the same. Give a tuple, a number or "
            "a string; arrays are no static arguments."
        ) from error


def refuse_hidden_modules(name: str, values: Any) -> None:
    """Raise if a container holds a module, whose updates would be lost.

    Raises:
        ArgumentTypeError: a container holds a module.
    """
    if any(map(is_module, jax.tree.leaves(values, is_leaf=is_module))):
        raise ArgumentTypeError(
            f"{name}: a module is inside a tuple, a list or a dict, where its updates would be "
            f"lost. Pass every module as an argument of its own: {name}(model, optimizer, batch)."
        )


def explain(
    error: Exception,
    name: str,
    called: Sequence[str],
    values: Sequence[Any],
    way_out: Callable[[str], str],
) -> None:
    """Raise an error that names the argument that made a call fail.

    Args:
        error: raised by JAX; if it is about an array, a note is added to it.
        name: of the function.
        called: the parameter name of each argument.
        values: the arguments, in traced order.
        way_out: returns how to make a parameter static.

    Raises:
        ArgumentTypeError: an argument cannot be traced, the value of a traced array or number is
            needed, or the function calls PyTorch's training loop.
    """
    if isinstance(error, NeurenixError):
        return
    refuse_pytorchs(error, name)
    if isinstance(error, AttributeError):
        return
    for label, value in zip(called, values, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if not _can_be_traced(leaf):
                raise ArgumentTypeError(
                    f"{name}: {label}{jax.tree_util.keystr(path)} is of type {_kind(leaf)}, and "
                    "only arrays and numbers can be traced. "
                    + _fixed(leaf, label, way_out, nested=bool(path))
                ) from error
    traced = jax.tree_util.tree_flatten_with_path(list(values))[0]
    leaves = {jax.tree_util.keystr(path): (path, leaf) for path, leaf in traced}
    known = []
    for match in _TRACED.finditer(str(error)):
        if match[1] not in leaves:
            continue
        path, leaf = leaves[match[1]]
        label = called[int(path[0].idx)]
        shown = f"{label}{jax.tree_util.keystr(path[1:])}"
        if isinstance(leaf, _NUMBERS):
            raise ArgumentTypeError(
                f"{name} needs the value of {shown} ({_kind(leaf)}) while it is compiled for any. "
                + _fixed(leaf, label, way_out, nested=len(path) > 1)
            ) from error
        known.append(shown)
        error.add_note(f"{match[0]} is {shown} of {name}.")
    if isinstance(error, NEEDS_VALUES):
        made_of = f", made of {', '.join(known)}," if known else ""
        raise ArgumentTypeError(
            f"{name} needs the values of an array{made_of} at {users_line(error)}, and while it is "
            "compiled there are only shapes. Use jax.numpy instead of NumPy, jnp.where or "
            "jax.lax.cond instead of if, and return what float(), int() or print are to show."
        ) from error


def explain_devices(
    error: Exception, name: str, called: Sequence[str], values: Sequence[Any]
) -> None:
    """Raise an error that names the arguments on different devices, if these made a call fail.

    Args:
        error: raised by JAX.
        name: of the function.
        called: the parameter name of each argument.
        values: the arguments, or for a module its arrays.

    Raises:
        DeviceError: arguments are on different devices.
    """
    if "incompatible devices" not in str(error):
        return
    by_place: dict[str, list[str]] = {}
    for label, value in zip(called, values, strict=True):
        arrays = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)]
        for place in dict.fromkeys(_place(array) for array in arrays if array.committed):
            by_place.setdefault(place, []).append(label)
    where = ", ".join(f"{' and '.join(labels)} on {place}" for place, labels in by_place.items())
    raise DeviceError(
        f"{name}: its arguments are on different devices: {where}. Leave out nx.to, and an array "
        "goes where it is needed; or move it with nx.to, or strategy.distribute for a batch."
    ) from error


def _place(array: jax.Array) -> str:
    count = len(array.sharding.device_set)
    return str(device_of(array)) if count == 1 else f"{count} devices"


def _can_be_traced(leaf: Any) -> bool:
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.dtype.kind not in "OSUmM"
    if of_other_library(leaf):
        return False
    return isinstance(leaf, _NUMBERS) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def of_other_library(value: Any) -> str | None:
    """Return the library of a TensorFlow or PyTorch tensor, or None."""
    return library_of(value, ("tensorflow", "torch")) if hasattr(value, "numpy") else None


def _kind(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    return type(leaf).__name__ if dtype is None else f"{type(leaf).__name__} of {dtype}"


def _fixed(leaf: Any, label: str, way_out: Callable[[str], str], *, nested: bool) -> str:
    if of_other_library(leaf):
        return "Give the array that its method numpy() returns."
    if any(map(is_module, getattr(leaf, "__dict__", {}).values())):
        return f"It holds modules: make {type(leaf).__name__} a subclass of nn.Module."
    if nested:
        return f"Take it out of {label}, into an argument of its own that is fixed."
    return way_out(label)
