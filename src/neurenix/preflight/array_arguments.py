"""Which arguments of a call are arrays, and which are fixed when the function is compiled.

Owns the unwrapping of ``functools.partial`` and the static arguments of ``jax.jit`` and
``nnx.jit``. Does not own modules among the arrays (``module_functions.py``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from neurenix._core.errors import ArgumentError, ArgumentTypeError, did_you_mean
from neurenix._jax import jit_info, without_compiler_options
from neurenix._jit.closure_capture import call_of_class
from neurenix._jit.flat_modules import is_module
from neurenix._jit.static_values import is_constant
from neurenix.compiler.abstract_placement import PartitionedSpec
from neurenix.transforms import CompiledFunction

Kind = TypeVar("Kind")

_NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True)
class Call:
    """A function and its arguments, by position or by name.

    Attributes:
        function: without the partials around it.
        arrays: the traced arguments, positions first, then names: modules, and trees of arrays,
            specs and numbers.
        fixed: all other arguments, which are part of the program.
        bound: how many of the first positions the caller did not give: a module that is called, and
            what a partial has.
        compiler_options: XLA's, which ``jax.jit`` was told of the function; it has none any more.
    """

    function: Callable[..., Any]
    arrays: dict[int | str, Any]
    fixed: dict[int | str, Any]
    bound: int = 0
    compiler_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the traced parameters whose value is a Python number."""
        kept = (key for key, value in self.arrays.items() if isinstance(value, _NUMBERS))
        names = (parameter(self.function, key) for key in kept)
        return tuple(name for name in names if name.isidentifier())

    @property
    def static(self) -> dict[int, Any]:
        """The fixed arguments of the caller, by position among all its arguments.

        Example:
            >>> total = jax.jit(jax.numpy.sum, static_argnums=1)
            >>> call_of(total, [jax.numpy.ones((2, 3)), 0]).static
            {1: 0}
        """
        kept = [key for key in range(len(self.arrays) + len(self.fixed)) if self._is_given(key)]
        return {place: self.fixed[key] for place, key in enumerate(kept) if key in self.fixed}

    def _is_given(self, key: int) -> bool:
        return key in self.arrays or (key in self.fixed and key >= self.bound)

    def donated(self, argnums: int | Sequence[int]) -> tuple[int, ...]:
        """Return the indices into ``arrays`` of the caller's positions.

        Raises:
            ArgumentError: a position does not exist.
            ArgumentTypeError: a position is not a number.
        """
        count = sum(isinstance(key, int) for key in (*self.arrays, *self.fixed)) - self.bound
        argnums = (argnums,) if isinstance(argnums, int) else argnums
        if not isinstance(argnums, Sequence) or not all(isinstance(n, int) for n in argnums):
            raise ArgumentTypeError(
                f"donate_argnums is the number of an argument, or several; got {argnums!r}."
            )
        for number in argnums:
            if not 0 <= number < count:
                raise ArgumentError(
                    f"donate_argnums names argument {number}, and there are {count} arguments."
                )
        places = {key: place for place, key in enumerate(self.arrays)}
        return tuple(places[n + self.bound] for n in argnums if n + self.bound in places)

    @property
    def donatable(self) -> tuple[int | str | None, ...]:
        """The position or name by which ``jax.jit`` can donate each of ``arrays``.

        None for arrays of a partial, unless the function is compiled and counts them too.
        """
        if is_compiled(self.function):
            return tuple(self.arrays)
        own = (key - self.bound if isinstance(key, int) else -1 for key in self.arrays)
        return tuple(key if key >= 0 else None for key in own)

    def apply(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Call ``function`` with ``arrays`` in place of those of the call."""
        given = self.fixed | dict(zip(self.arrays, arrays, strict=True))
        named = {key: value for key, value in given.items() if isinstance(key, str)}
        return function(*(given[key] for key in range(len(given) - len(named))), **named)

    def of_arrays(self) -> Callable[..., Any]:
        """Return the function of the arrays alone; a compiled function keeps its methods."""
        if list(self.arrays) == list(range(len(self.arrays))) and not self.fixed:
            return self.function

        def function(*arrays: Any) -> Any:
            return self.apply(self.function, *arrays)

        for method in ("trace", "lower"):
            if hasattr(self.function, method):
                own = functools.partial(self.apply, getattr(self.function, method))
                setattr(function, method, own)
        return function


def call_of(function: Callable[..., Any], args: Sequence[Any]) -> Call:
    """Return the call ``function(*args)``, divided into arrays and fixed arguments.

    A module that is called, or whose method is, is the first array. Fixed are the static arguments
    of a compiled function, and whatever ``nx.jit`` and ``strategy.run`` treat as part of the
    program. If a ``functools.partial`` wraps a function that is not compiled, its arguments are
    fixed except arrays, specs and modules.

    Raises:
        ArgumentError: it is a module of flax.linen, or its method; or ``jax.pmap`` compiled it.
        ArgumentTypeError: an argument is neither an array nor static.

    Example:
        >>> import jax.numpy as jnp
        >>> call = call_of(functools.partial(jnp.sum, axis=0), [jnp.ones((2, 3))])
        >>> list(call.arrays), call.fixed, call.of_arrays()(jnp.ones((4, 2))).shape
        ([0], {'axis': 0}, (2,))
    """
    bound: list[Any] = []
    named: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        bound, named = [*function.args, *bound], function.keywords | named
        function = function.func
    if inspect.ismethod(function) and is_module(function.__self__):
        bound, function = [function.__self__, *bound], function.__func__
    elif is_module(function):
        bound, function = [function, *bound], call_of_class(type(function))
    _refuse_linen(function)
    _refuse_pmap(function)
    options = dict(getattr(jit_info(function), "compiler_options_kvs", ()))
    function = without_compiler_options(function) if options else function
    given: dict[int | str, Any] = dict(enumerate([*bound, *args]))
    given.update(sorted(named.items()))
    if is_compiled(function):
        fixed = _static(function, len(bound) + len(args)) & set(given)
        given |= _laid(function, {key: x for key, x in given.items() if key not in fixed})
    else:
        fixed = {key for key in (*range(len(bound)), *named) if not _has_arrays(given[key])}
    if isinstance(function, CompiledFunction) or hasattr(function, "of_replicas"):
        fixed |= {key for key, value in given.items() if is_constant(value)}
    call = Call(
        function,
        {key: value for key, value in given.items() if key not in fixed},
        {key: value for key, value in given.items() if key in fixed},
        len(bound),
        options,
    )
    for key, value in call.arrays.items():
        _check(call, key, value)
    return call


def _refuse_linen(function: Any) -> None:
    """Raise for a module of ``flax.linen``, which has no parameters; say how to pass them."""
    if isinstance(function, type) or inspect.ismethod(function) or is_compiled(function):
        return
    if all(callable(getattr(function, name, None)) for name in ("init", "apply", "bind")):
        name = type(function).__name__
        raise ArgumentError(
            f"{name} is a module of flax.linen, which holds no parameters. Give them as an "
            f"argument: nx.preflight(lambda v, x: m.apply(v, x), jax.eval_shape(m.init, "
            "jax.random.key(0), x), x, on=…), where m is the module and x an array or nx.spec(…)."
        )


def _refuse_pmap(function: Any) -> None:
    """Raise for a ``jax.pmap`` function, whose argument shardings are not accessible."""
    own = inspect.isfunction(function) and hasattr(function, "lower")
    if own and not hasattr(function, "trace"):
        raise ArgumentError(
            f"{function.__name__} is compiled by jax.pmap, which does not tell how its arguments "
            "are divided. Write jax.jit(jax.shard_map(function, mesh=…, in_specs=…, out_specs=…)), "
            "or take the function itself to nx.distribute: strategy.run(function, args=…)."
        )


def is_compiled(function: Any) -> bool:
    """Return whether a function is the result of ``jax.jit``, ``nnx.jit`` or ``nx.jit``."""
    return isinstance(function, CompiledFunction) or hasattr(function, "lower")


def given(name: str, value: Any, kind: type[Kind]) -> Kind:
    """Return the value of an options argument of type ``kind``; the defaults for None.

    Raises:
        ArgumentTypeError: the value is of another type.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ArgumentTypeError(
            f"{name} is an nx.preflight.{kind.__name__}(…); got {type(value).__name__} {value!r}."
        )
    return value


def refuse_keywords(
    entrance: str,
    target: Any,
    others: Mapping[str, Any],
    known: Sequence[str] = ("on", "input_shape", "dtype", "mesh", "options"),
) -> None:
    """Reject unknown keyword arguments of a public function.

    Raises:
        ArgumentTypeError: there is one; the message says how to bind it if ``target`` has it.
    """
    for name in others:
        if way := for_the_function(target, name, entrance):
            raise ArgumentTypeError(f"{entrance} has no argument {name!r}. {way}")
        near = did_you_mean(name, known)
        raise ArgumentTypeError(f"{entrance} has no argument {name!r}.{near}")


def for_the_function(target: Any, name: str, entrance: str = "nx.preflight") -> str:
    """Return how to bind a keyword argument of a function; empty if it has no such argument.

    Example:
        >>> for_the_function(lambda x, size: x, "size")
        'If it is for <lambda>: nx.preflight(functools.partial(<lambda>, size=…), …).'
    """
    if hasattr(target, "fit") or not _takes(target, name):
        return ""
    function = getattr(target, "__name__", "function")
    return f"If it is for {function}: {entrance}(functools.partial({function}, {name}=…), …)."


def parameter(function: Callable[..., Any], key: int | str) -> str:
    """Return the name of a parameter, or ``"argument 2"`` if the signature is unknown.

    Example:
        >>> parameter(lambda x, size: x, 1), parameter(max, 1)
        ('size', 'argument 1')
    """
    if isinstance(key, str):
        return key
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function that is not written in Python
        return f"argument {key}"
    if key < len(parameters) and parameters[key].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return parameters[key].name
    return f"argument {key}"


def _takes(function: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return name in parameters or any_name


def _static(function: Any, positions: int) -> set[int | str]:
    """Return the static arguments of ``jax.jit``, by position or name."""
    info = jit_info(function)
    if info is None:
        return set()
    numbers = (n if n >= 0 else n + positions for n in info.static_argnums)
    return {*numbers, *info.static_argnames}


def _laid(function: Any, given: dict[int | str, Any]) -> dict[int | str, Any]:
    """Return the arguments by position, laid over a mesh as ``in_shardings`` of ``jax.jit`` says.

    An array that is laid over one already stays as it is.
    """
    info = jit_info(function)
    of_modules = any(map(is_module, given.values()))
    if of_modules or not getattr(info, "user_specified_in_shardings", False):
        return {}
    by_position = {key: value for key, value in given.items() if isinstance(key, int)}
    args = tuple(by_position.values())
    told = info.in_shardings_treedef.unflatten(info.in_shardings_leaves)
    told = tuple(told) if isinstance(told, list) else told
    try:
        shardings = jax.tree.broadcast(told, args, is_leaf=lambda part: part is None)
    except ValueError:  # which jax.jit tells of when it is traced
        return {}
    laid = jax.tree.map(_lay, args, shardings)
    return dict(zip(by_position, laid, strict=True))


def _lay(leaf: Any, sharding: Any) -> Any:
    if not _is_array(leaf) or isinstance(getattr(leaf, "sharding", None), NamedSharding):
        return leaf
    if isinstance(sharding, NamedSharding):
        weak = getattr(leaf, "weak_type", False)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)
    if isinstance(sharding, PartitionSpec):
        return PartitionedSpec(leaf.shape, leaf.dtype, sharding)
    return leaf


def _has_arrays(value: Any) -> bool:
    return is_module(value) or any(map(_is_array, jax.tree.leaves(value)))


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _check(call: Call, key: int | str, value: Any) -> None:
    leaves = () if is_module(value) else jax.tree.leaves(value)
    wrong = next((x for x in leaves if not (_is_array(x) or isinstance(x, _NUMBERS))), None)
    if wrong is None:
        return
    known = parameter(call.function, key)
    shown = key - call.bound if isinstance(key, int) and key >= call.bound else key
    way_out = _way_out(call, key)
    if wrong is not value:
        way_out = "Keep it outside of what is traced."
    raise ArgumentTypeError(
        f"Argument {shown!r}{'' if known in (key, f'argument {key}') else f' ({known})'} of "
        f"{call.name} {'is' if wrong is value else 'holds'} a {type(wrong).__name__}; arrays and "
        f"nx.spec(shape, dtype) are what can be compiled for. {way_out}"
    )


def _way_out(call: Call, key: int | str) -> str:
    """Return how to fix an argument; ``functools.partial`` cannot fix one before others."""
    known = parameter(call.function, key)
    if known == f"argument {key}":
        return f"Fix it: jax.jit({call.name}, static_argnums={key})."
    jitted = f'jax.jit({call.name}, static_argnames="{known}")'
    if isinstance(key, int) and (key + 1 in call.arrays or is_compiled(call.function)):
        return f"Fix it: {jitted}."
    return f"Fix it: functools.partial({call.name}, {known}=…) or {jitted}."
