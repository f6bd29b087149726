"""Print errors on the command line, and map early ends to exit statuses.

Owns the statuses of user errors, closed pipes, Ctrl-C and SIGTERM. Each command owns the status of
its result.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from neurenix._core.errors import NeurenixError

MISTAKE = 2
_PIPE_CLOSED = 128 + 13  # the shell's status for SIGPIPE
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


def show(error: Exception) -> None:
    """Print an error and its notes, without a traceback."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    print(f"neurenix: {error}{notes}", file=sys.stderr)


class ReaderGone(BaseException):
    """The reader of the output closed the pipe, as ``head`` does. Typer would exit with 1."""


class Interrupted(BaseException):
    """Ctrl-C. Typer would print "Aborted" and exit with status 1."""


class _Terminated(BaseException):
    """SIGTERM. Not an ``Exception``, so that a script's ``except Exception`` does not catch it."""


@contextmanager
def ending_clean() -> Iterator[None]:
    """Turn SIGTERM, a ``NeurenixError``, Ctrl-C and a closed pipe into exit statuses.

    SIGTERM raises an exception, so that cleanup runs. A second SIGTERM ends the process at once.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_end_at_once)
    try:
        try:
            yield
        except SystemExit:  # how commands end
            _flush()
            raise
        _flush()
    except _Terminated:
        sys.exit(_TERMINATED)
    except (KeyboardInterrupt, Interrupted):
        print("neurenix: interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except (BrokenPipeError, ReaderGone):
        _write_no_more()
        sys.exit(_PIPE_CLOSED)
    except NeurenixError as error:
        show(error)
        sys.exit(MISTAKE)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _flush() -> None:
    """Flush the output now: errors in Python's flush at exit are lost.

    Raises:
        NeurenixError: the output cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _write_no_more()
        raise NeurenixError(f"The output cannot be written: {error.strerror}.") from error


def _write_no_more() -> None:
    """Redirect the output to the null device, because Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _end_at_once() -> None:
    """Restore the default SIGTERM in a forked process; its parent cleans up."""
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: Any) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    raise _Terminated
