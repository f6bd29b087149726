"""Which tensors of a model are its parameters, and where they are in the module.

A floating-point tensor of the graph is a trainable parameter under its name. Not trained are
statistics of batch normalisation, numbers (rank 0), integers, and what decides shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from neurenix._nnx import nnx
from neurenix.interop.onnx import registry
from neurenix.interop.onnx.model import Graph, Model, Node, walk

__all__ = ["Statistic", "Weight", "known_names", "plan_weights"]


class Statistic(nnx.BatchStat):
    """A running mean or variance of a batch normalisation: used and not trained."""


@dataclass(frozen=True)
class Weight:
    """One variable.

    Attributes:
        name: of the tensor in the file.
        path: where it is in the module, the name with its dots as modules.
        kind: of variable.
    """

    name: str
    path: tuple[str, ...]
    kind: type[nnx.Variable]


def plan_weights(model: Model) -> list[Weight]:
    """Return the variables of a model."""
    constants = model.graph.constants
    known = known_names(model)
    statistics = {
        name
        for node in walk(model.graph.nodes)
        if node.op == "BatchNormalization"
        for name in node.inputs[3:5]
    }
    names = [
        name
        for name, value in constants.items()
        if value.ndim and jnp.issubdtype(value.dtype, jnp.floating) and name not in known
    ]
    paths = {tuple(name.split(".")): name for name in names}
    inner = {path[:n] for path in paths for n in range(1, len(path))}
    weights = []
    for name in names:
        path = tuple(name.split("."))
        # "a" and "a.b" cannot both be: one would be a module and an array.
        if path in inner or not all(path):
            path = (name,)
        weights.append(Weight(name, path, Statistic if name in statistics else nnx.Param))
    return weights


def known_names(model: Model) -> set[str]:
    """Return the values of the main graph that decide shapes: they must be known when it is traced.

    What such a value is computed from is among them, up to shapes, which are always known.
    """
    return _needed(model, model.graph.nodes, model.opsets, set())


def _needed(
    model: Model, nodes: tuple[Node, ...], opsets: Mapping[str, int], outside: set[str]
) -> set[str]:
    """Return the names that must be known for nodes, by going through them from the last one."""
    wanted = set(outside)
    for node in reversed(nodes):
        function = model.functions.get((node.domain, node.op))
        operator = registry.find(node.domain, node.op, opsets.get(node.domain, 1))
        if function is not None:
            pairs = zip(function.outputs, node.outputs, strict=False)
            after = {inner for inner, name in pairs if name in wanted}
            versions = {**opsets, **function.opsets}
            inside = _needed(model, function.nodes, versions, after)
            positions: Sequence[int] = [
                i for i, name in enumerate(function.inputs) if name in inside
            ]
        elif wanted.intersection(filter(None, node.outputs)) and node.op not in _SHAPES:
            positions = range(len(node.inputs))
        else:
            positions = operator.positions_known(node) if operator is not None else ()
        wanted.update(node.inputs[i] for i in positions if i < len(node.inputs) and node.inputs[i])
        for graph in node.attributes.values():
            if isinstance(graph, Graph):
                pairs = zip(graph.outputs, node.outputs, strict=False) if node.op == "If" else ()
                after = {port.name for port, name in pairs if name in wanted}
                wanted |= _needed(model, graph.nodes, opsets, after)
    return wanted


# What these return is known whatever their input is.
_SHAPES = {"Shape", "Size"}


def as_variable(weight: Weight, value: np.ndarray) -> Any:
    """Return the variable for a tensor."""
    return weight.kind(jnp.asarray(value))
