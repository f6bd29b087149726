"""Run a user's script unchanged up to its first training step, and compile that step for slices.

Owns running the script and the errors if it reaches no step. ``fit`` and ``nx.jit`` report the step
through ``_jit/hooks.py``. Does not own the means of stopping a script (``script_exit.py``).
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
from jax.sharding import AbstractMesh

from neurenix._core.errors import (
    ArgumentError,
    CompilationError,
    NeurenixError,
    did_you_mean,
)
from neurenix._core.limits import check_seconds
from neurenix._core.main_module import run_script
from neurenix._core.source_files import SourceLine, users_frames
from neurenix._jit import hooks
from neurenix.compiler.callers import called_from, on_the_stack
from neurenix.compiler.compile import compiler_ready
from neurenix.preflight.api import On, preflight, slices_on
from neurenix.preflight.describe_program import PreflightOptions, trainer_of
from neurenix.preflight.report.report import Report
from neurenix.preflight.script import jit_hooks
from neurenix.preflight.script.script_exit import (
    LONGEST_SECONDS,
    TimeLimit,
    Waker,
    end_process,
    raise_in_handlers,
    wait_for_threads,
    ways_out_watched,
)
from neurenix.preflight.script.script_step import ScriptRun, ScriptStep

_CALL = "nx.preflight(function, nx.spec(…), on=…)"
_STEPS_OF_FIT = ("fit", "model.fit", "Trainer.fit", "training step")
"""Names of the step of ``fit``; the last one is used in its report."""
_SHOWN_FRAMES = 4
_GRACE_SECONDS = 10.0
"""Time for a script to end once it has reached a step."""


class FirstStep(NamedTuple):
    """The step that a script was about to run.

    Attributes:
        mesh: set there by ``jax.set_mesh``; empty if none was set.
        steps_per_epoch: of ``fit``; None if unknown.
        whole_calls: whether each compiled call makes all of ``steps_per_execution`` steps.
        line: of the script, which calls the step.
    """

    target: Any
    args: tuple[Any, ...]
    mesh: AbstractMesh
    steps_per_epoch: int | None = None
    whole_calls: bool = True
    line: SourceLine | None = None

    def options(self, options: PreflightOptions | None) -> PreflightOptions:
        """Return the options for the step as the script makes it."""
        return replace(options or PreflightOptions(), whole_calls=self.whole_calls)

    @contextmanager
    def context(self) -> Iterator[None]:
        """Set the mesh and the calling line of the script."""
        with jax.sharding.use_abstract_mesh(self.mesh), called_from(self.line):
            yield


class _Reached(hooks.StopScript):
    def __init__(self, step: FirstStep) -> None:
        super().__init__("the first step was reached")
        self.step = step


class _Left(hooks.StopScript):
    """The script ended or replaced the process without Python's own exit."""


def preflight_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    on: Sequence[On],
    mesh: Mapping[str, int] | None = None,
    timeout_seconds: float = 600.0,
    options: PreflightOptions | None = None,
    step: str | None = None,
) -> list[Report]:
    """Run a script up to its first training step and report that step for each slice.

    The first step is the first of these: a step of ``fit``, a call of an ``nx.jit`` function, a
    call by ``strategy.run``. With ``step`` it is the first call of the function of that name that
    these, ``jax.jit`` or ``nnx.jit`` compiled, or for ``"fit"`` the first step of ``fit``. The
    script is then stopped; nothing is trained.

    Args:
        path: of the script.
        arguments: its command line.
        on: names of slices.
        mesh: as for ``preflight``; by default that of the script's strategy.
        timeout_seconds: time limit for reaching a step.
        options: as for ``preflight``.
        step: name of the step's function, or ``"fit"``.

    Raises:
        ArgumentError: the file is missing, or the script failed or ended without a step.
        CompilationError: the script reached no step in time.
    """
    with compiler_ready(options.compiler if options else None):
        run = ScriptRun(os.fspath(path), tuple(arguments), timeout_seconds, step)
        found = first_step(path, arguments, timeout_seconds=timeout_seconds, step=step)
        target = _target(found, run, on)
        options = found.options(options)
        with called_from(found.line):
            reports = preflight(target, *found.args, on=list(on), mesh=mesh, options=options)
    return [replace(report, steps_per_epoch=found.steps_per_epoch) for report in reports]


def step_for(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    on: Sequence[On] = (),
    *,
    timeout_seconds: float = 600.0,
    step: str | None = None,
    options: PreflightOptions | None = None,
) -> tuple[Any, tuple[Any, ...], PreflightOptions]:
    """Return a script's first step as a target of ``preflight``, its arguments and its options.

    The step of ``fit`` can be sharded over any slice. If a function cannot, because the script
    shards its arrays over the devices that it found, the script runs again with other devices.

    Args:
        path: of the script.
        arguments: its command line.
        on: the slices of the preflight.
        timeout_seconds: time limit for reaching a step.
        step: name of the step's function, as for ``preflight_script``.
        options: as for ``preflight``.

    Raises:
        ArgumentError, CompilationError, ArgumentTypeError: as ``first_step``.
    """
    run = ScriptRun(os.fspath(path), tuple(arguments), timeout_seconds, step)
    found = first_step(path, arguments, timeout_seconds=timeout_seconds, step=step)
    return _target(found, run, on), found.args, found.options(options)


