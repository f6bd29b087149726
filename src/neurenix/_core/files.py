"""Writing a file that somebody asked for by its path.

Owns that a regular file is there whole or not at all, and the words when it cannot be written. What
is in the file is its writer's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from neurenix._core.errors import ArgumentError


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that it is there whole or not at all.

    A link stays one, and what it leads to is written. A device, a pipe or whatever else is there
    and is no regular file is written to as it is: it cannot be replaced.

    Args:
        path: of the file.
        content: bytes, or text that is written in UTF-8.

    Raises:
        ArgumentError: it cannot be written; the message names ``path`` and the cause.
    """
    data = content if isinstance(content, bytes) else content.encode()
    try:
        if _is_special(path):
            with open(path, "wb") as file:
                file.write(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise ArgumentError(f"{os.fspath(path)} cannot be written: {error.strerror}.") from error


def _is_special(path: str | os.PathLike[str]) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _replace(target: Path, data: bytes) -> None:
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
