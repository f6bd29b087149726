"""``neurenix check``: say whether a model can be converted, before it is."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from neurenix.cli.failure import MISTAKE, show

_FALLBACK = (100, 24)
_NARROWEST = 40


def check(
    model: Annotated[
        str,
        typer.Argument(
            help="FILE.onnx; or FILE.py:FUNCTION, a function that returns a torch.nn.Module and "
            "its example inputs"
        ),
    ],
) -> None:
    """Report whether a model of PyTorch or ONNX can be converted: every operator, and what to do.

    Nothing is trained and nothing is computed in JAX. The exit status is 1 if the model cannot be
    converted, and 2 if there is no report.
    """
    from neurenix._core.errors import NeurenixError

    try:
        if model.endswith(".onnx"):
            from neurenix.interop.onnx.check import check as report_on_file

            report = report_on_file(model)
        else:
            from neurenix.interop.torch.check import check as report_on
            from neurenix.interop.torch.model_file import load_model

            module, args, kwargs = load_model(model)
            report = report_on(module, args or None, example_kwargs=kwargs)
    except NeurenixError as error:
        show(error)
        raise typer.Exit(MISTAKE) from None
    print(report.text(max(shutil.get_terminal_size(_FALLBACK).columns, _NARROWEST)))
    if not report.is_convertible:
        raise typer.Exit(1)
