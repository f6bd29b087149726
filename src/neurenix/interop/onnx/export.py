"""``nx.to_onnx``: a module as a file of ONNX.

Owns the order: trace, lower, check, write, compare. Does not own how (``tracing``, ``lowering``,
``writer``, ``agreement``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from neurenix._core.errors import ArgumentTypeError, ConversionError
from neurenix._jaxpr import walk
from neurenix._nnx import nnx
from neurenix.interop.onnx import agreement
from neurenix.interop.onnx.builder import Builder
from neurenix.interop.onnx.extra import find_onnxruntime, import_onnx
from neurenix.interop.onnx.lowering import Program, lower
from neurenix.interop.onnx.tracing import BATCH, Traced, trace
from neurenix.interop.onnx.writer import make_model, write_model


def to_onnx(
    module: Any,
    path: str | os.PathLike[str],
    *,
    example_inputs: Any,
    dynamic_batch: bool = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    check: bool = True,
) -> None:
    """Write a module, as it computes in evaluation, to a file of ONNX (opset 21).

    The module is traced, and each primitive of JAX becomes nodes of ONNX. Weights are initializers
    under their paths, such as ``"layers.0.kernel"``. Weights in bfloat16 are stored as such and
    computed with in float32. Above 2 GB the weights are in a second file, ``path`` with ``.data``
    behind.

    The file is checked by ``onnx.checker``. Where onnxruntime is installed, its outputs are
    compared with the module's, for the example inputs and for another batch size, and the largest
    difference is written to the standard error.

    Args:
        module: any NNX module with arrays. It is not changed.
        path: of the file.
        example_inputs: inputs as the module takes them: one array, a tuple, or a dict of named
            arguments. ``nx.spec(shape, dtype)`` stands for an array. Numbers, booleans and None
            are fixed in the file.
        dynamic_batch: let the first axis of the inputs have any size. An input whose first axis is
            not as long as that of the first input stays fixed.
        input_names: of the inputs, in order; by default the names of the arguments.
        output_names: of the outputs, in order; by default ``"output"``, or keys of the result.
        check: compare with onnxruntime.

    Raises:
        ArgumentError: there are no example inputs, or names that do not fit.
        ArgumentTypeError: ``module`` is no NNX module.
        ConversionError: the module computes what ONNX cannot say (all primitives are named, with
            their lines), depends on its batch size, computes something else in onnxruntime, or the
            file cannot be written. What was at ``path`` is unchanged then.
        MissingExtraError: the package ``onnx`` is not installed.

    Example:
        >>> import tempfile
        >>> model = nx.nn.Sequential(nx.nn.Linear(4, 8), nx.nn.ReLU(), nx.nn.Linear(8, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nx.to_onnx(model, f"{folder}/model.onnx", example_inputs=nx.zeros((1, 4)))
    """
    onnx = import_onnx("nx.to_onnx")
    if not isinstance(module, nnx.Module):
        raise ArgumentTypeError(f"nx.to_onnx takes an NNX module; got {type(module).__name__}.")
    traced = trace(
        module,
        example_inputs,
        dynamic_batch=dynamic_batch,
        input_names=input_names,
        output_names=output_names,
    )
    name = type(module).__name__
    model, arrays = make_model(_graph(traced, name), traced.weights, name=name)
    path = Path(path)
    with _part_of(path) as part:
        write_model(model, arrays, part)
        onnx.checker.check_model(os.fspath(part), full_check=True)
        told = _compare(traced, part) if check else "not compared with onnxruntime"
        for written in sorted(part.parent.iterdir(), reverse=True):  # the data first
            os.replace(written, path.with_name(written.name))
    sys.stderr.write(f"neurenix: {name} exported to {path}; {told}\n")


@contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """Yield where a file is written before it is moved to ``path``, in a folder of its own.

    Raises:
        ConversionError: nothing can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name[:50]}.") as folder:
            yield Path(folder) / path.name
    except OSError as error:
        raise ConversionError(f"{path} cannot be written: {error.strerror}.") from error


def _graph(traced: Traced, name: str) -> Builder:
    """Return the graph of a program.

    Raises:
        ConversionError: some primitives have no ONNX; all are named.
    """
    graph, program = Builder(), Program()
    inputs = [
        graph.enter(name, struct.dtype, struct.shape) for name, struct in traced.inputs.items()
    ]
    symbolic = next((v for v in inputs if v.shape and not isinstance(v.shape[0], int)), None)
    if symbolic is not None:
        graph.model.symbols[BATCH] = graph.emit("Shape", symbolic.name, start=0, end=1)
    weights = [graph.weight(name, array) for name, array in traced.weights.items()]
    outputs = [graph.unique(name) for name in traced.outputs]
    results = lower(graph, traced.jaxpr, [*weights, *inputs], program)
    if program.problems:
        told = dict.fromkeys(
            f"  {one.primitive}: {one.why}" + (f" ({one.line})" if one.line else "")
            for one in program.problems
        )
        raise ConversionError(f"{name} cannot be exported to ONNX:\n" + "\n".join(told))
    for wanted, result in zip(outputs, results, strict=True):
        graph.give(graph.plain(result), wanted, result.dtype, result.shape)
    return graph


def _compare(traced: Traced, path: Path) -> str:
    """Compare a file with the program; return what was found.

    Raises:
        ConversionError: they differ by more than rounding.
    """
    runtime = find_onnxruntime()
    if runtime is None:
        return "not compared: onnxruntime is not installed"
    session = agreement.open_session(runtime, path)
    examples = [traced.examples]
    if any(
        struct.shape and not isinstance(struct.shape[0], int) for struct in traced.inputs.values()
    ):
        examples.append(_another_batch(traced))
    dtypes = {str(v.aval.dtype) for site in walk(traced.jaxpr) for v in site.equation.outvars
              if hasattr(v.aval, "dtype")}  # fmt: skip
    worst = 0.0
    for given in examples:
        wanted = traced.compute(list(given.values()))
        worst = max(worst, agreement.largest_difference(session, given, wanted))
    if not worst <= agreement.tolerance(dtypes):
        raise ConversionError(
            f"onnxruntime computes something else than the module: the largest difference is "
            f"{worst:.1e}. Export parts of the module to find the layer, and report it; "
            "check=False leaves the comparison out."
        )
    return f"largest difference from onnxruntime {worst:.1e}"


def _another_batch(traced: Traced) -> dict[str, np.ndarray]:
    """Return example inputs of one row more."""
    return {
        name: np.concatenate([array, array[:1]])
        if traced.inputs[name].shape and not isinstance(traced.inputs[name].shape[0], int)
        else array
        for name, array in traced.examples.items()
    }
