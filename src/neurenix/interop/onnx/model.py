"""A model of ONNX as plain data: graphs of nodes that name their inputs and outputs.

Owns the data and how it is read from a ``ModelProto``, whose claims are checked. Does not own files
(``files``) nor how a graph is computed (``interpret``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.extra import import_onnx
from neurenix.interop.onnx.files import MAX_ELEMENTS, Tensors, dtype_of

__all__ = [
    "Function",
    "Graph",
    "Model",
    "Node",
    "Port",
    "Reference",
    "read_function",
    "read_model",
    "walk",
]

# Graphs inside of graphs, functions inside of functions.
MAX_DEPTH = 32


@dataclass(frozen=True)
class Reference:
    """An attribute of a function's node whose value is that of the function's attribute."""

    name: str


@dataclass(frozen=True)
class Port:
    """An input or output of a graph.

    Attributes:
        name: its name.
        dtype: its dtype, or None where the file does not say.
        shape: sizes, names of symbolic sizes, None for unknown ones; None if the rank is unknown.
    """

    name: str
    dtype: np.dtype | None = None
    shape: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an operator.

    Attributes:
        domain: ``""`` for ONNX's own operators, ``"ai.onnx.ml"`` and so on.
        op: name of the operator.
        name: name of the node, perhaps empty.
        inputs: names of values; ``""`` for one that is left out.
        outputs: names of values; ``""`` for one that nobody needs.
        attributes: by name: numbers, text, lists of them, arrays, graphs, references.
    """

    domain: str
    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def operator(self) -> str:
        """The operator with its domain: ``"ai.onnx.ml::Scaler"``, or ``"Relu"``."""
        return f"{self.domain}::{self.op}" if self.domain else self.op

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"{self.operator}{name} → {', '.join(filter(None, self.outputs))}"


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in their order.

    Attributes:
        name: its name.
        inputs: what a caller gives, without those that have a value in ``constants``.
        outputs: what it returns.
        nodes: the nodes, each after those that it reads.
        constants: values that the file has, by name.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Function:
    """An operator that the model defines itself.

    Attributes:
        inputs: names of its inputs.
        outputs: names of its results.
        defaults: attributes with default values.
        nodes: its body.
        opsets: versions of the operator sets that the body is written in.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Any]
    nodes: tuple[Node, ...]
    opsets: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Model:
    """A whole model.

    Attributes:
        graph: the graph.
        opsets: version of each operator set, by domain.
        functions: operators that the model defines, by domain and name.
    """

    graph: Graph
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], Function] = field(default_factory=dict)


def read_model(proto: Any, tensors: Tensors) -> Model:
    """Read a ``ModelProto``.

    Raises:
        ConversionError: it contradicts itself: names that are not there or there twice, a cycle,
            an operator set that is too new, tensors of other sizes than they claim.
    """
    opsets = _opsets(proto.opset_import)
    reader = _Reader(tensors)
    functions = {}
    for each in proto.functions:
        key = _domain(each.domain), each.name
        if key in functions:
            raise ConversionError(f"The model defines the function {each.name!r} twice.")
        functions[key] = reader.function(each)
    model = Model(reader.graph(proto.graph, frozenset(), 0), opsets, functions)
    _expect_no_recursion(functions)
    return model


def read_function(proto: Any, tensors: Tensors) -> Function:
    """Read a ``FunctionProto``.

    Raises:
        ConversionError: as ``read_model``.
    """
    return _Reader(tensors).function(proto)


def walk(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Yield every node, those of graphs inside of nodes too."""
    for node in nodes:
        yield node
        for value in node.attributes.values():
            for graph in value if isinstance(value, list) else (value,):
                if isinstance(graph, Graph):
                    yield from walk(graph.nodes)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _opsets(imports: Any) -> dict[str, int]:
    onnx = import_onnx("nx.from_onnx")
    found: dict[str, int] = {}
    newest = onnx.defs.onnx_opset_version()
    for each in imports:
        domain = _domain(each.domain)
        if found.setdefault(domain, each.version) != each.version:
            raise ConversionError(f"The model names two versions of the operators {domain!r}.")
        if each.version < 1:
            raise ConversionError(f"The model names version {each.version} of the operators.")
        if not domain and each.version > newest:
            raise ConversionError(
                f"The model is written in operator set {each.version}; the installed onnx "
                f"{onnx.__version__} knows sets up to {newest}. Install a newer onnx, or export "
                "the model with an older set."
            )
    return found


