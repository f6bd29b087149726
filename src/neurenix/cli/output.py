"""Print reports and write the files of ``--json`` and ``--html``.

Owns colours, the standard output reserved for JSON, output encodings that lack characters, and the
check of files before the work begins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from neurenix._core.errors import ArgumentError
from neurenix._core.files import check_writable, write_whole
from neurenix._core.output_encoding import takes_all

TO_STDOUT = Path("-")


def show_text(text: str) -> None:
    """Print a report, with colours on a terminal."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console

    from neurenix.preflight.report.report_text import styled

    Console(highlight=False).print(styled(text), soft_wrap=True)


def check_files(*paths: Path | None, keep: Path | None = None) -> None:
    """Check that files can be written, before the work begins.

    Args:
        *paths: the files. None and ``-`` (the standard output) pass.
        keep: the user's script, which must not be overwritten.

    Raises:
        ArgumentError: a file cannot be written or is the script.
    """
    for path in paths:
        if path is None or path == TO_STDOUT:
            continue
        check_writable(path)
        if keep is not None and path.exists() and keep.exists() and path.samefile(keep):
            raise ArgumentError(f"{str(path)!r} is the script itself. Name another file.")


_GIVEN: list[tuple[TextIO, str]] = []  # streams and their original error handlers


def spell_all() -> None:
    """Escape characters that an output's encoding lacks, and replace closed outputs."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    _GIVEN[:] = [(stream, takes_all(stream)) for stream in (sys.stdout, sys.stderr)]


def as_given() -> None:
    """Undo ``spell_all``, so that a user's program gets Python's own outputs."""
    for stream, errors in _GIVEN:
        with suppress(AttributeError):  # not a text stream of Python
            stream.reconfigure(errors=errors)  # pyright: ignore[reportAttributeAccessIssue]
    _GIVEN.clear()


@contextmanager
def output_for(path: Path | None) -> Iterator[TextIO]:
    """Yield the standard output. If ``path`` is ``-``, other prints go to the standard error."""
    if path != TO_STDOUT:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as output:
            yield output
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def write_text(path: Path | None, text: str, output: TextIO) -> None:
    """Write a file atomically, or write to ``output`` if ``path`` is ``-``."""
    if path == TO_STDOUT:
        print(text, file=output)
    elif path is not None:
        write_whole(path, text)
