"""A user's script, run unchanged up to its first training step, and that step compiled elsewhere.

Owns running the script and stopping it. The step is handed over by ``compiler.intercept``, which
``fit`` and ``nx.jit`` call.
"""

from __future__ import annotations

import concurrent.futures.thread
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from neurenix._core.errors import ArgumentError, CompilationError, NeurenixError
from neurenix._core.limits import check_seconds
from neurenix._core.main_module import run_script
from neurenix._core.source_files import is_library
from neurenix.compiler import intercept
from neurenix.compiler.compile import compiler_ready
from neurenix.preflight.description import PreflightOptions
from neurenix.preflight.entry import On, preflight
from neurenix.preflight.report import Report

_SHOWN_FRAMES = 4
_TOLD_AT_MOST = 3
_AGAIN_SECONDS = 2.0
_LONGEST = 1e8  # seconds that a timer takes
_GRACE_SECONDS = 10.0
"""For what a script does on its way out once it has reached a step."""

_exit = os._exit  # as it is while a script runs with another in its place
_JITS = re.compile(
    r"^[^#\n]*?(?:\b(?P<name>(?:jax\.(?:jit|pmap)|nnx\.(?:jit|pmap)|(?:eqx|equinox)\.filter_jit))\b"
    r"|\bfrom jax import [^#\n]*\bjit\b)",
    re.MULTILINE,
)
"""What else compiles a step, in a script's text."""


class _Reached(intercept.StopScript):
    def __init__(self, target: Any, args: tuple[Any, ...]) -> None:
        super().__init__("the first step was reached")
        self.target, self.args_of_step = target, args


class _OutOfTime(intercept.StopScript):
    """The script did not reach a step in time."""


class _Left(intercept.StopScript):
    """The script ended the process, or began another program in it, past all that Python does."""


def preflight_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    on: Sequence[On],
    mesh: Mapping[str, int] | None = None,
    timeout_seconds: float = 600.0,
    options: PreflightOptions | None = None,
) -> list[Report]:
    """Run a script up to its first training step and report that step for each slice.

    The first step is that of the first ``fit``, or the first call of a function that ``nx.jit``
    compiled, whichever comes first. The script is then stopped; it trains nothing.

    Args:
        path: of the script.
        arguments: its command line.
        on: names of slices.
        mesh: as for ``preflight``; by default that of the script's strategy.
        timeout_seconds: in which the script must reach a step.
        options: as for ``preflight``.

    Raises:
        ArgumentError: there is no such file, or the script failed or ended without a step.
        CompilationError: it did not reach one in time.
    """
    with compiler_ready(options.compiler if options else None):
        target, args = first_step(path, arguments, timeout_seconds=timeout_seconds)
        return preflight(target, *args, on=list(on), mesh=mesh, options=options)


def first_step(
    path: str | os.PathLike[str], arguments: Sequence[str] = (), *, timeout_seconds: float = 600.0
) -> tuple[Any, tuple[Any, ...]]:
    """Run a script up to its first training step and return what it was about to run, and on what.

    Args:
        path: of the script.
        arguments: its command line.
        timeout_seconds: in which the script must reach a step.

    Raises:
        ArgumentError: there is no such file, or the script failed or ended without a step.
        CompilationError: it did not reach one in time.
        ArgumentTypeError: the time is no number.
    """
    script = Path(path)
    if not script.is_file():
        raise ArgumentError(f"There is no script {str(path)!r}.")
    check_seconds("timeout_seconds", timeout_seconds)
    found = _run(script, arguments, min(timeout_seconds, _LONGEST))
    return found.target, found.args_of_step


def _run(script: Path, arguments: Sequence[str], timeout_seconds: float) -> _Reached:
    """Run the script until it reaches a step, and return that step.

    A script whose bare ``except:`` catches what is to stop it has reached its step all the same. It
    is stopped again at every further step, which none of them takes, and ten seconds later wherever
    it is.
    """
    reached: list[_Reached] = []
    ways_out: list[str] = []
    waker = _Waker()
    verdict_is_of = os.getpid()

    def stop(target: Any, args: tuple[Any, ...]) -> None:
        if os.getpid() != verdict_is_of:
            _end_child(
                "a process that the script forked reached a training step, and is stopped there; "
                "only a step of the script's own process is looked at"
            )
        reached.append(_Reached(target, args))
        if threading.current_thread() is threading.main_thread():
            if len(reached) == 1:
                limit.shorten(_GRACE_SECONDS)
            else:
                _raise_in_handlers(reached[0])
            raise reached[0]
        waker.wake()
        raise SystemExit  # which ends a thread, and nothing is printed

    def leave(way_out: str) -> None:
        ways_out.append(way_out)
        if threading.current_thread() is threading.main_thread():
            limit.shorten(_GRACE_SECONDS)
            raise reached[0] if reached else _Left(way_out)
        waker.wake()
        raise SystemExit

    def at_fit(trainer: Any, x: Any, y: Any) -> None:
        stop(trainer, (x,) if y is None else (x, y))

    late = (
        f"{script} reached no training step within {timeout_seconds:g} s. Allow more with "
        "--timeout, or let the script begin with less data."
    )
    caught = (
        f"{script} reached a training step, and nothing ends it: it catches what should, in a loop "
        "around the step. Write except Exception: where it says except: or except BaseException:."
    )

    def left_by() -> str:
        return (
            f"{script} called {ways_out[0]} before any step: it called neither fit nor a function "
            f"compiled by nx.jit. {_instead(script)}"
        )

    def without_end() -> str:
        if reached:
            return caught
        return left_by() if ways_out else f"{late} It catches what should stop it."

    limit = _TimeLimit(without_end)
    left: SystemExit | None = None
    before, tracing = threading.enumerate(), sys.gettrace()
    try:
        with intercept.listening(at_fit, stop), _as_main(script, arguments):
            with limit.of(timeout_seconds), _ways_out(leave):
                try:
                    _run_as_main(script)
                    _wait_for_threads(before)
                finally:
                    waker.close()
                    sys.settrace(tracing)
    except (_Reached, _OutOfTime, _Left) as stopped:
        if not reached and ways_out:
            raise ArgumentError(left_by()) from stopped.__cause__
        if not reached:
            raise CompilationError(late) from stopped.__cause__
    except SystemExit as error:
        left = error
    except NeurenixError as error:
        if not reached:
            error.add_note(f"It came from {script}, before any training step:\n{_frames(error)}")
            raise
    except Exception as error:
        if not reached:
            failure = ArgumentError(
                f"{script} failed before any training step: {type(error).__name__}: {error}"
            )
            failure.add_note(_frames(error))
            raise failure from error
    if reached:
        return reached[0]
    if left is not None:
        raise ArgumentError(
            f"{script} ended (exit code {left.code or 0}) before any step: it called neither fit "
            f"nor a function compiled by nx.jit. {_instead(script)}"
        ) from left
    raise ArgumentError(
        f"{script} ended without a step: it called neither fit nor a function compiled by nx.jit. "
        f"{_instead(script)}"
    )


