"""A report on a model of ONNX before it is converted: what is supported, and what is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from neurenix.interop.check_report import CheckReport, OperatorUse, Problem
from neurenix.interop.onnx import operators
from neurenix.interop.onnx.arrays import canonical
from neurenix.interop.onnx.convert import unsupported
from neurenix.interop.onnx.files import Tensors, read_proto
from neurenix.interop.onnx.model import Model, Node, read_model, walk

__all__ = ["check"]

_INSTEAD = (
    'Say how it is computed with nx.register_onnx_op("{name}", function), or export the model '
    "without it."
)


def check(model: Any) -> CheckReport:
    """Return a report on a model of ONNX: whether ``nx.from_onnx`` can convert it.

    Args:
        model: path of an ``.onnx`` file, its bytes, or an ``onnx.ModelProto``.

    Raises:
        ArgumentTypeError: ``model`` is none of these.
        ConversionError: the file is damaged or contradicts itself.
        MissingExtraError: the package ``onnx`` is not installed.

    Example:
        >>> from onnx import TensorProto, helper
        >>> value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2])
        >>> graph = helper.make_graph(
        ...     [helper.make_node("Relu", ["x"], ["y"])], "g", [value("x")], [value("y")]
        ... )
        >>> report = check(helper.make_model(graph))
        >>> report.is_convertible, [use.name for use in report.operators]
        (True, ['Relu'])
    """
    proto, folder = read_proto(model)
    parsed = read_model(proto, Tensors(folder))
    operators.load()
    missing = unsupported(parsed)
    problems = tuple(
        Problem(f"Not supported: {name}", _INSTEAD.format(name=name), f"node {node}")
        for name, node in missing.items()
    )
    found: dict[str, list[Node]] = {}
    for node in _nodes(parsed):
        found.setdefault(node.operator, []).append(node)
    uses = [
        OperatorUse(name, len(nodes), f"node {nodes[0]}", name not in missing)
        for name, nodes in found.items()
    ]
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else proto.graph.name
    return CheckReport(
        name,
        tuple(sorted(uses, key=lambda use: (use.is_supported, use.name))),
        problems,
        tuple(_notes(parsed)),
    )


def _nodes(model: Model) -> Iterator[Node]:
    yield from walk(model.graph.nodes)
    for function in model.functions.values():
        yield from walk(function.nodes)


def _notes(model: Model) -> Iterator[Problem]:
    """Yield what will be computed in 32 bits: 64-bit inputs, tensors and casts."""
    places: dict[np.dtype, str] = {}
    for port in model.graph.inputs:
        if port.dtype is not None:
            places.setdefault(port.dtype, f"input {port.name!r}")
    for name, value in model.graph.constants.items():
        places.setdefault(value.dtype, f"tensor {name!r}")
    for dtype, place in places.items():
        if dtype.kind in "iufc" and canonical(dtype) != dtype:
            yield Problem(
                f"{dtype} is computed as {canonical(dtype)}",
                "Larger integers are refused or overflow, and real numbers have 7 digits.",
                place,
            )
