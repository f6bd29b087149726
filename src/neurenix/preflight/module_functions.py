"""Functions of modules as pure functions of arrays, which can be traced.

Does not own which arguments are arrays (``array_arguments.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from neurenix._jit.arg_shardings import arg_shardings_of, known_arg_shardings
from neurenix._jit.flat_modules import Binding, is_module
from neurenix._nnx import nnx
from neurenix.compiler.program import TraceOptions
from neurenix.preflight.array_arguments import call_of, is_compiled


@dataclass(frozen=True)
class Bound:
    """A pure function, its arguments, and how to trace it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: TraceOptions


def bind(
    function: Callable[..., Any], args: Sequence[Any], donate_argnums: int | Sequence[int] = ()
) -> Bound:
    """Return ``function`` as a pure function of arrays; unchanged if no argument is a module.

    Modules, optimizers and metrics become one first argument, the list of their arrays. It is
    donated and returned, as by ``nx.jit``.

    Args:
        function: a function, a module or its method, a ``functools.partial``, or the result of
            ``jax.jit``, ``nnx.jit`` or ``nx.jit``, whose static arguments stay static.
        args: modules, arrays and ``spec``s.
        donate_argnums: of the caller; a function of modules needs none.

    Raises:
        ArgumentTypeError: an argument is neither an array nor static.
    """
    call = call_of(function, args)
    args = tuple(call.arrays.values())
    positions = [i for i, value in enumerate(args) if is_module(value)]
    if not positions:
        donated = call.donated(donate_argnums)
        options = TraceOptions(
            donated,
            name=call.name,
            numbers=call.numbers,
            donatable=call.donatable,
            compiler_options=call.compiler_options,
        )
        return Bound(_with_shardings(call.of_arrays(), args), args, options)
    plain = call.function
    if is_compiled(plain):
        plain = getattr(plain, "__wrapped__", plain)
    binding = Binding(tuple(args[i] for i in positions))
    leaves = binding.read()
    keys = [jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    kinds = [_key_kind(leaf) if k else None for leaf, k in zip(leaves, keys, strict=True)]
    rest = [value for i, value in enumerate(args) if i not in positions]
    shardings = arg_shardings_of(rest)

    def pure(raw: list[Any], rest: list[Any]) -> Any:
        wrapped = [
            jax.random.wrap_key_data(leaf, impl=kind) if kind else leaf
            for leaf, kind in zip(raw, kinds, strict=True)
        ]
        modules = binding.structure.rebuild(wrapped, binding.constants)
        values = iter(rest)
        held = iter(modules)
        given = [next(held) if i in positions else next(values) for i in range(len(args))]
        with known_arg_shardings(rest, shardings):
            out = call.apply(plain, *given)
        after = binding.structure.leaves_of(modules) or []
        return out, [
            jax.random.key_data(leaf) if kind else leaf
            for leaf, kind in zip(after, kinds, strict=False)
        ]

    described = [_data(leaf) if key else leaf for leaf, key in zip(leaves, keys, strict=True)]
    roles = [_role(variable) for variable in binding.variables]
    roles += ["batch"] * len(jax.tree.leaves(rest))
    options = TraceOptions(
        (0,),
        tuple(roles),
        call.name,
        numbers=call.numbers,
        compiler_options=call.compiler_options,
    )
    return Bound(pure, (described, rest), options)


def _with_shardings(function: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """Return the function with its argument shardings known during tracing, unless compiled."""
    if hasattr(function, "lower"):
        return function
    shardings = arg_shardings_of(args)

    def function_with_shardings(*given: Any) -> Any:
        with known_arg_shardings(given, shardings):
            return function(*given)

    return function_with_shardings


def _key_kind(key: Any) -> Any:
    """Return the implementation of a random key, which may be abstract."""
    found: list[Any] = []
    described = jax.ShapeDtypeStruct(key.shape, key.dtype)
    jax.eval_shape(lambda given: found.append(jax.random.key_impl(given)), described)
    return found[0]


def _data(key: Any) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(key.shape, key.dtype))


def _role(variable: Any) -> str:
    for kind, role in (
        (nnx.optimizer.OptState, "optimizer"),
        (nnx.Param, "parameters"),
        (nnx.BatchStat, "model_state"),
        (nnx.metrics.MetricState, "metrics"),
    ):
        if isinstance(variable, kind):
            return role
    return "other"
