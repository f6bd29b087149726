"""How an error is shown on the command line, and how a command ends early.

Owns the form of a message, and the exit status of a mistake, of a reader that is gone, of Ctrl-C
and of SIGTERM. What a command finds out has a status of its own.
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
_PIPE_CLOSED = 128 + 13  # as a shell says of a command that SIGPIPE ended
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


def show(error: Exception) -> None:
    """Print an error and what was noted on it, without a traceback."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    print(f"neurenix: {error}{notes}", file=sys.stderr)


class ReaderGone(BaseException):
    """Whoever read the output has gone, as ``head`` does. Typer would end with status 1 for it."""


class Interrupted(BaseException):
    """Ctrl-C came. Typer would say that it aborted, and end with status 1."""


class _Terminated(BaseException):
    """SIGTERM came. Not an ``Exception``: a script that catches those must not catch this."""


@contextmanager
def ending_clean() -> Iterator[None]:
    """Turn SIGTERM, an error of ours and a reader that is gone into exit statuses.

    SIGTERM becomes an exception, so that what was begun is cleaned up; a second one ends at once.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_end_at_once)
    try:
        try:
            yield
        except SystemExit:  # as commands end
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
    """Write what is left of the output: where Python does it as it ends, nobody hears of an error.

    Raises:
        NeurenixError: it cannot be written.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _write_no_more()
        raise NeurenixError(f"The output cannot be written: {error.strerror}.") from error


def _write_no_more() -> None:
    """Send the output nowhere: Python flushes once more as it ends, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _end_at_once() -> None:
    """Let SIGTERM end a forked process as it ends any other: cleaning up is its parent's."""
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: Any) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    raise _Terminated
