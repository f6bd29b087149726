"""Find the user's line that calls a library layer of Neurenix.

Owns the search on the stack, and the line that replaces it after a script was stopped at its step.
``hlo`` and ``jaxpr_facts`` own the lines inside a program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from neurenix._core.source_files import SourceLine, is_library

_STOPPED_AT: ContextVar[SourceLine | None] = ContextVar("neurenix_stopped_at", default=None)


def users_caller() -> SourceLine | None:
    """Return the user's innermost line, or where the script stopped; else None.

    Example:
        >>> with called_from(SourceLine("train.py", 7)):
        ...     print(users_caller())
        train.py:7
    """
    return _STOPPED_AT.get() or on_the_stack()


def on_the_stack() -> SourceLine | None:
    """Return the user's innermost line on the stack, if there is one."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            return SourceLine(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


@contextmanager
def called_from(line: SourceLine | None) -> Iterator[None]:
    """Use a line instead of the stack inside a ``with`` block; ``None`` changes nothing."""
    token = _STOPPED_AT.set(line or _STOPPED_AT.get())
    try:
        yield
    finally:
        _STOPPED_AT.reset(token)
