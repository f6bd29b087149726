"""What commands print, and the files that they are told to write.

Owns colours, a standard output that is kept for JSON, one that lacks characters, and the check of
files before the work begins. It words nothing.
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
    """Print a report, with colours where there is a terminal that has them."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console

    from neurenix.preflight.report.report_text import styled

    Console(highlight=False).print(styled(text), soft_wrap=True)


def check_files(*paths: Path | None, keep: Path | None = None) -> None:
    """Check that files can be written before there is anything to write.

    Args:
        *paths: of the files; None for none, and ``-`` for the output.
        keep: the user's script, which must not be written over.

    Raises:
        ArgumentError: one of them cannot be written.
    """
    for path in paths:
        if path is None or path == TO_STDOUT:
            continue
        check_writable(path)
        if keep is not None and path.exists() and keep.exists() and path.samefile(keep):
            raise ArgumentError(f"{str(path)!r} is the script itself. Name another file.")


_GIVEN: list[tuple[TextIO, str]] = []  # streams, and how they treated what they cannot show


def spell_all() -> None:
    """Let the outputs spell what their encoding lacks, and be there where they were closed."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    _GIVEN[:] = [(stream, takes_all(stream)) for stream in (sys.stdout, sys.stderr)]


def as_given() -> None:
    """Take ``spell_all`` back: a program that is run finds the outputs as Python gives them."""
    for stream, errors in _GIVEN:
        with suppress(AttributeError):  # not a stream of Python's own
            stream.reconfigure(errors=errors)  # pyright: ignore[reportAttributeAccessIssue]
    _GIVEN.clear()


@contextmanager
def output_for(path: Path | None) -> Iterator[TextIO]:
    """Give the standard output, free of what script and report print where ``path`` is ``-``."""
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
    """Write a file whole or not at all, or to ``output`` where ``path`` is ``-``."""
    if path == TO_STDOUT:
        print(text, file=output)
    elif path is not None:
        write_whole(path, text)
