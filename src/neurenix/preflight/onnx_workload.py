"""Preflight of a model of ONNX: its forward pass, or its training step if a loss is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from neurenix._core.errors import ArgumentError
from neurenix.compiler.abstract_placement import spec
from neurenix.compiler.compile import compiler_ready
from neurenix.interop.onnx import OnnxModule, from_onnx
from neurenix.interop.torch.workload import named_loss
from neurenix.preflight.api import On, preflight
from neurenix.preflight.describe_program import PreflightOptions
from neurenix.preflight.report.report import Report
from neurenix.preflight.torch_workload import fully_divided
from neurenix.train.multi_output import as_loss


def preflight_onnx(
    path: Path,
    *,
    on: Sequence[On],
    batch: int | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
) -> list[Report]:
    """Report how a model of ONNX runs on slices, the batch divided over all devices.

    Args:
        path: the ``.onnx`` file.
        on: names of slices.
        batch: examples of one global batch, for the sizes that the file leaves open.
        loss: name of a loss of ``nx.losses``; the training step is compiled then.
        optimizer: name of an optimizer; AdamW by default.
        mesh: as for ``preflight``.
        options: as for ``preflight``.

    Raises:
        ArgumentError: the inputs have open sizes and there is no batch.
        NeurenixError: as ``from_onnx`` and ``preflight``.
    """
    with compiler_ready(options.compiler if options else None):
        model = from_onnx(path, check=False)
        inputs = _inputs(model, batch)
        shapes = ", ".join(f"{name} {shape.shape}" for name, shape in inputs.items())
        if loss is None:
            step, args = _prediction(model, inputs)
            axes: Any = mesh or (lambda where: {"data": where.num_devices})
            pass_name = "forward pass"
        else:
            chosen: Any = as_loss(named_loss(loss))
            step = model.compile("adamw" if optimizer is None else optimizer, chosen)
            result = jax.eval_shape(lambda values: model(**values), inputs)
            args = (tuple(inputs.values()), chosen.target_spec(result))
            axes, pass_name = mesh or fully_divided, f"training step, {chosen.name}"
        reports = preflight(step, *args, on=list(on), mesh=axes, options=options)
    said = f"{path.name}, {model.num_parameters:,} parameters; {pass_name}; {shapes}"
    return [replace(report, workload=said) for report in reports]


def _inputs(model: OnnxModule, batch: int | None) -> dict[str, jax.ShapeDtypeStruct]:
    if model.known_inputs:
        raise ArgumentError(
            f"The inputs {', '.join(model.known_inputs)} decide shapes, so the program depends on "
            "their values. Compile it in Python: nx.preflight of a function that has them."
        )
    inputs = model.input_specs(batch)
    if inputs is None:
        raise ArgumentError(
            "The file leaves sizes of its inputs open: say how many examples a batch has, --batch "
            "64. Other open sizes are given in Python, by nx.preflight(model, nx.spec(…))."
        )
    return inputs


def _prediction(model: OnnxModule, inputs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    def predict(model: OnnxModule, *args: Any) -> Any:
        return model(*args)

    divided = [spec(one.shape, one.dtype, partition=("data",)) for one in inputs.values()]
    return predict, (model, *divided)
