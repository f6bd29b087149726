"""A program of ``torch.export`` as plain data: operations on numbered values.

Owns the data and how it is read from an ``ExportedProgram``; nothing here needs PyTorch afterwards.
Does not own what is exported (``export``), nor how a program is computed (``interpret``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neurenix._core.source_files import SourceLine, is_neurenix
from neurenix.interop.torch import registry
from neurenix.interop.torch.dtypes import jax_dtype, load_torch, schema_of, to_jax
from neurenix.interop.torch.registry import Operator

# Arguments that say where and how a tensor is stored, which XLA decides.
_STORAGE = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "implicit"}
_FRAME = re.compile(r'File "(.*?)", line (\d+), in (\S+)')
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_GENERATED = ("<eval_with_key>", "<string>", "<frozen")


@dataclass(frozen=True)
class Value:
    """A value of a program, by its number."""

    index: int


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of an operator.

    Attributes:
        name: of the operator, ``"aten::add.Tensor"``.
        operator: how it is computed. None for Python's own functions of sizes (``function``).
        function: of Python, such as ``operator.getitem``.
        arguments: positional arguments and named ones; ``Value`` stands for a value.
        output: number of the value that it makes.
        results: shape and dtype of the result, or of each of several; None for what is no tensor.
        line: the user's line.
        scope: path of the module that it belongs to, ``"layers.0.mlp"``.
        layers: the numbered modules that it belongs to, the outermost first: prefix and number,
            ``(("stages", 2), ("stages.2.blocks", 0))``.
    """

    name: str
    operator: Operator | None
    function: Callable[..., Any] | None
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    output: int
    results: Any
    line: SourceLine | None
    scope: str
    layers: tuple[tuple[str, int], ...]

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        random = self.operator.random if self.operator is not None else None
        return random is not None and random(self.arguments[1])


@dataclass(frozen=True)
class Result:
    """One result of a program.

    Attributes:
        value: ``Value``, or a constant.
        buffer: name of the buffer that it is the new value of, or None for a result of the user's.
    """

    value: Any
    buffer: str | None


@dataclass(eq=False)
class Program:
    """Operations in their order, with what they begin and end with.

    Attributes:
        operations: the operations.
        weights: value → name of the parameter, buffer or constant.
        inputs: the values of the user's inputs, flat and in their order.
        results: results, flat and in their order.
        constants: value → array or nested ``Program``.
        types: value → shape and dtype, as ``Operation.results``.
        num_values: how many values there are.
        unknown: operators that have no function here, with the first line of each.
        masks: what ``masks`` found out about attention masks.
        narrowed: lines that compute in 64 bits, which are 32 here: dtype → first line.
    """

    operations: list[Operation] = field(default_factory=list)
    weights: dict[int, str] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    types: dict[int, Any] = field(default_factory=dict)
    num_values: int = 0
    unknown: dict[str, SourceLine | None] = field(default_factory=dict)
    narrowed: dict[str, SourceLine | None] = field(default_factory=dict)
    masks: dict[Any, dict[str, Any]] = field(default_factory=dict)


def read_program(exported: Any, names: Mapping[str, str]) -> Program:
    """Read an ``ExportedProgram`` whose operators are decomposed.

    Args:
        exported: the program.
        names: name of a parameter or buffer → the one name of those that share its memory.
    """
    signature = exported.graph_signature
    reader = _Reader(exported.graph_module)
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        index = reader.number(node)
        if spec.kind.name == "USER_INPUT":
            reader.program.inputs.append(index)
        elif spec.kind.name == "TOKEN":
            reader.program.constants[index] = None
        elif spec.kind.name == "CONSTANT_TENSOR":
            reader.program.constants[index] = to_jax(exported.constants[spec.target])
        else:
            reader.program.weights[index] = names.get(spec.target, spec.target)
    reader.read()
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        kind = spec.kind.name
        mutated = kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION")
        buffer = names.get(spec.target, spec.target) if mutated else None
        if kind != "TOKEN":
            reader.program.results.append(Result(reader.convert(value), buffer))
    return reader.finish()


def pruned(program: Program, results: list[Result]) -> Program:
    """Return a program of some results, with the operations that they need."""
    needed = {value.index for result in results for value in values_in(result.value)}
    kept = []
    for operation in reversed(program.operations):
        if operation.output in needed:
            kept.append(operation)
            needed.update(value.index for value in values_in(operation.arguments))
    return replace(program, operations=kept[::-1], results=results)


def values_in(tree: Any) -> Iterator[Value]:
    """Yield the values that nested arguments name, in their order."""
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from values_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from values_in(item)


