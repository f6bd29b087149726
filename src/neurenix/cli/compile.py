"""``neurenix compile train.py --on v5e-8 -o step.nxc``: a script's first step, kept as a program.

Owns the options, what is printed, and the exit status: 0; 1 when the compiler has no program for
that slice; 2 for a mistake in the command or in the script. Compiling is
``neurenix.preflight.compile_to_file``'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from neurenix._core.errors import CompilationError
from neurenix.cli.failure import show
from neurenix.cli.output import check_files
from neurenix.cli.script_options import Arguments, Step, StepTimeout, Xla
from neurenix.cli.scripts import hint_at_steps, xla_options


def compile(
    script: Annotated[
        Path, typer.Argument(help="Python file that trains, or an artefact to compile again")
    ],
    arguments: Arguments = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write, such as step.nxc")],
    on: Annotated[
        str | None, typer.Option(help="slice, such as v5e-8; of an artefact, its own")
    ] = None,
    xla: Xla = None,
    step: Step = None,
    timeout: StepTimeout = 600,
) -> None:
    """Compile a script's first training step for a TPU slice and write the executable to a file.

    nx.load_compiled("step.nxc") on that slice runs it without compiling. The exit status is 1 when
    the compiler refuses the program, and 2 for a mistake in the command or in the script.
    """
    from neurenix import chips
    from neurenix.compiler.compile import CompileOptions, compiler_ready
    from neurenix.compiler.target import cpu_host
    from neurenix.preflight.compile_to_file import compile_for, recompile
    from neurenix.preflight.describe_program import PreflightOptions
    from neurenix.preflight.script.run_script import first_step
    from neurenix.simulation import simulated
    from neurenix.simulation.slice import simulate_alone

    if on is not None and "," in on:
        raise typer.BadParameter(
            f"compile takes one slice, and --on names several: {on}", param_hint="--on"
        )
    recompiles = script.suffix != ".py" and script.is_file() and _is_artefact(script)
    check_files(output, keep=None if recompiles else script)
    compiler = CompileOptions(xla_options(xla or ()))
    if recompiles:
        with _refusals():
            print(recompile(script, output, on=on, options=compiler))
        return
    if on is None:
        raise typer.BadParameter("name a slice, such as --on v5e-8", param_hint="--on")
    hint_at_steps(script, step)
    if cpu_host(on) is None:
        where = chips.resolve(on)
        if simulated() is None:
            simulate_alone(where.name)  # so that the script finds the devices that it asks for
    with compiler_ready():
        found = first_step(script, arguments or [], timeout_seconds=timeout, step=step)
        with _refusals(), found.context():
            options = found.options(PreflightOptions(compiler=compiler))
            print(compile_for(found.target, *found.args, on=on, path=output, options=options))


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except CompilationError as error:
        show(error)
        raise typer.Exit(1) from None


def _is_artefact(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"
