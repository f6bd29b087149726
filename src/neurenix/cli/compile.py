"""``neurenix compile train.py --on v5e-8 -o step.nxc``: write a script's compiled step to a file.

Exit status: 0; 1 if the compiler refuses the program; 2 for an error in the command or the script.
``neurenix.preflight.compile_to_file`` compiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neurenix._core.errors import CompilationError
from neurenix.cli.failure import show
from neurenix.cli.output import check_files
from neurenix.cli.script_options import Arguments, Script, Step, StepTimeout, Xla
from neurenix.cli.scripts import hint_at_steps, xla_options


def compile(
    script: Script,
    arguments: Arguments = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write, such as step.nxc")],
    on: Annotated[str, typer.Option(help="slice, such as v5e-8")],
    xla: Xla = None,
    step: Step = None,
    timeout: StepTimeout = 600,
) -> None:
    """Compile a script's first training step for a TPU slice and write it to a file (experimental).

    nx.load_compiled("step.nxc") loads it on that slice without compiling. The exit status is 1 if
    the compiler refuses the program, and 2 for an error in the command or in the script.
    """
    from neurenix import chips
    from neurenix.compiler.compile import CompileOptions, compiler_ready
    from neurenix.compiler.target import cpu_host
    from neurenix.preflight.compile_to_file import compile_for
    from neurenix.preflight.describe_program import PreflightOptions
    from neurenix.preflight.script.run_script import first_step
    from neurenix.simulation import simulated
    from neurenix.simulation.slice import simulate_alone

    if "," in on:
        raise typer.BadParameter(
            f"compile takes one slice; --on names several: {on}", param_hint="--on"
        )
    check_files(output, keep=script)
    compiler = CompileOptions(xla_options(xla or ()))
    hint_at_steps(script, step)
    if cpu_host(on) is None:
        where = chips.resolve(on)
        if simulated() is None:
            simulate_alone(where.name)  # the script may require these devices
    with compiler_ready():
        found = first_step(script, arguments or [], timeout_seconds=timeout, step=step)
        with found.context():
            options = found.options(PreflightOptions(compiler=compiler))
            try:
                print(compile_for(found.target, *found.args, on=on, path=output, options=options))
            except CompilationError as error:
                show(error)
                raise typer.Exit(1) from None
