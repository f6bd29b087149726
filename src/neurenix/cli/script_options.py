"""Options that commands with a user's script share: what they are called and what ``--help`` says.

Owns their declarations. Their defaults are beside each command, and their meaning is
``neurenix.cli.scripts``'s or of what the command calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Script = Annotated[Path, typer.Argument(help="Python file that trains")]
Arguments = Annotated[list[str] | None, typer.Argument(help="its command line")]
Slices = Annotated[str, typer.Option(help="slices, separated by commas: v5e-8,v6e-8")]
Region = Annotated[str, typer.Option(help="of the price: us, europe-west4 and others")]
Commitment = Annotated[str, typer.Option(help="of the price: on-demand, 1-year, 3-year, spot")]
Price = Annotated[
    str | None,
    typer.Option(help="your own USD for a chip and an hour: 1.5, or tpu7x=3,v5e=1.1"),
]
StepExamples = Annotated[
    int | None,
    typer.Option(
        "--examples-per-step", help="of a step of your own, where its arguments do not show them"
    ),
]
Xla = Annotated[
    list[str] | None,
    typer.Option(help="options of the compiler: name=value,name=value; may be given again"),
]
StepTimeout = Annotated[float, typer.Option(help="seconds in which a step must be reached")]
Step = Annotated[
    str | None,
    typer.Option(
        help="function that is the step, compiled by jax.jit, nnx.jit, nx.jit or strategy.run, or "
        "fit; else the first step of fit or the first call by nx.jit or strategy.run"
    ),
]
