"""``neurenix compile train.py --on v5e-8 -o step.nxc``: a script's first step, kept as a program.

Owns the options and what is printed. Compiling is ``neurenix.preflight.artefact``'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compile(
    script: Annotated[
        Path, typer.Argument(help="Python file that trains, or an artefact to compile again")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="its command line")] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write, such as step.nxc")],
    on: Annotated[
        str | None, typer.Option(help="slice, such as v5e-8; of an artefact, its own")
    ] = None,
    timeout: Annotated[float, typer.Option(help="seconds in which a step must be reached")] = 600,
) -> None:
    """Compile a script's first training step for a TPU slice and write the executable to a file.

    nx.load_compiled("step.nxc") on that slice runs it without compiling.
    """
    from neurenix import chips
    from neurenix.compiler.target import cpu_host
    from neurenix.preflight.artefact import compile_for, recompile
    from neurenix.preflight.script import first_step
    from neurenix.simulation import simulate, simulated

    if script.suffix != ".py" and script.is_file() and _is_artefact(script):
        print(recompile(script, output, on=on))
        return
    if on is None:
        raise typer.BadParameter("name a slice, such as --on v5e-8", param_hint="--on")
    if cpu_host(on) is None:
        where = chips.resolve(on)
        if simulated() is None:
            simulate(where.name)  # so that the script finds the devices that it asks for
    target, args = first_step(script, arguments or [], timeout_seconds=timeout)
    print(compile_for(target, *args, on=on, path=output))


def _is_artefact(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"
