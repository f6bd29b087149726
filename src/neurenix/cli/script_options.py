"""Declare the options that commands with a user's script share. Each command sets the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Script = Annotated[Path, typer.Argument(help="Python file that trains a model")]
Arguments = Annotated[list[str] | None, typer.Argument(help="the script's arguments")]
Slices = Annotated[str, typer.Option(help="slices, separated by commas: v5e-8,v6e-8")]
Region = Annotated[str, typer.Option(help="region of the price: us, europe-west4 and others")]
Commitment = Annotated[
    str, typer.Option(help="commitment of the price: on-demand, 1-year, 3-year, spot")
]
Price = Annotated[
    str | None,
    typer.Option(help="your price in USD per chip-hour: 1.5, or tpu7x=3,v5e=1.1"),
]
StepExamples = Annotated[
    int | None,
    typer.Option(
        "--examples-per-step", help="examples in a step, if its arguments do not show them"
    ),
]
Xla = Annotated[
    list[str] | None,
    typer.Option(help="XLA options: name=value,name=value; may be repeated"),
]
StepTimeout = Annotated[float, typer.Option(help="time limit for reaching a step, in seconds")]
Step = Annotated[
    str | None,
    typer.Option(
        help="the step: a function compiled by jax.jit, nnx.jit, nx.jit or strategy.run, or fit; "
        "default: the first step of fit or the first call by nx.jit or strategy.run"
    ),
]
