"""A table of a model's layers, from shapes alone.

Traces any NNX module while recording its layers; computes nothing on a device.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from neurenix._core.errors import ArgumentTypeError, ShapeError
from neurenix._core.output_encoding import shown
from neurenix._nnx import nnx
from neurenix.tensor import dtypes
from neurenix.train.module_split import call

_PATCHING = threading.Lock()


@dataclass(frozen=True)
class LayerRow:
    """One layer of a summary.

    Attributes:
        name: path of attributes, such as ``"layers.0"``.
        kind: class name.
        output_shape: shape of the layer's first output, or a tree of shapes for several arrays;
            None if it was not called or returned no array.
        num_parameters: number of trainable values, nested layers included.
        parameter_bytes: their size in bytes.
    """

    name: str
    kind: str
    output_shape: Any
    num_parameters: int
    parameter_bytes: int


@dataclass(frozen=True)
class Summary:
    """A model's layers; ``str()`` is the table.

    Attributes:
        rows: one row per layer that has no layers inside or has parameters itself, in order of the
            first call.
        num_parameters: number of trainable values of the model.
        parameter_bytes: their size in bytes.
        state_bytes: size of all other state, such as running statistics.
    """

    rows: tuple[LayerRow, ...]
    num_parameters: int
    parameter_bytes: int
    state_bytes: int

    def __str__(self) -> str:
        """Return the table."""
        head = ("layer", "output shape", "parameters", "bytes")
        body = [
            (
                f"{row.name} ({row.kind})" if row.name else row.kind,
                "-" if row.output_shape is None else str(row.output_shape),
                f"{row.num_parameters:,}",
                f"{row.parameter_bytes:,}",
            )
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(4)]
        rule = "-" * (sum(widths) + 6)
        lines = [_line(head, widths), rule, *(_line(line, widths) for line in body), rule]
        total = f"{self.num_parameters:,} parameters, {self.parameter_bytes:,} bytes"
        if self.state_bytes:
            total += f"; {self.state_bytes:,} bytes of other state"
        return shown("\n".join([*lines, total]))


def summarize(module: nnx.Module, input_shape: Any, *, dtype: Any = "float32") -> Summary:
    """Trace ``module`` in evaluation mode on shapes and record each layer's output shape.

    Args:
        module: any NNX module.
        input_shape: shape of one batch, batch axis first; the batch size may be None, which means
            1. For several inputs, a tuple or list of shapes in the module's order, or a dict by
            name.
        dtype: of all inputs, or one for each in the form of the shapes.

    Raises:
        ShapeError: a size is not an integer, or a layer does not accept its input shape.
        ArgumentTypeError: ``input_shape`` or ``dtype`` has another form, or the module takes other
            inputs.
    """
    inputs = _inputs(input_shape, dtype)
    shapes: dict[tuple, Any] = {}
    graph, state = nnx.split(module)

    def trace(state, x):
        model = nnx.merge(graph, state)
        model.eval()
        paths = {id(node): path for path, node in _modules(model)}
        with _recording(model, paths, shapes):
            return call(model, x, training=False)

    jax.eval_shape(trace, state, inputs)
    found = dict(_modules(module))
    order = [path for path in shapes if path in found]
    order += [path for path in found if path not in shapes]
    rows = [
        LayerRow(
            name=".".join(map(str, path)),
            kind=type(found[path]).__name__,
            output_shape=shapes.get(path),
            num_parameters=_count(found[path])[0],
            parameter_bytes=_count(found[path])[1],
        )
        for path in order
        if _is_row(found[path], path in shapes)
    ]
    parameters, parameter_bytes = _count(module)
    others = nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState)))
    state_bytes = sum(map(_bytes, jax.tree.leaves(others)))
    return Summary(tuple(rows), parameters, parameter_bytes, state_bytes)


def _inputs(shape: Any, dtype: Any) -> Any:
    """Return the module's input or inputs as abstract arrays."""
    if isinstance(shape, Mapping):
        kinds = dtype if isinstance(dtype, Mapping) else dict.fromkeys(shape, dtype)
        if set(kinds) == set(shape):
            return {name: _input(one, kinds[name]) for name, one in shape.items()}
    elif isinstance(shape, Sequence) and any(isinstance(one, Sequence) for one in shape):
        kinds = dtype if isinstance(dtype, (tuple, list)) else (dtype,) * len(shape)
        if len(kinds) == len(shape):
            return tuple(map(_input, shape, kinds))
    else:
        return _input(shape, dtype)
    raise ArgumentTypeError(
        f"summary: dtype is {dtype!r} for inputs of the shapes {shape!r}. Give one for all, or "
        "one for each in the same form."
    )


def _input(shape: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise ArgumentTypeError(
            f"summary takes a shape with the batch first, such as (1, 28, 28, 1), or one such for "
            f"each input; got {shape!r}."
        )
    sizes = [1 if axis == 0 and size is None else size for axis, size in enumerate(shape)]
    try:
        whole = tuple(map(operator.index, sizes))
    except TypeError:
        whole = (-1,)
    if min(whole, default=0) < 0:
        raise ShapeError(
            "summary: the sizes of a shape are whole numbers from 0, and only the first, the "
            f"batch, may be None; got {shape!r}."
        )
    return jax.ShapeDtypeStruct(whole, dtypes.dtype(dtype))


@contextmanager
def _recording(model: nnx.Module, paths: dict[int, tuple], shapes: dict) -> Iterator[None]:
    """Record the output shape of every module of the tree while the block runs.

    Python looks up ``__call__`` on the class, so classes are patched under a lock and restored
    afterwards. Only calls of this model's modules are recorded.
    """

    def wrap(original):
        @functools.wraps(original)
        def call(self, *args, **kwargs):
            path = paths.get(id(self))
            if path is not None:
                shapes.setdefault(path, None)  # keeps the order of first calls
            result = original(self, *args, **kwargs)
            if path is not None and shapes[path] is None:
                shapes[path] = _shapes_of(result)
            return result

        return call

    with _PATCHING:
        kinds = {type(node) for _, node in _modules(model) if callable(node)}
        owners = {kind for kind in kinds if callable(kind.__call__)}  # skips a property that raises
        saved = {owner: owner.__dict__.get("__call__") for owner in owners}
        try:
            for owner, original in [(owner, owner.__call__) for owner in owners]:
                owner.__call__ = wrap(original)
            yield
        finally:
            for owner, original in saved.items():
                if original is None:
                    del owner.__call__
                else:
                    owner.__call__ = original


def _shapes_of(result: Any) -> Any:
    """Return the shape of an array, or a tree of shapes; None for any other result."""
    leaves = jax.tree.leaves(result)
    if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
        return None
    return jax.tree.map(lambda leaf: leaf.shape, result)


def _modules(module: nnx.Module) -> list[tuple[tuple, nnx.Module]]:
    return [(path, node) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)]


def _is_row(module: nnx.Module, called: bool) -> bool:
    values = vars(module).values()
    own = any(isinstance(value, nnx.Param) for value in values)
    leaf = not any(isinstance(value, nnx.Module) for value in values)
    return own or (leaf and called and callable(module))


def _count(module: nnx.Module) -> tuple[int, int]:
    leaves = jax.tree.leaves(nnx.state(module, nnx.Param))
    return sum(leaf.size for leaf in leaves), sum(map(_bytes, leaves))


def _bytes(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize  # abstract arrays have no ``nbytes``


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join([*left, *right])
