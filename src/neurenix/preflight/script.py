"""A user's script, run unchanged up to its first training step, and that step compiled elsewhere.

Owns running the script and stopping it. The step is handed over by ``compiler.intercept``, which
``fit`` and ``nx.jit`` call.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neurenix._core.errors import ArgumentError, CompilationError
from neurenix.compiler import intercept
from neurenix.preflight.entry import On, PreflightOptions, preflight
from neurenix.preflight.report import Report


class _Reached(intercept.StopScript):
    def __init__(self, target: Any, args: tuple[Any, ...]) -> None:
        super().__init__("the first step was reached")
        self.target, self.args_of_step = target, args


class _OutOfTime(intercept.StopScript):
    """The script did not reach a step in time."""


def preflight_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    on: Sequence[On],
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
        timeout_seconds: in which the script must reach a step.
        options: as for ``preflight``.

    Raises:
        ArgumentError: there is no such file, or the script ended without a step.
        CompilationError: it did not reach one in time.
    """
    script = Path(path)
    if not script.is_file():
        raise ArgumentError(f"There is no script {str(path)!r}.")
    try:
        with intercept.listening(_stop_at_fit, _stop_at_call), _as_main(script, arguments):
            with _time_limit(timeout_seconds):
                runpy.run_path(str(script), run_name="__main__")
    except _Reached as reached:
        return preflight(reached.target, *reached.args_of_step, on=list(on), options=options)
    except _OutOfTime:
        raise CompilationError(
            f"{script} reached no training step within {timeout_seconds:.0f} s. Allow more with "
            "--timeout, or let the script begin with less data."
        ) from None
    except SystemExit as left:
        raise ArgumentError(
            f"{script} ended (exit code {left.code or 0}) before any step: it called neither fit "
            "nor a function compiled by nx.jit."
        ) from left
    raise ArgumentError(
        f"{script} ended without a step: it called neither fit nor a function compiled by nx.jit. "
        "For plain JAX call nx.preflight(function, nx.spec(…), on=…) in the script."
    )


def _stop_at_fit(trainer: Any, x: Any, y: Any) -> None:
    raise _Reached(trainer, (x,) if y is None else (x, y))


def _stop_at_call(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    raise _Reached(function, args)


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.resolve()))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise ``_OutOfTime`` after ``seconds``, where the system has a timer signal."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def expired(number: int, frame: Any) -> None:
        del number, frame
        raise _OutOfTime("out of time")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
