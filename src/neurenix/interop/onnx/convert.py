"""``nx.from_onnx``: a model of ONNX as a Neurenix module."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from neurenix import random
from neurenix._core.errors import ConversionError
from neurenix._nnx import nnx
from neurenix.interop.onnx import operators, registry
from neurenix.interop.onnx.expand import has_expansion
from neurenix.interop.onnx.files import Tensors, read_proto
from neurenix.interop.onnx.model import Model, Node, read_model, walk
from neurenix.interop.onnx.module import OnnxModule
from neurenix.interop.onnx.verify import Verification, example_for, verify
from neurenix.interop.onnx.weights import known_names, plan_weights

__all__ = ["from_onnx", "unsupported"]


def from_onnx(
    model: Any, example_inputs: Mapping[str, Any] | None = None, *, check: bool = True
) -> OnnxModule:
    """Return a model of ONNX as a Neurenix module that computes in JAX.

    Its floating-point tensors are trainable parameters under their names. Not trained are
    statistics of batch normalisation, single numbers, integers, and tensors that decide shapes.

    Args:
        model: path of an ``.onnx`` file, its bytes, or an ``onnx.ModelProto``. External data is
            read inside the file's folder only.
        example_inputs: inputs by name for the comparison with onnxruntime. By default random
            numbers, with 2 for every size that the file leaves open.
        check: compare outputs with onnxruntime's, where that is installed.

    Returns:
        the module; ``verification`` has the difference that was found.

    Raises:
        ArgumentTypeError: ``model`` is none of these.
        ConversionError: the file is damaged or contradicts itself, has operators without a
            function here (all are named, see ``nx.register_onnx_op``), or computes something else
            here than in onnxruntime.
        MissingExtraError: the package ``onnx`` is not installed.

    Example:
        >>> import onnx
        >>> from onnx import TensorProto, helper
        >>> value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2])
        >>> graph = helper.make_graph(
        ...     [helper.make_node("Relu", ["x"], ["y"])], "g", [value("x")], [value("y")]
        ... )
        >>> model = nx.from_onnx(helper.make_model(graph), check=False)
        >>> model(nx.tensor([[1.0, -1.0]])).tolist()
        [[1.0, 0.0]]
    """
    proto, folder = read_proto(model)
    parsed = read_model(proto, Tensors(folder))
    operators.load()
    missing = unsupported(parsed)
    if missing:
        raise ConversionError(_without_function(missing))
    known = known_names(parsed)
    weights = plan_weights(parsed)
    module = OnnxModule(parsed, weights, frozenset(known), nnx.Rngs(random.next_key()))
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else proto.graph.name
    if check:
        found = _compare(model, proto, parsed, module, example_inputs)
        if isinstance(found, Verification):
            module._verification = found
        sys.stderr.write(f"neurenix: {name} converted; {found}\n")
    return module


def _compare(
    model: Any, proto: Any, parsed: Model, module: OnnxModule, given: Mapping[str, Any] | None
) -> Any:
    if given is None and module.known_inputs:
        names = ", ".join(module.known_inputs)
        return f"not compared: give example_inputs, since {names} decides shapes"
    if module._is_random:
        return "not compared: the model draws random numbers"
    sizes: dict[str, int] = {}
    inputs = {port.name: example_for(port, sizes) for port in parsed.graph.inputs}
    inputs |= {name: np.asarray(value) for name, value in (given or {}).items()}
    data = os.fspath(model) if isinstance(model, (str, os.PathLike)) else proto.SerializeToString()
    return verify(data, module, inputs, module.output_names)


def unsupported(model: Model) -> dict[str, Node]:
    """Return the operators of a model that have no function here, each with its first node."""
    found: dict[str, Node] = {}
    bodies = [(model.graph.nodes, model.opsets)]
    bodies += [(f.nodes, {**model.opsets, **f.opsets}) for f in model.functions.values()]
    for nodes, opsets in bodies:
        for node in walk(nodes):
            version = opsets.get(node.domain, 1)
            if (node.domain, node.op) in model.functions:
                continue
            if registry.find(node.domain, node.op, version) is None and not has_expansion(
                node.domain, node.op, version
            ):
                found.setdefault(node.operator, node)
    return found


def _without_function(missing: Mapping[str, Node]) -> str:
    lines = [f"  - {name} (node {node})" for name, node in missing.items()]
    return (
        "These operators of the model have no function in JAX here:\n"
        + "\n".join(lines)
        + f'\nSay how one is computed with nx.register_onnx_op("{next(iter(missing))}", function).'
    )
