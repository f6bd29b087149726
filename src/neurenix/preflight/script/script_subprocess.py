"""Another run of a script: ``python -m neurenix.preflight.script.script_subprocess``.

Simulates a slice, runs the script up to its step, and writes the step's program or error for each
slice. Ends itself and the script's processes if the process that started it is gone.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from pathlib import Path

from neurenix import chips
from neurenix._core.errors import NeurenixError
from neurenix._core.parent import when_parent_ends
from neurenix.compiler.program import Program
from neurenix.preflight.describe_program import describe
from neurenix.preflight.script.run_script import first_step
from neurenix.preflight.script.script_step import Request
from neurenix.simulation.slice import simulate_alone


def main(asked: str, answered: str, parent: str) -> None:
    """Read the request from one file and write the answer to another, atomically.

    Args:
        asked: path of the request.
        answered: path of the answer.
        parent: process id of the process that started this one.
    """

    def leave() -> None:
        shutil.rmtree(Path(asked).parent, ignore_errors=True)
        os.killpg(os.getpid(), signal.SIGKILL)  # it leads its own group: see script_step.py

    when_parent_ends(leave, parent=int(parent))
    request: Request = pickle.loads(Path(asked).read_bytes())
    simulate_alone(request.slices[0])
    partial = Path(f"{answered}.partial")
    partial.write_bytes(pickle.dumps(_programs(request)))
    os.replace(partial, answered)


def _programs(request: Request) -> list[Program | NeurenixError]:
    run = request.run
    try:
        step = first_step(
            run.path, run.arguments, timeout_seconds=run.timeout_seconds, step=run.step
        )
    except NeurenixError as error:
        return [_noted(error, request.slices[0])] * len(request.slices)
    programs: list[Program | NeurenixError] = []
    for name in request.slices:
        where = chips.resolve(name)
        try:
            with step.context():
                program = describe(
                    step.target, step.args, where, mesh=request.mesh, options=request.options
                )
            programs.append(program)
        except NeurenixError as error:
            programs.append(_noted(error, name))
    return programs


def _noted(error: NeurenixError, name: str) -> NeurenixError:
    devices = chips.resolve(name).num_devices
    error.add_note(f"It was run once more, with {devices} devices, for {name}.")
    return error


if __name__ == "__main__":
    main(*sys.argv[1:])
