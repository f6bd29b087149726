"""The module that ``nx.from_onnx`` returns.

Owns the call: which inputs are known, and the model's results. Does not own the conversion
(``convert``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ConversionError, ShapeError
from neurenix._nnx import nnx
from neurenix.interop.onnx import registry
from neurenix.interop.onnx.arrays import as_jax, canonical
from neurenix.interop.onnx.interpret import compute
from neurenix.interop.onnx.model import Model, Port, walk
from neurenix.interop.onnx.verify import Verification
from neurenix.interop.onnx.weights import Weight, as_variable
from neurenix.nn.module import Module

__all__ = ["OnnxModule"]


class Scope(nnx.Module):
    """The parameters whose names begin alike."""


class OnnxModule(Module):
    """A model of ONNX that computes in JAX: it trains, moves, saves and compiles like any other.

    ``nx.from_onnx`` makes it. It takes what the model takes, by position or by name, and returns
    the model's output, or a tuple of several.
    """

    def __init__(
        self, model: Model, weights: Sequence[Weight], known: frozenset[str], rngs: nnx.Rngs
    ) -> None:
        self._model, self._weights, self._known = model, tuple(weights), known
        self._is_random = _draws(model)
        self._verification: Verification | None = None
        self.rngs = rngs
        constants = model.graph.constants
        for weight in weights:
            _insert(self, weight.path, as_variable(weight, constants[weight.name]))

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in the order in which they are given by position."""
        return [port.name for port in self._model.graph.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in their order."""
        return [port.name for port in self._model.graph.outputs]

    @property
    def known_inputs(self) -> list[str]:
        """Names of the inputs that decide shapes: under ``nx.jit`` they are NumPy arrays."""
        return [name for name in self.input_names if name in self._known]

    def input_specs(self, batch: int | None = None) -> dict[str, jax.ShapeDtypeStruct] | None:
        """Return shapes and dtypes of the inputs by name.

        Args:
            batch: size for a first axis that the file leaves open.

        Returns:
            the specs; None if another size is open, or the first one and ``batch`` is None.
        """
        found = {}
        for port in self._model.graph.inputs:
            if port.shape is None:
                return None
            shape = list(port.shape)
            if shape and not isinstance(shape[0], int):
                shape[0] = batch
            if not all(isinstance(size, int) for size in shape):
                return None
            dtype = np.dtype(np.float32) if port.dtype is None else port.dtype
            sizes: Any = tuple(shape)
            found[port.name] = jax.ShapeDtypeStruct(sizes, canonical(dtype))
        return found

    @property
    def verification(self) -> Verification | None:
        """The difference from onnxruntime that was found; None if nothing was compared."""
        return self._verification

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the model's outputs.

        Args:
            *args: inputs in the model's order.
            **kwargs: inputs by name.

        Returns:
            the output, or a tuple of several, as JAX arrays.

        Raises:
            ArgumentError: an input is missing, or there is one too many.
            ArgumentTypeError: an input has another kind of dtype than the model says.
            ShapeError: an input has another rank or size than the model says.
            ConversionError: an input that decides shapes is computed by the program.
        """
        return self._compute(_by_name(self.input_names, args, kwargs))

    def _compute(self, inputs: Mapping[str, Any]) -> Any:
        values: dict[str, Any] = {}
        sizes: dict[str, Any] = {}
        for port in self._model.graph.inputs:
            value = self._taken(port, inputs[port.name])
            _expect_fits(port, value, sizes)
            values[port.name] = value
        for weight in self._weights:
            values[weight.name] = _look_up(self, weight.path).get_value()
        key = self.rngs.dropout() if self._is_random else None
        results = [as_jax(each) for each in compute(self._model, values, key=key)]
        return results[0] if len(results) == 1 else tuple(results)

    def _taken(self, port: Port, value: Any) -> Any:
        if port.name not in self._known:
            if isinstance(value, (int, float)) and port.dtype is not None:
                value = np.asarray(value, port.dtype)
            return as_jax(np.asarray(value)) if not isinstance(value, jax.Array) else value
        if isinstance(value, Tracer):
            raise ConversionError(
                f"The input {port.name!r} decides shapes, so its value must be known when the "
                "program is traced. Give it as a NumPy array that the function closes over, not "
                "as an argument of nx.jit."
            )
        return np.asarray(value, port.dtype)


def _draws(model: Model) -> bool:
    nodes = [*walk(model.graph.nodes)]
    nodes += [node for function in model.functions.values() for node in walk(function.nodes)]
    for node in nodes:
        operator = registry.find(node.domain, node.op, model.opsets.get(node.domain, 1))
        if operator is not None and operator.random and node.attributes.get("seed") is None:
            return True
    return False


def _by_name(names: list[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(names):
        raise ArgumentError(
            f"The model takes {len(names)} inputs ({', '.join(names)}); got {len(args)}."
        )
    found = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names or name in found:
            reason = "was given twice" if name in found else "is none of its inputs"
            raise ArgumentError(f"The model takes {', '.join(names)}; {name!r} {reason}.")
        found[name] = value
    missing = [name for name in names if name not in found]
    if missing:
        raise ArgumentError(f"The model takes {', '.join(names)}; {missing[0]!r} is missing.")
    return found


def _expect_fits(port: Port, value: Any, sizes: dict[str, Any]) -> None:
    if port.dtype is not None and value.dtype != port.dtype:
        wanted, given = canonical(port.dtype), value.dtype
        same = wanted.kind == given.kind or {wanted.kind, given.kind} <= {"i", "u"}
        floats = all(jax.numpy.issubdtype(d, np.floating) for d in (wanted, given))
        if not same and not floats:
            raise ArgumentTypeError(f"The model takes {port.name!r} as {port.dtype}; got {given}.")
    if port.shape is None:
        return
    if len(port.shape) != value.ndim:
        raise ShapeError(
            f"The model takes {port.name!r} with the shape {_shown(port)}; got {value.shape}."
        )
    for wanted, size in zip(port.shape, value.shape, strict=True):
        fixed = sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted
        if fixed is not None and fixed != size:
            also = f" ({wanted} is {fixed} in another input)" if isinstance(wanted, str) else ""
            raise ShapeError(
                f"The model takes {port.name!r} with the shape {_shown(port)}{also}; got "
                f"{value.shape}."
            )


def _shown(port: Port) -> str:
    return "(" + ", ".join("?" if size is None else str(size) for size in port.shape or ()) + ")"


def _insert(module: nnx.Module, path: tuple[str, ...], variable: nnx.Variable) -> None:
    *scopes, name = path
    inside = module
    for scope in scopes:
        scope = _free(inside, scope)
        if scope not in vars(inside):
            setattr(inside, scope, Scope())
        inside = vars(inside)[scope]
    setattr(inside, _free(inside, name), variable)


def _free(module: nnx.Module, name: str) -> str:
    """Return a name, with a line below behind it where every module has a method of that name."""
    return f"{name}_" if hasattr(type(module), name) else name


def _look_up(module: nnx.Module, path: tuple[str, ...]) -> Any:
    for name in path:
        module = vars(module)[_free(module, name)]
    return module
