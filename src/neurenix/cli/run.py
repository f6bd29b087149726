"""``neurenix run``: run a program, optionally on a simulated slice.

Starts the program as Python does, after the simulation has started, so that a script of plain JAX
finds the slice too.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from neurenix._core.main_module import FILES, run_module, run_script
from neurenix.cli.output import as_given

_OURS = (__file__, *FILES)


def run(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="A script; with -m, a module.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="The program's arguments."),
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="SLICE", help="Simulate a slice, such as v5e-8.")
    ] = None,
    numerics: Annotated[
        str,
        typer.Option(
            metavar="float32|tpu",
            help="Matrix products of a simulated slice; tpu rounds to bfloat16.",
        ),
    ] = "float32",
    module: Annotated[
        bool, typer.Option("-m", help="PROGRAM is a module, as with python -m.")
    ] = False,
) -> None:
    """Run a script or a module, optionally on a simulated TPU slice.

    Options of neurenix come before the program. All arguments after it belong to the program.
    """
    if module:
        sys.path.insert(0, str(Path.cwd()))
    _check(program, module)
    if simulate is not None:
        from neurenix.simulation.slice import simulate_alone

        simulate_alone(simulate, numerics=numerics, told=True)  # pyright: ignore[reportArgumentType]  it checks
    elif numerics != "float32":
        raise typer.BadParameter("--numerics requires --simulate SLICE")
    as_given()
    sys.argv = [program, *(arguments or [])]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the program cleans up after itself
    try:
        if module:
            run_module(program)
        else:
            sys.path.insert(0, str(Path(program).resolve().parent))
            run_script(program)
    except (Exception, KeyboardInterrupt) as error:  # printed as Python prints it
        traceback.print_exception(error.with_traceback(_of_program(error.__traceback__)))
        raise typer.Exit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


def _check(program: str, module: bool) -> None:
    """Check that the program exists.

    Raises:
        BadParameter: there is no such file or module, or a folder has no ``__main__.py``.
    """
    path = Path(program)
    if module:
        top = program.partition(".")[0]  # looking up a submodule would import its parents
        found = top in sys.modules or (top and importlib.util.find_spec(top) is not None)
        problem = "" if found else f"there is no module {top!r}"
    elif path.is_dir() and not (path / "__main__.py").is_file():
        problem = f"{program!r} is a folder, and has no __main__.py"
    else:
        problem = "" if path.exists() else f"there is no file {program!r}"
    if problem:
        raise typer.BadParameter(problem, param_hint="PROGRAM")


def _of_program(frames: TracebackType | None) -> TracebackType | None:
    """Drop Neurenix's own frames from the top of a traceback."""
    while frames is not None and frames.tb_frame.f_code.co_filename in _OURS:
        frames = frames.tb_next
    return frames
