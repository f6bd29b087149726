"""Computing a model of ONNX in JAX: each node by its operator, what is known in NumPy.

Owns the order, scopes of nested graphs, functions, versions and random keys. Does not own the
operators (``operators``).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx import registry
from neurenix.interop.onnx.arrays import as_jax, is_known
from neurenix.interop.onnx.expand import expansion
from neurenix.interop.onnx.model import Function, Graph, Model, Node, Reference

__all__ = ["compute"]

Values = ChainMap[str, Any]


def compute(model: Model, values: Mapping[str, Any], *, key: jax.Array | None = None) -> list[Any]:
    """Compute a model.

    Args:
        model: the model.
        values: inputs and weights by name: NumPy arrays for what is known when the program is
            traced, JAX arrays for the rest.
        key: random key of this call; None where nothing is random.

    Returns:
        the outputs in their order.

    Raises:
        ConversionError: a node cannot be computed; the message names it.
    """
    run = _Computation(model, model.opsets, {}, _Key(key))
    return run.graph(model.graph, ChainMap(dict(values), dict(model.graph.constants)))


class _NodeError(ConversionError):
    """An error that names its node: the graphs around it pass it on as it is."""


class _Key:
    """A random key for each node that draws, in their order."""

    def __init__(self, key: jax.Array | None) -> None:
        self._key, self._count = key, 0

    def __call__(self) -> jax.Array:
        if self._key is None:
            raise ConversionError("The model draws random numbers, and was given no random key.")
        self._count += 1
        return jax.random.fold_in(self._key, self._count)


class _Computation:
    """Computes graphs in one set of versions: those of the model, or of one of its functions."""

    def __init__(
        self, model: Model, opsets: Mapping[str, int], attributes: Mapping[str, Any], key: _Key
    ) -> None:
        self._model, self._opsets, self._attributes, self._key = model, opsets, attributes, key

    def graph(self, graph: Graph, values: Values) -> list[Any]:
        self.nodes(graph.nodes, values)
        return [values[port.name] for port in graph.outputs]

    def nodes(self, nodes: Sequence[Node], values: Values) -> None:
        for node in nodes:
            inputs = [values[name] if name else None for name in node.inputs]
            try:
                with jax.named_scope(node.name or node.op):
                    results = self._compute(node, inputs, values)
            except ConversionError as error:
                if isinstance(error, _NodeError):
                    raise
                raise _of_node(node, str(error)) from error
            except (TypeError, ValueError, IndexError, KeyError, NotImplementedError,
                    OverflowError, ZeroDivisionError) as error:  # fmt: skip
                raise _of_node(node, _said(error, inputs)) from error
            if len(results) < len([name for name in node.outputs if name]):
                raise _of_node(node, f"it has {len(results)} results here.")
            values.update((n, r) for n, r in zip(node.outputs, results, strict=False) if n)

    def _compute(self, node: Node, inputs: list[Any], values: Values) -> Sequence[Any]:
        attributes = self._resolved(node)
        function = self._model.functions.get((node.domain, node.op))
        if function is not None:
            return self._call(function, inputs, attributes)
        version = self._opsets.get(node.domain, 1)
        known = registry.find(node.domain, node.op, version)
        if known is None:
            body = expansion(node, version, attributes, inputs)
            if body is None:
                raise ConversionError(f"{node.operator} has no function here.")
            return self._call(body, inputs, attributes)
        allowed = known.attributes
        unknown = sorted(set(attributes) - allowed) if allowed is not None else ()
        if unknown:
            raise ConversionError(
                f"the attribute {unknown[0]!r} of version {version} is not known."
            )
        named = dict(attributes)
        if known.counts:
            named["num_results"] = len(node.outputs)
        if known.random:
            named["rng"] = self._key
        if known.nested:
            named["run"] = self._nested(values)
        results = known.function(*self._arguments(known, inputs), **named)
        return results if isinstance(results, (list, tuple)) else [results]

    def _arguments(self, known: registry.Operator, inputs: list[Any]) -> list[Any]:
        folds = known.folds and all(each is None or is_known(each) for each in inputs)
        arguments = []
        for position, value in enumerate(inputs):
            if position in known.known and value is not None:
                if not is_known(value):
                    raise ConversionError(
                        f"its input {position} decides a shape, so its value must be known when "
                        "the program is traced, and here it is computed from the data."
                    )
                arguments.append(value)
            elif folds or known.nested:
                arguments.append(value)
            else:
                arguments.append(as_jax(value))
        return arguments

    def _resolved(self, node: Node) -> dict[str, Any]:
        attributes = {
            name: self._attributes.get(value.name) if isinstance(value, Reference) else value
            for name, value in node.attributes.items()
        }
        return {name: value for name, value in attributes.items() if value is not None}

    def _call(
        self, function: Function, inputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> list[Any]:
        values: Values = ChainMap({"": None}, dict.fromkeys(function.inputs))
        values.update(zip(function.inputs, inputs, strict=False))
        given = {**function.defaults, **attributes}
        inner = _Computation(self._model, {**self._opsets, **function.opsets}, given, self._key)
        inner.nodes(function.nodes, values)
        return [values.get(name) for name in function.outputs]

    def _nested(self, outer: Values) -> Callable[[Graph, Sequence[Any]], list[Any]]:
        def run(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
            values = outer.new_child({**graph.constants})
            values.update(
                (port.name, value) for port, value in zip(graph.inputs, inputs, strict=True)
            )
            return self.graph(graph, values)

        return run


def _of_node(node: Node, message: str) -> _NodeError:
    return _NodeError(f"The node {node} cannot be computed: {message}")


def _said(error: Exception, inputs: Sequence[Any]) -> str:
    shapes = ", ".join(
        "none" if value is None else f"{np.dtype(value.dtype).name}{list(value.shape)}"
        for value in inputs
    )
    return f"{error} (inputs: {shapes})"
