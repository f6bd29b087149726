"""The file: from the graph that was built to ONNX's model, and to disk.

A model above 2 GB, the most that one file of protobuf holds, has its weights in a second file
beside the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neurenix.interop.onnx.builder import Builder, Node
from neurenix.interop.onnx.element_types import computed, stored_type
from neurenix.interop.onnx.extra import import_onnx

OPSET = 21
IR_VERSION = 10
_LARGEST_BYTES = 2_000_000_000
_INLINE_BYTES = 1024  # smaller constants stay in the model's file
_PURPOSE = "nx.to_onnx"


def make_model(
    graph: Builder, weights: Mapping[str, Any], *, name: str
) -> tuple[Any, dict[str, np.ndarray]]:
    """Return ONNX's model, whose large tensors have no data yet, and their arrays by name.

    Args:
        graph: the outermost graph.
        weights: arrays that are initializers under their names.
        name: of the graph.
    """
    onnx = import_onnx(_PURPOSE)
    used = _remove_unused(graph)
    proto = _graph(graph, name)
    arrays: dict[str, np.ndarray] = {}
    for tensor, array in {**weights, **graph.model.initializers}.items():
        if tensor not in used:
            continue
        array = np.asarray(array)
        stored = proto.initializer.add(
            name=tensor, dims=array.shape, data_type=stored_type(array.dtype)
        )
        if array.nbytes < _INLINE_BYTES:
            stored.raw_data = _bytes(array)
        else:
            arrays[tensor] = array
    model = onnx.helper.make_model(
        proto,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="neurenix",
    )
    return model, arrays


def write_model(model: Any, arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Write a model; the arrays into its file, or beside it where they are too large.

    Raises:
        OSError: a file cannot be written.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    if sum(array.nbytes for array in arrays.values()) + model.ByteSize() < _LARGEST_BYTES:
        for name, array in arrays.items():
            tensors[name].raw_data = _bytes(array)
    else:
        _write_data(tensors, arrays, path.with_name(f"{path.name}.data"))
    path.write_bytes(model.SerializeToString())


def _write_data(tensors: Mapping[str, Any], arrays: Mapping[str, np.ndarray], path: Path) -> None:
    with open(path, "wb") as file:
        for name, array in arrays.items():
            file.write(b"\0" * (-file.tell() % 4096))  # ONNX recommends whole pages
            tensor = tensors[name]
            tensor.data_location = import_onnx(_PURPOSE).TensorProto.EXTERNAL
            told = {"location": path.name, "offset": file.tell(), "length": array.nbytes}
            for key, value in told.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(_bytes(array))


def _bytes(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _remove_unused(graph: Builder) -> set[str]:
    """Remove nodes whose results nothing uses; return the names of all tensors that are used."""
    used: set[str] = set()

    def visit(builder: Builder) -> None:
        used.update(name for name, _, _ in builder.outputs)
        kept = []
        for node in reversed(builder.nodes):
            if not used.isdisjoint(node.outputs):
                kept.append(node)
                used.update(node.inputs)
                for value in node.attributes.values():
                    if isinstance(value, Builder):
                        visit(value)
        builder.nodes = kept[::-1]

    visit(graph)
    return used


def _graph(builder: Builder, name: str) -> Any:
    helper = import_onnx(_PURPOSE).helper
    return helper.make_graph(
        [_node(node, f"{node.op}_{number}") for number, node in enumerate(builder.nodes)],
        name,
        [_typed(*each) for each in builder.inputs],
        [_typed(*each) for each in builder.outputs],
    )


def _node(node: Node, name: str) -> Any:
    attributes = {
        key: _graph(value, key) if isinstance(value, Builder) else value
        for key, value in node.attributes.items()
    }
    return import_onnx(_PURPOSE).helper.make_node(
        node.op, node.inputs, node.outputs, name=name, **attributes
    )


def _typed(name: str, dtype: np.dtype, shape: tuple[Any, ...]) -> Any:
    helper = import_onnx(_PURPOSE).helper
    sizes = [size if isinstance(size, int) else str(size) for size in shape]
    return helper.make_tensor_value_info(name, stored_type(computed(dtype)), sizes)