def _target(found: FirstStep, run: ScriptRun, on: Sequence[On]) -> Any:
    """Return a step as a target of ``preflight``."""
    if trainer_of(found.target) is None:
        return ScriptStep(found.target, found.mesh, run, slices_on(on))
    return found.target


def first_step(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    timeout_seconds: float = 600.0,
    step: str | None = None,
) -> FirstStep:
    """Run a script up to its first training step and return that step.

    Args:
        path: of the script.
        arguments: its command line.
        timeout_seconds: time limit for reaching a step.
        step: name of the step's function, as for ``preflight_script``.

    Raises:
        ArgumentError: the file is missing, or the script failed or ended without a step.
        CompilationError: the script reached no step in time.
        ArgumentTypeError: the time limit is not a number.
    """
    script = Path(path)
    if not script.is_file():
        raise ArgumentError(f"There is no script {str(path)!r}.")
    if step is not None and not step.rpartition(".")[2].strip():
        raise ArgumentError(f"{step!r} names no function that could be the step.")
    check_seconds("timeout_seconds", timeout_seconds)
    run = _ScriptRun(script, min(timeout_seconds, LONGEST_SECONDS), step)
    return run.until_step(arguments).step


class _ScriptRun:
    """One run of a script, which ends at its first step.

    A bare ``except:`` of the script may catch the exception that stops it. The step counts as
    reached; the exception is raised again at every further step, and the script is stopped after
    ten seconds wherever it is.
    """

    def __init__(self, script: Path, timeout_seconds: float, step: str | None) -> None:
        self._script, self._timeout_seconds, self._step = script, timeout_seconds, step
        self._compiled: list[str] = []
        self._fitted = False
        self._process = os.getpid()
        self._reached: list[_Reached] = []
        self._ways_out: list[str] = []
        self._waker = Waker()
        self._limit = TimeLimit(self._why_without_end)

    def until_step(self, arguments: Sequence[str]) -> _Reached:
        """Run the script with its command line and return the step that it reached.

        Raises:
            ArgumentError: the script failed or ended without a step.
            CompilationError: the script reached no step in time.
        """
        failure: BaseException | None = None
        try:
            self._run(arguments)
        except (Exception, SystemExit, hooks.StopScript) as error:
            failure = error
        if self._reached:
            return self._reached[0]
        if isinstance(failure, NeurenixError):
            place = f"It came from {self._script}, before any training step:\n{_frames(failure)}"
            failure.add_note(place)
            raise failure
        raise self._without_step(failure) from (
            failure.__cause__ if isinstance(failure, hooks.StopScript) else failure
        )

    def _run(self, arguments: Sequence[str]) -> None:
        before, tracing = threading.enumerate(), sys.gettrace()
        with (
            hooks.listening(self._at_fit, self._at_call),
            nullcontext([])
            if self._step is None
            else jit_hooks.watching(self._step) as self._compiled,
            _as_main(self._script, arguments),
            self._limit.of(self._timeout_seconds),
            ways_out_watched(self._at_way_out),
        ):
            try:
                _run_as_main(self._script)
                wait_for_threads(before)
            finally:
                self._waker.close()
                sys.settrace(tracing)

    def _at_fit(
        self, trainer: Any, batch: tuple[Any, ...], steps: int | None, whole_calls: bool
    ) -> None:
        if self._step is None or self._step in _STEPS_OF_FIT:
            self._at_step(trainer, batch, steps, whole_calls)
        self._fitted = True

    def _at_call(self, function: Any, args: tuple[Any, ...]) -> None:
        if self._step is None or jit_hooks.is_named(jit_hooks.name_of(function), self._step):
            self._at_step(function, args)
        self._compiled.append(jit_hooks.name_of(function))

    def _at_step(
        self,
        target: Any,
        args: tuple[Any, ...],
        steps_per_epoch: int | None = None,
        whole_calls: bool = True,
    ) -> NoReturn:
        if os.getpid() != self._process:
            _end_child(
                "a process that the script forked reached a training step, and is stopped there; "
                "only a step of the script's own process is looked at"
            )
        context, line = jax.sharding.get_abstract_mesh(), on_the_stack()
        step = FirstStep(target, args, context, steps_per_epoch, whole_calls, line)
        self._reached.append(_Reached(step))
        if threading.current_thread() is not threading.main_thread():
            self._stop_from_thread()
        if len(self._reached) == 1:
            self._limit.shorten(_GRACE_SECONDS)
        else:
            raise_in_handlers(self._reached[0])
        raise self._reached[0]

    def _at_way_out(self, call: str) -> NoReturn:
        self._ways_out.append(call)
        if threading.current_thread() is not threading.main_thread():
            self._stop_from_thread()
        self._limit.shorten(_GRACE_SECONDS)
        raise self._reached[0] if self._reached else _Left(call)

    def _stop_from_thread(self) -> NoReturn:
        self._waker.wake()
        raise SystemExit  # ends the thread silently

    def _without_step(self, failure: BaseException | None) -> NeurenixError:
        """Return the error of a run that ended before any step, perhaps by ``failure``."""
        if isinstance(failure, hooks.StopScript):
            if self._ways_out:
                return ArgumentError(self._left_by_way_out())
            return CompilationError(self._late())
        ended = f"{self._script} ended"
        if isinstance(failure, SystemExit):
            ended += f" (exit code {failure.code or 0}) before any step"
        elif failure is None:
            ended += " without a step"
        else:
            error = ArgumentError(
                f"{self._script} failed before any training step: "
                f"{type(failure).__name__}: {failure}"
            )
            error.add_note(_frames(failure))
            return error
        return ArgumentError(f"{ended}: {self._called_nothing()}")

    def _why_without_end(self) -> str:
        """Return the message if the process is ended because the script does not stop."""
        if self._reached:
            return (
                f"{self._script} reached a training step, and nothing ends it: it catches what "
                "should, in a loop around the step. Write except Exception: where it says except: "
                "or except BaseException:."
            )
        if self._ways_out:
            return self._left_by_way_out()
        return f"{self._late()} It catches what should stop it."

    def _late(self) -> str:
        hint = step_to_name(self._script) if self._step is None else ""
        return (
            f"{self._script} reached no training step within {self._timeout_seconds:g} s. Allow "
            f"more with --timeout, or let the script begin with less data. {hint}"
        ).rstrip()

    def _left_by_way_out(self) -> str:
        return (
            f"{self._script} called {self._ways_out[0]} before any step: {self._called_nothing()}"
        )

    def _called_nothing(self) -> str:
        if self._step is None:
            return (
                "it called neither fit, nor a function compiled by nx.jit, nor strategy.run. "
                f"{step_to_name(self._script) or f'For plain JAX call {_CALL} in the script.'}"
            )
        if any(jit_hooks.is_named(name, self._step) for name in self._compiled):
            return f"it compiled {self._step}, and called it inside of other functions at most."
        others = sorted(set(self._compiled))
        listed = f"It compiled {', '.join(others) or 'none'}."
        if self._fitted:
            listed += " It called fit, whose step is named by --step fit."
        known = [*others, *_STEPS_OF_FIT[:1]] if self._fitted else others
        return (
            f"it called no compiled function named {self._step!r}."
            f"{did_you_mean(self._step, known)} {listed}"
        )


