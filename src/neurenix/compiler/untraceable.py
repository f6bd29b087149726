"""Explain why a function cannot be traced, at which line, and what to write instead.

``program`` traces.
"""

from __future__ import annotations

import re
from typing import Any

import jax

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    NeurenixError,
)
from neurenix._core.source_files import SourceLine, users_line
from neurenix._jaxpr import source_line, walk
from neurenix._jit.static_arguments import NEEDS_VALUES
from neurenix._nnx import TraceContextError
from neurenix.compiler.jaxpr_facts import leaf_path

_NO_RULE = re.compile(r"translation rule for primitive '([^']+)' not found for platform (\w+)")
_UNBOUND_AXIS = re.compile(r"unbound axis name: (\w+)")
_NO_AXIS = re.compile(r"axis: (\w+) of .* not found in mesh")
_LACKING = re.compile(r"missing \d+ required (keyword-only|positional) argument")


class NoArray(Exception):
    """A function returned something other than arrays."""


def check_results(out: Any, name: str) -> None:
    """Check that a function returns only arrays and numbers.

    Raises:
        NoArray: it returns something else.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
        number = isinstance(leaf, (bool, int, float, complex))
        if not number and not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            place = f" at {leaf_path(path)}" if path else ""
            raise NoArray(
                f"{name} returns a {type(leaf).__name__}{place}, and a program can return arrays "
                "only. Leave it out of what is returned."
            )


def explained(error: Exception, name: str, numbers: tuple[str, ...], jaxpr: Any) -> NeurenixError:
    """Return the explanation of an error in tracing or lowering.

    Args:
        error: raised by the function or by JAX.
        name: of the function.
        numbers: parameters that received Python numbers.
        jaxpr: of the function, if it was traced.
    """
    if isinstance(error, NoArray):
        return ArgumentTypeError(str(error))
    if isinstance(error, NEEDS_VALUES):
        return ArgumentError(
            f"{name} cannot be compiled: {users_line(error)} needs the value of an array, and "
            "while a program is traced there are only shapes. Use jax.numpy instead of NumPy, "
            "jnp.where or jax.lax.cond instead of if, and keep float(), int() and print outside."
            + _fixing(name, numbers)
        )
    if isinstance(error, NotImplementedError):
        return _not_implemented(error, jaxpr, name)
    if isinstance(error, TraceContextError):
        return ArgumentError(
            f"{name} changes a module that it was not given, at {users_line(error)}: BatchNorm and "
            "Dropout, for example, change theirs. Give it the module as an argument: "
            "nx.preflight(lambda model, x: model(x), model, x, on=…), or the module alone: "
            f"nx.preflight(model, x, on=…). It said: {_first_line(error)}"
        )
    if isinstance(error, (AssertionError, TypeError, ValueError)):
        return _of_shapes(error, name)
    return error if isinstance(error, NeurenixError) else _own_error(error, name)


def _of_shapes(error: Exception, name: str) -> ArgumentError:
    """Explain an error about shapes, types or missing arguments."""
    first = _first_line(error) or "an assertion fails"
    told = f" ({users_line(error)})"
    if _LACKING.search(first):
        told = f". What goes by name is given with functools.partial({name}, …)."
        if "positional" in first:
            told = (
                ". Give it an array or nx.spec(shape, dtype) for each: "
                f"nx.preflight({name}, nx.spec((8, 128)), on=…){told}"
            )
    elif axis := _NO_AXIS.search(first):
        told = (
            f"{told}. Name the axes and their sizes, mesh={{'{axis[1]}': …}}, or ask inside of "
            "`with jax.set_mesh(mesh):` (`with mesh:` names them to jax.jit alone)."
        )
    elif "compiler_options" in first:
        return ArgumentError(
            f"{name} calls a function that jax.jit compiles with compiler_options, which JAX "
            "takes of the outermost function alone. Leave them out, and give them to "
            "nx.preflight.CompileOptions(compiler_options={…})."
        )
    return ArgumentError(f"{name} cannot be traced with these shapes: {first}{told}")


def _own_error(error: Exception, name: str) -> ArgumentError:
    """Explain any other error, which comes from the function's code."""
    if axis := _UNBOUND_AXIS.search(str(error)):
        return ArgumentError(
            f"{name} computes over the axis {axis[1]!r} at {users_line(error)}, and nothing around "
            f"it names one. Give jax.shard_map({name}, in_specs=…, out_specs=…), and preflight "
            f"mesh={{{axis[1]!r}: …}} with as many devices as the slice has."
        )
    said = f": {first}" if (first := _first_line(error)) else ""
    return ArgumentError(
        f"{name} failed while it was traced, at {users_line(error)}: {type(error).__name__}{said}"
    )


def _not_implemented(error: NotImplementedError, jaxpr: Any, name: str) -> CompilationError:
    """Explain an operation that JAX cannot lower for the platform, or transform."""
    found = _NO_RULE.search(str(error))
    if found is None or jaxpr is None:
        return CompilationError(
            f"{name} cannot be compiled: {_first_line(error)} ({users_line(error)})"
        )
    primitive, platform = found.groups()
    line = _line_of(primitive, jaxpr)
    at = f" at {line}" if line else ""
    return CompilationError(
        f"{name} cannot be compiled: JAX has no {primitive!r} for the platform {platform}, and it "
        f"is asked for{at}. Compute it on the host, outside of the step, or from inside of it with "
        "jax.pure_callback."
    )


def _line_of(primitive: str, jaxpr: Any) -> SourceLine | None:
    """Return the user's line behind the first equation of a primitive that has one."""
    sites = (site for site in walk(jaxpr) if site.equation.primitive.name == primitive)
    lines = (source_line(site.equation, site.callers) for site in sites)
    return next((line for line in lines if line), None)


def _fixing(name: str, numbers: tuple[str, ...]) -> str:
    """Explain how to make Python numbers static, if any are arguments."""
    if not numbers:
        return ""
    named = ", ".join(f"{number}=…" for number in numbers)
    return (
        f" Or is it the number {' or '.join(numbers)}? Python numbers are traced too; fix one with "
        f'functools.partial({name}, {named}) or jax.jit({name}, static_argnames="{numbers[0]}").'
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
