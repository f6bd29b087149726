"""Operators that ONNX itself defines by simpler ones, for those without a function here.

ONNX gives a body for many composite operators; newer ones come with a newer ``onnx``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.extra import import_onnx
from neurenix.interop.onnx.files import Tensors
from neurenix.interop.onnx.model import Function, Graph, Node, read_function

__all__ = ["expansion", "has_expansion"]


def has_expansion(domain: str, op: str, version: int) -> bool:
    """Tell whether ONNX gives a body for an operator."""
    schema = _schema(domain, op, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def expansion(
    node: Node, version: int, attributes: Mapping[str, Any], inputs: Sequence[Any]
) -> Function | None:
    """Return the body that ONNX gives for a node, or None.

    Args:
        node: the node.
        version: version of its operator set.
        attributes: its attributes, resolved.
        inputs: its inputs, whose dtypes and shapes the body may depend on.
    """
    onnx = import_onnx("nx.from_onnx")
    schema = _schema(node.domain, node.op, version)
    if schema is None or not has_expansion(node.domain, node.op, version):
        return None
    if schema.has_function:
        body = schema.function_body
    else:
        plain = {k: v for k, v in attributes.items() if not isinstance(v, Graph)}
        if len(plain) < len(attributes):
            raise ConversionError("its body depends on a graph, which is not expanded here.")
        proto = onnx.helper.make_node(node.op, node.inputs, node.outputs, domain=node.domain)
        for name, value in plain.items():
            given = onnx.numpy_helper.from_array(value) if hasattr(value, "shape") else value
            proto.attribute.append(onnx.helper.make_attribute(name, given))
        types = [_type(onnx, value).SerializeToString() for value in inputs]
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        data = schema.get_context_dependent_function_with_opset_version(
            max(versions, default=version), proto.SerializeToString(), types
        )
        body = onnx.FunctionProto()
        body.ParseFromString(data)
    function = read_function(body, Tensors(None))
    return replace(function, defaults={**function.defaults, **_defaults(onnx, schema)})


def _defaults(onnx: Any, schema: Any) -> dict[str, Any]:
    """Return the default values of an operator's attributes."""
    found = {}
    for name, attribute in schema.attributes.items():
        value = attribute.default_value
        if value.type != onnx.AttributeProto.UNDEFINED:
            plain = onnx.helper.get_attribute_value(value)
            found[name] = plain.decode() if isinstance(plain, bytes) else plain
    return found


def _schema(domain: str, op: str, version: int) -> Any:
    onnx = import_onnx("nx.from_onnx")
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def _type(onnx: Any, value: Any) -> Any:
    if value is None:
        return onnx.TypeProto()
    element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_type_proto(element, list(value.shape))
