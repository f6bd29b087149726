"""The graph while it is built: nodes, constants, and values whose axes are arranged late.

A value has the shape of JAX's array. How its tensor is arranged in the graph may differ: axes may
be in another order, and axes along which it is constant may have the size 1. So the transpositions
around convolutions cancel, and a bias is not repeated before it is added. ``plain`` arranges a
tensor as JAX has it.

Owns the arrangement. Does not own what a primitive becomes (``lowering``) or the file (``writer``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.dimensions import evaluate, is_one, is_static
from neurenix.interop.onnx.element_types import computed, kernel_dtype, stored_type

_SMALL = 256  # elements; smaller constants are written once and repeated whole

Shape = tuple[Any, ...]


@dataclass
class Node:
    """One node. An attribute is what ``onnx.helper.make_node`` takes, or a ``Builder``."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph.

    Attributes:
        name: of the tensor.
        shape: of the array that it stands for; sizes may be symbolic.
        dtype: in which it is computed.
        scope: the graph that makes it.
        order: axis i of the tensor is axis ``order[i]`` of the array.
        repeated: axes of the array along which it is constant; the tensor has the size 1 there.
        is_scalar: whether the tensor has no axes; the array repeats its number everywhere.
    """

    name: str
    shape: Shape
    dtype: np.dtype
    scope: Builder
    order: tuple[int, ...]
    repeated: frozenset[int] = frozenset()
    is_scalar: bool = False


Operand = Value | np.ndarray
"""An array that is computed in the graph, or one that is known at export."""


@dataclass
class _Model:
    """What all graphs of a model share."""

    taken: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, Any] = field(default_factory=dict)
    constants: dict[Any, str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    dimensions: dict[str, str] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)


class Builder:
    """A graph under construction.

    Args:
        parent: the graph around it, whose tensors it may use; None for the outermost.
    """

    def __init__(self, parent: Builder | None = None) -> None:
        self.parent = parent
        self.nodes: list[Node] = []
        self.inputs: list[tuple[str, np.dtype, Shape]] = []
        self.outputs: list[tuple[str, np.dtype, Shape]] = []
        self.model: _Model = parent.model if parent else _Model()
        self._arranged: dict[Any, str] = {}

    @property
    def root(self) -> Builder:
        """The outermost graph."""
        return self.parent.root if self.parent else self

    # Names and nodes

    def unique(self, wanted: str) -> str:
        """Return a name that no tensor has: ``wanted``, or with a number behind."""
        taken = self.model.taken
        if wanted not in taken:
            taken[wanted] = 0
            return wanted
        taken[wanted] += 1
        return self.unique(f"{wanted}_{taken[wanted]}")

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node and return the name of its result, or a list of names for several.

        Args:
            op: the operator.
            inputs: names of tensors; empty for an optional input that is left out.
            outputs: number of results.
            attributes: of the node; those that are None are left out.
        """
        names = [self.unique(op.lower()) for _ in range(outputs)]
        given = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(Node(op, list(inputs), names, given))
        if inputs and all(name in self.model.fixed for name in inputs):
            self.model.fixed.update(names)
        return names[0] if outputs == 1 else names

    def compute(
        self, op: str, *inputs: str, dtype: np.dtype, keep: bool = False, **more: Any
    ) -> str:
        """Add a node of one result, computed in a dtype that onnxruntime's kernels take.

        Args:
            op: the operator.
            inputs: tensors, all of ``dtype``.
            dtype: of the inputs.
            keep: whether the result has a dtype of its own, such as that of a comparison.
            more: attributes, and ``rest``, inputs of other dtypes that follow.
        """
        rest = more.pop("rest", ())
        wide = kernel_dtype(op, dtype)
        names = [self.cast(name, dtype, wide) for name in inputs]
        out = self.emit(op, *names, *rest, **more)
        return out if keep else self.cast(out, wide, dtype)

    def where(self, test: str, yes: str, no: str, *, dtype: np.dtype) -> str:
        """Return elements of ``yes`` where a test holds, else of ``no``; both of ``dtype``."""
        wide = kernel_dtype("Where", dtype)
        chosen = self.emit("Where", test, self.cast(yes, dtype, wide), self.cast(no, dtype, wide))
        return self.cast(chosen, wide, dtype)

    def pad(self, name: str, pads: str, filling: str, dtype: np.dtype) -> str:
        """Return a tensor with elements of one number around it; both of ``dtype``."""
        wide = kernel_dtype("Pad", dtype)
        names = self.cast(name, dtype, wide), pads, self.cast(filling, dtype, wide)
        return self.cast(self.emit("Pad", *names), wide, dtype)

    def cast(self, name: str, old: Any, new: Any) -> str:
        """Return a tensor in another dtype."""
        if old == new:
            return name
        return self.emit("Cast", name, to=stored_type(new))

    def is_fixed(self, operand: Operand) -> bool:
        """Tell whether an operand depends on weights and constants alone."""
        return isinstance(operand, np.ndarray) or operand.name in self.model.fixed

    def enter(self, name: str, dtype: np.dtype, shape: Shape) -> Value:
        """Add an input to the graph and return its value."""
        name = self.unique(name)
        self.inputs.append((name, dtype, shape))
        return self.value(name, shape, dtype)

    def weight(self, name: str, array: Any) -> Value:
        """Return the value of an initializer that the writer adds under ``name``."""
        named = self.unique(name)
        if named != name:
            raise ConversionError(
                f"A weight has the name {name!r} of an input. Give other input_names."
            )
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):  # a random key
            return self.value(name, array.shape, np.uint32)
        self.model.fixed.add(name)
        tensor = self.cast(name, array.dtype, computed(array.dtype))
        return self.value(tensor, array.shape, array.dtype)

    def leave(self, name: str, dtype: np.dtype, shape: Shape) -> None:
        """Make a tensor an output of a graph inside of another one, by a node of its own."""
        self.outputs.append((self.emit("Identity", name), dtype, shape))

    def give(self, name: str, wanted: str, dtype: np.dtype, shape: Shape) -> None:
        """Make a tensor an output of the outermost graph, under a name that ``unique`` returned."""
        made = any(name in node.outputs for node in self.nodes)
        if made and all(name != output for output, _, _ in self.outputs):
            _rename(self, name, wanted)
        else:
            self.nodes.append(Node("Identity", [name], [wanted], {}))
        self.outputs.append((wanted, dtype, shape))

    # Constants and sizes

    def constant(self, array: Any, dtype: Any = None) -> str:
        """Return the name of a constant tensor; equal ones are written once."""
        array = np.asarray(array, dtype)
        array = np.ascontiguousarray(array.astype(computed(array.dtype))).reshape(array.shape)
        key = (array.dtype.str, array.shape, array.tobytes())
        name = self.model.constants.get(key)
        if name is None:
            name = self.unique("constant")
            self.model.constants[key] = name
            self.model.initializers[name] = array
            self.model.fixed.add(name)
        return name

    def ints(self, *numbers: int) -> str:
        """Return a constant vector of 64-bit integers."""
        return self.constant(np.array(numbers, np.int64))

    def dimension(self, size: Any) -> str:
        """Return a size as a vector of one 64-bit integer."""
        if isinstance(size, int):
            return self.ints(size)
        root, known = self.root, self.model.dimensions
        if str(size) not in known:
            known[str(size)] = evaluate(size, root.ints, self._symbol, root._combined)
        return known[str(size)]

    def sizes(self, shape: Iterable[Any]) -> str:
        """Return a shape as a vector of 64-bit integers."""
        shape = tuple(shape)
        if is_static(shape):
            return self.ints(*shape)
        if len(shape) == 1:
            return self.dimension(shape[0])
        key = ("sizes", str(shape))
        root = self.root
        if key not in root._arranged:
            parts = [self.dimension(size) for size in shape]
            root._arranged[key] = root.emit("Concat", *parts, axis=0)
        return root._arranged[key]

    def _symbol(self, name: str) -> str:
        found = self.model.symbols.get(name)
        if found is None:
            raise ConversionError(f"The size {name!r} is of no input of the model.")
        return found

    def _combined(self, operator: str, first: str, second: str) -> str:
        if operator == "floordiv":  # ONNX divides towards zero
            rest = self.emit("Mod", first, second)
            return self.emit("Div", self.emit("Sub", first, rest), second)
        names = {"add": "Add", "sub": "Sub", "mul": "Mul", "pow": "Pow", "mod": "Mod",
                 "max": "Max", "min": "Min"}  # fmt: skip
        return self.emit(names[operator], first, second)

    # Values

    def value(self, name: str, shape: Shape, dtype: Any, **arrangement: Any) -> Value:
        """Return the value of a tensor that this graph makes, arranged as JAX has it by default."""
        arrangement.setdefault("order", tuple(range(len(shape))))
        return Value(name, tuple(shape), computed(dtype), self, **arrangement)

    def value_of(self, operand: Operand) -> Value:
        """Return a value for an operand; a known array becomes a constant, without repetitions."""
        if isinstance(operand, Value):
            return operand
        kept = _compact(operand)
        everywhere = frozenset(range(operand.ndim))
        if kept.size == 1 and operand.ndim:
            name = self.constant(kept.reshape(()))
            return self.root.value(
                name, operand.shape, operand.dtype, repeated=everywhere, is_scalar=True
            )
        repeated = frozenset(a for a in everywhere if kept.shape[a] != operand.shape[a])
        name = self.constant(kept)
        return self.root.value(name, operand.shape, operand.dtype, repeated=repeated)

    def arranged(self, operand: Operand, order: Sequence[int]) -> str:
        """Return the tensor with its axes in an order, still of size 1 where it is repeated."""
        value, order = self.value_of(operand), tuple(order)
        if value.is_scalar or value.order == order:
            return value.name
        key, scope = (value.name, value.order, order), value.scope
        if key not in scope._arranged:
            turn = [value.order.index(axis) for axis in order]
            scope._arranged[key] = scope.emit("Transpose", value.name, perm=turn)
        return scope._arranged[key]

    def full(self, operand: Operand, order: Sequence[int]) -> str:
        """Return the tensor with its axes in an order, repeated to its whole size."""
        if isinstance(operand, np.ndarray) and operand.size <= _SMALL:
            return self.constant(np.transpose(operand, order))
        value, order = self.value_of(operand), tuple(order)
        name = self.arranged(value, order)
        if not value.shape or not (value.is_scalar or value.repeated):
            return name
        key, scope = (value.name, value.order, order, str(value.shape)), value.scope
        if key not in scope._arranged:
            whole = scope.sizes(value.shape[axis] for axis in order)
            scope._arranged[key] = scope.emit("Expand", name, whole)
        return scope._arranged[key]

    def plain(self, operand: Operand) -> str:
        """Return the tensor arranged as JAX has it."""
        return self.full(operand, range(len(operand.shape)))

    def reshape(self, name: str, shape: Shape) -> str:
        """Return a tensor in another shape."""
        unknown = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        if len(unknown) == 1 and 0 not in [size for size in shape if isinstance(size, int)]:
            sizes = self.ints(*(-1 if axis in unknown else size for axis, size in enumerate(shape)))
            return self.emit("Reshape", name, sizes)
        empty = 1 if any(isinstance(size, int) and size == 0 for size in shape) else None
        return self.emit("Reshape", name, self.sizes(shape), allowzero=empty)

    def elementwise(
        self, op: str, operands: Sequence[Operand], aval: Any, *, dtype: Any = None, **more: Any
    ) -> Value:
        """Add an operator that computes each element on its own, in the arrangement of its inputs.

        Args:
            op: the operator.
            operands: of one shape, or without axes.
            aval: shape and dtype of the result.
            dtype: of the operands, where it is not that of the result.
            more: attributes of the node.
        """
        values = [self.value_of(operand) for operand in operands]
        names, arrangement = self.together(values, aval.shape)
        taken = computed(dtype or aval.dtype)
        name = self.compute(op, *names, dtype=taken, keep=dtype is not None, **more)
        return self.value(name, aval.shape, aval.dtype, **arrangement)

    def together(self, values: Sequence[Value], shape: Shape) -> tuple[list[str], dict[str, Any]]:
        """Return tensors in one arrangement, and the arrangement of what is computed of them."""
        rank = len(shape)
        whole = [v for v in values if len(v.shape) == rank and not v.is_scalar]
        turned = [v for v in whole if v.order != tuple(range(rank))]
        leading = min(turned, key=lambda v: len(v.repeated), default=None)
        order = leading.order if leading else tuple(range(rank))
        names = [v.name if v not in whole else self.arranged(v, order) for v in values]
        repeated = frozenset(a for a, size in enumerate(shape) if not is_one(size))
        for v in whole:
            repeated &= v.repeated
        return names, {
            "order": order,
            "repeated": repeated,
            "is_scalar": bool(rank) and not whole,
        }


def _rename(graph: Builder, old: str, new: str) -> None:
    for node in graph.nodes:
        node.inputs = [new if name == old else name for name in node.inputs]
        node.outputs = [new if name == old else name for name in node.outputs]
        for value in node.attributes.values():
            if isinstance(value, Builder):
                _rename(value, old, new)


def _compact(array: np.ndarray) -> np.ndarray:
    """Return a known array with one element along each axis on which it is constant by view."""
    index = tuple(
        slice(0, 1) if stride == 0 else slice(None)
        for stride, size in zip(array.strides, array.shape, strict=True)
    )
    kept = array[index]
    if kept.size > 1 and kept.dtype.kind in "biuf" and (kept == kept.flat[0]).all():
        kept = kept[(slice(0, 1),) * kept.ndim]
    return kept