def _run_as_main(script: Path) -> None:
    """Run the script. A process that it forked ends here as Python ends it, and says no verdict."""
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
    """End a forked process, and leave what is its parent's (workers, folders) alone."""
    if message:
        print(message, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    _exit(status if isinstance(status, int) else 1)


@contextmanager
def _ways_out(leave: Callable[[str], None]) -> Iterator[None]:
    """Call ``leave`` where this process is about to end without a word or to become another.

    Processes that it forks end as they wish.
    """
    owner = os.getpid()

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if os.getpid() == owner:
                leave(f"os.{name}({args[0] if name == '_exit' and args else '…'})")
            return original(*args, **named)

        return call

    originals = {name: getattr(os, name) for name in ("_exit", "execv", "execve")}
    try:
        for name, original in originals.items():
            setattr(os, name, watched(name, original))
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def _instead(script: Path) -> str:
    """Say what to do where a script without a step has one in plain JAX, as far as it reads so."""
    call = "nx.preflight(function, nx.spec(…), on=…)"
    found = _JITS.search(script.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        return f"For plain JAX call {call} in the script."
    name = found["name"] or "jax.jit"
    return (
        f"What {name} compiles is not looked at, as it may be anything. Compile the step with "
        f"nx.jit in place of {name}, or call {call} in the script, with the function that {name} "
        "returned."
    )


class _Waker:
    """Stops the script, which the main thread runs, from a thread that it started.

    Where the system has no timer signal nothing does, and the script runs on to its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = hasattr(signal, "setitimer")

    def wake(self) -> None:
        """Let ``_TimeLimit`` end the script now."""
        with self._lock:
            main = threading.main_thread().ident
            if self._open and main is not None:
                self._open = False
                signal.pthread_kill(main, signal.SIGALRM)

    def close(self) -> None:
        """Wake nobody any more: the script has ended."""
        with self._lock:
            self._open = False


def _wait_for_threads(before: Sequence[threading.Thread]) -> None:
    """Wait for the threads that the script started, as Python does before it ends.

    Not for those of a pool, which wait for more to do until they are told that there is no more.
    """
    pools = getattr(concurrent.futures.thread, "_threads_queues", ())
    for thread in threading.enumerate():
        if not (thread.daemon or thread in before or thread in pools):
            thread.join()


def _frames(error: BaseException) -> str:
    """Return where an error comes from, in the user's own lines."""
    if isinstance(error, SyntaxError):
        return f'  File "{error.filename}", line {error.lineno}'
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library(frame.filename)]
    return "".join(traceback.format_list(own[-_SHOWN_FRAMES:])).rstrip()


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main


class _TimeLimit:
    """Raises ``_OutOfTime`` in the main thread after a time, where the system has a timer signal.

    A script that catches even that is told again, and at last the process ends with ``message()``
    and status 2: nothing else can end it.
    """

    def __init__(self, message: Callable[[], str]) -> None:
        self._message = message
        self._told = 0
        self._here = hasattr(signal, "setitimer")

    @contextmanager
    def of(self, seconds: float) -> Iterator[None]:
        """Allow so much time for what is done inside."""
        if not self._here:
            yield
            return
        before = signal.signal(signal.SIGALRM, self._expired)
        self.shorten(seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def shorten(self, seconds: float) -> None:
        """Allow so much time from now on."""
        if self._here:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)

    def _expired(self, number: int, frame: Any) -> None:
        del number, frame
        self._told += 1
        if self._told > _TOLD_AT_MOST:
            os.write(2, f"neurenix: {self._message()}\n".encode())
            _exit(2)
        raise _OutOfTime("out of time")


def _raise_in_handlers(error: BaseException) -> None:
    """Let the first line of the script that catches an exception from now on raise ``error``.

    Raised in an ``except:``, it is out of the reach of that ``except:`` and so of a loop around it.
    Python forgets the tracing as soon as it raises.
    """

    def tracer(frame: Any, event: str, argument: Any) -> Any:
        del frame, argument
        if event == "line":
            raise error
        return tracer

    frame = sys._getframe()
    while frame := frame.f_back:
        if not is_library(frame.f_code.co_filename):
            frame.f_trace = tracer
    sys.settrace(lambda *call: None)  # functions called from now on are left alone
