"""What commands print, and the files that they are told to write.

Owns colours, a standard output that is kept for JSON, and the check of a file's folder before the
work begins. It words nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from neurenix._core.errors import ArgumentError
from neurenix._core.files import write_whole

TO_STDOUT = Path("-")


def show_text(text: str) -> None:
    """Print a report, with colours where there is a terminal that has them."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console

    from neurenix.preflight.terminal import styled

    Console(highlight=False).print(styled(text), soft_wrap=True)


def check_folders(*paths: Path | None) -> None:
    """Check that files can be written before there is anything to write.

    Raises:
        ArgumentError: the folder of one of them is not there, or one is itself a folder.
    """
    for path in paths:
        if path is None or path == TO_STDOUT:
            continue
        if not path.parent.is_dir():
            raise ArgumentError(f"There is no folder {str(path.parent)!r} to write into.")
        if path.is_dir():
            raise ArgumentError(f"{str(path)!r} is a folder; name a file in it.")


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
