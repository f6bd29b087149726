"""``neurenix convert model.onnx``: convert a model, compare it, and write its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neurenix.cli.failure import MISTAKE, show
from neurenix.cli.output import check_files


def convert(
    model: Annotated[str, typer.Argument(help="FILE.onnx")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="write the weights to this file, model.safetensors"),
    ] = None,
) -> None:
    """Convert a model of ONNX, compare it with onnxruntime and say what it takes and returns.

    In Python, nx.from_onnx(FILE) is the model. The exit status is 2 if it cannot be converted.
    """
    from neurenix._core.errors import NeurenixError
    from neurenix.interop.onnx import from_onnx

    try:
        check_files(output, keep=Path(model))
        converted = from_onnx(model)
        if output is not None:
            converted.save(output)
    except NeurenixError as error:
        show(error)
        raise typer.Exit(MISTAKE) from None
    print(f"inputs:     {', '.join(converted.input_names)}")
    print(f"outputs:    {', '.join(converted.output_names)}")
    print(f"parameters: {converted.num_parameters:,}")
    if output is not None:
        print(f"weights:    {output}")