def step_to_name(script: Path) -> str:
    """Return a hint on ``--step`` for a script in plain JAX or Flax, read from its text."""
    found = jit_hooks.compiled_in(script.read_text(encoding="utf-8", errors="replace"))
    if not found:
        return ""
    names = list(dict.fromkeys(name for name, _ in found))
    likely = max(names, key=lambda name: ("step" in name) + ("train" in name))
    others = f" (the script has {', '.join(names)})" if len(names) > 1 else ""
    jits_of_it = sorted({by for _, by in found})
    return (
        f"What {' and '.join(jits_of_it)} compile{'s' if len(jits_of_it) == 1 else ''} may be "
        f"anything: name the step, such as --step {shlex.quote(likely)}{others}, or call {_CALL} "
        "in the script."
    )


def _run_as_main(script: Path) -> None:
    """Run the script; a process that it forked ends here, without a verdict."""
    owner = os.getpid()
    try:
        run_script(script)
    except SystemExit as left:
        if os.getpid() != owner:
            _end_child(*((left.code, 1) if isinstance(left.code, str) else ("", left.code or 0)))
        raise
    except BaseException:
        if os.getpid() != owner:
            _end_child(traceback.format_exc().rstrip(), 1)
        raise
    if os.getpid() != owner:
        _end_child("", 0)


def _end_child(message: str, status: Any = 2) -> NoReturn:
    """End a forked process without touching its parent's workers and folders."""
    if message:
        print(message, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    end_process(status if isinstance(status, int) else 1)


def _frames(error: BaseException) -> str:
    """Return the user's lines in the traceback of an error."""
    if isinstance(error, SyntaxError):
        return f'  File "{error.filename}", line {error.lineno}'
    own = users_frames(error)
    return "".join(traceback.format_list(own[-_SHOWN_FRAMES:])).rstrip()


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set up the process for a script as Python does, and restore it afterwards.

    Output streams and the working directory are restored too, so that reports go where the command
    was told.
    """
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    folder, streams = os.getcwd(), (sys.stdout, sys.stderr)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main
        sys.stdout, sys.stderr = streams
        os.chdir(folder)