def _expect_no_recursion(functions: Mapping[tuple[str, str], Function]) -> None:
    finished: set[tuple[str, str]] = set()

    def visit(key: tuple[str, str], above: tuple[tuple[str, str], ...]) -> None:
        if key in above or len(above) > MAX_DEPTH:
            raise ConversionError(f"The function {key[1]!r} of the model calls itself.")
        if key in finished:
            return
        for node in walk(functions[key].nodes):
            if (node.domain, node.op) in functions:
                visit((node.domain, node.op), (*above, key))
        finished.add(key)

    for key in functions:
        visit(key, ())


class _Reader:
    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def function(self, proto: Any) -> Function:
        defaults = {name: None for name in proto.attribute}
        defaults |= {
            each.name: self._attribute(each, 0, frozenset()) for each in proto.attribute_proto
        }
        known = set(proto.input)
        nodes = self._nodes(proto.node, known, f"function {proto.name!r}", 0)
        # A result that the body does not make is one that its node did not ask for.
        return Function(
            tuple(proto.input), tuple(proto.output), defaults, nodes, _opsets(proto.opset_import)
        )

    def graph(self, proto: Any, outer: frozenset[str], depth: int) -> Graph:
        if depth > MAX_DEPTH:
            raise ConversionError(f"Graphs are nested more than {MAX_DEPTH} deep.")
        where = f"graph {proto.name!r}"
        constants: dict[str, np.ndarray] = {}
        for each in proto.initializer:
            self._add(constants, each.name, self._tensors.read(each), where)
        for each in proto.sparse_initializer:
            self._add(constants, each.values.name, self._dense(each), where)
        inputs = tuple(self._port(each) for each in proto.input)
        names = [port.name for port in inputs]
        if len(set(names)) != len(names):
            raise ConversionError(f"The {where} has two inputs of one name.")
        known = set(outer) | set(names) | set(constants)
        nodes = self._nodes(proto.node, known, where, depth)
        # Maps of class labels to scores: here they are the array of scores.
        maps = {name for node in nodes if node.op == "ZipMap" for name in node.outputs}
        self._expect_known([each.name for each in proto.output], known, where)
        return Graph(
            name=proto.name,
            inputs=tuple(port for port in inputs if port.name not in constants),
            outputs=tuple(
                Port(each.name) if each.name in maps else self._port(each) for each in proto.output
            ),
            nodes=nodes,
            constants=constants,
        )

    def _add(self, constants: dict[str, np.ndarray], name: str, value: Any, where: str) -> None:
        if name in constants:
            raise ConversionError(f"The {where} has two tensors called {name!r}.")
        constants[name] = value

    def _expect_known(self, names: Any, known: set[str], where: str) -> None:
        missing = [name for name in names if name not in known]
        if missing:
            raise ConversionError(f"The {where} returns {missing[0]!r}, which nothing makes.")

    def _nodes(self, protos: Any, known: set[str], where: str, depth: int) -> tuple[Node, ...]:
        made: set[str] = set()
        nodes = []
        for proto in protos:
            for name in proto.input:
                if name and name not in known:
                    raise ConversionError(
                        f"The {where} has a {proto.op_type} that reads {name!r} before anything "
                        "makes it: the graph has a cycle, is not in order, or lacks a node."
                    )
            scope = frozenset(known)
            attributes: dict[str, Any] = {}
            for each in proto.attribute:
                if each.name in attributes:
                    raise ConversionError(
                        f"A {proto.op_type} of the {where} has the attribute {each.name!r} twice."
                    )
                attributes[each.name] = self._attribute(each, depth, scope)
            outputs = tuple(proto.output)
            for name in filter(None, outputs):
                if name in made:
                    raise ConversionError(f"The {where} makes the value {name!r} twice.")
                made.add(name)
            known.update(filter(None, outputs))
            nodes.append(
                Node(
                    _domain(proto.domain), proto.op_type, proto.name,
                    tuple(proto.input), outputs, attributes,
                )
            )  # fmt: skip
        return tuple(nodes)

    def _port(self, proto: Any) -> Port:
        if not proto.type.HasField("tensor_type"):
            kind = proto.type.WhichOneof("value")
            if kind is None:
                return Port(proto.name)
            raise ConversionError(
                f"The value {proto.name!r} is a {kind.removesuffix('_type')}, not a tensor, and "
                "JAX has tensors only."
            )
        tensor = proto.type.tensor_type
        what = f"The value {proto.name!r}"
        dtype = dtype_of(tensor.elem_type, what) if tensor.elem_type else None
        if not tensor.HasField("shape"):
            return Port(proto.name, dtype)
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in tensor.shape.dim
        )
        if any(isinstance(size, int) and not 0 <= size <= 2**40 for size in shape):
            raise ConversionError(f"{what} claims the shape {shape}.")
        return Port(proto.name, dtype, shape)

    def _attribute(self, proto: Any, depth: int, scope: frozenset[str]) -> Any:
        if proto.ref_attr_name:
            return Reference(proto.ref_attr_name)
        kind = import_onnx("nx.from_onnx").AttributeProto.AttributeType.Name(proto.type)
        if kind in ("FLOAT", "INT"):
            return proto.f if kind == "FLOAT" else proto.i
        if kind == "STRING":
            return _text(proto.s)
        if kind == "TENSOR":
            return self._tensors.read(proto.t)
        if kind == "GRAPH":
            return self.graph(proto.g, scope, depth + 1)
        if kind in ("FLOATS", "INTS"):
            return list(proto.floats if kind == "FLOATS" else proto.ints)
        if kind == "STRINGS":
            return [_text(each) for each in proto.strings]
        if kind == "TENSORS":
            return [self._tensors.read(each) for each in proto.tensors]
        if kind == "GRAPHS":
            return [self.graph(each, scope, depth + 1) for each in proto.graphs]
        if kind == "SPARSE_TENSOR":
            return self._dense(proto.sparse_tensor)
        if kind == "TYPE_PROTO":
            return proto.tp
        raise ConversionError(f"The attribute {proto.name!r} is a {kind}, which is not read here.")

    def _dense(self, proto: Any) -> np.ndarray:
        values, shape = self._tensors.read(proto.values), tuple(proto.dims)
        indices = self._tensors.read(proto.indices)
        count = 1
        for size in shape:
            count *= size
        if any(size < 0 for size in shape) or count > MAX_ELEMENTS:
            raise ConversionError(f"A sparse tensor claims the shape {shape}.")
        dense = np.zeros(count, values.dtype)
        flat = indices if indices.ndim == 1 else _flat(indices, shape)
        if flat.size != values.size or (flat.size and not 0 <= flat.min() <= flat.max() < count):
            raise ConversionError("A sparse tensor has indices that lie outside of its shape.")
        dense[flat] = values
        return dense.reshape(shape)


def _flat(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if indices.ndim != 2 or indices.shape[1] != len(shape):
        raise ConversionError("A sparse tensor has indices of another rank than its shape.")
    strides = np.cumprod([1, *shape[:0:-1]])[::-1]
    return (indices * strides).sum(axis=1)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