def map_values(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf of nested arguments."""
    if isinstance(tree, (list, tuple)):
        return [map_values(function, item) for item in tree]
    if isinstance(tree, dict):
        return {name: map_values(function, item) for name, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(map_values(function, part) for part in (tree.start, tree.stop, tree.step)))
    return function(tree)


class _Reader:
    """Reads one graph of fx."""

    def __init__(self, module: Any) -> None:
        self._module, self._numbers, self.program = module, dict[Any, int](), Program()

    def number(self, node: Any) -> int:
        index = self._numbers.setdefault(node, len(self._numbers))
        if index not in self.program.types:
            self.program.types[index] = _results(node.meta.get("val"))
        return index

    def read(self) -> None:
        for node in self._module.graph.nodes:
            if node.op == "get_attr":
                self.program.constants[self.number(node)] = self._attribute(node.target)
            elif node.op == "call_function":
                self.program.operations.append(self._operation(node))

    def finish(self) -> Program:
        program = self.program
        program.num_values = len(self._numbers)
        return pruned(program, program.results)

    def convert(self, tree: Any) -> Any:
        """Return arguments with values, lists and dtypes of our own."""
        torch = load_torch()

        def one(leaf: Any) -> Any:
            if isinstance(leaf, torch.fx.Node):
                return Value(self.number(leaf))
            if isinstance(leaf, torch.dtype):
                return jax_dtype(leaf)
            if isinstance(leaf, (torch.device, torch.layout, torch.memory_format)):
                return None
            return leaf

        return map_values(one, tree)

    def _attribute(self, path: str) -> Any:
        torch = load_torch()

        found = self._module
        for name in path.split("."):
            found = getattr(found, name)
        if isinstance(found, torch.fx.GraphModule):
            return read_graph(found)
        return to_jax(found) if isinstance(found, torch.Tensor) else found

    def _operation(self, node: Any) -> Operation:
        line = source_line(node.meta.get("stack_trace"))
        scope = _scope(node)
        known, function, name, arguments = None, None, str(node.target), (node.args, node.kwargs)
        schema = schema_of(node.target)
        if schema is not None:
            namespace, _, packet = schema.name.partition("::")
            overload = schema.overload_name or "default"
            name = f"{schema.name}.{overload}"
            known = registry.find(namespace, packet, overload)
            arguments = ((), _named(schema, node.args, node.kwargs))
        elif _is_higher_order(node.target):
            name = f"higher_order::{node.target.name()}"
            known = registry.find("higher_order", node.target.name(), "default")
        else:
            function = node.target
        if known is None and function is None:
            self.program.unknown.setdefault(name, line)
        self._note_narrowing(node.meta.get("val"), line)
        return Operation(
            name=name,
            operator=known,
            function=function,
            arguments=self.convert(arguments),
            output=self.number(node),
            results=_results(node.meta.get("val")),
            line=line,
            scope=scope,
            layers=_layers(scope),
        )

    def _note_narrowing(self, value: Any, line: SourceLine | None) -> None:
        for each in value if isinstance(value, (list, tuple)) else (value,):
            dtype = str(getattr(each, "dtype", ""))
            if dtype in ("torch.int64", "torch.float64", "torch.complex128"):
                self.program.narrowed.setdefault(dtype, line)


def read_graph(module: Any) -> Program:
    """Read a nested graph, such as the branch of a condition."""
    reader = _Reader(module)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            reader.program.inputs.append(reader.number(node))
    reader.read()
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    values = output.args[0]
    single = not isinstance(values, (list, tuple))
    for value in (values,) if single else values:
        reader.program.results.append(Result(reader.convert(value), None))
    return reader.finish()


def _named(schema: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return arguments by the names of a schema; ``self`` is called ``x``."""
    named = {a.name: value for a, value in zip(schema.arguments, args, strict=False)} | kwargs
    return {
        "x" if name == "self" else name: value
        for name, value in named.items()
        if name not in _STORAGE
    }


def _is_higher_order(target: Any) -> bool:
    return isinstance(target, load_torch("torch._ops").HigherOrderOperator)


def _results(value: Any) -> Any:
    torch = load_torch()

    if isinstance(value, torch.Tensor):
        shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
        return shape, jax_dtype(value.dtype)
    if isinstance(value, (list, tuple)):
        return [_results(each) for each in value]
    return None


def source_line(stack_trace: str | None) -> SourceLine | None:
    """Return the innermost line of a stack that is not PyTorch's own, or else the innermost."""
    torch = load_torch()

    own = str(torch.__path__[0])
    frames = [f for f in _FRAME.findall(stack_trace or "") if not f[0].startswith(_GENERATED)]
    users = [f for f in frames if not f[0].startswith(own) and not is_neurenix(f[0])] or frames
    if not users:
        return None
    file, line, function = users[-1]
    return SourceLine(file, int(line), function)


def _stack(node: Any) -> list[str]:
    return [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]


def _scope(node: Any) -> str:
    stack = _stack(node)
    return stack[-1] if stack else ""


def _layers(scope: str) -> tuple[tuple[str, int], ...]:
    """Return prefix and number of each numbered module of a path."""
    return tuple((scope[: found.start()], int(found[1])) for found in _NUMBER.finditer(scope))
