"""``neurenix run``: a program, on a simulated slice if one is asked for.

Owns starting the program as Python would, after the simulation is in place, so that a script that
knows only JAX sees the slice too.
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
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A script, or with -m a module.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="What the program gets as its own."),
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(metavar="SLICE", help="Simulate a slice, such as v5e-8.")
    ] = None,
    numerics: Annotated[
        str,
        typer.Option(
            metavar="float32|tpu", help="How a simulated slice multiplies; tpu rounds to bfloat16."
        ),
    ] = "float32",
    module: Annotated[
        bool, typer.Option("-m", help="PROGRAM is a module, as with python -m.")
    ] = False,
) -> None:
    """Run a script or a module, on a simulated TPU slice if asked to.

    Options of neurenix come before the program; everything after it is the program's.
    """
    if module:
        sys.path.insert(0, str(Path.cwd()))
    _check(program, module)
    if simulate is not None:
        from neurenix.simulation.slice import simulate_alone

        simulate_alone(simulate, numerics=numerics, told=True)  # pyright: ignore[reportArgumentType]  it checks
    elif numerics != "float32":
        raise typer.BadParameter("only a simulated slice has numerics; add --simulate SLICE")
    as_given()
    sys.argv = [program, *(arguments or [])]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the program begins is its own to clean up
    try:
        if module:
            run_module(program)
        else:
            sys.path.insert(0, str(Path(program).resolve().parent))
            run_script(program)
    except (Exception, KeyboardInterrupt) as error:  # the program's own, shown as Python shows it
        traceback.print_exception(error.with_traceback(_of_program(error.__traceback__)))
        raise typer.Exit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


def _check(program: str, module: bool) -> None:
    """Check that there is something to run.

    Raises:
        BadParameter: no such file or module, or a folder with nothing to run.
    """
    path = Path(program)
    if module:
        top = program.partition(".")[0]  # to look further would import it
        found = top in sys.modules or (top and importlib.util.find_spec(top) is not None)
        problem = "" if found else f"there is no module {top!r}"
    elif path.is_dir() and not (path / "__main__.py").is_file():
        problem = f"{program!r} is a folder, and has no __main__.py"
    else:
        problem = "" if path.exists() else f"there is no file {program!r}"
    if problem:
        raise typer.BadParameter(problem, param_hint="PROGRAM")


def _of_program(frames: TracebackType | None) -> TracebackType | None:
    """Drop the frames of this module and of what runs the program from the top of a traceback."""
    while frames is not None and frames.tb_frame.f_code.co_filename in _OURS:
        frames = frames.tb_next
    return frames
