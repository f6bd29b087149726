"""A script's step on slices of other sizes: the script is run once more, with as many devices.

Owns the step as a target of ``preflight`` and ``search``, and the process of another run, whose
half is ``rerun``'s. A process has one number of devices, and what a script lays over a mesh of its
own is for those that it found.
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
    """How a script is run up to its step, as ``script.first_step`` takes it.

    Attributes:
        path: of the script.
        arguments: its command line.
        timeout_seconds: in which it must reach its step.
        step: name of the function that is the step.
        folder: in which it is run; it may leave it for another.
        environment: as it found it; it may change that too.
    """

    path: str
    arguments: tuple[str, ...]
    timeout_seconds: float
    step: str | None
    folder: str = field(default_factory=os.getcwd)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True)
class Request:
    """What another run is asked: the programs for slices that all have as many devices."""

    run: ScriptRun
    slices: tuple[str, ...]
    mesh: dict[str, int] | None
    options: Any


@dataclass
class ScriptStep:
    """A function that a script reached as its step, and how to reach it with other devices.

    Attributes:
        function: what the script was about to call.
        mesh: that ``jax.set_mesh`` had set there, or an empty one.
        run: of the script.
        slices: all that are asked about, so that one run answers for those of one size.
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
        """Return the step's program for a slice, by another run where this one's does not do.

        Args:
            where: the slice.
            here: what describes the function that this process has.
            mesh: as for ``preflight``.
            options: as for ``preflight``.
            laid: whether the arguments are laid over a mesh of the script's own devices.

        Raises:
            ArgumentError, CompilationError: of the run with as many devices.
        """
        if isinstance(where, CpuHost) or where.num_devices == jax.device_count():
            return here(where)
        try:
            if not laid:
                return here(where)
        except ArgumentError:
            pass  # its mesh may stand in the function; another run says what is wrong, if anything
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
    """Return the program for each slice, or the error that is raised for it."""
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
                stdout=subprocess.DEVNULL,  # the first run has said it
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = process.wait()
            finally:  # with what the script has started
                with suppress(ProcessLookupError, PermissionError):  # macOS: of one that has ended
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
    """Return the environment without a slice that is simulated, and with this package."""
    environment = {k: v for k, v in before.items() if k != SLICE_VARIABLE}
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {"PYTHONPATH": os.pathsep.join(paths)}
