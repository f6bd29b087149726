"""A script's step on slices of other sizes: the script runs again with that number of devices.

Owns the step as a target of ``preflight`` and ``search``, and starts the process of another run
(``script_subprocess.py``). A process has one number of devices, and a script's own mesh is for the
devices that it found.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh

from neurenix import chips
from neurenix._core.errors import ArgumentError, CompilationError
from neurenix.compiler.program import Program
from neurenix.compiler.target import CpuHost
from neurenix.compiler.workers import FOLDERS, temporary_folder
from neurenix.simulation.slice import SLICE_VARIABLE

_LAST_LINES = 12
Describe = Callable[[chips.Slice | CpuHost], Program]


@dataclass(frozen=True)
class ScriptRun:
    """The arguments of ``first_step``, for another run of a script.

    Attributes:
        path: of the script.
        arguments: its command line.
        timeout_seconds: time limit for reaching the step.
        step: name of the step's function.
        folder: working directory at the start; the script may change it.
        environment: at the start; the script may change it.
    """

    path: str
    arguments: tuple[str, ...]
    timeout_seconds: float
    step: str | None
    folder: str = field(default_factory=os.getcwd)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True)
class Request:
    """The request to another run: programs for slices that have the same number of devices."""

    run: ScriptRun
    slices: tuple[str, ...]
    mesh: dict[str, int] | None
    options: Any


@dataclass
class ScriptStep:
    """The function of a script's step, which can be traced for other numbers of devices.

    Attributes:
        function: what the script was about to call.
        mesh: set there by ``jax.set_mesh``; empty if none was set.
        run: how to run the script again.
        slices: all slices of the preflight, so that one run answers for all of one size.
    """

    function: Callable[..., Any]
    mesh: AbstractMesh
    run: ScriptRun
    slices: Sequence[chips.Slice]
    _found: dict[Any, Program | Exception] = field(default_factory=dict)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function."""
        return self.function(*args, **named)

    def program(
        self,
        where: chips.Slice | CpuHost,
        here: Describe,
        mesh: Mapping[str, int] | None,
        options: Any,
        *,
        laid: bool = False,
    ) -> Program:
        """Return the step's program for a slice; run the script again if this process cannot.

        Args:
            where: the slice.
            here: returns the program of this process's function for a slice.
            mesh: as for ``preflight``.
            options: as for ``preflight``.
            laid: whether the script shards the arguments over its own devices.

        Raises:
            ArgumentError, CompilationError: of the run with that number of devices.
        """
        if isinstance(where, CpuHost) or where.num_devices == jax.device_count():
            return here(where)
        try:
            if not laid:
                return here(where)
        except ArgumentError:
            pass  # the function may contain a mesh; another run raises the error, if any
        asked = (where.name, tuple(mesh.items()) if mesh else None)
        if asked not in self._found:
            self._run_again(where, mesh, options)
        found = self._found[asked]
        if isinstance(found, Exception):
            raise found
        return found

    def _run_again(self, where: chips.Slice, mesh: Mapping[str, int] | None, options: Any) -> None:
        same = {s.name for s in self.slices if s.num_devices == where.num_devices}
        names = (where.name, *sorted(same - {where.name}))
        if sys.stderr.isatty():
            print(
                f"Running {self.run.path} once more, with {where.num_devices} devices",
                file=sys.stderr,
                flush=True,
            )
        request = Request(self.run, names, dict(mesh) if mesh else None, options)
        axes = tuple(mesh.items()) if mesh else None
        for name, answer in zip(names, _answers(request), strict=True):
            self._found[name, axes] = answer


def _answers(request: Request) -> list[Program | Exception]:
    """Return the program or the error for each slice."""
    with temporary_folder(f"{FOLDERS}rerun-") as folder:
        asked, answered = Path(folder) / "request", Path(folder) / "answer"
        asked.write_bytes(pickle.dumps(request))
        log = Path(folder) / "log"
        with open(log, "wb") as errors:
            command = [sys.executable, "-P", "-m", "neurenix.preflight.script.script_subprocess"]
            process = subprocess.Popen(
                [*command, asked, answered, str(os.getpid())],
                cwd=request.run.folder,
                env=_environment(request.run.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the first run printed it
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = process.wait()
            finally:  # together with the script's own processes
                with suppress(ProcessLookupError, PermissionError):  # macOS, if it has ended
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if answered.exists():
            return pickle.loads(answered.read_bytes())
        last = log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
    devices = chips.resolve(request.slices[0]).num_devices
    error = CompilationError(
        f"{request.run.path}, run once more with {devices} devices for {request.slices[0]}, ended "
        f"the process (exit code {code}) before its step."
    )
    error.add_note("\n".join(last))
    return [error] * len(request.slices)


def _environment(before: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without a simulated slice and with this package on the path."""
    environment = {k: v for k, v in before.items() if k != SLICE_VARIABLE}
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(paths)}
