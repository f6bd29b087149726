"""The program of a module in evaluation, as a jaxpr whose inputs have names.

Owns what is an input, what is a weight and what they are called. Does not own how the jaxpr becomes
ONNX (``lowering``).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConversionError,
    NeurenixError,
)
from neurenix._jax import live_equations
from neurenix._jaxpr import inline_calls
from neurenix._jit.target_device import tracing_for
from neurenix._nnx import nnx
from neurenix.train.module_split import ModuleSplit, call

BATCH = "batch"
_PORTABLE = "ONNX"  # a kind of device for which no layer has a kernel
_OTHER = re.compile(r"[^0-9A-Za-z_.]+")


@dataclass(frozen=True)
class Traced:
    """A module's program.

    Attributes:
        jaxpr: closed, without calls; its inputs are the weights, then the inputs.
        weights: name → array, in order.
        inputs: name → shape and dtype, in order; the first axis may be symbolic.
        outputs: names of the results.
        examples: name → example array, in order.
        compute: a compiled function of the inputs' arrays that returns the list of results.
    """

    jaxpr: Any
    weights: dict[str, Any]
    inputs: dict[str, jax.ShapeDtypeStruct]
    outputs: list[str]
    examples: dict[str, np.ndarray]
    compute: Any


def trace(
    module: nnx.Module,
    example: Any,
    *,
    dynamic_batch: bool,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> Traced:
    """Trace a module in evaluation.

    Args:
        module: any NNX module. It is not changed.
        example: one array, a tuple of positional arguments or a dict of named ones. Arrays and
            ``jax.ShapeDtypeStruct`` are inputs; numbers and other values are fixed.
        dynamic_batch: whether the first axis of the inputs is symbolic.
        input_names: of the inputs, in order; by default those of the arguments.
        output_names: of the results, in order.

    Raises:
        ArgumentError: there is no example, or a wrong number of names.
        ConversionError: the module cannot be traced with these shapes.
    """
    split = ModuleSplit(module)
    split.check_arrays()
    parameters, other = split.read()
    state, structure = jax.tree.flatten((parameters, other))
    names = _weight_names(module, state)
    arguments = _by_name(module, example)
    called = list(arguments)
    leaves, tree = jax.tree_util.tree_flatten_with_path(list(arguments.values()))
    is_array = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for _, leaf in leaves]
    if not any(is_array):
        raise ArgumentError(
            f"nx.to_onnx({type(module).__name__}, …) needs example inputs, arrays as the module "
            "takes them: example_inputs=nx.zeros((1, 28, 28, 1))."
        )
    paths = [
        ".".join(filter(None, [called[path[0].idx], _path(path[1:])]))
        for (path, _), array in zip(leaves, is_array, strict=True)
        if array
    ]
    arrays = [leaf for (_, leaf), array in zip(leaves, is_array, strict=True) if array]
    input_names = _given_names("input_names", input_names, paths)
    positional = not isinstance(example, Mapping)

    def forward(state: list[Any], inputs: list[Any]) -> Any:
        arrays, taken = iter(inputs), []
        for (_, leaf), array in zip(leaves, is_array, strict=True):
            taken.append(next(arrays) if array else leaf)
        built = split.build(*jax.tree.unflatten(structure, state), training=False)
        bound = jax.tree.unflatten(tree, taken)
        given = tuple(bound) if positional else dict(zip(called, bound, strict=True))
        return call(built, given, training=False)

    structs = [
        jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)) for x in arrays
    ]
    if dynamic_batch:
        structs = _with_symbol(structs)
    abstract = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in state]
    closed, shapes = _make_jaxpr(forward, abstract, structs, type(module).__name__, dynamic_batch)
    results, _ = jax.tree_util.tree_flatten_with_path(shapes)
    outputs = _given_names("output_names", output_names, _result_names(results))
    taken = {*outputs} & {*input_names, *names} if output_names is not None else set()
    if taken:
        raise ArgumentError(
            f"output_names has {min(taken)!r}, which is the name of an input or a weight."
        )
    compiled = jax.jit(lambda state, inputs: jax.tree.leaves(forward(state, inputs)))
    return Traced(
        inline_calls(closed.replace(jaxpr=live_equations(closed.jaxpr))),
        dict(zip(names, state, strict=True)),
        dict(zip(input_names, structs, strict=True)),
        outputs,
        dict(zip(input_names, map(_example, arrays, structs), strict=True)),
        lambda inputs: compiled(state, list(map(jnp.asarray, inputs))),
    )


def _make_jaxpr(
    forward: Any, state: list[Any], structs: list[Any], name: str, dynamic: bool
) -> tuple[Any, Any]:
    try:
        with tracing_for(_PORTABLE):
            return jax.make_jaxpr(forward, return_shape=True)(state, structs)
    except jax.errors.ConcretizationTypeError as error:
        raise ConversionError(
            f"{name} cannot be exported: it needs the value of an array in Python. {error}"
        ) from error
    except Exception as error:
        if not dynamic or not _is_of_dimensions(error):
            raise
        raise ConversionError(
            f"{name} cannot be exported for any batch size, because what it computes depends on "
            f"the size: {str(error).strip().splitlines()[0]} Export it for the size of the example "
            "inputs with dynamic_batch=False."
        ) from error


def _is_of_dimensions(error: BaseException | None) -> bool:
    """Tell whether an error, or its cause, is of a symbolic size that would have to be known."""
    while error is not None:
        if type(error).__name__ == "InconclusiveDimensionOperation":
            return True
        if isinstance(error, (TypeError, ValueError)) and not isinstance(error, NeurenixError):
            if BATCH in str(error):
                return True
        error = error.__cause__ or error.__context__
    return False


def _with_symbol(structs: list[jax.ShapeDtypeStruct]) -> list[jax.ShapeDtypeStruct]:
    """Return inputs with a symbolic first axis, where it is as long as that of the first input."""
    size = next((struct.shape[0] for struct in structs if struct.shape), None)
    (batch,) = jax.export.symbolic_shape(BATCH)
    return [
        jax.ShapeDtypeStruct((batch, *struct.shape[1:]), struct.dtype)
        if struct.shape and struct.shape[0] == size
        else struct
        for struct in structs
    ]


def _by_name(module: nnx.Module, example: Any) -> dict[str, Any]:
    """Return the arguments of a call by the names of the parameters."""
    if isinstance(example, Mapping):
        return dict(example)
    if example is None:
        return {}
    values = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    signature = inspect.signature(module)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, one in signature.parameters.items() if one.kind in kinds]
    if len(values) > len(names):
        rest = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        if not rest:
            raise ArgumentTypeError(
                f"{type(module).__name__} takes {len(names)} positional inputs; example_inputs has "
                f"{len(values)}."
            )
        names += [f"input_{number}" for number in range(len(names), len(values))]
    return dict(zip(names, values, strict=False))


def _weight_names(module: nnx.Module, state: list[Any]) -> list[str]:
    """Return the path of each array of a module; arrays that no variable holds are numbered."""
    paths = {
        id(variable.get_raw_value()): ".".join(map(str, path))
        for path, variable in nnx.to_flat_state(nnx.state(module))
        if isinstance(variable, nnx.Variable)
    }
    names = [paths.get(id(leaf), f"constant.{number}") for number, leaf in enumerate(state)]
    if len(set(names)) < len(names):  # several variables hold one array
        names = [name if name not in names[:i] else f"{name}.{i}" for i, name in enumerate(names)]
    return names


def _given_names(argument: str, given: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    if given is None:
        return list(default)
    names = [given] if isinstance(given, str) else list(given)
    if len(names) != len(default) or len(set(names)) < len(names):
        raise ArgumentError(
            f"{argument} needs one name for each of {', '.join(default)}, all different; got "
            f"{names!r}."
        )
    return names


def _path(path: Sequence[Any]) -> str:
    """Return the name of a leaf, such as ``"x"`` or ``"batch.tokens"``."""
    parts = [
        str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path
    ]
    return ".".join(_OTHER.sub("_", part) for part in parts)


def _result_names(results: Sequence[tuple[Any, Any]]) -> list[str]:
    if len(results) == 1 and not results[0][0]:
        return ["output"]
    paths = [_path(path) for path, _ in results]
    return [f"output.{path}" if path[:1].isdigit() else path for path in paths]


def _example(leaf: Any, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    """Return the values of an example input; of a shape alone, random floats or zeros."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return np.asarray(leaf).astype(struct.dtype)
    if jnp.issubdtype(struct.dtype, jnp.floating):
        values = np.random.default_rng(0).normal(size=leaf.shape)
        return values.astype(struct.dtype)
    return np.zeros(leaf.shape, struct.dtype)
